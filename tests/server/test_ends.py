"""However a stream ends, its client can go on, nobody else is harmed, and nothing is left of it."""

from __future__ import annotations

import json
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import gevent
import pytest

from kafkasse.broker import EmbeddedBroker
from tests.support.certificates import Authority
from tests.support.client import Client, ask, data
from tests.support.kafka import Cluster
from tests.support.server import Server
from tests.support.waiting import eventually

RECORDS = 100  # of 100 kB: more than the sockets of a client that does not read can hold
MANY_RECORDS = 400
GROWTH_BYTES_MAX = 20_000_000  # half of what is sent, so that a server that buffers all of it fails


def value(n: int) -> bytes:
    return b'{"n":%d}' % n


def large_values(count: int = RECORDS) -> Iterator[bytes]:
    return (b'{"n":%d,"x":"%b"}' % (n, b"x" * 100_000) for n in range(count))


def metric(server: Server, name: str) -> int:
    lines = ask(server.port, "/-/metrics").body.decode().splitlines()
    return sum(int(line.split()[-1]) for line in lines if line.startswith(f"kafkasse_{name}"))


def streams_open(server: Server) -> int:
    return int(ask(server.port, "/-/health").json["streams"])


# The client goes.


@pytest.fixture(scope="module")
def server(serve: Callable[..., Server]) -> Server:
    """One that gives everything back at once, says nothing into silence, and has little patience and memory."""
    return serve(idle_feed_timeout_s=0, heartbeat_s=300, write_timeout_s=0.5, max_ring_bytes=1_000_000)


def test_nothing_is_left_of_clients_that_went(server: Server, cluster: Cluster, topic: str) -> None:
    """Fifty streams, idle, busy, catching up and cut off: sockets and descriptors are back to where they were."""
    cluster.send(topic, *(value(n) for n in range(100)))

    def visit(at: int) -> None:
        with Client(server.port, f"/{topic}" + ("?timestamp=0" if at % 2 else "")) as client:
            client.ready()
            if at % 3 == 0:
                reset(client)

    for at in range(6):  # connects to Kafka, and keeps some connections for the next readers
        visit(at)
    eventually(lambda: streams_open(server) == 0)
    before, opened = len(server.descriptors()), metric(server, "streams_opened_total")

    for at in range(50):
        visit(at)

    eventually(lambda: streams_open(server) == 0)
    eventually(lambda: len(server.descriptors()) <= before)
    assert opened + 50 == metric(server, "streams_opened_total") == metric(server, "streams_closed_total")


def reset(client: Client) -> None:
    """Leave by a reset, as a machine does that is switched off."""
    assert client.socket is not None
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_an_idle_client_is_missed_at_once(server: Server, topic: str) -> None:
    """Its going is noticed without a record or a heartbeat to send."""
    with Client(server.port, f"/{topic}") as client:
        client.ready()
        assert 1 == streams_open(server)

    eventually(lambda: streams_open(server) == 0)


def test_a_client_behind_tls(broker: EmbeddedBroker, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """It may say what it likes, and is missed at once when it leaves."""
    files = tmp_path / "certificate", tmp_path / "key"
    for file, pem in zip(files, Authority().issue("a server"), strict=True):
        file.write_text(pem)
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    settings = {"KAFKASSE_BOOTSTRAP_SERVERS": broker.bootstrap_servers, "KAFKASSE_HEARTBEAT_S": "300"}
    with Server(**settings, GUNICORN_CMD_ARGS="--certfile {} --keyfile {}".format(*files)) as server:

        def said(path: str, until: bytes) -> ssl.SSLSocket:
            client = trusting.wrap_socket(socket.create_connection(("127.0.0.1", server.port)))
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            hear(client, until)
            return client

        def streams_are(count: int) -> bool:
            with said("/-/health", b"}") as client:
                client.sendall(b"GET /-/health HTTP/1.1\r\nHost: x\r\n\r\n")
                return b'"streams": %d' % count in hear(client, b"}")

        with said(f"/{topic}", b"id: ") as talking, said(f"/{topic}", b"id: ") as leaving:
            talking.sendall(b"hello")
            assert streams_are(2)
            leaving.close()
            eventually(lambda: streams_are(1))
            cluster.send(topic, value(7))
            hear(talking, b'"n":7')


def hear(client: socket.socket, until: bytes) -> bytes:
    """What comes, up to and with these bytes."""
    data = b""
    while until not in data:
        more = client.recv(65_536)
        assert more, data
        data += more
    return data


def test_a_client_that_does_not_read(server: Server, cluster: Cluster, topic: str) -> None:
    """It holds up nobody, costs no memory to speak of, is closed in time, and gets the rest when it comes back."""
    with Client(server.port, f"/{topic}", receive_buffer=65_536) as slow, Client(server.port, f"/{topic}") as fast:
        slow.ready()
        fast.ready()
        before = server.memory_bytes()
        sending = gevent.spawn(cluster.send, topic, *large_values(MANY_RECORDS))

        assert list(range(MANY_RECORDS)) == data(fast.events(MANY_RECORDS))
        sending.get()
        assert server.memory_bytes() < before + GROWTH_BYTES_MAX
        eventually(lambda: streams_open(server) == 1)
        had = data(slow.all_there_is())

    assert len(had) < MANY_RECORDS
    with Client(server.port, f"/{topic}", Last_Event_ID=slow.last_id) as again:
        assert list(range(MANY_RECORDS)) == had + data(again.events(MANY_RECORDS - len(had)))


# The server goes.


def test_a_server_that_stops(serve: Callable[..., Server], topic: str) -> None:
    """At SIGTERM each stream ends whole, with a time to wait and its id, and the process ends well."""
    server = serve(heartbeat_s=300)
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(server.port, f"/{topic}")).ready() for _ in range(20)]
        server.terminate()

        for client in clients:
            assert [] == client.rest()
            assert 2 == client.body.count(b"retry: ")
            assert client.last_id
    assert 0 == server.wait()


