"""Every error a client can meet: its code, and a message that names the field, the value and the bound."""

import json
import math
import time

import grpc
import pytest

import serving
from serving import ask, chat_request, endless_request, pb
from tokenbutler.v1 import input_pb2, options_pb2

NAN, INFINITY = math.nan, math.inf


def expect_error(code, call, *in_message):
    with pytest.raises(grpc.RpcError) as error:
        call()
    assert error.value.code() == code, error.value.details()
    for text in in_message:
        assert text in error.value.details()
    return error.value


def sampling(**fields):
    request = chat_request("Hi")
    request.sampling.MergeFrom(options_pb2.SamplingOptions(**fields))
    return request


def stopping(**fields):
    return chat_request("Hi", stop=options_pb2.StopOptions(**fields))


def chatting(**fields):
    message = {name: fields.pop(name) for name in ("role", "content", "fields_json") if name in fields}
    return pb.GenerateRequest(chat=input_pb2.ChatInput(
        messages=[input_pb2.ChatMessage(**{"role": "user", "content": "Hi", **message})], **fields), max_tokens=2)


BAD_REQUESTS = [
    ("temperature", sampling(temperature=NAN)),
    ("temperature", sampling(temperature=-0.5)),
    ("temperature", sampling(temperature=INFINITY)),
    ("top_p", sampling(top_p=0.0)),
    ("top_p", sampling(top_p=1.5)),
    ("top_k", sampling(top_k=-1)),
    ("min_p", sampling(min_p=-0.1)),
    ("typical_p", sampling(typical_p=NAN)),
    ("repetition_penalty", sampling(repetition_penalty=0.0)),
    ("presence_penalty", sampling(presence_penalty=3.0)),
    ("frequency_penalty", sampling(frequency_penalty=-INFINITY)),
    ("logit_bias", sampling(logit_bias={10**6: 1.0})),
    ("logit_bias", sampling(logit_bias={1: NAN})),
    ("n", sampling(n=0)),
    ("n", sampling(n=1000)),
    ("min_tokens", sampling(min_tokens=17)),
    ("max_tokens", chat_request("Hi", max_tokens=-1)),
    ("max_tokens", chat_request("Hi", max_tokens=10**8)),
    ("stop.strings", stopping(strings=[""])),
    ("stop.strings", stopping(strings=["x" * 2000])),
    ("stop.token_ids", stopping(token_ids=[-1])),
    ("logprobs.top", chat_request("Hi", logprobs=options_pb2.LogprobOptions(top=21))),
    ("stream_interval", chat_request("Hi", output=options_pb2.OutputOptions(stream_interval=0))),
    ("request_id", chat_request("Hi", request_id="a b")),
    ("request_id", chat_request("Hi", request_id="x" * 129)),
    ("priority", chat_request("Hi", priority=5000)),
    ("token_ids", pb.GenerateRequest(token_ids=input_pb2.TokenIds(ids=[10**6]))),
    ("token_ids", pb.GenerateRequest(token_ids=input_pb2.TokenIds())),
    ("text", pb.GenerateRequest(text="")),
    ("input", pb.GenerateRequest()),
    ("messages", pb.GenerateRequest(chat=input_pb2.ChatInput())),
    ("messages[0].role", chatting(role="")),
    ("messages[0].role", chatting(role="x" * 65)),
    ("messages[0].fields_json", chatting(fields_json="{not json")),
    ("messages[0].fields_json", chatting(fields_json="[1]")),
    ("messages[0].fields_json", chatting(fields_json='{"a": NaN}')),
    ("messages[0].fields_json", chatting(fields_json='{"a": ' + "[" * 10000 + "]" * 10000 + "}")),
    ("messages[0].fields_json", chatting(fields_json='{"role": "system"}')),
    ("tools_json", chatting(tools_json="[{]")),
    ("tools_json", chatting(tools_json='{"type": "function"}')),
    ("documents_json", chatting(documents_json="[1")),
    ("documents_json", chatting(documents_json='"text"')),
    ("template_kwargs.x", chatting(template_kwargs={"x": INFINITY})),
]


@pytest.mark.parametrize("field,request_", BAD_REQUESTS, ids=[f"{i}-{row[0]}" for i, row in enumerate(BAD_REQUESTS)])
def test_invalid_argument_names_the_field(stub, field, request_):
    expect_error(grpc.StatusCode.INVALID_ARGUMENT, lambda: ask(stub, request_), field)


def test_the_server_serves_after_bad_requests(stub):
    for _, request in BAD_REQUESTS[:8]:
        expect_error(grpc.StatusCode.INVALID_ARGUMENT, lambda: ask(stub, request))
    assert ask(stub, chat_request("Hi", max_tokens=2)).finished


