"""Health checks and reflection, as probes and tools use them."""

import os
import signal
import subprocess
import threading

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

import serving

SERVICE = "tokenbutler.v1.InferenceService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module")
def health(server):
    return health_pb2_grpc.HealthStub(server.channel())


def check(health, service):
    return health.Check(health_pb2.HealthCheckRequest(service=service), timeout=30).status


def test_check(health):
    assert check(health, "") == SERVING
    assert check(health, SERVICE) == SERVING
    with pytest.raises(grpc.RpcError) as error:
        check(health, "no.such.Service")
    assert error.value.code() == grpc.StatusCode.NOT_FOUND


def test_watch_sees_the_drain():
    with serving.Server("--shutdown-grace", "30s") as server:
        stub = server.stub()
        call = stub.Generate(serving.endless_request(max_tokens=300), timeout=serving.CALL_SECONDS)
        next(iter(call))
        statuses, drained = [], threading.Event()

        def watch():
            stream = health_pb2_grpc.HealthStub(server.channel()).Watch(
                health_pb2.HealthCheckRequest(service=SERVICE), timeout=serving.CALL_SECONDS)
            try:
                for response in stream:
                    statuses.append(response.status)
                    if response.status == NOT_SERVING:
                        drained.set()
            except grpc.RpcError:
                pass  # the server went away, as it should

        thread = threading.Thread(target=watch)
        thread.start()
        while not statuses:
            assert thread.is_alive()
            drained.wait(0.01)
        server.process.send_signal(signal.SIGTERM)
        assert drained.wait(30)
        assert statuses[:2] == [SERVING, NOT_SERVING]
        list(call)
        assert server.process.wait(60) == 0
        thread.join(30)


def test_reflection_describes_the_service(server):
    database = ProtoReflectionDescriptorDatabase(server.channel())
    assert SERVICE in database.get_services()
    file = database.FindFileContainingSymbol(SERVICE)
    assert {method.name for service in file.service for method in service.method} == {
        "Generate", "Tokenize", "Detokenize", "Abort", "GetModelInfo", "GetServerInfo", "GetLoad"}


def test_reflection_can_be_turned_off():
    with serving.Server("--reflection=false") as server:
        stub = reflection_pb2_grpc.ServerReflectionStub(server.channel())
        with pytest.raises(grpc.RpcError) as error:
            list(stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=30))
        assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED


def cli_health(*arguments, env=None):
    return subprocess.run([serving.CLI, "health", *arguments], capture_output=True, text=True, timeout=60,
                          env={**os.environ, **(env or {})})


def test_cli_health(server):
    done = cli_health("--server", server.address)
    assert (done.returncode, done.stdout) == (0, "SERVING\n"), done.stderr
    assert cli_health("--server", "127.0.0.1:1").returncode == 3
    assert cli_health(env={"TOKENBUTLER_SERVER": server.address}).returncode == 0
    # The flag wins over the environment.
    assert cli_health("--server", server.address, env={"TOKENBUTLER_SERVER": "127.0.0.1:1"}).returncode == 0
