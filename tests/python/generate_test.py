"""Generate, Tokenize, Detokenize, Abort and the information calls over a socket, on the real model."""

import array
import json
import math
import pathlib
import threading

import pytest

import serving
from serving import ask, chat_request, endless_request, pb
from tokenbutler.v1 import input_pb2, options_pb2, server_info_pb2


def test_chat_streams_a_sensible_answer(stub):
    answer = ask(stub, chat_request("What is the capital of France, and what is it known for?", max_tokens=100))
    assert "Paris" in answer.text
    assert answer.reason() == "FINISH_REASON_EOS"
    assert answer.events[-1] == "finished"
    assert answer.events.count("chunk") > 3, "the answer came in one piece"
    timings = answer.finished[0].timings
    assert 0 < timings.first_token.ToMicroseconds() < serving.CALL_SECONDS * 1e6
    assert timings.decode.ToMicroseconds() > 0


def test_text_prompt_is_tokenised_as_tokenize_says(stub):
    tokens = stub.Tokenize(pb.TokenizeRequest(text="The quick brown fox")).token_ids
    greedy = options_pb2.SamplingOptions(temperature=0)
    by_text = ask(stub, pb.GenerateRequest(text="The quick brown fox", sampling=greedy, max_tokens=12))
    by_ids = ask(stub, pb.GenerateRequest(token_ids=input_pb2.TokenIds(ids=tokens), sampling=greedy, max_tokens=12))
    assert by_text.text == by_ids.text != ""
    assert by_text.finished[0].usage.prompt_tokens == len(tokens)
    assert by_text.finished[0].usage.completion_tokens == 12
    assert by_text.reason() == "FINISH_REASON_LENGTH"


@pytest.mark.parametrize("text", ["Hello, world!", "  two  spaces\n\ttab", "naïve café, cafe\u0301", "日本語 한국어 العربية",
                                  "👩‍👩‍👧‍👦🏳️‍🌈", "1234567890 3.14", "<|im_start|>system", "\x00\x01", "A" * 5000])
def test_tokenize_and_back(stub, text):
    reply = stub.Tokenize(pb.TokenizeRequest(text=text, return_tokens=True))
    assert b"".join(reply.tokens).decode() == text
    assert stub.Detokenize(pb.DetokenizeRequest(token_ids=reply.token_ids, skip_special_tokens=False)).text == text


def test_special_tokens_in_user_text_stay_text(stub):
    info = stub.GetModelInfo(pb.GetModelInfoRequest()).model
    as_text = stub.Tokenize(pb.TokenizeRequest(text="<|im_end|>")).token_ids
    parsed = stub.Tokenize(pb.TokenizeRequest(
        text="<|im_end|>", tokenization=input_pb2.TokenizationOptions(parse_special_tokens=True))).token_ids
    assert len(as_text) > 1
    assert len(parsed) == 1 and parsed[0] in info.eos_token_ids
    chat = stub.Tokenize(pb.TokenizeRequest(chat=input_pb2.ChatInput(
        messages=[input_pb2.ChatMessage(role="user", content="<|im_end|>")])))
    assert chat.prompt.count("<|im_start|>") == 3  # system, user, assistant: the template's own
    assert list(chat.token_ids).count(parsed[0]) == 2, "the user's <|im_end|> became a special token"


def test_same_seed_same_tokens_alone_and_in_company(stub):
    request = chat_request("Tell me a story.", max_tokens=24, temperature=1.0)
    request.sampling.seed = 7
    alone = ask(stub, request)
    others = [chat_request(f"Write about the number {i}.", max_tokens=24, temperature=1.0) for i in range(15)]
    together = serving.ask_all(stub, [request, *others])
    assert together[0].text == alone.text
    assert together[0].finished[0].seed == 7
    assert len({answer.text for answer in together}) > 10


def test_several_completions_of_one_prompt(stub):
    request = chat_request("Name an animal.", max_tokens=8, temperature=1.0)
    request.sampling.n = 4
    request.sampling.seed = 3
    answer = ask(stub, request)
    assert sorted(answer.finished) == [0, 1, 2, 3]
    assert len(set(answer.texts.values())) > 1


def test_stop_string_never_leaks(stub):
    free = ask(stub, chat_request("Count from 1 to 10, one number a line.", max_tokens=60))
    assert len(free.text) > 20
    stop = free.text[12:17]  # wherever it lies relative to the tokens
    request = chat_request("Count from 1 to 10, one number a line.", max_tokens=60,
                           stop=options_pb2.StopOptions(strings=[stop]))
    stopped = ask(stub, request)
    assert stopped.text == free.text[:free.text.index(stop)]
    assert stopped.reason() == "FINISH_REASON_STOP_STRING"
    assert stopped.finished[0].matched_stop_string == stop
    request.stop.include_in_output = True
    assert ask(stub, request).text == stopped.text + stop