def test_prompt_longer_than_the_context(stub):
    limit = stub.GetModelInfo(pb.GetModelInfoRequest()).model.max_model_len
    request = pb.GenerateRequest(token_ids=input_pb2.TokenIds(ids=[100] * (limit + 1)))
    expect_error(grpc.StatusCode.INVALID_ARGUMENT, lambda: ask(stub, request), str(limit), str(limit + 1))


def test_unknown_model(stub):
    expect_error(grpc.StatusCode.NOT_FOUND, lambda: ask(stub, chat_request("Hi", model="gpt-17")), "gpt-17")


def test_duplicate_request_id(stub):
    running = stub.Generate(endless_request(request_id="twice"), timeout=serving.CALL_SECONDS)
    next(iter(running))
    expect_error(grpc.StatusCode.ALREADY_EXISTS, lambda: ask(stub, chat_request("Hi", request_id="twice")), "twice")
    running.cancel()


def test_options_of_later_versions_are_refused(stub):
    for request in (chat_request("Hi", session_name="mine"),
                    chat_request("Hi", cache=options_pb2.CacheOptions(use_prefix_cache=True))):
        expect_error(grpc.StatusCode.UNIMPLEMENTED, lambda: ask(stub, request))


def test_deadline_and_cancel_stop_the_work(stub, server):
    expect_error(grpc.StatusCode.DEADLINE_EXCEEDED, lambda: ask(stub, endless_request(), timeout=0.7))
    call = stub.Generate(endless_request(), timeout=serving.CALL_SECONDS)
    next(iter(call))
    call.cancel()
    expect_error(grpc.StatusCode.CANCELLED, lambda: list(call))
    server.wait_for_metric("requests_running", 0)
    server.wait_for_metric("kv_host_used_bytes", 0)
    generated = server.metrics()["generation_tokens_total"]
    time.sleep(0.5)
    assert server.metrics()["generation_tokens_total"] == generated, "it still works for nobody"


def test_full_queue():
    with serving.Server("--max-num-seqs", "1", "--max-waiting-requests", "1") as server:
        stub = server.stub()
        running = stub.Generate(endless_request(), timeout=serving.CALL_SECONDS)
        next(iter(running))
        waiting = stub.Generate(endless_request(), timeout=serving.CALL_SECONDS)
        server.wait_for_metric("requests_waiting", 1)
        error = expect_error(grpc.StatusCode.RESOURCE_EXHAUSTED, lambda: ask(stub, chat_request("Hi")))
        details = dict(error.trailing_metadata()).get("grpc-status-details-bin", b"")
        assert b"google.rpc.RetryInfo" in details
        running.cancel()
        assert next(iter(waiting)).WhichOneof("event") == "chunk", "the waiting request did not get its turn"
        waiting.cancel()


def test_request_that_can_never_fit():
    with serving.Server("--kv-capacity", "16MiB") as server:  # 22.5 KiB a token in bfloat16, and attention state
        error = expect_error(grpc.StatusCode.RESOURCE_EXHAUSTED, lambda: ask(server.stub(), endless_request()))
        details = dict(error.trailing_metadata()).get("grpc-status-details-bin", b"")
        assert b"google.rpc.RetryInfo" not in details
        assert ask(server.stub(), chat_request("Hi", max_tokens=4)).finished
        # What a client that does not say max_tokens means is never more than there is.
        request = chat_request("Hi", stop=options_pb2.StopOptions(ignore_eos=True))
        request.ClearField("max_tokens")
        answer = ask(server.stub(), request)
        assert answer.reason() == "FINISH_REASON_CONTEXT_LENGTH"
        usage = answer.finished[0].usage
        used = usage.prompt_tokens + usage.completion_tokens
        assert 400 < used < server.stub().GetModelInfo(pb.GetModelInfoRequest()).model.max_model_len, used


def test_every_log_line_is_json_and_names_its_request():
    with serving.Server("--log-format", "json") as server:
        stub = server.stub()
        ask(stub, chat_request("Hi", max_tokens=2, request_id="my-request"))
        drawn = ask(stub, chat_request("Hi", max_tokens=2)).finished[0].request_id
        expect_error(grpc.StatusCode.INVALID_ARGUMENT, lambda: ask(stub, sampling(top_p=7.0)))
        server.wait_for_metric("open_streams", 0)
        lines = [json.loads(line) for line in server.log().splitlines()]
    assert all({"time", "level", "message"} <= line.keys() for line in lines)
    about = {line["request_id"]: line["message"] for line in lines if "request_id" in line}
    assert about["my-request"].startswith("OK after")
    assert about[drawn].startswith("OK after")
    assert any("INVALID_ARGUMENT" in message and "top_p" in message for message in about.values())
