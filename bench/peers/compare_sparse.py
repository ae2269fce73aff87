#!/usr/bin/env python3
"""Decode time against context: llama.cpp (f16 KV cache) beside our dense, quality and fast settings.

llama.cpp prefills its first tokens; deeper contexts are filled with copies of these, moved to the positions that follow
(rows marked "filled"), which are as much to read as real ones and take no hours of prefill. Ours are filled at random
(tokenbutler-bench decode). Started by llama_cpp.sh --sparse.
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile

import llama_cpp
from llama_context import LlamaCpp

SETTINGS = ["dense", "quality", "fast"]


def run_ours(options, depth):
    """Rows by setting."""
    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "ours.json")
        subprocess.run([options.bench, "decode", options.model, "--output", output, "--threads", str(options.threads),
                        "--settings", *SETTINGS, "--budgets", str(options.budget), "--depths", str(depth),
                        "--repeats", str(options.repeats)],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(output, encoding="utf-8") as file:
            result = json.load(file)
    return result, {row["setting"]: row for row in result["rows"]}


def show_progress(text):
    print(f"\r{text}   ", end="", file=sys.stderr, flush=True)


def row_of(depth, llama_ms, how, ours):
    row = {"depth": depth, "llama_ms": llama_ms, "llama": how}
    for setting in SETTINGS:
        if setting in ours:
            row[f"{setting}_ms"] = ours[setting]["ms_per_token"]
            row[f"llama_over_{setting}"] = llama_ms / ours[setting]["ms_per_token"]
    return row


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a .gguf file")
    parser.add_argument("--bench", required=True, help="the tokenbutler-bench program")
    parser.add_argument("--depths", type=int, nargs="+", default=[4096, 8192, 16384, 32768, 65536, 131072, 262144],
                        help="lengths of the contexts (default: %(default)s)")
    parser.add_argument("--prefill", type=int, default=8192,
                        help="tokens that llama.cpp prefills; deeper contexts hold copies (default: %(default)s)")
    parser.add_argument("--budget", type=int, default=4096, help="our token budget")
    parser.add_argument("--decode-tokens", type=int, default=16, help="that llama.cpp decodes at each depth")
    parser.add_argument("--chunk-tokens", type=int, default=512, help="tokens per prefill batch")
    parser.add_argument("--repeats", type=int, default=3, help="of ours")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--output", help="also write the result as JSON to this file")
    options = parser.parse_args()
    for name, least in (("depths", min(options.depths)), ("prefill", options.prefill)):
        if least < 1:
            parser.error(f"--{name} has {least}, at least 1 token is needed")
    options.depths.sort()
    return options


def main():
    options = parse_options()
    num_tokens = options.depths[-1] + options.decode_tokens + 1
    llama = LlamaCpp(options.model, options.threads, num_tokens, options.chunk_tokens)
    rows, prefilled, facts = [], 0, {}
    for depth in options.depths:
        real = min(depth, options.prefill)
        llama.extend(prefilled, real, lambda done, end=real: show_progress(f"llama.cpp: prefill {done}/{end}"))
        prefilled = max(prefilled, real)
        if depth > prefilled:
            llama.fill(prefilled, depth)
        # The first step moves the copies to their positions.
        llama_ms = statistics.median(llama.decode(depth, options.decode_tokens + 1)[1:]) * 1e3
        llama.truncate(prefilled)
        show_progress(f"tokenbutler: depth {depth}")
        facts, ours = run_ours(options, depth)
        rows.append(row_of(depth, llama_ms, "prefilled" if depth == prefilled else "filled", ours))
    print(file=sys.stderr)

    report = {"benchmark": "sparse decode beside llama.cpp", "model": facts["model"], "cpu": facts["cpu"],
              "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(), "threads": options.threads,
              "llama_cpp_python": llama_cpp.__version__, "token_budget": options.budget,
              "llama_file_bytes": os.path.getsize(options.model), "ours_weight_bytes": facts["weight_bytes_per_step"],
              "ours_dtype": facts["dtype"], "rows": rows}
    for name, value in report.items():
        if name != "rows":
            print(f"{name}: {value}")
    print("  ".join(rows[0]))
    for row in rows:
        cells = (f"{value:>{len(name)}.2f}" if isinstance(value, float) else f"{value:>{len(name)}}"
                 for name, value in row.items())
        print("  ".join(cells))
    if options.output:
        with open(options.output, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    main()
