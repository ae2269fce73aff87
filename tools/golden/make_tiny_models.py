#!/usr/bin/env python3
"""Writes tests/data/tiny_models: tiny seeded models and their golden logits.

Every architecture x RoPE kind as a Hugging Face folder (rope kinds of one architecture share one
safetensors file by symbolic link) and as a GGUF file (tensor types take turns), one sharded folder,
tied and untied heads, biases and sliding windows. The reference is transformers in float32 on the
same, de-quantised weights: logits of PROMPT_TOKENS positions and a greedy continuation.

    python3 tools/golden/make_tiny_models.py tests/data/tiny_models

Needs tools/golden/requirements.txt. The output is reproducible bit for bit on one machine; the
logits may differ in the last bits on another.
"""

import argparse
import json
import math
import os
import pathlib
import shutil

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as QType
from safetensors.torch import save_file

HIDDEN, INTERMEDIATE, VOCAB = 32, 64, 96
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16
LAYERS = 2
PROMPT_TOKENS, GREEDY_TOKENS = 48, 24
MAX_POSITION = 128
WINDOW = 20  # shorter than the prompt, so that positions beyond it are tested
MIN_MARGIN = 2e-3  # greedy tokens must not hang on rounding

ROPES = {
    "none": None,
    "linear": {"rope_type": "linear", "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
}


def config_of(architecture, rope, **extra):
    """A transformers config; `extra` overrides."""
    fields = dict(
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        vocab_size=VOCAB,
        max_position_embeddings=MAX_POSITION,
        rope_theta=10000.0,
        rope_scaling=ROPES[rope],
        rms_norm_eps=1e-5,
        bos_token_id=1,
        eos_token_id=2,
        torch_dtype="bfloat16",
        tie_word_embeddings=architecture == "llama",
    )
    if architecture == "mistral":
        fields["sliding_window"] = WINDOW
    fields.update(extra)
    return {
        "llama": transformers.LlamaConfig,
        "qwen2": transformers.Qwen2Config,
        "mistral": transformers.MistralConfig,
    }[architecture](**fields)


def random_state(config, seed):
    """Random weights, each a multiple of 1/128 below 2: exact in bf16, fp16 and float32 alike."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, tensor in build(config).state_dict().items():
        noise = torch.randn(tensor.shape, generator=generator)
        if name.endswith("norm.weight"):
            value = 1 + 0.2 * noise
        elif name.endswith("bias"):
            value = 0.3 * noise
        elif "embed_tokens" in name:
            value = 0.5 * noise
        else:
            # Queries and keys a little larger, so that attention is not nearly uniform.
            gain = 1.6 if "q_proj" in name or "k_proj" in name else 1.0
            value = gain * noise / math.sqrt(tensor.shape[1])
        value = (value.clamp(-1.9, 1.9) * 128).round() / 128
        state[name] = value.to(torch.bfloat16).float()  # above 1 the step is 1/64
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    return state


def build(config):
    model_class = transformers.AutoModelForCausalLM
    model = model_class.from_config(config, attn_implementation="eager")
    return model.to(torch.float32).eval()


def golden_of(config, state, seed):
    """(prompt, logits [PROMPT_TOKENS, VOCAB], greedy ids, smallest top-2 margin on the way)."""
    model = build(config)
    model.load_state_dict(state)
    generator = torch.Generator().manual_seed(seed)
    prompt = torch.randint(3, VOCAB, (PROMPT_TOKENS,), generator=generator).tolist()
    tokens, margin, logits = list(prompt), math.inf, None
    with torch.no_grad():
        for _ in range(GREEDY_TOKENS):
            out = model(torch.tensor([tokens]), use_cache=False).logits[0]
            if logits is None:
                logits = out.numpy().astype(np.float32)
            best = out[-1].topk(2).values
            margin = min(margin, float(best[0] - best[1]))
            tokens.append(int(out[-1].argmax()))
    return prompt, logits, tokens[PROMPT_TOKENS:], margin


def safe_golden(config, state, first_seed):
    """The first prompt whose greedy continuation does not hang on rounding."""
    for seed in range(first_seed, first_seed + 100):
        prompt, logits, greedy, margin = golden_of(config, state, seed)
        if margin > MIN_MARGIN:
            return prompt, logits, greedy
    raise RuntimeError("no prompt with a clear greedy continuation")


def write_golden(root, name, config, state):
    prompt, logits, greedy = safe_golden(config, state, first_seed=1)
    (root / "goldens").mkdir(exist_ok=True)
    logits.tofile(root / "goldens" / f"{name}.logits.f32")
    text = json.dumps({"prompt": prompt, "greedy": greedy, "vocab_size": VOCAB})
    (root / "goldens" / f"{name}.json").write_text(text + "\n")


def hf_tensors(config, state):
    """What a checkpoint holds: bf16, no head where it is tied."""
    return {
        name: tensor.to(torch.bfloat16).contiguous()
        for name, tensor in state.items()
        if not (config.tie_word_embeddings and name == "lm_head.weight")
    }


def write_config(folder, config):
    folder.mkdir(parents=True)
    text = json.dumps(config.to_diff_dict(), indent=1, sort_keys=True)
    fields = json.loads(text)
    fields["architectures"] = [type(build(config)).__name__]
    fields["model_type"] = config.model_type
    (folder / "config.json").write_text(json.dumps(fields, indent=1, sort_keys=True) + "\n")


def write_sharded(folder, config, state):
    """Two shards and the index, tensors dealt out alternately."""
    write_config(folder, config)
    shards, index, total = [{}, {}], {}, 0
    for i, (name, tensor) in enumerate(sorted(hf_tensors(config, state).items())):
        shards[i % 2][name] = tensor
        index[name] = f"model-{i % 2 + 1:05d}-of-00002.safetensors"
        total += tensor.numel() * 2
    for i, shard in enumerate(shards):
        save_file(shard, folder / f"model-{i + 1:05d}-of-00002.safetensors", {"format": "pt"})
    index = {"metadata": {"total_size": total}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


# --- GGUF ---------------------------------------------------------------------------------------

GGUF_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}


def gguf_name(name):
    outer = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in outer:
        return outer[name]
    _, _, layer, rest = name.split(".", 3)
    for theirs, ours in GGUF_NAMES.items():
        if rest.startswith(theirs):
            return f"blk.{layer}.{rest.replace(theirs, ours)}"
    raise KeyError(name)


def interleave_heads(tensor, heads):
    """Rows of each head from Hugging Face's two halves to the pairs that GGUF llama files hold."""
    shape = tensor.shape
    return tensor.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def llama3_factors(config):
    """rope_freqs.weight: what each inverse frequency is divided by."""
    rope = config.rope_scaling
    original = rope["original_max_position_embeddings"]
    low = original / rope["low_freq_factor"]
    high = original / rope["high_freq_factor"]
    factors = []
    for i in range(0, HEAD_DIM, 2):
        wavelength = 2 * math.pi * config.rope_theta ** (i / HEAD_DIM)
        if wavelength < high:
            factors.append(1.0)
        elif wavelength > low:
            factors.append(rope["factor"])
        else:
            smooth = (original / wavelength - rope["low_freq_factor"]) / (
                rope["high_freq_factor"] - rope["low_freq_factor"]
            )
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


def write_metadata(writer, config, architecture):
    writer.add_name("tiny")
    writer.add_context_length(MAX_POSITION)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(VOCAB)
    rope = config.rope_scaling
    if rope and rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope and rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope and rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(config))


