"""The metrics page against what clients saw; a real Prometheus scrapes it; the dashboard's queries find data."""

import collections
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request

import grpc
import pytest

import serving
from serving import ask, chat_request, endless_request

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
TOOLS = pathlib.Path(os.environ["TOKENBUTLER_CACHE"]) / "tools" / "usr" / "bin"


def debian_tool(name):
    path = shutil.which(name) or TOOLS / name
    assert pathlib.Path(path).exists(), f"{name} is missing: run scripts/setup test"
    return str(path)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_counters_equal_what_clients_saw():
    with serving.Server() as server:
        stub = server.stub()
        before = server.metrics()
        assert before["requests_total{code=\"OK\"}"] == 0

        requests = [chat_request(f"Tell me about the number {i}.", max_tokens=4 + i) for i in range(24)]
        answers = serving.ask_all(stub, requests, workers=12)
        codes = collections.Counter(OK=len(answers))
        for bad, code in ((chat_request("Hi", model="none"), "NOT_FOUND"), (chat_request("Hi", max_tokens=-1), "INVALID_ARGUMENT")):
            for _ in range(3):
                with pytest.raises(grpc.RpcError):
                    ask(stub, bad)
                codes[code] += 1
        with pytest.raises(grpc.RpcError):
            ask(stub, endless_request(), timeout=0.5)
        codes["DEADLINE_EXCEEDED"] += 1
        server.wait_for_metric("requests_running", 0)
        server.wait_for_metric("open_streams", 0)
        after = server.metrics()

        for code in ("OK", "NOT_FOUND", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "INTERNAL", "UNKNOWN"):
            assert after[f'requests_total{{code="{code}"}}'] == codes[code], code
        finished = [answer.finished[0] for answer in answers]
        reasons = collections.Counter(answer.reason() for answer in answers)
        for reason in ("EOS", "LENGTH", "STOP_STRING", "STOP_TOKEN", "CONTEXT_LENGTH", "CANCELLED"):
            seen = after[f'finished_total{{reason="{reason.lower()}"}}']
            assert seen == reasons[f"FINISH_REASON_{reason}"], reason
        assert sum(after[f'deadline_expired_total{{stage="{stage}"}}']
                   for stage in ("prepare", "queue", "prefill", "decode")) == 1
        assert after["e2e_request_latency_seconds_count"] == len(answers)
        assert after["request_decode_seconds_count"] >= len(answers)

        # To the token, in the calls that ended well; the one that ran out of time is measured alone.
        stopped = server_delta_of_one_deadline(server, stub)
        prompt = sum(one.usage.prompt_tokens for one in finished)
        completion = sum(one.usage.completion_tokens for one in finished)
        assert after["prompt_tokens_total"] - prompt in (0, stopped["prompt_tokens_total"])
        timed_out_tokens = after["generation_tokens_total"] - completion
        assert 0 <= timed_out_tokens <= 4000
        num_first = len(answers) + (1 if timed_out_tokens else 0)
        assert after["time_to_first_token_seconds_count"] == num_first
        assert after["inter_token_latency_seconds_count"] == after["generation_tokens_total"] - num_first


def server_delta_of_one_deadline(server, stub):
    before = server.metrics()
    with pytest.raises(grpc.RpcError):
        ask(stub, endless_request(), timeout=2)
    server.wait_for_metric("requests_running", 0)
    after = server.metrics()
    return {name: after[name] - before[name] for name in before}


def test_exactly_to_the_token(server, stub):
    before = server.metrics()
    answers = serving.ask_all(stub, [chat_request("Hello there.", max_tokens=20, temperature=0.8)] * 40, workers=40)
    server.wait_for_metric("requests_running", 0)
    after = server.metrics()
    usages = [answer.finished[0].usage for answer in answers]
    delta = {name: after[name] - before[name] for name in before}
    assert delta["prompt_tokens_total"] == sum(usage.prompt_tokens for usage in usages)
    assert delta["generation_tokens_total"] == sum(usage.completion_tokens for usage in usages)
    assert delta["time_to_first_token_seconds_count"] == 40
    assert delta["inter_token_latency_seconds_count"] == sum(usage.completion_tokens - 1 for usage in usages)
    # What the server measured is no more than what the clients' own stream took, and adds up.
    ttft = sum(answer.finished[0].timings.first_token.ToMicroseconds() for answer in answers) / 1e6
    assert delta["time_to_first_token_seconds_sum"] == pytest.approx(ttft, rel=0.01)


