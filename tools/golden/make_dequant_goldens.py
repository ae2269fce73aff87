"""Makes tests/data/dequant/<type>.bin: stored blocks and what gguf.quants.dequantize makes of them.

    python3 tools/golden/make_dequant_goldens.py tests/data/dequant

Each file is `blocks * block_bytes` random stored bytes followed by the float32 values. The scales
are ordinary halves, the rest of a block is any bytes at all; the last block of each file is all
0xff except for the scales. Needs tools/golden/requirements.txt.
"""

import pathlib
import sys

import gguf
import numpy as np

BLOCKS = 4
# Offsets of half-precision scales inside a block.
HALVES = {
    "F16": None,
    "BF16": None,
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}


def stored_blocks(rng, name, block_bytes):
    """[BLOCKS, block_bytes] uint8 with finite scales."""
    if HALVES[name] is None:
        values = rng.normal(size=256).astype(np.float32)
        if name == "F16":
            values[:4] = [0.0, -0.0, 6.1e-8, 65504.0]
            return values.astype(np.float16).view(np.uint8).reshape(1, -1)
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(1, -1)
    blocks = rng.integers(0, 256, size=(BLOCKS, block_bytes), dtype=np.uint8)
    blocks[-1] = 0xFF
    for offset in HALVES[name]:
        scales = (rng.normal(size=BLOCKS) * 0.1).astype(np.float16)
        blocks[:, offset : offset + 2] = scales.reshape(-1, 1).view(np.uint8)
    return blocks


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(20240229)
    for name in HALVES:
        kind = gguf.GGMLQuantizationType[name]
        _, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        blocks = stored_blocks(rng, name, block_bytes)
        values = gguf.quants.dequantize(blocks, kind).astype(np.float32)
        (folder / f"{name}.bin").write_bytes(blocks.tobytes() + values.tobytes())
        print(f"{name}: {blocks.size} stored bytes, {values.size} values")


if __name__ == "__main__":
    main()
