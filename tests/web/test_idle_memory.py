"""The memory of an idle client, measured without a server."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator

import pytest
from flask import Flask
from gevent import socket
from werkzeug.test import create_environ

from kafkasse.app import blueprint
from kafkasse.config import Config
from kafkasse.log.memory import MemoryLog
from kafkasse.web.stream import StreamBody

MAX_BYTES = 1800  # of Python objects
STREAMS = 100


class Server:
    """Serves streams over socket pairs, as our worker does over connections."""

    def __init__(self) -> None:
        log = MemoryLog()
        log.create("t", 3)
        self._app = Flask("host")
        config = Config(allowed_topics=["t"], public=True, max_streams_per_client=10_000)
        self._app.register_blueprint(blueprint(config, log))
        self._streams: list[StreamBody] = []
        self._clients: list[socket.socket] = []

    def open(self, count: int) -> int:
        """Open and park streams. Return the memory that they take up, in bytes."""
        pairs = [socket.socketpair() for _ in range(count)]
        self._clients += [client for _, client in pairs]
        gc.collect()  # what other tests left must not be freed while this one measures
        before, _ = tracemalloc.get_traced_memory()
        for end, _ in pairs:
            stream = self._app.wsgi_app({**create_environ("/t"), "gunicorn.socket": end}, lambda *_: None)
            stream.serve(bytes)
            assert "parked" == stream.status()["state"]
            self._streams.append(stream)
        del stream
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before

    def close(self) -> None:
        for stream in self._streams:
            stream.close()
        for client in self._clients:
            client.close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    tracemalloc.start()
    yield server
    tracemalloc.stop()
    server.close()


def test_an_idle_client_costs_little_memory(server):
    """A parked client has no greenlet, no generator and no function of its own."""
    server.open(STREAMS)  # also fills the caches

    bytes_each = server.open(STREAMS) / STREAMS

    assert bytes_each <= MAX_BYTES
