#!/bin/bash
# usage: tidy.sh RESULTS: clang-tidy over every source file of ours that the optimised build compiles; appends a
# line for each to RESULTS. The checks are in .clang-tidy.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/console.sh"
cd "$REPOSITORY"

files=$(python3 - build/cpu-release/compile_commands.json <<'PYTHON'
import json, os, sys
root, build = os.getcwd() + "/", os.getcwd() + "/build/"
files = {entry["file"] for entry in json.load(open(sys.argv[1]))}
print("\n".join(sorted(f[len(root):] for f in files if f.startswith(root) and not f.startswith(build))))
PYTHON
)
num_files=$(wc -l <<<"$files")
say "$num_files files"
readonly OUTPUT=build/tidy
rm -rf "$OUTPUT"
mkdir -p "$OUTPUT"

check_one() {
  local log=$OUTPUT/${1//\//_}.log
  if "$CLANG_TIDY" --quiet -p build/cpu-release "$1" >"$log" 2>&1; then
    printf 'tidy\t%s\tpassed\t\n' "$1"
  else
    grep -E '(error|warning): ' "$log" >&2 || cat "$log" >&2
    printf 'tidy\t%s\tfailed\t%s\n' "$1" "see $log"
  fi
}
export -f check_one
export OUTPUT CLANG_TIDY
# One line per file as it finishes; lines are shorter than a pipe's atomic write.
xargs -P "$(build_jobs)" -I{} bash -c 'check_one {}' <<<"$files" | tee -a "$1" |
  awk -v total="$num_files" '{printf "[%d/%d] %s %s\n", NR, total, $2, $3; fflush()}'
