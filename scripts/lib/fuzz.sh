#!/bin/bash
# usage: fuzz.sh RESULTS SECONDS: runs every fuzz target of the fuzz build, two at a time, each from a copy of its
# committed corpus; appends a line for each to RESULTS. A crash leaves its input in build/fuzz/crashes.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/console.sh"
readonly BUILD=$REPOSITORY/build/fuzz
readonly RESULTS=$1 TIME_LIMIT=$2
mkdir -p "$BUILD/crashes"

# DESCRIPTION holds the program's path and the corpus folder, a line each.
fuzz_one() {
  local program corpus name work log
  { read -r program && read -r corpus; } <"$1"
  name=$(basename "$program")
  work=$BUILD/corpus/$name
  log=$BUILD/$name.log
  rm -rf "$work"
  mkdir -p "$work"
  if [[ -d $corpus ]]; then
    cp -r "$corpus/." "$work/"
  fi
  if (cd "$work" && "$program" -max_total_time="$TIME_LIMIT" -timeout=10 -rss_limit_mb=2048 -use_value_profile=1 \
    -print_final_stats=1 -verbosity=1 -artifact_prefix="$BUILD/crashes/$name-" "$work") >"$log" 2>&1; then
    printf 'fuzz\t%s\tpassed\t\n' "$name"
    printf '%s: %s inputs, no crash\n' "$name" "$(awk '/stat::number_of_executed_units/ {print $2}' "$log")" >&2
  else
    local reproducer
    reproducer=$(grep -o "$BUILD/crashes/.*" "$log" | head -n 1)
    tail -n 25 "$log" >&2
    printf 'fuzz\t%s\tfailed\t%s\n' "$name" "reproduce with: $program ${reproducer:-(no input was saved; see $log)}"
  fi
}
export -f fuzz_one
export BUILD TIME_LIMIT

mapfile -t targets < <(find "$BUILD/fuzzers" -name '*.txt' 2>/dev/null | sort)
((${#targets[@]})) || fail "the fuzz build has no fuzz targets."
say "${#targets[@]} targets, $TIME_LIMIT s each: about $((TIME_LIMIT * ((${#targets[@]} + 1) / 2))) s"
printf '%s\n' "${targets[@]}" | xargs -P 2 -I{} bash -c 'fuzz_one {}' >>"$RESULTS"
