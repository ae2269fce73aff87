"""Starts the real server for tests and talks to it as any Python client would."""

import concurrent.futures
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import urllib.request

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tokenbutler.v1 import inference_pb2 as pb
from tokenbutler.v1 import inference_pb2_grpc, input_pb2, options_pb2, output_pb2

SERVER = os.environ["TOKENBUTLER_TEST_SERVER"]
CLI = os.environ["TOKENBUTLER_TEST_CLI"]
MODEL = os.environ["TOKENBUTLER_TEST_MODEL"]
STARTUP_SECONDS = 120
# Generous: these tests share two processors with others.
CALL_SECONDS = 180


class Server:
    """One server process on free ports; use with `with`."""

    def __init__(self, *flags, model=MODEL, env=None):
        self._folder = tempfile.TemporaryDirectory(prefix="tokenbutler-test-")
        folder = pathlib.Path(self._folder.name)
        self._port_file = folder / "port"
        self._metrics_port_file = folder / "metrics_port"
        self._log_path = folder / "log"
        self._log = open(self._log_path, "wb")
        self.process = subprocess.Popen(
            [SERVER, "--model", model, "--host", "127.0.0.1", "--port", "0", "--port-file", self._port_file,
             "--metrics-port", "0", "--metrics-port-file", self._metrics_port_file, *flags],
            stdout=self._log, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})})
        self._channels = []

    def __enter__(self):
        try:
            self.address = f"127.0.0.1:{self._wait_for_file(self._port_file)}"
            self.metrics_address = f"127.0.0.1:{self._wait_for_file(self._metrics_port_file)}"
            self.wait_until_serving()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *unused):
        for channel in self._channels:
            channel.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._log.close()
        self._folder.cleanup()

    def log(self):
        return self._log_path.read_text(errors="replace")

    def _wait_for_file(self, path):
        end = time.monotonic() + STARTUP_SECONDS
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.log()}")
            try:
                text = path.read_text().strip()
                if text:
                    return int(text)
            except FileNotFoundError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"the server did not write {path.name}:\n{self.log()}")

    def wait_until_serving(self):
        stub = health_pb2_grpc.HealthStub(self.channel())
        for response in stub.Watch(health_pb2.HealthCheckRequest(service="tokenbutler.v1.InferenceService"),
                                   timeout=STARTUP_SECONDS, wait_for_ready=True):
            if response.status == health_pb2.HealthCheckResponse.SERVING:
                return

    def channel(self, *options):
        """A new connection: grpc would share one between equal channels."""
        channel = grpc.insecure_channel(
            self.address, options=[("grpc.use_local_subchannel_pool", 1), *options])
        self._channels.append(channel)
        return channel

    def stub(self, *options):
        return inference_pb2_grpc.InferenceServiceStub(self.channel(*options))

    def terminate(self, timeout=60):
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def metrics_text(self):
        with urllib.request.urlopen(f"http://{self.metrics_address}/metrics", timeout=30) as response:
            return response.read().decode()

    def metrics(self):
        """{series: value}, the prefix tokenbutler_ left out: {'finished_total{reason="eos"}': 3.0}."""
        values = {}
        for line in self.metrics_text().splitlines():
            match = re.fullmatch(r"tokenbutler_(\S+?(?:\{.*\})?) (\S+)(?: \d+)?", line)
            if match:
                values[match.group(1)] = float(match.group(2))
        return values

    def process_metric(self, name):
        """A metric without our prefix."""
        return float(re.search(rf"^{name} (\S+)$", self.metrics_text(), re.M).group(1))

    def wait_for_metric(self, series, value, timeout=60):
        end = time.monotonic() + timeout
        while True:
            seen = self.metrics()[series]
            if seen == value:
                return
            assert time.monotonic() < end, f"{series} is {seen}, not {value}, after {timeout} s"
            time.sleep(0.1)


def chat_request(question, max_tokens=16, temperature=0.0, **fields):
    return pb.GenerateRequest(
        chat=input_pb2.ChatInput(messages=[input_pb2.ChatMessage(role="user", content=question)]),
        sampling=options_pb2.SamplingOptions(temperature=temperature), max_tokens=max_tokens, **fields)


def endless_request(max_tokens=4000, **fields):
    """Runs until somebody stops it."""
    return chat_request("Count upwards from one.", max_tokens=max_tokens,
                        stop=options_pb2.StopOptions(ignore_eos=True), **fields)


class Answer:
    """All that a Generate call streamed back."""

    def __init__(self, responses):
        self.events, self.texts, self.finished = [], {}, {}
        for response in responses:
            kind = response.WhichOneof("event")
            self.events.append(kind)
            if kind == "chunk":
                assert response.chunk.index not in self.finished, "a chunk after finished"
                self.texts[response.chunk.index] = self.texts.get(response.chunk.index, "") + response.chunk.text
            elif kind == "finished":
                assert response.finished.index not in self.finished, "finished twice"
                self.finished[response.finished.index] = response.finished

    @property
    def text(self):
        return self.texts.get(0, "")

    def reason(self, index=0):
        return output_pb2.FinishReason.Name(self.finished[index].reason)


def ask(stub, request, timeout=CALL_SECONDS):
    return Answer(stub.Generate(request, timeout=timeout))


def ask_all(stub, requests, workers=64):
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda request: ask(stub, request), requests))
