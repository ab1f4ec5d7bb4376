"""In the benchmarks of finite reads, the clients reconnect as real clients do."""

from __future__ import annotations

import socket

from bench.finite_clients import FiniteClients
from bench.remote import Remote
from tests.support.client import READ_TIMEOUT_S

CHUNK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nStream-Next-Offset: %b\r\n%b\r\n[]"
LAST = b"Stream-Up-To-Date: true\r\n"


def test_a_client_whose_idle_connection_was_closed_sends_its_request_again():
    requests = []
    with Remote(FiniteClients) as clients, socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(READ_TIMEOUT_S)
        clients.start("read", listener.getsockname()[1], "/t", "-1", 1)
        for chunk in (CHUNK % (b"1", b""), CHUNK % (b"2", LAST)):
            connection, _ = listener.accept()
            with connection:
                requests.append(connection.recv(1_000).split(b" ")[1])
                connection.sendall(chunk)
        done = clients.result()

    assert [b"/t?offset=-1", b"/t?offset=1"] == requests
    assert (1, "2") == (done.complete, done.offset)
