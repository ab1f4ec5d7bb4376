"""However a stream ends, its client can resume, other clients notice nothing, and all resources are released."""

from __future__ import annotations

import base64
import os
import re
import signal
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import gevent
import pytest

from tests.server.conftest import metric
from tests.support.certificates import Authority
from tests.support.client import Client, fetch, numbers, value
from tests.support.server import Server
from tests.support.waiting import wait_until

RECORDS = 100  # of 100 kB: more than the sockets of a client that does not read can hold
MANY_RECORDS = 400
MAX_GROWTH_BYTES = 20_000_000  # half of what is sent, so that a server that buffers all of it fails


def large_values(count: int = RECORDS) -> Iterator[bytes]:
    return (b'{"n":%d,"x":"%b"}' % (n, b"x" * 100_000) for n in range(count))


def streams_open(server: Server) -> int:
    return int(fetch(server.port, "/-/health").json["streams"])


# The client leaves.


@pytest.fixture(scope="module")
def access_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "access.log"


@pytest.fixture(scope="module")
def server(serve: Callable[..., Server], access_log: Path) -> Server:
    """A server that releases idle feeds at once and sends no heartbeats, with a short write timeout and a small ring."""
    return serve(
        environment={"KAFKASSE_ACCESS_LOG": str(access_log)},
        idle_feed_timeout_s=0,
        heartbeat_s=300,
        write_timeout_s=0.5,
        max_ring_bytes=1_000_000,
    )


def test_clients_that_left_leave_no_descriptors(server, cluster, topic):
    cluster.send(topic, *(value(n) for n in range(100)))

    def visit(at: int) -> None:
        with Client(server.port, f"/{topic}" + ("?timestamp=0" if at % 2 else "")) as client:
            client.ready()
            if at % 3 == 0:
                reset(client)

    for at in range(6):  # the worker keeps some connections to Kafka for later readers
        visit(at)
    wait_until(lambda: streams_open(server) == 0)
    before, opened = len(server.descriptors()), metric(server, "streams_opened_total")

    for at in range(50):
        visit(at)

    wait_until(lambda: streams_open(server) == 0)
    wait_until(lambda: len(server.descriptors()) <= before)
    assert opened + 50 == metric(server, "streams_opened_total") == metric(server, "streams_closed_total")


def reset(client: Client) -> None:
    """Make close() send a reset, as if the client had crashed."""
    assert client.socket is not None
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_a_tls_client(broker, cluster, topic, tmp_path):
    """The server ignores what the client sends after its request, and notices at once that a client has left."""
    files = tmp_path / "certificate", tmp_path / "key"
    for file, pem in zip(files, Authority().issue("a server"), strict=True):
        file.write_text(pem)
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    settings = {"KAFKASSE_BOOTSTRAP_SERVERS": broker.bootstrap_servers, "KAFKASSE_HEARTBEAT_S": "300"}
    with Server(**settings, GUNICORN_CMD_ARGS="--certfile {} --keyfile {}".format(*files)) as server:

        def request(path: str, until: bytes) -> ssl.SSLSocket:
            client = trusting.wrap_socket(socket.create_connection(("127.0.0.1", server.port)))
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            receive(client, until)
            return client

        def streams_are(count: int) -> bool:
            with request("/-/health", b"}") as client:
                client.sendall(b"GET /-/health HTTP/1.1\r\nHost: x\r\n\r\n")
                return b'"streams": %d' % count in receive(client, b"}")

        with request(f"/{topic}", b"id: ") as talking, request(f"/{topic}", b"id: ") as leaving:
            talking.sendall(b"hello")
            assert streams_are(2)
            leaving.close()
            wait_until(lambda: streams_are(1))
            cluster.send(topic, value(7))
            receive(talking, b'"n":7')


def receive(client: socket.socket, until: bytes) -> bytes:
    """Return what the server sends, up to the chunk that contains `until`."""
    data = b""
    while until not in data:
        more = client.recv(65_536)
        assert more, data
        data += more
    return data


