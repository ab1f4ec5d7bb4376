"""Connections that wait for their next request without a greenlet."""

from __future__ import annotations

import socket

import gevent
from gevent.monkey import get_original

from kafkasse.server.kept_connections import KeptConnections
from tests.support.waiting import wait_until

PlainSocket = get_original("socket", "socket")


def test_requests_are_served_at_the_same_time_up_to_a_limit():
    """A request that takes long does not delay the others, and thousands that arrive at once do not all take memory."""
    limit, is_over, clients, serving = 5, gevent.event.Event(), [], []
    kept = KeptConnections(60, lambda starting: len(serving) + starting < limit or is_over.is_set())

    def serve(client: socket.socket) -> None:
        serving.append(client)
        is_over.wait()
        kept.serve_waiting()

    for _ in range(2 * limit):
        client, ours = socket.socketpair()
        client.sendall(b"GET")
        clients.append(client)
        kept.add(PlainSocket(ours.family, ours.type, ours.proto, ours.detach()), serve)
    wait_until(lambda: len(serving) == limit)
    gevent.sleep(0.01)
    assert limit == len(serving) == len(kept)

    is_over.set()
    wait_until(lambda: len(serving) == 2 * limit)
    for sock in (*clients, *serving):
        sock.close()


def test_only_connections_without_a_request_are_closed_at_the_end():
    """A request that has arrived is served, although its connection was idle just before."""
    served: list[bytes] = []
    kept = KeptConnections(60, lambda _: True)
    (client, ours), (idle, other) = socket.socketpair(), socket.socketpair()
    for sock in (ours, other):
        kept.add(
            PlainSocket(sock.family, sock.type, sock.proto, sock.detach()), lambda ours: served.append(ours.recv(9))
        )
    client.sendall(b"GET")

    kept.close_idle()

    assert b"" == idle.recv(1)
    wait_until(lambda: served == [b"GET"])
    assert 0 == len(kept)
    for sock in (client, idle):
        sock.close()