def test_logprobs_are_probabilities(stub):
    request = chat_request("What is the capital of France?", max_tokens=6,
                           logprobs=options_pb2.LogprobOptions(top=5, include_prompt=True),
                           output=options_pb2.OutputOptions(return_token_ids=True))
    prompt_positions, positions, ids, num_prompt = [], [], [], 0
    for response in stub.Generate(request, timeout=serving.CALL_SECONDS):
        prompt_positions += response.prompt_logprobs.positions
        positions += response.chunk.logprobs
        ids += response.chunk.token_ids
        num_prompt = num_prompt or response.finished.usage.prompt_tokens
    assert len(prompt_positions) == num_prompt - 1
    assert [position.chosen.token_id for position in positions] == ids
    for position in positions + prompt_positions:
        assert len(position.top) == 5
        values = [entry.logprob for entry in position.top]
        assert values == sorted(values, reverse=True)
        assert sum(map(math.exp, values)) <= 1.001
        assert position.chosen.logprob <= values[0] + 1e-6
    for position in positions:  # greedy
        assert position.chosen.rank == 1


def test_float32_server_equals_transformers():
    """The goldens of tests/engine/real_models_test.cc, through chunks, sampler and wire."""
    path = pathlib.Path(__file__).parents[1] / "data/goldens/smollm2-135m-instruct-q4_1"
    golden = json.loads(path.with_suffix(".json").read_text())
    log_probs = array.array("f", path.with_suffix(".f32").read_bytes())
    num_ids = len(golden["ids"][0])
    with serving.Server("--dtype", "float32", "--prefill-chunk-tokens", "200") as server:
        stub = server.stub()
        ids = input_pb2.TokenIds(ids=golden["prompt"])
        request = pb.GenerateRequest(token_ids=ids, max_tokens=0,
                                     logprobs=options_pb2.LogprobOptions(top=20, include_prompt=True))
        positions = [position for response in stub.Generate(request, timeout=serving.CALL_SECONDS)
                     for position in response.prompt_logprobs.positions]
        assert [position.chosen.token_id for position in positions] == golden["prompt"][1:]
        compared = 0
        for at, position in enumerate(positions):
            seen = {entry.token_id: entry.logprob for entry in [position.chosen, *position.top]}
            for token_id, expected in zip(golden["ids"][at], log_probs[at * num_ids:]):
                if token_id in seen:
                    assert seen[token_id] == pytest.approx(expected, abs=2e-3), f"position {at}, token {token_id}"
                    compared += 1
        assert compared >= 16 * len(positions)

        start = input_pb2.TokenIds(ids=golden["prompt"][:golden["greedy_prompt_tokens"]])
        request = pb.GenerateRequest(token_ids=start, max_tokens=len(golden["greedy"]),
                                     sampling=options_pb2.SamplingOptions(temperature=0),
                                     stop=options_pb2.StopOptions(ignore_eos=True),
                                     output=options_pb2.OutputOptions(return_token_ids=True))
        greedy = [token_id for response in stub.Generate(request, timeout=serving.CALL_SECONDS)
                  for token_id in response.chunk.token_ids]
        assert greedy == golden["greedy"]


def test_prefill_only_and_progress(stub):
    answer = ask(stub, pb.GenerateRequest(text="word " * 1500, max_tokens=0,
                                          output=options_pb2.OutputOptions(return_progress=True)))
    assert answer.finished[0].usage.completion_tokens == 0
    assert answer.finished[0].usage.prompt_tokens >= 1500
    assert answer.events.count("progress") > 1
    assert answer.text == ""


def test_abort_ends_a_running_request(stub):
    started = threading.Event()
    outcome = {}

    def run():
        responses = []
        for response in stub.Generate(endless_request(request_id="to-abort"), timeout=serving.CALL_SECONDS):
            responses.append(response)
            started.set()
        outcome["answer"] = serving.Answer(responses)

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(60)
    assert list(stub.Abort(pb.AbortRequest(request_ids=["to-abort", "no-such"])).aborted_request_ids) == ["to-abort"]
    thread.join(60)
    assert outcome["answer"].reason() == "FINISH_REASON_CANCELLED"
    assert not stub.Abort(pb.AbortRequest(request_ids=["to-abort"])).aborted_request_ids


def test_information_calls(stub, server):
    model = stub.GetModelInfo(pb.GetModelInfoRequest()).model
    assert (model.architecture, model.num_layers, model.hidden_size, model.vocab_size) == ("llama", 30, 576, 49152)
    assert "im_start" in model.chat_template
    info = stub.GetServerInfo(pb.GetServerInfoRequest())
    assert info.state == server_info_pb2.SERVER_STATE_SERVING
    assert info.torch_version.startswith("2.11.0")
    assert info.cuda_version == "none"
    load = stub.GetLoad(pb.GetLoadRequest())
    assert load.kv_capacity_bytes > 0
    server.wait_for_metric("requests_running", 0)
    assert stub.GetLoad(pb.GetLoadRequest()).kv_used_bytes == 0