def test_closes_a_client_that_does_not_read(server, cluster, topic):
    """The client delays nobody, uses little memory, is closed after the write timeout, and resumes without a loss."""
    with Client(server.port, f"/{topic}", receive_buffer=65_536) as slow, Client(server.port, f"/{topic}") as fast:
        slow.ready()
        fast.ready()
        before = server.memory_bytes()
        sending = gevent.spawn(cluster.send, topic, *large_values(MANY_RECORDS))

        assert list(range(MANY_RECORDS)) == numbers(fast.events(MANY_RECORDS))
        sending.get()
        assert server.memory_bytes() < before + MAX_GROWTH_BYTES
        wait_until(lambda: streams_open(server) == 1)
        had = numbers(slow.rest_until_cut())

    assert len(had) < MANY_RECORDS
    with Client(server.port, f"/{topic}", Last_Event_ID=slow.last_id) as resumed:
        assert list(range(MANY_RECORDS)) == had + numbers(resumed.events(MANY_RECORDS - len(had)))


# The server stops.


@pytest.mark.parametrize("order", [["master", "worker"], ["worker", "master"]], ids="-".join)
def test_sigterm_ends_each_stream_with_its_id(serve, topic, order):
    """Heroku sends SIGTERM to gunicorn's master and to its worker, which gets a second one from the master."""
    server = serve(heartbeat_s=300)
    processes = {"master": server.pid, "worker": server.worker}
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(server.port, f"/{topic}")).ready() for _ in range(20)]

        for name in order:
            os.kill(processes[name], signal.SIGTERM)

        for client in clients:
            assert [] == client.rest()
            assert 2 == client.body.count(b"retry: ")
            assert client.last_id
    assert 0 == server.wait()


def test_sigterm_waits_for_a_stalled_client_until_the_graceful_timeout(broker, cluster, topic, tmp_path):
    """The server exits after graceful_timeout. The stream of the stalled client is in the access log all the same."""
    log = tmp_path / "access.log"
    settings = {"KAFKASSE_BOOTSTRAP_SERVERS": broker.bootstrap_servers, "KAFKASSE_ACCESS_LOG": str(log)}
    with (
        Server(**settings, GUNICORN_CMD_ARGS="--graceful-timeout 2") as server,
        Client(server.port, f"/{topic}", receive_buffer=65_536) as slow,
        Client(server.port, f"/{topic}") as fast,
    ):
        slow.ready()
        fast.ready()
        cluster.send(topic, *large_values())
        assert list(range(RECORDS)) == numbers(fast.events(RECORDS))

        server.terminate()
        assert [] == fast.rest()
        assert 0 == server.wait()

        assert 2 == log.read_text().count(f'"GET /{topic}')


# The stream ends by itself.


def test_an_http_1_0_client_gets_no_chunks(server, cluster, topic):
    cluster.send(topic, value(1))
    with socket.create_connection(("127.0.0.1", server.port), 30) as connection:
        connection.sendall(f"GET /{topic}?timestamp=0 HTTP/1.0\r\n\r\n".encode())
        received = b""
        while b"event: message" not in received or not received.endswith(b"\n\n"):
            received += connection.recv(65_536)

    assert b"\r\n\r\n:ok\n\nretry: " in received
    assert b"chunked" not in received


def test_logs_each_stream_when_it_has_ended(server, access_log, topic):
    def statuses(path: str) -> list[str]:
        return re.findall(rf'"GET {re.escape(path)}\S* HTTP/1\.1" (\d+) ', access_log.read_text())

    before = len(statuses("/-/health"))
    with Client(server.port, f"/{topic}").ready(), Client(server.port, f"/{topic}?timestamp=0").ready():
        fetch(server.port, "/-/health")
        wait_until(lambda: len(statuses("/-/health")) > before)  # the log is written after the response
        assert [] == statuses(f"/{topic}")
    wait_until(lambda: len(statuses(f"/{topic}")) == 2)

    assert ["200"] * 2 == statuses(f"/{topic}")


def test_a_user_name_cannot_add_a_line_to_the_access_log(server, access_log):
    """gunicorn decodes the user name of Authorization and does not escape it."""
    user = base64.b64encode(b'eve\r\n127.0.0.1 - - "GET /forged HTTP/1.1" 200\x1b[2J:password').decode()

    fetch(server.port, "/-/health", Authorization=f"Basic {user}")
    wait_until(lambda: "/forged" in access_log.read_text())

    [line] = [entry for entry in access_log.read_text().splitlines() if "eve" in entry]
    assert line.isprintable()
    assert "eve\\r\\n127" in line
