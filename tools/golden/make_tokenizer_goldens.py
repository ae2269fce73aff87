"""Writes tests/data/tokenizers: what Hugging Face's `tokenizers` makes of the strings of tokenizer_corpus.py.

The reference is built from a file's own vocabulary and merges with the `tokenizers` library itself:
transformers' GGUF converter forgets the digit splitting of SmolLM2.

Formats (every number is an unsigned LEB128 varint):
  corpus.bin   count, then per string: length in bytes, bytes
  NAME.ids     vocabulary size, add_special_tokens (0 or 1), stride; per stride-th string of the corpus: number of ids, ids
               (control tokens in the text stay text), then 0 if parsing control tokens gives the same ids, else
               1 + number of ids, ids. Then the number of decodings, and for each: number of ids, ids, length, text with
               special tokens, length, text without.

Usage: python3 make_tokenizer_goldens.py --models ~/.cache/tokenbutler --out tests/data/tokenizers
  --models is the cache folder that scripts/setup and scripts/fetch-test-models fill. What is not there is left alone.
"""

import argparse
import base64
import json
import os
import random
import re

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import tokenizer_corpus

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
CONTROL, USER_DEFINED = 3, 4


def byte_alphabet():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(0x100 + i) for i, b in enumerate(others)}}


ALPHABET = byte_alphabet()


def split_by(regex):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def pre_tokenizer(name):
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return split_by({"qwen2": QWEN2, "llama-bpe": LLAMA3, "tekken": TEKKEN}[name])


def byte_level(tokens, merges, pre, added, ignore_merges):
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges, ignore_merges=ignore_merges))
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizer(pre)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(content, special=special, normalized=False) for content, special in added])
    return tokenizer


def from_gguf(path):
    from gguf import GGUFReader

    fields = GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    added = [(t, kind == CONTROL) for t, kind in zip(tokens, types) if kind in (CONTROL, USER_DEFINED)]
    return byte_level(tokens, merges, fields["tokenizer.ggml.pre"].contents(), added, False)


def merges_of_ranks(ranks):
    """As transformers' TikTokenConverter: every cut of a token into two tokens, by the token's rank."""
    merges = []
    for token, rank in ranks.items():
        cuts = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += sorted(cuts, key=lambda cut: (ranks[cut[0]], ranks[cut[1]]))
    text = lambda token: "".join(ALPHABET[b] for b in token)
    return [(text(left), text(right)) for left, right in merges]


def from_ranks(ranks, before, after, pre):
    tokens = before + ["".join(ALPHABET[b] for b in token) for token in ranks] + after
    return byte_level(tokens, merges_of_ranks(ranks), pre, [(t, True) for t in before + after], True)


def llama3(path):
    ranks = {}
    with open(path, "rb") as file:
        for line in file:
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>", "<|finetune_right_pad_id|>",
               "<|step_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>", "<|image|>"]
    special += [f"<|reserved_special_token_{2 + i}|>" for i in range(256 - len(special))]
    return from_ranks(ranks, [], special, "llama-bpe")


def tekken(path):
    with open(path, encoding="utf-8") as file:
        data = json.load(file)
    num_special = data["config"]["default_num_special_tokens"]
    size = data["config"]["default_vocab_size"] - num_special
    ranks = {base64.b64decode(t["token_bytes"]): t["rank"] for t in data["vocab"][:size]}
    special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]"]
    special += [f"<SPECIAL_{i}>" for i in range(len(special), num_special)]
    return from_ranks(ranks, special, [], "tekken")


def sentence_piece(path):
    """As transformers' LlamaConverter (legacy)."""
    from sentencepiece import SentencePieceProcessor
    from transformers.convert_slow_tokenizer import generate_merges

    model = SentencePieceProcessor(model_file=path)
    pieces = [model.id_to_piece(i) for i in range(model.get_piece_size())]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    merges = generate_merges(vocabulary, {piece: model.get_score(i) for i, piece in enumerate(pieces)})
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = sentence_piece_decoder()
    tokenizer.add_tokens([AddedToken(p, special=True, normalized=False) for i, p in enumerate(pieces) if model.is_control(i) or model.is_unknown(i)])
    return tokenizer


def sentence_piece_decoder():
    return decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])


