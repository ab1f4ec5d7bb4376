"""Finite reads over real sockets."""

from __future__ import annotations

import gevent

from tests.support.client import Client, fetch
from tests.support.server import Server
from tests.support.waiting import wait_until

LARGE = "tests.support.apps:large()"


def test_a_client_that_accepts_no_bytes_is_closed(processes):
    """Otherwise, such clients could occupy all streams, with a chunk each in memory."""
    with (
        Server(LARGE, KAFKASSE_WRITE_TIMEOUT_S="1", KAFKASSE_MAX_STREAMS="1") as server,
        Client(server.port, "/t?offset=-1", receive_buffer=4096),
    ):
        assert 503 == fetch(server.port, "/t?offset=-1").status

        wait_until(lambda: fetch(server.port, "/t?offset=-1").status == 200)


def test_a_client_that_reads_slowly_receives_its_chunk(processes):
    """The timeout applies to each part of the chunk, and not to the time before the next request."""
    with (
        Server(LARGE, KAFKASSE_WRITE_TIMEOUT_S="1") as server,
        Client(server.port, "/t?offset=-1", receive_buffer=131_072) as client,
    ):
        while client._read():
            gevent.sleep(0.03)

        assert int(client.headers["content-length"]) == len(client.body) > 14_000_000
        gevent.sleep(1.5)  # Server.stop() would find an error in the log
