"""At each limit the next client is rejected with Retry-After, or waits, and open streams get all their records."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest

from tests.support.client import Answer, Client, fetch, numbers
from tests.support.server import Server
from tests.support.waiting import wait_until

CAP = 3
REJECTED = 20
SMALL_PIECE_BYTES = 16_384  # so small that the socket is not writable for much longer than the write timeout
RECORDS = 120  # of 100 kB: more than the sockets of a client that does not read can hold


def value(n: int, size: int = 0) -> bytes:
    return b'{"n":%d,"x":"%b"}' % (n, b"x" * size)


def rejection(answer: Answer) -> tuple[int, str]:
    """Return the status and the name of an error, which must have a Retry-After."""
    assert int(answer.headers["retry-after"]) > 0
    return answer.status, answer.json["name"]


@pytest.fixture(scope="module")
def server(serve: Callable[..., Server]) -> Server:
    """A server with room for three streams of one client, and four in total."""
    return serve(max_streams=CAP + 1, max_streams_per_client=CAP, trusted_proxies=1, write_timeout_s=1)


@pytest.fixture
def empty(server: Server) -> Server:
    """The same server, without the streams of the previous test."""
    wait_until(lambda: fetch(server.port, "/-/health").json["streams"] == 0)
    return server


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        ([f"10.0.0.{n}" for n in range(CAP + 1)], (503, "ServerFullError")),
        (["10.0.0.9"] * CAP, (429, "TooManyStreamsError")),
    ],
    ids=["max_streams", "max_streams_per_client"],
)
def test_a_full_server_rejects_clients_and_serves_those_inside(empty, cluster, topic, opened, addresses, expected):
    """Clients are rejected while the open streams get every record. A free place goes to the next client."""
    port, last = empty.port, addresses[-1]
    clients = [
        opened.enter_context(Client(port, f"/{topic}", X_Forwarded_For=address)).ready() for address in addresses
    ]

    for n in range(REJECTED):
        assert expected == rejection(fetch(port, f"/{topic}", X_Forwarded_For=last))
        cluster.send(topic, value(n))

    assert [list(range(REJECTED))] * len(clients) == [numbers(client.events(REJECTED)) for client in clients]
    assert [] == [client for client in clients if b"event: error" in client.body]
    clients[0].close()
    wait_until(lambda: opened.enter_context(Client(port, f"/{topic}", X_Forwarded_For=last)).status == 200)


def test_a_client_that_must_catch_up_waits_in_its_open_stream(serve, cluster, topic, opened):
    """It waits until one of the clients that do not read loses its slot. Live clients are not affected."""
    server = serve(max_catch_ups=2, max_ring_bytes=100_000, write_timeout_s=300)
    cluster.send(topic, *(value(n, 100_000) for n in range(RECORDS)))
    live = opened.enter_context(Client(server.port, f"/{topic}")).ready()
    slow = [opened.enter_context(_from_the_start(server, topic)).ready() for _ in range(2)]

    third = opened.enter_context(Client(server.port, f"/{topic}?timestamp=0")).ready()
    newcomer = opened.enter_context(Client(server.port, f"/{topic}")).ready()
    cluster.send(topic, value(RECORDS))

    assert [[RECORDS]] * 2 == [numbers(client.events(1)) for client in (live, newcomer)]
    everything = list(range(RECORDS + 1))
    assert [everything] * 3 == [numbers(client.events(RECORDS + 1)) for client in (third, *slow)]


def _from_the_start(server: Server, topic: str) -> Client:
    return Client(server.port, f"/{topic}?timestamp=0", receive_buffer=65_536)


def test_never_closes_a_slow_client_that_keeps_reading(empty, cluster, topic, opened):
    cluster.send(topic, *(value(n, 100_000) for n in range(RECORDS)))
    path = f"/{topic}?timestamp=0"
    client = opened.enter_context(Client(empty.port, path, receive_buffer=SMALL_PIECE_BYTES)).ready()

    pieces = iter(range(25))

    def long_enough() -> bool:
        gevent.sleep(0.2)
        return next(pieces, None) is None

    client.read_until(long_enough)
    assert 1 == fetch(empty.port, "/-/health").json["streams"]


class TestDescriptors:
    """The worker's limit of open files and sockets, see `ulimit -n`, and a worker that has reached it."""

    @pytest.fixture(scope="class")
    @classmethod
    def server(cls, serve: Callable[..., Server]) -> Server:
        """A server that was started with the limit of most systems."""
        usual = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, usual[1]))
        try:
            return serve(kafka_timeout_s=0.5, heartbeat_s=0.2)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, usual)

    @pytest.fixture(autouse=True)
    def limits(self, server: Server) -> Iterator[None]:
        usual = resource.prlimit(server.worker, resource.RLIMIT_NOFILE)
        yield
        resource.prlimit(server.worker, resource.RLIMIT_NOFILE, usual)

    def test_gunicorn_raises_the_soft_limit(self, server):
        """Most systems limit a process to 1,024 descriptors and allow it to raise the limit."""
        _, usual = resource.getrlimit(resource.RLIMIT_NOFILE)

        soft, hard = resource.prlimit(server.worker, resource.RLIMIT_NOFILE)

        assert (soft, hard) == (min(hard, 65_536), usual)

    def test_new_clients_wait_while_there_are_no_descriptors(self, server, cluster, topic, opened):
        clients = [opened.enter_context(Client(server.port, f"/{topic}")).ready() for _ in range(CAP)]
        cluster.send(topic, value(0))
        assert [[0]] * CAP == [numbers(client.events(1)) for client in clients]  # the worker has connected to Kafka
        allow(server, more=0)

        late = [gevent.spawn(Client, server.port, f"/{topic}") for _ in range(CAP)]
        for n in range(REJECTED):
            cluster.send(topic, value(n))
        assert [list(range(REJECTED))] * CAP == [numbers(client.events(REJECTED)) for client in clients]
        assert [False] * CAP == [greenlet.ready() for greenlet in late]

        for client in clients:
            client.close()
        assert [200] * CAP == [opened.enter_context(greenlet.get()).ready().status for greenlet in late]

    def test_a_stream_waits_for_a_descriptor_to_connect_to_kafka(self, server, cluster, topic, fresh_name, opened):
        """The stream sends heartbeats, as while Kafka is down, and gets all records once there is a descriptor."""
        client = opened.enter_context(Client(server.port, f"/{topic}")).ready()
        other = cluster.create(f"{fresh_name}-other")
        cluster.send(other, value(1))
        cluster.send(topic, value(0))
        assert [0] == numbers(client.events(1))  # the worker has connected to Kafka
        allow(server, more=1)

        patient = opened.enter_context(Client(server.port, f"/{other}?timestamp=0")).ready()
        cluster.send(topic, value(2))
        assert [2] == numbers(client.events(1))
        patient.read_until_text(b":heartbeat", patient.body.count(b":heartbeat") + 3)
        assert b"event: message" not in patient.body

        client.close()
        assert [1] == numbers(patient.events(1))

    def test_clients_leave_descriptors_for_connections_to_kafka(self, serve, cluster, topic, opened):
        """Some connections wait, and the log says why. A client that was accepted gets its records meanwhile."""
        cluster.send(topic, *map(value, range(REJECTED)))
        server, limit = serve(environment={"GUNICORN_CMD_ARGS": "--keep-alive 600"}), 100  # also for the first request
        first = server.worker
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (limit, limit))  # the master's next worker inherits it
        server.reload()
        wait_until(lambda: server.workers() not in ([], [first]) and len(server.workers()) == 1)
        address = "127.0.0.1", server.port
        accepted, *others = (opened.enter_context(socket.create_connection(address, 60)) for _ in range(limit))
        wait_until(lambda: f"files. New connections wait. The limit (ulimit -n) is {limit}." in server.log)
        server.worker = server.workers()[0]
        assert len(server.descriptors()) < limit * 0.9

        accepted.sendall(f"GET /{topic}?timestamp=0 HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        received = b""
        while received.count(b"event: message") < REJECTED:
            received += (data := accepted.recv(65_536))
            assert data, received

        for other in others:
            other.close()
        assert 200 == opened.enter_context(Client(server.port, f"/{topic}")).ready().status


def allow(server: Server, more: int) -> None:
    """Let the worker open `more` descriptors, and no others."""
    _, hard = resource.prlimit(server.worker, resource.RLIMIT_NOFILE)
    used = {int(path.name) for path in Path(f"/proc/{server.worker}/fd").iterdir()}
    unused: list[Any] = [descriptor for descriptor in range(max(used) + more + 2) if descriptor not in used]
    resource.prlimit(server.worker, resource.RLIMIT_NOFILE, (unused[more], hard))
