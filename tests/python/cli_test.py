"""The command-line client as people use it; exit codes are in docs/operations.md."""

import json
import os
import pty
import signal
import subprocess
import threading
import time

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
