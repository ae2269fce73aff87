"""Shared fixtures: the server that most tests of a file talk to."""

import pytest

import serving


@pytest.fixture(scope="module")
def server():
    with serving.Server() as running:
        yield running


@pytest.fixture(scope="module")
def stub(server):
    return server.stub()
