"""Makes tests/fuzz/corpus/{gguf,safetensors,chat_template}: small valid files that the fuzzers start from.

    python3 tools/golden/make_fuzz_corpus.py tests/fuzz/corpus

Needs tools/golden/requirements.txt, and tests/data/chat_templates as it is to be.
"""

import json
import pathlib
import struct
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as QType

VOCAB, HEADS, KV_HEADS, HEAD_DIM = 4, 2, 1, 2


def add_model(writer, qtype, hidden):
    """Metadata and tensors of a one-layer model; rows of `hidden` must be whole blocks."""
    inner = hidden
    writer.add_context_length(64)
    writer.add_embedding_length(hidden)
    writer.add_block_count(1)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    shapes = {
        "token_embd.weight": (VOCAB, hidden),
        "output_norm.weight": (hidden,),
        "blk.0.attn_norm.weight": (hidden,),
        "blk.0.ffn_norm.weight": (hidden,),
        "blk.0.attn_q.weight": (HEADS * HEAD_DIM, hidden),
        "blk.0.attn_k.weight": (KV_HEADS * HEAD_DIM, hidden),
        "blk.0.attn_v.weight": (KV_HEADS * HEAD_DIM, hidden),
        "blk.0.ffn_gate.weight": (inner, hidden),
        "blk.0.ffn_up.weight": (inner, hidden),
        "blk.0.ffn_down.weight": (hidden, inner),
    }
    for name, shape in shapes.items():
        kind = QType.F32 if len(shape) == 1 else qtype
        data = gguf.quants.quantize(np.zeros(shape, dtype=np.float32), kind)
        writer.add_tensor(name, data, raw_dtype=kind)
    # Its rows have 4 elements only.
    writer.add_tensor("blk.0.attn_output.weight", np.zeros((hidden, HEADS * HEAD_DIM), np.float16))


def add_tokenizer(writer):
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(["a", "b", "ab", "<|im_end|>"])
    writer.add_token_types([1, 1, 1, 3])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(3)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{{ messages }}")


def write(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_gguf(folder):
    writer = gguf.GGUFWriter(folder / "llama.gguf", "llama")
    add_model(writer, QType.Q4_1, 32)
    write(writer)

    writer = gguf.GGUFWriter(folder / "qwen2.gguf", "qwen2")
    writer.add_custom_alignment(8)
    add_model(writer, QType.F16, 4)
    add_tokenizer(writer)
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    for name, size in {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS}.items():
        writer.add_tensor(f"blk.0.attn_{name}.bias", np.zeros(size * HEAD_DIM, np.float32))
    write(writer)

    writer = gguf.GGUFWriter(folder / "k_quants.gguf", "other")
    for number, name in enumerate(["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]):
        _, size = gguf.GGML_QUANT_SIZES[QType[name]]
        writer.add_tensor(f"t{number}", np.full((1, size), number, np.uint8), raw_dtype=QType[name])
    write(writer)

    writer = gguf.GGUFWriter(folder / "values.gguf", "other")
    writer.add_array("words", ["one", "", "three"])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("floats", [0.5, 1.5])
    writer.add_array("flags", [True, False])
    writer.add_uint64("u64", 2**63)
    writer.add_int8("i8", -1)
    writer.add_float64("f64", 0.25)
    write(writer)


def safetensors(header, data):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def make_safetensors(folder):
    entry = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    half = {"dtype": "BF16", "shape": [3], "data_offsets": [16, 22]}
    files = {
        "one.safetensors": safetensors({"w": entry}, bytes(16)),
        "two.safetensors": safetensors(
            {"__metadata__": {"format": "pt"}, "w": entry, "b": half}, bytes(22)
        ),
        "empty.safetensors": safetensors({}, b""),
        "config.json": json.dumps(
            {
                "model_type": "qwen2",
                "num_hidden_layers": 2,
                "hidden_size": 8,
                "intermediate_size": 8,
                "vocab_size": 9,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "use_sliding_window": True,
                "layer_types": ["full_attention", "sliding_attention"],
                "eos_token_id": [1, 2],
                "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0},
            }
        ).encode(),
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)


def make_chat_templates(folder):
    """Golden templates and groups of golden snippets; behind a zero byte, text of a message."""
    golden = pathlib.Path(__file__).parents[2] / "tests" / "data" / "chat_templates"
    for old in [*folder.glob("rendered_*"), *folder.glob("failing_*")]:
        old.unlink()
    text = '[{"name": "f<b>", "parameters": {"type": "object", "properties": {"é": {"type": "string"}}}}]'
    for path in sorted((golden.parents[2] / "tools" / "golden" / "chat_templates").glob("*.jinja")):
        (folder / path.stem).write_bytes(path.read_bytes() + b"\0" + text.encode())
    # What fails ends a rendering, so it gets groups of its own; one syntax error hides the rest.
    snippets = json.loads((golden / "snippets.json").read_text())["snippets"]
    groups = {"rendered": [], "failing": []}
    for snippet in snippets:
        if "Syntax" not in snippet.get("error", ""):
            groups["failing" if "error" in snippet else "rendered"].append(snippet["template"])
    for name, size in {"rendered": 6, "failing": 3}.items():
        for number, first in enumerate(range(0, len(groups[name]), size)):
            source = "\n".join(groups[name][first : first + size])
            (folder / f"{name}_{number:02}").write_bytes(source.encode() + b'\0{"a": ["b"]}')


def main():
    root = pathlib.Path(sys.argv[1])
    makers = {"gguf": make_gguf, "safetensors": make_safetensors, "chat_template": make_chat_templates}
    for name, make in makers.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        make(root / name)


if __name__ == "__main__":
    main()
