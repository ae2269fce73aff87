# shellcheck shell=bash disable=SC2034
# Sourced by the scripts beside this folder: how they speak, and where things are.

REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
readonly REPOSITORY
CACHE=$(realpath -m "${TOKENBUTLER_CACHE:-$HOME/.cache/tokenbutler}")
readonly CACHE
readonly TORCH_ROOT=$CACHE/torch-2.11.0
readonly TEST_VENV=$CACHE/test-venv
readonly CLANG_TIDY_ROOT=$CACHE/clang-tidy-23.1.4
readonly CLANG_TIDY=$CLANG_TIDY_ROOT/clang_tidy/data/bin/clang-tidy
readonly DEMO_MODEL=$CACHE/models/SmolLM2-135M-Instruct.Q4_1.gguf
export TOKENBUTLER_CACHE=$CACHE

if [[ -t 1 ]]; then
  readonly BOLD=$'\e[1m' RED=$'\e[31m' RESET=$'\e[0m'
else
  readonly BOLD='' RED='' RESET=''
fi

# What -h and --help print: the comment that a script begins with.
show_help() { awk 'NR > 1 && /^#/ {sub(/^# ?/, ""); print; next} NR > 1 {exit}' "$0"; }

# A headline: what happens next.
headline() { printf '\n%s== %s%s\n' "$BOLD" "$*" "$RESET"; }
say() { printf '%s\n' "$*"; }
# One sentence that says what went wrong and what to do; ends the script.
fail() {
  printf '%sError: %s%s\n' "$RED" "$*" "$RESET" >&2
  exit 1
}

# Compiler processes at once: the processors, but no more than one for each 2 GiB of memory.
build_jobs() {
  local cpus memory_gib
  cpus=$(nproc)
  memory_gib=$(awk '/^MemAvailable:/ {print int($2 / 1048576)}' /proc/meminfo)
  local by_memory=$((memory_gib / 2 > 0 ? memory_gib / 2 : 1))
  echo $((cpus < by_memory ? cpus : by_memory))
}

# build PRESET [TARGET...]: configures when needed and builds, with ninja's progress on screen.
build() {
  local preset=$1
  shift
  (
    cd "$REPOSITORY"
    local log=build/$preset/configure.log
    mkdir -p "build/$preset"
    if ! cmake --preset "$preset" >"$log" 2>&1; then
      tail -n 30 "$log" >&2
      exit 1
    fi
    local targets=()
    if (($#)); then
      targets=(--target "$@")
    fi
    cmake --build "build/$preset" -j "$(build_jobs)" "${targets[@]}"
  ) || fail "the $preset build failed; the first error is above (search for 'error:')."
}
