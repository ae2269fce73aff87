#!/usr/bin/env python3
"""Golden log-probabilities of a real GGUF model, by transformers on the same de-quantised weights.

    make_logit_goldens.py MODEL.gguf OUTPUT         writes OUTPUT.json and OUTPUT.f32
    make_logit_goldens.py MODEL.gguf --compare DUMP compares every log-probability of a dump that
                                                    logit_dump MODEL.gguf PROMPT_JSON DUMP wrote

The text is TEXT below, encoded by the vocabulary inside the file. OUTPUT.json holds the prompt's
ids, per position the NUM_TOP best and NUM_RANDOM other token ids, and the greedy continuation;
OUTPUT.f32 their log-probabilities, float32 [positions, NUM_TOP + NUM_RANDOM].

The weights are de-quantised by the gguf package and put into a transformers model by the names
below, because transformers' own GGUF reader fixes up tokenizers and configurations in ways of its
own. Everything runs in float32. Needs tools/golden/requirements.txt.
"""

import argparse
import json
import pathlib

import gguf
import numpy as np
import torch
import transformers

NUM_POSITIONS, NUM_GREEDY = 512, 128
NUM_TOP, NUM_RANDOM = 16, 16

TEXT = """\
The lighthouse keeper kept two ledgers. In the first he wrote what the law wanted: the hour at which
the lamp was lit, the oil it burned, the ships that passed and the flags they flew. In the second he
wrote what he saw. On the fourth of March the fog came in so thick that the gulls walked. On the
ninth a crate of oranges washed up, every one of them still wrapped in paper, and for a week the
kitchen smelled of a country he had never visited.

His daughter Ines learned to read from the second ledger. She liked the lists best. "Things the sea
returned: 1 oar, 14 bottles, a boot (left), a door with its key in the lock." She asked him once
whether the sea ever kept what it was given. He thought about it while he trimmed the wick. "It
keeps the names," he said. "It gives back the rest."

Years later she wrote programs for a shipping company, and the habit of two ledgers stayed with her.
Here is one of them, which counts how often each word occurs and prints the most frequent ones:

def most_frequent(words, limit=10):
    counts = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return ranked[:limit]

if __name__ == "__main__":
    import sys
    for word, count in most_frequent(sys.stdin.read().lower().split()):
        print(f"{count:6d}  {word}")

She tested it on her father's pages. The most frequent word was "the", as it always is; then "and",
then "wind". Between 1961 and 1987 the word "lonely" did not occur once. The word "oranges" occurred
three times, twice in the week of the crate and once, twenty-two years later, on a line by itself.

Three questions are worth asking of any record. Who was it written for? What did the writer take for
granted? And what would have to be true for the blank pages to mean something? A thermometer that is
read every morning at 7:00 says nothing about the nights. A count of ships says nothing about the
boats too small to carry a flag. She began to leave a margin in her own reports, 2.5 cm wide, with
nothing in it but the date and one plain sentence, such as: "Today the harbour froze, and we heard
the ice sing."

Der Leuchtturm steht noch immer. Le phare est automatique depuis longtemps. El faro ya no necesita a
nadie. But in summer the door is open, and on a table by the window lie two ledgers, and visitors who
have time to sit down tend to read the second one first.
"""


def read_field(reader, key, default=None):
    field = reader.get_field(key)
    return default if field is None else field.contents()


def config_of(reader):
    architecture = read_field(reader, "general.architecture")
    get = lambda key, default=None: read_field(reader, f"{architecture}.{key}", default)
    heads = get("attention.head_count")
    names = {tensor.name for tensor in reader.tensors}
    fields = dict(
        hidden_size=get("embedding_length"),
        intermediate_size=get("feed_forward_length"),
        num_hidden_layers=get("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=get("attention.head_count_kv", heads),
        vocab_size=len(read_field(reader, "tokenizer.ggml.tokens")),
        max_position_embeddings=get("context_length"),
        rope_theta=get("rope.freq_base", 10000.0),
        rms_norm_eps=get("attention.layer_norm_rms_epsilon"),
        tie_word_embeddings="output.weight" not in names,
    )
    for key in ("rope.scaling.type", "rope.scaling.factor", "attention.sliding_window"):
        if get(key) not in (None, "none", 0):
            raise SystemExit(f"{architecture}.{key} is {get(key)}: this script knows plain RoPE only")
    classes = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config}
    return classes[architecture](**fields)


LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def hf_name(name):
    if name in OUTER_NAMES:
        return OUTER_NAMES[name]
    _, layer, kind, suffix = name.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[kind]}.{suffix}"