def test_promtool_accepts_the_page(server):
    done = subprocess.run([debian_tool("promtool"), "check", "metrics"], input=server.metrics_text(), text=True,
                          capture_output=True, timeout=60)
    assert done.returncode == 0 and not done.stdout.strip() and not done.stderr.strip(), done.stdout + done.stderr


def dashboard_queries():
    dashboard = json.loads((REPOSITORY / "deploy/grafana/tokenbutler.json").read_text())
    return [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel["targets"]]


def test_dashboard_names_only_metrics_that_exist(server):
    page = server.metrics_text()
    names = set(re.findall(r"^([a-z0-9_]+)", page, re.M))
    used = {name for _, query in dashboard_queries() for name in re.findall(r"tokenbutler_[a-z0-9_]+", query)}
    assert used <= names, f"not on the metrics page: {sorted(used - names)}"
    assert len(used) > 20


class Prometheus:
    """Debian's Prometheus with our configuration, pointed at `target` and scraping every second."""

    def __init__(self, target, folder):
        text = (REPOSITORY / "deploy/prometheus/prometheus.yml").read_text()
        text, changed = re.subn(r"targets: \[.*?\]", f"targets: ['{target}']", text)
        assert changed == 1
        text, changed = re.subn(r"scrape_interval: \S+", "scrape_interval: 1s", text)
        assert changed == 1
        text = re.sub(r"scrape_timeout: \S+", "scrape_timeout: 1s", text)
        config = folder / "prometheus.yml"
        config.write_text(text)
        self._address = f"127.0.0.1:{free_port()}"
        self._process = subprocess.Popen(
            [debian_tool("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
             f"--web.listen-address={self._address}"],
            stdout=subprocess.DEVNULL, stderr=open(folder / "prometheus.log", "w"))

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)

    def query(self, expression):
        url = f"http://{self._address}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(url, timeout=30) as response:
            return json.load(response)["data"]["result"]

    def wait_for(self, expression, timeout=60):
        """The first answer that is not empty."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            try:
                result = self.query(expression)
                if result:
                    return result
            except OSError:
                pass  # not up yet
            time.sleep(0.3)
        raise AssertionError(f"Prometheus found nothing for {expression}")


def test_prometheus_scrapes_and_every_panel_shows_data(server, stub, tmp_path):
    with Prometheus(server.metrics_address, tmp_path) as prometheus:
        prometheus.wait_for('up{job="tokenbutler"} == 1')
        stop = threading.Event()

        def traffic():
            while not stop.is_set():
                ask(stub, chat_request("Tell me something.", max_tokens=6))
                with pytest.raises(grpc.RpcError):
                    ask(stub, chat_request("Hi", model="none"))

        thread = threading.Thread(target=traffic)
        thread.start()
        try:
            prometheus.wait_for("rate(tokenbutler_generation_tokens_total[10s]) > 0")
            empty = []
            for title, query in dashboard_queries():
                query = query.replace("$__rate_interval", "20s").replace("$instance", ".*")
                values = [float(series["value"][1]) for series in prometheus.query(query)]
                if not values or any(value != value for value in values):
                    empty.append(f"{title}: {query} -> {values}")
            assert not empty, "panels without data:\n" + "\n".join(empty)
        finally:
            stop.set()
            thread.join(serving.CALL_SECONDS)
        server.wait_for_metric("requests_running", 0)
        page = server.metrics()["generation_tokens_total"]
        prometheus.wait_for(f"tokenbutler_generation_tokens_total == {page}")


def test_promtool_accepts_the_configuration():
    done = subprocess.run([debian_tool("promtool"), "check", "config", REPOSITORY / "deploy/prometheus/prometheus.yml"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
