"""The server on a Hugging Face folder: config.json, safetensors, tokenizer.json and their companions."""

import array
import json
import pathlib
import random
import shutil
import subprocess

import pytest

import serving
from serving import ask, chat_request, pb
from tokenbutler.v1 import input_pb2, options_pb2

TOKENIZER = pathlib.Path(__file__).parents[1] / "data/tokenizers/json-qwen2.json"
# More rows than the tokenizer has ids (708), as many models have.
VOCAB, HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 1408, 32, 64, 2, 4, 2, 16
IM_START, IM_END = 700, 701
TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def tensor_shapes():
    shapes = {"model.embed_tokens.weight": [VOCAB, HIDDEN], "model.norm.weight": [HIDDEN]}
    for layer in range(LAYERS):
        for name, shape in (("input_layernorm.weight", [HIDDEN]), ("post_attention_layernorm.weight", [HIDDEN]),
                            ("self_attn.q_proj.weight", [HEADS * HEAD_DIM, HIDDEN]), ("self_attn.q_proj.bias", [HEADS * HEAD_DIM]),
                            ("self_attn.k_proj.weight", [KV_HEADS * HEAD_DIM, HIDDEN]), ("self_attn.k_proj.bias", [KV_HEADS * HEAD_DIM]),
                            ("self_attn.v_proj.weight", [KV_HEADS * HEAD_DIM, HIDDEN]), ("self_attn.v_proj.bias", [KV_HEADS * HEAD_DIM]),
                            ("self_attn.o_proj.weight", [HIDDEN, HEADS * HEAD_DIM]), ("mlp.gate_proj.weight", [INTERMEDIATE, HIDDEN]),
                            ("mlp.up_proj.weight", [INTERMEDIATE, HIDDEN]), ("mlp.down_proj.weight", [HIDDEN, INTERMEDIATE])):
            shapes[f"model.layers.{layer}.{name}"] = shape
    return shapes


def write_safetensors(path):
    chance = random.Random(1)
    header, data = {}, b""
    for name, shape in tensor_shapes().items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = array.array("f", [1.0] * count if "norm" in name else [chance.gauss(0, 0.3) for _ in range(count)])
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * count]}
        data += values.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny random Qwen2 with the small golden tokenizer."""
    folder = tmp_path_factory.mktemp("model") / "tiny-qwen2"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": VOCAB, "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "tie_word_embeddings": True, "hidden_act": "silu", "eos_token_id": 1}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, IM_END]}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": TEMPLATE}))
    shutil.copy(TOKENIZER, folder / "tokenizer.json")
    write_safetensors(folder / "model.safetensors")
    return folder


def test_serves_a_folder(folder):
    with serving.Server(model=folder) as server:
        stub = server.stub()
        info = stub.GetModelInfo(pb.GetModelInfoRequest()).model
        assert (info.name, info.architecture, info.vocab_size) == ("tiny-qwen2", "qwen2", VOCAB)
        assert sorted(info.eos_token_ids) == [1, IM_END]
        assert info.chat_template == TEMPLATE

        text = "Grüße, 世界! <|im_end|>"
        ids = stub.Tokenize(pb.TokenizeRequest(text=text)).token_ids
        assert IM_END not in ids
        assert stub.Detokenize(pb.DetokenizeRequest(token_ids=ids)).text == text
        chat = stub.Tokenize(pb.TokenizeRequest(chat=input_pb2.ChatInput(
            messages=[input_pb2.ChatMessage(role="user", content=text)])))
        assert chat.prompt == f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        assert list(chat.token_ids).count(IM_START) == 2
        assert list(chat.token_ids).count(IM_END) == 1, "the user's <|im_end|> became a special token"

        # Half of the ids that come out have no text.
        request = chat_request("Hello", max_tokens=100, temperature=2.0,
                               logprobs=options_pb2.LogprobOptions(top=20, include_prompt=True))
        request.sampling.seed = 11
        request.stop.ignore_eos = True
        first, second = ask(stub, request), ask(stub, request)
        assert first.text == second.text != ""
        assert first.finished[0].usage.completion_tokens == 100
        assert stub.Detokenize(pb.DetokenizeRequest(token_ids=[VOCAB - 1])).text == ""


def expect_refused(folder, *in_message):
    done = subprocess.run([serving.SERVER, "--model", folder, "--port", "0", "--metrics-port", "0"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    for text in in_message:
        assert text in done.stderr


def test_a_folder_without_its_tokenizer_ends_the_server_with_a_sentence(folder, tmp_path):
    incomplete = tmp_path / "incomplete"
    shutil.copytree(folder, incomplete)
    (incomplete / "tokenizer.json").unlink()
    expect_refused(incomplete, "tokenizer.json")


def test_a_tokenizer_of_another_model_ends_the_server_with_a_sentence(folder, tmp_path):
    mixed = tmp_path / "mixed"
    shutil.copytree(folder, mixed)
    tokenizer = json.loads((mixed / "tokenizer.json").read_text())
    for token in tokenizer["added_tokens"]:
        if token["content"] == "<|im_end|>":
            token["id"] = VOCAB + 100
    (mixed / "tokenizer.json").write_text(json.dumps(tokenizer))
    expect_refused(mixed, str(VOCAB + 100), f"[0, {VOCAB})")