def small_tokenizers(corpus):
    """A tokenizer.json for each way of writing one that our models use, trained on the corpus."""
    texts = [t.decode(errors="replace") for t in corpus]
    added = [AddedToken("<|im_start|>", special=True, normalized=False), AddedToken("<|im_end|>", special=True, normalized=False),
             AddedToken("<left>", lstrip=True, normalized=False), AddedToken("<right>", rstrip=True, special=True, normalized=False),
             AddedToken("<word>", single_word=True, normalized=False), AddedToken("<mask>", lstrip=True, rstrip=True, normalized=True),
             AddedToken("<norm>e\u0301", normalized=True), AddedToken("<|im_start|", special=True, normalized=True)]
    ends = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 1)])

    def byte_level_json(pre, normalizer, ignore_merges, post):
        tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
        tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = normalizer, pre, decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
        tokenizer.train_from_iterator(texts, trainer)
        tokenizer.post_processor = post
        return tokenizer

    def sentence_piece_json(normalizer, pre, byte_fallback, decoder):
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=byte_fallback))
        tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = normalizer, pre, decoder
        special = ["<s>", "</s>", "<unk>"] + ([f"<0x{b:02X}>" for b in range(256)] if byte_fallback else [])
        trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=special, limit_alphabet=200, max_token_length=12, show_progress=False)
        words = [word for text in texts for word in re.findall(r" ?[^ ]+", text)]
        tokenizer.train_from_iterator(words, trainer)
        # The byte tokens are ordinary entries of the vocabulary in real files, not added tokens.
        data = json.loads(tokenizer.to_str())
        data["added_tokens"] = [t for t in data["added_tokens"] if not t["content"].startswith("<0x")]
        tokenizer = Tokenizer.from_str(json.dumps(data))
        tokenizer.post_processor = ends
        return tokenizer

    marks = normalizers.Replace(" ", "▁")
    metaspace = lambda scheme: pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
    unstripped = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    result = {
        "json-gpt2": byte_level_json(pre_tokenizer("smollm"), None, False, ends),
        "json-qwen2": byte_level_json(split_by(QWEN2), normalizers.NFC(), False, processors.ByteLevel(trim_offsets=False)),
        "json-llama3": byte_level_json(split_by(LLAMA3), None, True, processors.Sequence([processors.ByteLevel(trim_offsets=False), ends])),
        "json-tekken": byte_level_json(split_by(TEKKEN), normalizers.Sequence([normalizers.NFC()]), False, None),
        "json-llama2": sentence_piece_json(normalizers.Sequence([normalizers.Prepend("▁"), marks]), None, True, sentence_piece_decoder()),
        "json-no-prefix": sentence_piece_json(normalizers.Sequence([marks]), None, False, unstripped),
        "json-metaspace-first": sentence_piece_json(None, metaspace("first"), True, sentence_piece_decoder()),
        "json-metaspace-always": sentence_piece_json(None, metaspace("always"), False, sentence_piece_decoder()),
    }
    for tokenizer in result.values():
        tokenizer.add_tokens(added)
    return result


def varint(n):
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes(out + bytes([n]))


def pack(ids):
    return varint(len(ids)) + b"".join(map(varint, ids))


def pack_text(text):
    return varint(len(text)) + text


def decode_cases(tokenizer, encodings, seed):
    """Ids to decode: random ones, real ones cut and mixed with special and byte tokens."""
    r = random.Random(seed)
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    special = [i for i, t in tokenizer.get_added_tokens_decoder().items()] or [0]
    byte_tokens = [i for t, i in tokenizer.get_vocab().items() if len(t) == 6 and t.startswith("<0x")] or list(range(256))
    for n in range(400):
        if n % 4 == 0:
            yield [r.randrange(size) for _ in range(r.randint(1, 20))]
        elif n % 4 == 1:
            yield [r.choice([r.choice(byte_tokens), r.choice(byte_tokens), r.choice(special), r.randrange(size)]) for _ in range(r.randint(1, 20))]
        else:
            ids = list(r.choice(encodings)[:60])
            for _ in range(r.randint(0, 3)):
                ids.insert(r.randint(0, len(ids)), r.choice([r.choice(special), r.choice(byte_tokens), r.randrange(size)]))
            yield ids


def write_goldens(path, tokenizer, corpus, add_special_tokens, stride):
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    out = bytearray(varint(size) + varint(int(add_special_tokens)) + varint(stride))
    encodings = []
    for data in corpus[::stride]:
        text = data.decode(errors="replace")
        tokenizer.encode_special_tokens = True
        literal = tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        tokenizer.encode_special_tokens = False
        parsed = tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        out += pack(literal)
        out += b"\0" if parsed == literal else varint(1 + len(parsed)) + b"".join(map(varint, parsed))
        encodings.append(parsed)
    cases = list(decode_cases(tokenizer, encodings, size))
    out += varint(len(cases))
    for ids in cases:
        out += pack(ids)
        for skip in (False, True):
            out += pack_text(tokenizer.decode(ids, skip_special_tokens=skip).encode())
    with open(path, "wb") as file:
        file.write(out)
    print(f"{path}: {len(corpus[::stride])} strings, {len(out)} bytes")


def class_boundaries():
    """Where unicode_tables.cc has a new range."""
    source = os.path.join(os.path.dirname(__file__), "../../engine/tokenizer/unicode_tables.cc")
    with open(source, encoding="utf-8") as file:
        ranges = file.read().split("kCodePointClassRanges = {")[1].split("}")[0]
    return [int(item, 16) >> 8 for item in re.findall(r"0x[0-9a-f]+", ranges)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=os.path.expanduser("~/.cache/tokenbutler"))
    parser.add_argument("--out", default="tests/data/tokenizers")
    options = parser.parse_args()
    corpus = tokenizer_corpus.make_corpus(class_boundaries())
    os.makedirs(options.out, exist_ok=True)
    with open(f"{options.out}/corpus.bin", "wb") as file:
        file.write(varint(len(corpus)) + b"".join(map(pack_text, corpus)))
    for name, path, build in [
        ("smollm2", "models/SmolLM2-135M-Instruct.Q4_1.gguf", from_gguf),
        ("qwen2.5", "models/qwen2.5-coder-0.5b-instruct.gguf", from_gguf),
        ("llama-3", "tokenizers/llama-3.tiktoken", llama3),
        ("mistral-v1", "tokenizers/mistral-v1.model", sentence_piece),
        ("mistral-v3", "tokenizers/mistral-v3.model", sentence_piece),
        ("mistral-tekken", "tokenizers/mistral-tekken.json", tekken),
    ]:
        path = os.path.join(options.models, path)
        if not os.path.exists(path):
            print(f"{path} is not there: {name} left alone")
            continue
        write_goldens(f"{options.out}/{name}.ids", build(path), corpus, False, 1)
    for name, tokenizer in small_tokenizers(corpus).items():
        tokenizer.save(f"{options.out}/{name}.json", pretty=False)
        write_goldens(f"{options.out}/{name}.ids", tokenizer, corpus, True, 6)


if __name__ == "__main__":
    main()
