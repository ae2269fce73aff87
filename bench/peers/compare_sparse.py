#!/usr/bin/env python3
"""Decode time against context: llama.cpp (f16 KV cache) beside our dense, quality and fast settings.

llama.cpp's contexts are real: prefilled from the first token on, with a few tokens decoded at each depth on the way.
Ours are filled at random (tokenbutler-bench decode), which costs no prefill and the same reads. Depths that
llama.cpp did not reach are extrapolated linearly from those that it did, and marked. Started by
llama_cpp.sh --sparse.
"""

import argparse
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
    parser.add_argument("--depths", type=int, nargs="+", default=[4096, 8192, 16384],
                        help="contexts that llama.cpp prefills, at least two (default: %(default)s)")
    parser.add_argument("--extrapolate", type=int, nargs="*", default=[65536, 262144], help="deeper ones")
    parser.add_argument("--budget", type=int, default=4096, help="our token budget")
    parser.add_argument("--decode-tokens", type=int, default=16, help="that llama.cpp decodes at each depth")
    parser.add_argument("--chunk-tokens", type=int, default=512, help="tokens per prefill batch")
    parser.add_argument("--repeats", type=int, default=3, help="of ours")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--output", help="also write the result as JSON to this file")
    options = parser.parse_args()
    if len(options.depths) < 2:
        parser.error("--depths has one depth, a line needs two")
    options.depths.sort()
    return options


def main():
    options = parse_options()
    num_tokens = options.depths[-1] + options.decode_tokens
    llama = LlamaCpp(options.model, options.threads, num_tokens, options.chunk_tokens)
    rows, measured, at, facts = [], [], 0, {}
    for depth in options.depths:
        llama.extend(at, depth, lambda done, end=depth: show_progress(f"llama.cpp: prefill {done}/{end}"))
        llama_ms = statistics.median(llama.decode(depth, options.decode_tokens)) * 1e3
        at = depth + options.decode_tokens
        measured.append(llama_ms)
        show_progress(f"tokenbutler: depth {depth}")
        facts, ours = run_ours(options, depth)
        rows.append(row_of(depth, llama_ms, "measured", ours))
    slope, intercept = statistics.linear_regression(options.depths, measured)
    for depth in options.extrapolate:
        show_progress(f"tokenbutler: depth {depth}")
        _, ours = run_ours(options, depth)
        rows.append(row_of(depth, intercept + slope * depth, "extrapolated", ours))
    print(file=sys.stderr)

    report = {"benchmark": "sparse decode beside llama.cpp", "model": facts["model"], "cpu": facts["cpu"],
              "threads": options.threads, "llama_cpp_python": llama_cpp.__version__, "token_budget": options.budget,
              "llama_file_bytes": os.path.getsize(options.model), "ours_weight_bytes": facts["weight_bytes_per_step"],
              "ours_dtype": facts["dtype"], "llama_us_per_1k_tokens": slope * 1024 * 1e3, "rows": rows}
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
