#!/usr/bin/env python3
"""Writes the card of a predictor: what it is, what it was trained with, what it gives, and how to make it again.

  card.py predictor.safetensors --log log.jsonl [--quality kl-*.json] [--note TEXT] --output card.md

Everything comes from the file's metadata, the run's log, and the results of `tokenbutler-eval kl`; of these the rows of the
policy tokenbutler, and exact beside them.
"""

import argparse
import json
import pathlib
import struct
import sys

from plot import PARTS, read_log, table_of

# Options of a run that a card shows, in this order, and their names there.
OPTIONS = {"num_steps": "steps", "sequences_per_step": "sequences a step", "steps_per_sequence": "steps a sequence",
           "tokens_per_sequence": "tokens a sequence", "rows": "positions a sequence and step", "learning_rate": "learning rate",
           "warmup": "warm-up", "weight_decay": "weight decay", "clip_norm": "clipping", "sink_tokens": "sink tokens left out", "local_window": "local window left out",
           "calibration_sequences": "calibration sequences", "seed": "seed"}


MAX_HEADER = 100 << 20  # bytes


def read_header(path):
    """(metadata, {tensor: shape}) of a .safetensors file."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, MAX_HEADER)))
        metadata = header.pop("__metadata__", {})
        is_predictor = metadata.get("format") == "tokenbutler-predictor"
    except (AttributeError, OverflowError, TypeError, ValueError, struct.error):
        is_predictor = False
    if not is_predictor:
        raise SystemExit(f"card.py: {path} is no predictor file")
    return metadata, {name: tensor["shape"] for name, tensor in header.items()}


def num_parameters(shapes):
    total = 0
    for shape in shapes.values():
        size = 1
        for n in shape:
            size *= n
        total += size
    return total


def number(text):
    """As people write it: 0.001, not 0.0010000000474974513."""
    try:
        return f"{float(text):.6g}"
    except ValueError:
        return text


def what_it_is(metadata, shapes, size):
    kind = metadata["kind"]
    words = [f"kind `{kind}`", f"{num_parameters(shapes):,} parameters", f"{size / 1e6:.2f} MB",
             f"{metadata['layers_per_predictor']} layers per predictor"]
    if metadata["projected_dim"] == "0":
        words.append("no projections: for low-bit keys (`bits1`, `bits2`, `bits4`)")
    else:
        words.append(f"{metadata['projected_dim']} dimensions, " +
                     ("with" if metadata["late_projections"] == "true" else "without") + " late projections")
    if kind == "tokenbutler":
        words.append(f"MLPs of {metadata['hidden_dim']} units on the hidden state {metadata['input'].replace('_', ' ')}")
    else:
        words.append(f"hidden state at `{metadata['lookahead_point']}`, correction of rank {metadata['correction_rank']}")
    return ", ".join(words) + f", served with pooling `{metadata['pooling']}`."


def divergences(log):
    """A table of the attention's divergence by layer: before training and at the best validation."""
    first, best = log["validations"][0], min(log["validations"], key=lambda e: e["loss"])
    lines = [f"| KL of the attention, nats | before | after {best['step']} steps | worst layer then |", "|---|---|---|---|"]
    for part, name in PARTS.items():
        layers, rows = table_of([first, best], part)
        if layers:
            before, after = (sum(row[i] for row in rows) / len(rows) for i in (0, 1))
            worst = max(range(len(rows)), key=lambda i: rows[i][1])
            lines.append(f"| {name} | {before:.4f} | {after:.4f} | {layers[worst]}: {rows[worst][1]:.4f} |")
    return "\n".join(lines)


def read_result(path):
    """A result of tokenbutler-eval kl."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        if result["evaluation"] != "kl":
            raise ValueError(f"it is of {result['evaluation']}")
        quality([result])
        return result
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise SystemExit(f"card.py: {path} is no result of tokenbutler-eval kl: {type(error).__name__}: {error}") from error


def quality(results):
    """A table of the next token's divergence from dense attention."""
    lines = ["| model | context | setting | budget | KL(dense, sparse) | 95 % interval | of exact's | documents |",
             "|---|---|---|---|---|---|---|---|"]
    for result in results:
        for row in result["rows"]:
            if "tokenbutler" in row["setting"] or "tokenbutler" in str(row.get("options", "")) or row["setting"].startswith("exact"):
                over = row.get("over_exact")
                lines.append(f"| {result['model']} | {result['context_len']} | {row['setting']} | {row['token_budget']} | "
                             f"{row['mean_kl']:.4f} | {row['kl_low']:.4f} to {row['kl_high']:.4f} | "
                             f"{'' if over is None else f'{over:.2f} x'} | {row['documents']} |")
    return "\n".join(lines)


def card(path, log, results, note):
    metadata, shapes = read_header(path)
    training = {key.removeprefix("training."): value for key, value in metadata.items() if key.startswith("training.")}
    model = training.get("model", metadata["architecture"])
    seconds = float(training.get("seconds", 0))
    options = [f"{name} {number(training[key])}" for key, name in OPTIONS.items() if key in training]
    parts = [f"# Predictor for {model}", what_it_is(metadata, shapes, path.stat().st_size)]
    if note:
        parts.append(note)
    parts.append("For the model files with SHA-256 " + ", ".join(f"`{digest}`" for digest in metadata["model_sha256"].split(",")) + ".")
    parts.append("## Data")
    parts.append(training["data"] + ".")
    if "packages" in training:
        parts.append("Made by `scripts/fetch-corpus` from Debian 12's packages " + training["packages"] + ".")
    parts.append("## Training")
    parts.append(", ".join(options) + f". The file is that of step {training['steps_done']}; it took {seconds / 3600:.2f} hours to there.")
    parts.append("```\n" + training.get("command", "") + "\n```")
    parts.append("## Figures")
    parts.append(divergences(log) + "\n\nOn validation documents that no training document is, each position over all tokens before it. "
                 "Attention's divergence does not tell how well texts go on; the next tokens' does.")
    if results:
        parts.append(quality(results) + "\n\nBy `tokenbutler-eval kl`: next-token distributions on held-out documents, nats.")
    return "\n\n".join(parts) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("predictor", type=pathlib.Path)
    parser.add_argument("--log", type=pathlib.Path, required=True, help="log.jsonl of the run")
    parser.add_argument("--quality", type=pathlib.Path, nargs="*", default=[], help="results of tokenbutler-eval kl, .json")
    parser.add_argument("--note", default="", help="a sentence of yours")
    parser.add_argument("--output", type=pathlib.Path, required=True)
    options = parser.parse_args()
    try:
        log, results = read_log(options.log), []
        for path in options.quality:
            results.append(read_result(path))
        options.output.write_text(card(options.predictor, log, results, options.note), encoding="utf-8")
    except OSError as error:
        raise SystemExit(f"card.py: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
