#!/usr/bin/env python3
"""Runs tokenbutler-bench and llama.cpp in turns on one GGUF file and compares prefill and decode.

Both prefill the same number of tokens in the same batches, then decode one token at a time at the same
depths, with the same number of threads. llama.cpp computes on the file's own (quantised) weights and an
f16 KV cache, tokenbutler on weights dequantised to its compute dtype: for decode, which is bound by
memory, the bytes read per token differ, and the table shows them. Started by llama_cpp.sh.
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


def run_ours(options):
    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "ours.json")
        command = [options.bench, "model", options.model, "--repeats", "1", "--output", output,
                   "--threads", str(options.threads), "--prefill-tokens", str(options.prefill_tokens),
                   "--prefill-chunk-tokens", str(options.chunk_tokens),
                   "--decode-tokens", str(options.decode_tokens), "--depths", *map(str, options.depths)]
        if options.dtype:
            command += ["--dtype", options.dtype]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(output, encoding="utf-8") as file:
            return json.load(file)


def run_llama(llama, options, depth):
    """(prefill tokens/s, median decode ms) at one depth; positions as tokenbutler-bench chooses them."""
    start = min(depth, llama.max_position - options.decode_tokens)
    prompt = max(start, options.prefill_tokens)
    prefill = prompt / llama.prefill(prompt)
    if start < prompt:  # depth 0: decode from an empty cache
        llama.clear()
    return prefill, statistics.median(llama.decode(start, options.decode_tokens)) * 1e3


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a .gguf file")
    parser.add_argument("--bench", required=True, help="the tokenbutler-bench program")
    parser.add_argument("--depths", type=int, nargs="+", default=[0, 4096, 8192])
    parser.add_argument("--prefill-tokens", type=int, default=512, help="prompt length at depth 0")
    parser.add_argument("--chunk-tokens", type=int, default=512, help="tokens per prefill batch")
    parser.add_argument("--decode-tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--dtype", help="tokenbutler's compute dtype (default: its own choice)")
    parser.add_argument("--output", help="also write the result as JSON to this file")
    options = parser.parse_args()
    for depth in options.depths:
        if 0 < depth < options.prefill_tokens:
            parser.error(f"a depth is {depth}, must be 0 or at least --prefill-tokens ({options.prefill_tokens})")
    return options


def main():
    options = parse_options()
    num_tokens = max(options.depths + [options.prefill_tokens]) + options.decode_tokens
    llama = LlamaCpp(options.model, options.threads, num_tokens, options.chunk_tokens)
    run_llama(llama, options, 0)  # warm up
    samples = {depth: {"ours_prefill": [], "llama_prefill": [], "ours_decode": [], "llama_decode": []}
               for depth in options.depths}
    ours = {}
    for repeat in range(options.repeats):
        print(f"\rpass {repeat + 1}/{options.repeats}", end="", file=sys.stderr, flush=True)
        ours = run_ours(options)
        for row in ours["rows"]:
            samples[row["depth"]]["ours_prefill"].append(row["prefill_tokens_s"])
            samples[row["depth"]]["ours_decode"].append(row["decode_ms"])
        for depth in options.depths:
            prefill, decode = run_llama(llama, options, depth)
            samples[depth]["llama_prefill"].append(prefill)
            samples[depth]["llama_decode"].append(decode)
    print(file=sys.stderr)

    rows = []
    for depth in options.depths:
        median = {name: statistics.median(values) for name, values in samples[depth].items()}
        rows.append({"depth": depth,
                     "ours_prefill_tokens_s": median["ours_prefill"],
                     "llama_prefill_tokens_s": median["llama_prefill"],
                     # Of each pass, then the median: passes are minutes apart.
                     "prefill_ours_over_llama": statistics.median(
                         a / b for a, b in zip(samples[depth]["ours_prefill"], samples[depth]["llama_prefill"])),
                     "ours_decode_ms": median["ours_decode"],
                     "llama_decode_ms": median["llama_decode"],
                     "decode_ours_over_llama": statistics.median(
                         a / b for a, b in zip(samples[depth]["ours_decode"], samples[depth]["llama_decode"]))})
    report = {"benchmark": "llama.cpp", "model": options.model, "cpu": ours["cpu"], "threads": options.threads,
              "ours_dtype": ours["dtype"], "ours_weight_bytes_per_step": ours["weight_bytes_per_step"],
              "llama_model_bytes": os.path.getsize(options.model),
              "llama_cpp_python": llama_cpp.__version__,
              "llama_system": llama_cpp.llama_print_system_info().decode(),
              "repeats": options.repeats, "rows": rows}
    for name, value in report.items():
        if name != "rows":
            print(f"{name}: {value}")
    print("  ".join(rows[0]))
    for row in rows:
        print("  ".join(f"{value:>{len(name)}.{0 if name == 'depth' else 2}f}" for name, value in row.items()))
    if options.output:
        with open(options.output, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    main()
