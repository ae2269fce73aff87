#!/usr/bin/env python3
"""Writes tests/data/goldens/rope.json: inverse frequencies and attention factors of transformers'
modeling_rope_utils for every RoPE kind that we serve, with the options of each.

    python3 tools/golden/make_rope_goldens.py tests/data/goldens/rope.json

Needs tools/golden/requirements.txt.
"""

import argparse
import json
import pathlib

import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
# name: (rope_theta, head_dim, max_position, rope_scaling)
CASES = {
    "llama-2": (10000.0, 128, 4096, None),
    "smollm2": (100000.0, 64, 8192, None),
    "qwen2.5": (1000000.0, 64, 32768, None),
    "linear": (10000.0, 128, 16384, {"rope_type": "linear", "factor": 4.0}),
    "llama-3.1": (500000.0, 128, 131072, LLAMA3),
    "llama-3.2": (500000.0, 64, 131072, dict(LLAMA3, factor=32.0)),
    "yarn qwen2.5": (1000000.0, 128, 32768, YARN),
    "yarn without original": (10000.0, 64, 4096, {"rope_type": "yarn", "factor": 8.0}),
    "yarn betas": (10000.0, 128, 4096, dict(YARN, beta_fast=16.0, beta_slow=2.0)),
    "yarn attention_factor": (10000.0, 128, 4096, dict(YARN, attention_factor=1.25)),
    "yarn mscale": (10000.0, 64, 4096, dict(YARN, factor=40.0, mscale=0.707, mscale_all_dim=1.0)),
    "yarn mscale alone": (10000.0, 64, 4096, dict(YARN, mscale=0.707)),
    "yarn not truncated": (150000.0, 64, 131072, dict(YARN, factor=32.0, truncate=False)),
    "yarn factor below one": (10000.0, 64, 4096, dict(YARN, factor=0.5)),
}


def golden(name, theta, head_dim, max_position, scaling):
    config = transformers.LlamaConfig(
        rope_theta=theta,
        head_dim=head_dim,
        max_position_embeddings=max_position,
        rope_scaling=scaling,
    )
    kind = scaling["rope_type"] if scaling else "default"
    inverse, attention_factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
    return {
        "name": name,
        "rope_theta": theta,
        "head_dim": head_dim,
        "max_position": max_position,
        "rope_scaling": scaling,
        "inverse_frequencies": inverse.double().tolist(),
        "attention_factor": attention_factor,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=pathlib.Path)
    args = parser.parse_args()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    goldens = [golden(name, *case) for name, case in CASES.items()]
    lines = ",\n".join(json.dumps(g) for g in goldens)
    args.output.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
