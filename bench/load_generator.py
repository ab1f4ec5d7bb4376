"""The limit of the load generator: how many records its clients can receive from a process that only sends."""

from __future__ import annotations

import socket
import time

from bench.clients import Clients, Request
from bench.figures import Figures, Row
from bench.records import value
from bench.remote import Remote
from bench.testbed import RECORD_BYTES, Testbed

FRAMES = 20  # of one write; they fit into the buffer of a socket
CLIENTS = 1000
SECONDS = 4.0
SENDER = "a process that only sends"


class FloodServer:
    """A server that only sends prepared bytes, as fast as the clients can receive them."""

    def listen(self) -> int:
        """Listen on a free port. Returns the port."""
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        return int(self._listener.getsockname()[1])

    def flood(self, clients: int, seconds: float) -> None:
        """Accept `clients` clients, and send to all of them in turn for `seconds` seconds."""
        frame = b"event: message\ndata: " + value(RECORD_BYTES) + b"\nid: " + b"x" * 150 + b"\n\n"
        accepted = [self._listener.accept()[0] for _ in range(clients)]
        for connection in accepted:
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nid: \n\n")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for connection in accepted:
                connection.sendall(frame * FRAMES)
        for connection in accepted:
            connection.close()


def measure(testbed: Testbed) -> Figures:
    """Rows: deliveries per second to many clients, and records per second to one client."""
    return [
        _row(testbed, "limit.deliveries", testbed.clients, testbed.scale.clients(CLIENTS), "deliveries/s"),
        _row(testbed, "limit.records", testbed.one_client, 1, "records/s"),
    ]


def _row(testbed: Testbed, key: str, receivers: Clients, clients: int, unit: str) -> Row:
    seconds = testbed.scale.seconds(SECONDS)
    with Remote(FloodServer) as flood_server:
        port = flood_server.call("listen")
        flood_server.start("flood", clients, seconds)
        receivers.open([Request(port, "/", b"\nid: ")] * clients)
        receivers.expect(10**12, seconds * 2)
        flood_server.result()
        received = receivers.delivered()
        receivers.close_all()
    what = f"limit of the load generator, {clients:,} client{'s' * (clients > 1)}"
    return Row(key, SENDER, what, received.rate, unit, limit="the sender, which shares two cores with the clients")
