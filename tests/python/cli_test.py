"""The command-line client as people use it; exit codes are in docs/operations.md."""

import base64
import json
import os
import pty
import signal
import subprocess
import threading
import time

import pytest

import serving
from serving import endless_request


def run(server, *arguments, stdin=""):
    return subprocess.run([serving.CLI, *arguments, "--server", server.address], input=stdin, capture_output=True,
                          text=True, timeout=serving.CALL_SECONDS)


def test_chat_remembers_the_conversation(server):
    fact, question = "My favourite colour is purple.\n", "What is my favourite colour?\n"

    def answers(stdin):
        done = run(server, "chat", "--temperature", "0", "--max-tokens", "24", stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done

    told = answers(fact).stdout
    remembered = answers(fact + question)
    assert remembered.stdout.startswith(told)
    assert remembered.stderr.count("tokens/s]") == 2
    alone = answers(question).stdout
    assert remembered.stdout != told + alone, "the second question was answered without the first"
    forgotten = answers(fact + "/reset\n" + question)
    assert forgotten.stdout == told + alone
    assert "[forgotten]" in forgotten.stderr


def read_until(terminal, text, seen=""):
    end = time.monotonic() + serving.CALL_SECONDS
    while text not in seen:
        assert time.monotonic() < end, seen
        seen += os.read(terminal, 4096).decode(errors="replace")
    return seen


# A terminal, so that the client is interactive.
def test_ctrl_c_stops_the_answer_and_not_the_chat(server):
    ours, theirs = pty.openpty()
    client = subprocess.Popen([serving.CLI, "chat", "--server", server.address, "--ignore-eos"], stdin=theirs,
                              stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    try:
        read_until(ours, "> ")
        os.write(ours, b"Count upwards from one.\n")
        server.wait_for_metric("requests_running", 1)
        client.send_signal(signal.SIGINT)
        read_until(ours, "> ")
        server.wait_for_metric("requests_running", 0)
        assert client.poll() is None, "Ctrl-C ended the chat"
        os.write(ours, b"/quit\n")
        assert client.wait(30) == 0
    finally:
        client.kill()
        os.close(ours)


def test_tokenize_and_detokenize(server):
    tokens = json.loads(run(server, "tokenize", "--json", "Hello world").stdout)
    ids = [str(one) for one in tokens["token_ids"]]
    back = run(server, "detokenize", *ids)
    assert (back.returncode, back.stdout) == (0, "Hello world\n"), back.stderr


def test_attention_flags(server):
    text = " ".join(str(i) for i in range(300))  # some 900 tokens

    def generate(*flags):
        return run(server, "generate", "--max-tokens", "4", "--ignore-eos", *flags, stdin=text)

    sparse = generate("--policy", "exact", "--token-budget", "700")
    assert sparse.returncode == 0, sparse.stderr
    assert sparse.stderr.splitlines()[-1] == (
        "[attended to 700.0 tokens per head and step]")
    assert "attended" not in generate("--policy", "dense").stderr
    assert "attended to" in generate("--setting", "fast").stderr
    object_ = json.loads(generate("--policy", "exact", "--token-budget", "700", "--json", "--no-stream").stdout)
    assert object_["completions"][0]["offload"]["mean_tokens_attended"] == 700
    refused = generate("--token-budget", "1")
    assert refused.returncode == 1 and "attention.token_budget is 1" in refused.stderr
    assert "attention sketch, 4096 tokens per head and step; device tier direct" in run(server, "info").stdout


def test_abort(server, stub):
    call = stub.Generate(endless_request(request_id="from-the-shell"), timeout=serving.CALL_SECONDS)
    responses = []
    reader = threading.Thread(target=lambda: responses.extend(call))
    reader.start()
    server.wait_for_metric("requests_running", 1)
    done = run(server, "abort", "from-the-shell")
    assert done.returncode == 0 and "from-the-shell" in done.stdout, done.stdout + done.stderr
    reader.join(60)
    assert serving.Answer(responses).reason() == "FINISH_REASON_CANCELLED"


def test_generate_reads_standard_input(server):
    done = run(server, "generate", "--temperature", "0", "--max-tokens", "8", stdin="The quick brown fox")
    assert done.returncode == 0 and done.stdout.strip(), done.stderr
    assert "tokens/s]" in done.stderr


@pytest.fixture
def cli(server):
    """Runs a command; standard output and error as bytes."""

    def call(command, *arguments, **options):
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": serving.CALL_SECONDS, **options}
        return subprocess.run([serving.CLI, command, "--server", server.address, *arguments], **options)
    return call


ANSWER = ("generate", "--chat", "Say hello.", "--temperature", "0", "--max-tokens", "8")


def test_the_answer_is_one_line_and_the_statistics_another(cli):
    plain = cli(*ANSWER)
    assert plain.returncode == 0, plain.stderr
    assert plain.stdout.endswith(b"\n") and not plain.stdout.endswith(b"\n\n")
    assert cli(*ANSWER, "--no-stream").stdout == plain.stdout
    # As on a terminal, where both are the same: nothing may be held back in a buffer.
    for extra in ((), ("--no-stream",)):
        both = cli(*ANSWER, *extra, stderr=subprocess.STDOUT).stdout
        assert both.startswith(plain.stdout), both
        assert both[len(plain.stdout):].startswith(b"[8 tokens"), both


def test_one_json_object(cli):
    done = cli("generate", "--json", "--no-stream", "--logprobs", "3", "-n", "2", "--max-tokens", "5",
               "--ignore-eos", "Once upon a time")
    assert done.returncode == 0, done.stderr
    completions = json.loads(done.stdout)["completions"]
    assert sorted(one["index"] for one in completions) == [0, 1]
    for one in completions:
        assert one["finish_reason"] == "FINISH_REASON_LENGTH"
        assert one["completion_tokens"] == len(one["logprobs"]) == 5
        assert all(len(position["top"]) == 3 for position in one["logprobs"])
        tokens = [base64.b64decode(position["chosen"]["token"]) for position in one["logprobs"]]
        assert b"".join(tokens).decode(errors="replace") == one["text"]


def test_json_without_log_probabilities(cli):
    done = cli("generate", "--json", "--no-stream", "--max-tokens", "2", "--stop", "a", "--stop", "e", "Hello")
    completion = json.loads(done.stdout)["completions"][0]
    assert "logprobs" not in completion
    assert completion["matched_stop_string"] in ("", "a", "e")


def test_json_lines(cli):
    lines = cli("generate", "--json", "--max-tokens", "3", "--logprobs", "0", "Hello").stdout.splitlines()
    events = [json.loads(line) for line in lines]
    assert "finished" in events[-1]
    assert sum(len(event["chunk"]["logprobs"]) for event in events if "chunk" in event) \
        == events[-1]["finished"]["usage"]["completion_tokens"]


def test_other_json_is_one_document(cli):
    info = json.loads(cli("info", "--json").stdout)
    assert info["server"]["state"] == "SERVER_STATE_SERVING"
    assert info["model"]["num_layers"] == 30
    assert info["load"]["requests_running"] == 0
    assert json.loads(cli("tokenize", "--json", "Hello world").stdout)["token_ids"]


def test_standard_input_that_is_not_utf8(cli):
    done = cli("generate", "--max-tokens", "2", input=b"ab\xff\x00cd")
    assert done.returncode == 1
    assert b"text is not UTF-8 at byte 2" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == b""


def test_output_that_cannot_be_written(cli):
    with open("/dev/full", "wb") as full:
        for arguments in (ANSWER, ("tokenize", "Hello"), ("info", "--json"), ("health",)):
            done = cli(*arguments, stdout=full)
            assert done.returncode == 1, arguments
            assert b"cannot write to standard output" in done.stderr


# Else the first socket would get the number 1, and the answer.
def test_standard_streams_that_are_closed(cli, server):
    for arguments in (ANSWER, ("tokenize", "Hello"), ("health",), ("--help",)):
        connection = () if arguments == ("--help",) else ("--server", server.address)
        done = subprocess.run(["bash", "-c", '"$@" <&- >&-', "bash", serving.CLI, *arguments, *connection],
                              stderr=subprocess.PIPE, timeout=serving.CALL_SECONDS)
        assert done.returncode == 1, arguments
    done = subprocess.run(["bash", "-c", '"$@" 2>&-', "bash", serving.CLI, *ANSWER, "--server", server.address],
                          stdout=subprocess.PIPE, timeout=serving.CALL_SECONDS)
    assert done.returncode == 0
    assert done.stdout == cli(*ANSWER).stdout != b""


def test_numbers_that_are_none_are_refused(cli):
    for flag, value in (("--timeout", "nan"), ("--timeout", "-1"), ("--timeout", "1e9"), ("--seed", "-1"), ("--seed", "1.5")):
        done = cli("generate", flag, value, "--max-tokens", "1", "Hello")
        assert done.returncode == 2, (flag, value)
        assert flag.encode() in done.stderr


def test_counts_are_the_servers_to_refuse(cli):
    for n in ("-1", "0", "2147483647"):
        done = cli("generate", "-n", n, "--max-tokens", "1", "Hello")
        assert done.returncode == 1
        assert b"sampling.n is " + n.encode() in done.stderr


def test_options_that_would_be_ignored_are_refused(cli):
    for command, *arguments in (("generate", "--chat", "One question", "and a text"),
                                ("generate", "--system", "Be brief.", "a text"),
                                ("tokenize", "--chat", "One question", "and a text")):
        done = cli(command, *arguments)
        assert done.returncode == 2, done.stdout
        assert done.stdout == b""


def test_nobody_answers():
    done = subprocess.run([serving.CLI, "generate", "--server", "127.0.0.1:1", "Hello"], capture_output=True,
                          timeout=serving.CALL_SECONDS)
    assert done.returncode == 3
    assert done.stdout == b""