def test_a_server_that_stops_while_a_client_does_not_read(
    broker: EmbeddedBroker, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """It is waited for no longer than graceful_timeout, and its stream ends in the log all the same."""
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
        assert list(range(RECORDS)) == data(fast.events(RECORDS))

        server.terminate()
        assert [] == fast.rest()
        assert 0 == server.wait()

        assert 2 == log.read_text().count(f'"GET /{topic}')


def test_nothing_is_lost_when_servers_take_over(serve: Callable[..., Server], cluster: Cluster, topic: str) -> None:
    """Clients of a server that stops go on at another one, under load: no record is lost, none comes twice."""
    old, new = serve(), serve()
    writing = gevent.spawn(_write, cluster, topic)
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(old.port, f"/{topic}")).ready() for _ in range(5)]
        had = [client.events(20) for client in clients]
        old.terminate()
        for client, events in zip(clients, had, strict=True):
            events += client.rest()
        for client, events in zip(clients, had, strict=True):
            resumed = stack.enter_context(Client(new.port, f"/{topic}", Last_Event_ID=client.last_id))
            events += resumed.events(50)
    writing.kill()

    for events in had:
        by_partition: dict[int, list[int]] = {}
        for where in (json.loads(event.data)["_kafka"] for event in events):
            by_partition.setdefault(where["partition"], []).append(where["offset"])
        for offsets in by_partition.values():
            assert list(range(offsets[0], offsets[-1] + 1)) == offsets
    assert 0 == old.wait()


def _write(cluster: Cluster, topic: str) -> None:
    for n in count():
        cluster.send(topic, value(n), partition=n % 3)


# The stream is over.


def test_a_stream_of_age(serve: Callable[..., Server], cluster: Cluster, topic: str) -> None:
    """A stream that is as old as streams may get ends politely, and its client goes on where it was."""
    server = serve(max_stream_age_s=0.5)
    with Client(server.port, f"/{topic}") as client:
        client.rest()
    cluster.send(topic, value(1))

    assert 2 == client.body.count(b"retry: ")
    with Client(server.port, f"/{topic}", Last_Event_ID=client.last_id) as again:
        assert [1] == data(again.events(1))


def test_a_filter(serve: Callable[..., Server], cluster: Cluster, topic: str) -> None:
    """What it lets through is sent, the id goes over the rest, and its failure is the last event."""
    server = serve("tests.support.apps:filtered()", heartbeat_s=0.2)
    with Client(server.port, f"/{topic}") as client:
        client.ready()
        cluster.send(topic, b'{"n":1,"show":true}', b'{"n":2,"show":false}')
        assert [1] == data(client.events(1))
        client.until(lambda: '"offset":2' in client.last_id)
        cluster.send(topic, b"{}")

        [error] = client.rest()

    assert ("error", 500, "FilterError") == (error.type, *(json.loads(error.data)[name] for name in ("status", "name")))
    assert client.last_id == error.id
    assert '"offset":2' in error.id


def test_a_client_of_http_1_0(server: Server, cluster: Cluster, topic: str) -> None:
    """A client that knows no chunks gets the same bytes without them."""
    cluster.send(topic, value(1))
    with socket.create_connection(("127.0.0.1", server.port), 30) as connection:
        connection.sendall(f"GET /{topic}?timestamp=0 HTTP/1.0\r\n\r\n".encode())
        received = b""
        while not received.endswith(b"}}\n\n"):
            received += connection.recv(65_536)

    assert b"\r\n\r\n:ok\n\nretry: " in received
    assert b"chunked" not in received


def test_the_access_log(broker: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    """A stream is one line in it, when it has ended, whoever ended it."""
    log = tmp_path / "access.log"
    with Server(KAFKASSE_BOOTSTRAP_SERVERS=broker.bootstrap_servers, KAFKASSE_ACCESS_LOG=str(log)) as server:
        with Client(server.port, f"/{topic}").ready(), Client(server.port, f"/{topic}?timestamp=0").ready():
            ask(server.port, "/-/health")
            eventually(lambda: log.read_text().count("\n") == 1)  # the log is written after the response
        eventually(lambda: log.read_text().count(f'"GET /{topic}') == 2)

    assert 3 == log.read_text().count(" 200 ")
