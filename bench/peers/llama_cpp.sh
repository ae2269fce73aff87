#!/usr/bin/env bash
# Compares tokenbutler-bench with llama.cpp on the same model file, side by side.
#
# usage: bench/peers/llama_cpp.sh MODEL.gguf [--depths 0 4096 8192] [--repeats 5] [--output FILE.json] ...
#        (options: compare_llama_cpp.py --help)
#        bench/peers/llama_cpp.sh --sparse MODEL.gguf [--depths 8192 65536 262144] [--output FILE.json] ...
#        (decode against context, ours with sparse attention; options: compare_sparse.py --help)
#
# The first run builds llama-cpp-python from source (about ten minutes on two cores) into its own
# environment, $TOKENBUTLER_CACHE/peers/llama-cpp; TOKENBUTLER_LLAMA_VENV names another one.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
cache=${TOKENBUTLER_CACHE:-$HOME/.cache/tokenbutler}
venv=${TOKENBUTLER_LLAMA_VENV:-$cache/peers/llama-cpp}
version=0.3.36
program=compare_llama_cpp.py
if [[ ${1:-} == --sparse ]]; then
  program=compare_sparse.py
  shift
fi

if ! "$venv/bin/python" -c "import llama_cpp; assert llama_cpp.__version__ == '$version'" 2>/dev/null; then
  echo "llama_cpp.sh: building llama-cpp-python $version into $venv" >&2
  mkdir -p "$(dirname "$venv")"
  python3 -m venv "$venv"
  # GGML_NATIVE (the default) compiles for this CPU: the fastest llama.cpp this machine can run.
  "$venv/bin/pip" install --quiet --no-binary llama-cpp-python "llama-cpp-python==$version"
fi
if [[ ! -x $root/build/cpu-release/bench/tokenbutler-bench ]]; then
  echo "llama_cpp.sh: build/cpu-release/bench/tokenbutler-bench is missing:" \
    "run cmake --preset cpu-release && cmake --build --preset cpu-release" >&2
  exit 1
fi
exec "$venv/bin/python" "$root/bench/peers/$program" \
  --bench "$root/build/cpu-release/bench/tokenbutler-bench" "$@"
