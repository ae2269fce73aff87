#!/usr/bin/env bash
# Measures speed and quality of sparse decoding on this machine and writes docs/performance.md's tables and images.
# Each part can be interrupted and started again: it goes on where it was. Nothing else should be running.
#
#   bench/measure.sh quality MODEL... [-- OPTIONS of tokenbutler-eval kl]
#   bench/measure.sh decode MODEL... [-- OPTIONS of tokenbutler-bench decode]
#   bench/measure.sh link MODEL... [-- OPTIONS of tokenbutler-bench link]
#   bench/measure.sh peers MODEL... [-- OPTIONS of bench/peers/compare_sparse.py]
#   bench/measure.sh report       (draws and writes what has been measured so far; needs PyPI the first time)
#   bench/measure.sh clean        (forgets all results and prefilled texts, as needed after a change of the code)
#
# decode measures what docs/performance.md shows (tokenbutler-bench decode --page): minutes for each model.
# MODEL: a .gguf file. Results go to build/measurements. Texts come from bench/quality_corpus.py.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib/console.sh"

readonly BENCH=$REPOSITORY/build/cpu-release/bench/tokenbutler-bench
readonly EVAL=$REPOSITORY/build/cpu-release/tools/eval/tokenbutler-eval
readonly RESULTS=$REPOSITORY/build/measurements
readonly CORPUS=$RESULTS/corpus
readonly PLOT_VENV=$CACHE/plot-venv

# measure COMMAND MODEL OPTIONS...: one run, whose result is named after the model.
measure() {
  local command=$1 model=$2
  shift 2
  local name
  name=$(basename "$model" .gguf)
  headline "$command: $name"
  local program=("$BENCH" "$command")
  [[ $command != quality ]] || program=("$EVAL" kl)
  "${program[@]}" "$model" --resume "$RESULTS/$command-$name.jsonl" --output "$RESULTS/$command-$name.json" \
    --fact "date=$(date -u +%F)" --fact "commit=$(git -C "$REPOSITORY" rev-parse --short HEAD)" "$@"
}

report() {
  local decode=("$RESULTS"/decode-*.json) quality=("$RESULTS"/quality-*.json) link=("$RESULTS"/link-*.json)
  local peers=("$RESULTS"/peers-*.json)
  [[ -e ${decode[0]} ]] || fail "there are no results of decode in $RESULTS: run bench/measure.sh decode MODEL first."
  [[ -e ${quality[0]} ]] || quality=()
  [[ -e ${link[0]} ]] || link=()
  [[ -e ${peers[0]} ]] || peers=()
  if ! "$PLOT_VENV/bin/python" -c 'import matplotlib' 2>/dev/null; then
    headline "Install matplotlib into $PLOT_VENV"
    python3 -m venv "$PLOT_VENV"
    "$PLOT_VENV/bin/pip" install --quiet -r "$REPOSITORY/bench/requirements.txt"
  fi
  "$PLOT_VENV/bin/python" "$REPOSITORY/bench/plot.py" --decode "${decode[@]}" --quality "${quality[@]}" \
    --link "${link[@]}" --peers "${peers[@]}" --images "$REPOSITORY/docs/images" --page "$REPOSITORY/docs/performance.md"
  say "docs/performance.md and docs/images are up to date."
}

(($#)) || { show_help && exit 1; }
command=$1
shift
models=() options=()
while (($#)); do
  case $1 in
    -h | --help) show_help && exit 0 ;;
    --) shift && options=("$@") && break ;;
    -*) fail "unknown option '$1': options of the programs come after --." ;;
    *) models+=("$1") ;;
  esac
  shift
done
case $command in
  quality | decode | link)
    ((${#models[@]})) || fail "give a model: bench/measure.sh $command MODEL.gguf"
    build cpu-release tokenbutler-bench tokenbutler-eval
    mkdir -p "$RESULTS"
    if [[ $command == decode ]]; then
      options=(--page "${options[@]}")
    else
      python3 "$REPOSITORY/bench/quality_corpus.py" "$CORPUS" >/dev/null
      options+=(--text "$CORPUS"/*.txt --prefill-cache "$RESULTS/prefilled")
    fi
    for model in "${models[@]}"; do measure "$command" "$model" "${options[@]}"; done
    ;;
  peers)
    ((${#models[@]})) || fail "give a model: bench/measure.sh peers MODEL.gguf"
    build cpu-release tokenbutler-bench
    mkdir -p "$RESULTS"
    for model in "${models[@]}"; do
      headline "peers: $(basename "$model")"
      "$REPOSITORY/bench/peers/llama_cpp.sh" --sparse "$model" --output "$RESULTS/peers-$(basename "$model" .gguf).json" \
        "${options[@]}"
    done
    ;;
  report) report ;;
  clean) rm -rf "$RESULTS" ;;
  -h | --help) show_help ;;
  *) fail "unknown command '$command': quality, decode, link, peers, report or clean." ;;
esac