def split_heads(array, heads):
    """Rows of each head from GGUF llama's adjacent pairs to Hugging Face's two halves."""
    shape = array.shape
    pairs = array.reshape(heads, shape[0] // heads // 2, 2, *shape[1:])
    return pairs.swapaxes(1, 2).reshape(shape)


def load_model(path):
    reader = gguf.GGUFReader(path)
    config = config_of(reader)
    state = {}
    for tensor in reader.tensors:
        array = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        array = array.reshape([int(n) for n in reversed(tensor.shape)])
        if config.model_type == "llama" and ".attn_q." in tensor.name:
            array = split_heads(array, config.num_attention_heads)
        if config.model_type == "llama" and ".attn_k." in tensor.name:
            array = split_heads(array, config.num_key_value_heads)
        state[hf_name(tensor.name)] = torch.from_numpy(np.array(array, np.float32))
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.load_state_dict(state, assign=True)
    # Buffers are not part of the state: computed again, off the meta device.
    rotary = type(model.model.rotary_emb)(config)
    model.model.rotary_emb = rotary
    return model.float().eval(), reader


def encode(reader, text):
    """Greedy longest match over the file's byte-level vocabulary. Any valid ids do for a golden;
    real tokenisation has goldens of its own."""
    visible = list(range(ord("!"), ord("~") + 1)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    to_char = {byte: chr(byte) for byte in visible}
    for i, byte in enumerate(b for b in range(256) if b not in to_char):
        to_char[byte] = chr(256 + i)
    text = "".join(to_char[byte] for byte in text.encode())
    ids = {token: i for i, token in enumerate(read_field(reader, "tokenizer.ggml.tokens"))}
    longest, out, at = max(map(len, ids)), [], 0
    while at < len(text):
        for size in range(min(longest, len(text) - at), 0, -1):
            if text[at : at + size] in ids:
                out.append(ids[text[at : at + size]])
                at += size
                break
        else:
            raise SystemExit(f"no token for byte {at}")
    return out


def log_probs_of(model, prompt):
    """float32 [positions, vocab_size], accumulated in double."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt]), use_cache=False).logits[0]
    return torch.log_softmax(logits.double(), dim=-1).float()


def greedy_of(model, prompt):
    with torch.no_grad():
        tokens, margin = model(torch.tensor([prompt]), use_cache=True), float("inf")
        ids = []
        for _ in range(NUM_GREEDY):
            best = tokens.logits[0, -1].topk(2)
            margin = min(margin, float(best.values[0] - best.values[1]))
            ids.append(int(best.indices[0]))
            tokens = model(
                torch.tensor([[ids[-1]]]), past_key_values=tokens.past_key_values, use_cache=True
            )
    return ids, margin


def write_goldens(model, prompt, output):
    log_probs = log_probs_of(model, prompt)
    generator = torch.Generator().manual_seed(7)
    ids, values = [], []
    for row in log_probs:
        top = row.topk(NUM_TOP).indices
        others = torch.randint(0, len(row), (NUM_RANDOM,), generator=generator)
        chosen = torch.cat([top, others])
        ids.append(chosen.tolist())
        values.append(row[chosen])
    # A short prompt, so that the continuation depends on the model and not on 512 given tokens.
    greedy_prompt = prompt[:64]
    greedy, margin = greedy_of(model, greedy_prompt)
    print(f"greedy: smallest margin between the two best logits {margin:.5f}")
    golden = {
        "prompt": prompt,
        "ids": ids,
        "greedy_prompt_tokens": len(greedy_prompt),
        "greedy": greedy,
    }
    output.with_name(output.name + ".json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    torch.stack(values).numpy().astype(np.float32).tofile(
        output.with_name(output.name + ".f32")
    )


def compare(model, prompt, dump):
    """Over all positions and the whole vocabulary: the figure that the project promises."""
    expected = log_probs_of(model, prompt)
    logits = np.fromfile(dump, dtype=np.float32).reshape(len(prompt), -1)
    actual = torch.log_softmax(torch.from_numpy(logits).double(), dim=-1).float()
    worst = (actual - expected).abs().max().item()
    same = (actual.argmax(-1) == expected.argmax(-1)).float().mean().item()
    print(f"positions {len(prompt)}, vocabulary {expected.shape[1]}")
    print(f"max |difference of log-probabilities| {worst:.3e}, same argmax {100 * same:.2f} %")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path, nargs="?")
    parser.add_argument("--compare", type=pathlib.Path, metavar="DUMP")
    args = parser.parse_args()
    if (args.output is None) == (args.compare is None):
        parser.error("give either OUTPUT or --compare DUMP")
    model, reader = load_model(args.model)
    prompt = encode(reader, TEXT)[:NUM_POSITIONS]
    if len(prompt) < NUM_POSITIONS:
        raise SystemExit(f"the text has {len(prompt)} tokens, must have {NUM_POSITIONS}")
    if args.compare:
        compare(model, prompt, args.compare)
    else:
        write_goldens(model, prompt, args.output)


if __name__ == "__main__":
    main()
