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
RECALL_PROBE_RATE = 0.5  # many, so that short tests have some


@pytest.fixture(scope="module")
def server():
    with serving.Server("--recall-probe-rate", str(RECALL_PROBE_RATE)) as running:
        yield running


def debian_tool(name):
    path = shutil.which(name) or TOOLS / name
    assert pathlib.Path(path).exists(), f"{name} is missing: run scripts/setup test"
    return str(path)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def delta_of(server, work):
    """What `work` changed on the metrics page, and its result."""
    before = server.metrics()
    result = work()
    for gauge in ("requests_running", "requests_waiting", "requests_preparing", "open_streams"):
        server.wait_for_metric(gauge, 0)
    after = server.metrics()
    return collections.defaultdict(float, {name: after[name] - before[name] for name in after}), result


def sparse_request(num_tokens=300, policy="exact", **fields):
    """A context beyond its token budget. A block has 128 tokens, so a budget has to hold more."""
    attention = serving.options_pb2.AttentionOptions(policy=policy, token_budget=160, sink_tokens=4, local_window=16)
    return chat_request(" ".join(str(i) for i in range(num_tokens // 4)), attention=attention,
                        stop=serving.options_pb2.StopOptions(ignore_eos=True), **fields)


def refused(stub, request, code, timeout=serving.CALL_SECONDS):
    with pytest.raises(grpc.RpcError) as error:
        ask(stub, request, timeout=timeout)
    assert error.value.code() == code


def test_every_series_exists_from_the_start():
    with serving.Server() as server:
        page = server.metrics()
        for code in grpc.StatusCode:
            assert page[f'requests_total{{code="{code.name}"}}'] == 0
        for reason in ("eos", "stop_string", "stop_token", "length", "context_length", "cancelled"):
            assert page[f'finished_total{{reason="{reason}"}}'] == 0
        assert page["kv_host_capacity_bytes"] > 0
        assert page["time_to_first_token_seconds_count"] == 0


def test_counters_equal_what_clients_saw_to_the_token(server, stub):
    def work():
        requests = [chat_request(f"Tell me about the number {i}.", max_tokens=1 + i, temperature=0.8) for i in range(40)]
        requests[5].stop.strings.append("e")
        requests[6].sampling.n = 3
        answers = serving.ask_all(stub, requests, workers=40)
        for _ in range(3):
            refused(stub, chat_request("Hi", model="none"), grpc.StatusCode.NOT_FOUND)
            refused(stub, chat_request("Hi", max_tokens=-1), grpc.StatusCode.INVALID_ARGUMENT)
        return answers

    delta, answers = delta_of(server, work)
    finished = [one for answer in answers for one in answer.finished.values()]
    assert len(finished) == 42
    reasons = collections.Counter(serving.output_pb2.FinishReason.Name(one.reason) for one in finished)
    for reason in ("EOS", "LENGTH", "STOP_STRING", "STOP_TOKEN", "CONTEXT_LENGTH", "CANCELLED"):
        assert delta[f'finished_total{{reason="{reason.lower()}"}}'] == reasons[f"FINISH_REASON_{reason}"], reason
    codes = {"OK": 40, "NOT_FOUND": 3, "INVALID_ARGUMENT": 3}
    for code in grpc.StatusCode:
        assert delta[f'requests_total{{code="{code.name}"}}'] == codes.get(code.name, 0), code

    num_sampled = sum(one.usage.completion_tokens for one in finished)
    assert delta["generation_tokens_total"] == num_sampled
    assert delta["prompt_tokens_total"] == sum(answer.finished[0].usage.prompt_tokens for answer in answers)
    assert delta["prompt_tokens_cached_total"] == 0
    for histogram in ("time_to_first_token", "e2e_request_latency", "request_queue", "request_prefill", "request_decode"):
        assert delta[f"{histogram}_seconds_count"] == 40, histogram
    assert delta["inter_token_latency_seconds_count"] == num_sampled - len(finished)
    # The sums are what each client was told.
    timings = [answer.finished[0].timings for answer in answers]
    for histogram, told in (("time_to_first_token", "first_token"), ("request_queue", "queue"), ("request_prefill", "prefill")):
        seconds = sum(getattr(one, told).ToNanoseconds() for one in timings) / 1e9
        assert delta[f"{histogram}_seconds_sum"] == pytest.approx(seconds, rel=1e-3, abs=1e-3), histogram


def test_counters_of_sparse_attention_equal_what_clients_were_told(server, stub):
    model = stub.GetModelInfo(serving.pb.GetModelInfoRequest()).model
    requests = [sparse_request(num_tokens=280 + 40 * i, policy=policy, max_tokens=5 + i)
                for i, policy in enumerate(("exact", "sketch", "random"))]
    dense = chat_request("Hi", attention=serving.options_pb2.AttentionOptions(policy="dense"))
    short = chat_request("Hi", max_tokens=8)  # within the budget of the server's policy

    delta, answers = delta_of(server, lambda: serving.ask_all(stub, [*requests, dense, short], workers=5))
    *sparse, dense, short = [answer.finished[0] for answer in answers]
    assert not dense.HasField("offload")
    lists = model.num_layers * model.num_kv_heads
    steps = [one.usage.completion_tokens - 1 for one in sparse]
    short_steps = short.usage.completion_tokens - 1
    for one in sparse:
        assert one.usage.prompt_tokens > 160
        assert one.offload.mean_tokens_attended == 160
        assert one.offload.hit_ratio == 1 and one.offload.host_to_device_bytes == 0
    contexts = range(short.usage.prompt_tokens + 1, short.usage.prompt_tokens + short_steps + 1)
    assert short.offload.mean_tokens_attended == pytest.approx(sum(contexts) / short_steps)
    assert delta["hot_buffer_lookups_total"] == 160 * lists * sum(steps)
    assert delta["hot_buffer_hits_total"] == delta["hot_buffer_lookups_total"]
    assert delta['dense_fallback_total{reason="short_context"}'] == model.num_layers * short_steps
    assert delta['dense_fallback_total{reason="dense_layer"}'] == 0
    for histogram in ("selected_tokens", "attended_ratio", "predictor_seconds", "decode_stall_seconds"):
        assert delta[f"{histogram}_count"] == sum(steps) + short_steps, histogram
    assert delta["selected_tokens_sum"] == pytest.approx(160 * sum(steps) + sum(contexts))
    ratios = sum(160 / (one.usage.prompt_tokens + 1 + step) for one, n in zip(sparse, steps) for step in range(n))
    assert delta["attended_ratio_sum"] == pytest.approx(ratios + short_steps)
    assert delta["selection_recall_ratio_count"] == pytest.approx(sum(steps) * RECALL_PROBE_RATE, abs=len(steps))
    assert 0 < delta["selection_recall_ratio_sum"] <= delta["selection_recall_ratio_count"]
    assert delta["decode_stall_seconds_sum"] == 0
    assert delta['kv_transfer_bytes_total{direction="host_to_device",purpose="fetch"}'] == 0


def test_counters_of_calls_that_ended_early(server, stub):
    def cancelled_by_client():
        call = stub.Generate(endless_request(), timeout=serving.CALL_SECONDS)
        next(iter(call))
        call.cancel()

    delta, _ = delta_of(server, cancelled_by_client)
    assert delta['requests_total{code="CANCELLED"}'] == 1
    assert delta["generation_tokens_total"] >= 1
    assert delta["inter_token_latency_seconds_count"] == delta["generation_tokens_total"] - 1
    assert delta["e2e_request_latency_seconds_count"] == 0, "only requests that end well have a latency"

    delta, _ = delta_of(server, lambda: refused(stub, endless_request(), grpc.StatusCode.DEADLINE_EXCEEDED, timeout=2))
    assert delta['requests_total{code="DEADLINE_EXCEEDED"}'] == 1
    assert delta['requests_total{code="CANCELLED"}'] == 0
    assert sum(delta[f'deadline_expired_total{{stage="{stage}"}}'] for stage in ("prepare", "queue", "prefill", "decode")) == 1
    assert delta["kv_host_used_bytes"] == 0


def test_promtool_accepts_the_page(server):
    done = subprocess.run([debian_tool("promtool"), "check", "metrics"], input=server.metrics_text(), text=True,
                          capture_output=True, timeout=60)
    assert done.returncode == 0 and not done.stdout.strip() and not done.stderr.strip(), done.stdout + done.stderr


def dashboard_queries():
    dashboard = json.loads((REPOSITORY / "deploy/grafana/tokenbutler.json").read_text())
    return [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel["targets"]]


def test_dashboard_and_alerts_name_only_metrics_that_exist(server):
    page = server.metrics_text()
    names = set(re.findall(r"^([a-z0-9_]+)", page, re.M))
    alerts = (REPOSITORY / "deploy/prometheus/alerts.yml").read_text()
    used = set(re.findall(r"tokenbutler_[a-z0-9_]+", alerts))
    assert len(used) > 5
    assert set(re.findall(r"process_[a-z0-9_]+", alerts)) <= names
    used |= {name for _, query in dashboard_queries() for name in re.findall(r"tokenbutler_[a-z0-9_]+", query)}
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
        shutil.copy(REPOSITORY / "deploy/prometheus/alerts.yml", folder)
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
                ask(stub, sparse_request(max_tokens=6))
                with pytest.raises(grpc.RpcError):
                    ask(stub, chat_request("Hi", model="none"))

        thread = threading.Thread(target=traffic)
        thread.start()
        try:
            # Of both kinds of requests: on a busy machine the first sparse one may end late.
            for counter in ("generation_tokens_total", "selection_recall_ratio_count", "hot_buffer_lookups_total"):
                prometheus.wait_for(f"sum(rate(tokenbutler_{counter}[10s])) > 0")
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


def test_promtool_accepts_the_alerts():
    done = subprocess.run([debian_tool("promtool"), "check", "rules", REPOSITORY / "deploy/prometheus/alerts.yml"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 rules found" in done.stdout


def test_promtool_accepts_the_configuration():
    done = subprocess.run([debian_tool("promtool"), "check", "config", REPOSITORY / "deploy/prometheus/prometheus.yml"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