def gguf_type(name, tensor, qtype):
    """The type a matrix is written in; K-quants only where rows are whole super-blocks."""
    if tensor.ndim == 1:
        return QType.F32
    block, _ = gguf.GGML_QUANT_SIZES[qtype]
    return qtype if tensor.shape[1] % block == 0 else QType.Q8_0


def random_k_quant(shape, qtype, rng):
    """A row of bytes per row of the tensor: gguf can read K-quants but not write them, so the
    bytes are random and only the fp16 scales (last 2 or 4 bytes of the block's header or tail) sane."""
    block, size = gguf.GGML_QUANT_SIZES[qtype]
    blocks = rng.integers(0, 256, (shape[0] * shape[1] // block, size), dtype=np.uint8)
    scale = np.frombuffer(np.float16(2e-4).tobytes(), dtype=np.uint8)
    if qtype == QType.Q4_K:  # d, dmin first
        blocks[:, 0:2], blocks[:, 2:4] = scale, scale
    elif qtype == QType.Q6_K:  # d last
        scale = np.frombuffer(np.float16(3e-5).tobytes(), dtype=np.uint8)
        blocks[:, -2:] = scale
    else:
        raise ValueError(qtype)
    return blocks.reshape(shape[0], -1)


def write_gguf(path, config, state, qtype, seed):
    """Writes the file and returns the state that the file really holds (after quantisation)."""
    # llama.cpp calls Mistral "llama", and its files do not mention the window.
    architecture = "llama" if config.model_type == "mistral" else config.model_type
    writer = gguf.GGUFWriter(path, architecture)
    write_metadata(writer, config, architecture)
    rng = np.random.default_rng(seed)
    held = {}
    for name, tensor in state.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.numpy()
        heads = HEADS if "q_proj" in name else KV_HEADS if "k_proj" in name else 0
        if architecture == "llama" and heads:
            array = interleave_heads(array, heads)
        kind = gguf_type(name, array, qtype)
        if kind in (QType.Q4_K, QType.Q6_K):
            data = random_k_quant(array.shape, kind, rng)
        else:
            data = gguf.quants.quantize(np.ascontiguousarray(array), kind)
        writer.add_tensor(gguf_name(name), data, raw_dtype=kind)
        back = gguf.quants.dequantize(data, kind).reshape(array.shape)
        if architecture == "llama" and heads:
            shape = back.shape
            back = back.reshape(heads, shape[0] // heads // 2, 2, *shape[1:])
            back = back.swapaxes(1, 2).reshape(shape)
        held[name] = torch.from_numpy(np.ascontiguousarray(back, dtype=np.float32))
    if config.tie_word_embeddings:
        held["lm_head.weight"] = held["model.embed_tokens.weight"]
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


# --- the set ------------------------------------------------------------------------------------

GGUF_TYPES = {
    ("llama", "none"): [QType.F32, QType.Q4_0, QType.Q4_K],
    ("llama", "linear"): [QType.F16],
    ("llama", "llama3"): [QType.BF16, QType.Q8_0],
    ("llama", "yarn"): [QType.Q5_1],
    ("qwen2", "none"): [QType.Q8_0, QType.Q6_K],
    ("qwen2", "linear"): [QType.BF16],
    ("qwen2", "llama3"): [QType.F16],
    ("qwen2", "yarn"): [QType.F16],
}
MISTRAL_GGUF_TYPES = {"none": QType.Q4_1, "linear": QType.Q5_0, "llama3": QType.Q8_0, "yarn": QType.BF16}


def make(root):
    cases = []
    (root / "weights").mkdir(parents=True)
    states = {}
    for number, architecture in enumerate(["llama", "qwen2", "mistral"]):
        config = config_of(architecture, "none")
        states[architecture] = random_state(config, seed=100 + number)
        save_file(
            hf_tensors(config, states[architecture]),
            root / "weights" / f"{architecture}.safetensors",
            {"format": "pt"},
        )
        for rope in ROPES:
            name = f"{architecture}-{rope}"
            config = config_of(architecture, rope)
            write_golden(root, name, config, states[architecture])
            write_config(root / name, config)
            os.symlink(f"../weights/{architecture}.safetensors", root / name / "model.safetensors")
            cases.append({"model": name, "golden": name})

    write_sharded(root / "qwen2-sharded", config_of("qwen2", "none"), states["qwen2"])
    cases.append({"model": "qwen2-sharded", "golden": "qwen2-none"})

    # Variations that no base model has: every bias and an untied head; a window on one layer only.
    biased = config_of("llama", "none", attention_bias=True, mlp_bias=True, tie_word_embeddings=False)
    state = random_state(biased, seed=200)
    write_golden(root, "llama-biases", biased, state)
    write_config(root / "llama-biases", biased)
    save_file(hf_tensors(biased, state), root / "llama-biases" / "model.safetensors", {"format": "pt"})
    cases.append({"model": "llama-biases", "golden": "llama-biases"})
    windowed = config_of(
        "qwen2", "none", use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    )
    write_golden(root, "qwen2-window", windowed, states["qwen2"])
    write_config(root / "qwen2-window", windowed)
    os.symlink("../weights/qwen2.safetensors", root / "qwen2-window" / "model.safetensors")
    cases.append({"model": "qwen2-window", "golden": "qwen2-window"})

    for (architecture, rope), qtypes in GGUF_TYPES.items():
        for qtype in qtypes:
            cases.append(make_gguf(root, architecture, rope, qtype, states[architecture]))

    # Mistral as llama.cpp's converter writes it: "llama", untied head, no window.
    for rope, qtype in MISTRAL_GGUF_TYPES.items():
        config = config_of("mistral", rope, sliding_window=None)
        name = f"mistral-{rope}-{qtype.name}.gguf"
        held = write_gguf(root / name, config, states["mistral"], qtype, seed=300)
        write_golden(root, name, config, held)
        cases.append({"model": name, "golden": name})

    (root / "cases.json").write_text(json.dumps(cases, indent=1) + "\n")


def make_gguf(root, architecture, rope, qtype, state):
    k_quant = qtype in (QType.Q4_K, QType.Q6_K)
    config = config_of(architecture, rope, **({"intermediate_size": 256} if k_quant else {}))
    if k_quant:
        state = random_state(config, seed=400)
    name = f"{architecture}-{rope}-{qtype.name}.gguf"
    held = write_gguf(root / name, config, state, qtype, seed=300)
    if qtype in (QType.F32, QType.F16, QType.BF16):  # exact: the folder's golden serves
        return {"model": name, "golden": f"{architecture}-{rope}"}
    write_golden(root, name, config, held)
    return {"model": name, "golden": name}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=pathlib.Path, help="folder to (re)write")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.output.exists():
        shutil.rmtree(args.output)
    make(args.output)
    print(f"{args.output}: {sum(f.stat().st_size for f in args.output.rglob('*') if f.is_file())} bytes")


if __name__ == "__main__":
    main()
