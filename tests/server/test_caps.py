"""At and past each cap: the next client is told to come back, or waits, and those inside get all that they came for."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gevent
import pytest

from tests.support.client import Answer, Client, ask, data
from tests.support.kafka import Cluster
from tests.support.server import Server
from tests.support.waiting import eventually

CAP = 3
REFUSED = 100
SMALL_PIECE_BYTES = 16_384  # so few that the system tells the server of no room for much longer than the deadline
RECORDS = 120  # of 100 kB: more than the sockets of a client that does not read will hold


@pytest.fixture
def inside() -> Iterator[ExitStack]:
    """Clients, which leave at the end."""
    with ExitStack() as stack:
        yield stack


def value(n: int, size: int = 0) -> bytes:
    return b'{"n":%d,"x":"%b"}' % (n, b"x" * size)


def told_to_come_back(answer: Answer) -> tuple[int, str]:
    """Status and name of a refusal that says when to try again."""
    assert int(answer.headers["retry-after"]) > 0
    return answer.status, answer.json["name"]


@pytest.mark.parametrize(
    ("setting", "refusal"),
    [("max_streams", (503, "ServerFullError")), ("max_streams_per_client", (429, "TooManyStreamsError"))],
)
def test_streams(
    serve: Callable[..., Server],
    cluster: Cluster,
    topic: str,
    inside: ExitStack,
    setting: str,
    refusal: tuple[int, str],
) -> None:
    """While a hundred are refused, those inside get each record; a place that is left is taken by the next."""
    server = serve(**{setting: CAP})
    clients = [inside.enter_context(Client(server.port, f"/{topic}")).ready() for _ in range(CAP)]

    for n in range(REFUSED):
        assert refusal == told_to_come_back(ask(server.port, f"/{topic}"))
        cluster.send(topic, value(n))

    assert [list(range(REFUSED))] * CAP == [data(each.events(REFUSED)) for each in clients]
    assert [] == [each for each in clients if b"event: error" in each.body]
    clients[0].close()
    eventually(lambda: inside.enter_context(Client(server.port, f"/{topic}")).status == 200)


class TestConsumers:
    """A worker that may have three consumers: one follows the live end, two catch up with clients that do not read."""

    @pytest.fixture(scope="class")
    @classmethod
    def server(cls, serve: Callable[..., Server]) -> Server:
        return serve(max_cursors=CAP, kafka_timeout_s=0.5, max_ring_bytes=100_000, write_timeout_s=300)

    @pytest.fixture
    def live(self, server: Server, cluster: Cluster, topic: str, inside: ExitStack) -> Client:
        """A reader at the end of a topic that has a long past."""
        cluster.send(topic, *(value(n, 100_000) for n in range(RECORDS)))
        return _served(server, f"/{topic}", inside).ready()  # once those of the test before have given theirs back

    @pytest.fixture
    def behind(self, server: Server, topic: str, live: Client, inside: ExitStack) -> list[Client]:
        """Two that hold the other consumers for as long as they do not read."""
        path = f"/{topic}?timestamp=0"
        return [_served(server, path, inside, receive_buffer=65_536).ready() for _ in range(CAP - 1)]

    def test_the_next_that_catches_up(
        self, server: Server, cluster: Cluster, topic: str, live: Client, behind: list[Client], inside: ExitStack
    ) -> None:
        """It is told to come back; who reads live does not notice, nor who comes for that; then there is room again."""
        assert (503, "ServerFullError") == told_to_come_back(ask(server.port, f"/{topic}?timestamp=0"))

        newcomer = inside.enter_context(Client(server.port, f"/{topic}")).ready()
        cluster.send(topic, value(RECORDS))
        assert [[RECORDS]] * 2 == [data(each.events(1)) for each in (live, newcomer)]

        behind[0].close()
        eventually(lambda: ask(server.port, f"/{topic}?timestamp=0", "HEAD").status == 200)
        assert [0] == data(_served(server, f"/{topic}?timestamp=0", inside).events(1))
        assert list(range(RECORDS + 1)) == data(behind[1].events(RECORDS + 1))

    def test_a_reader_that_falls_behind(
        self, server: Server, cluster: Cluster, topic: str, live: Client, behind: list[Client], inside: ExitStack
    ) -> None:
        """Its stream ends with the same error and its id; it comes back with that, and has missed nothing."""
        more = range(RECORDS, 2 * RECORDS)
        cluster.send(topic, *(value(n, 100_000) for n in more))

        *had, error = live.rest()

        assert ("error", live.last_id) == (error.type, error.id)
        assert '"status":503' in error.data
        assert '"name":"ServerFullError"' in error.data
        for each in behind:
            each.close()
        again = _served(server, f"/{topic}?timestamp=0", inside, Last_Event_ID=live.last_id)
        assert list(more) == data(had) + data(again.events(len(more) - len(had)))


def _from_the_start(server: Server, topic: str) -> Client:
    return Client(server.port, f"/{topic}?timestamp=0", receive_buffer=65_536)


def _served(server: Server, path: str, inside: ExitStack, **request: Any) -> Client:
    """Who comes back until there is a consumer for it."""
    found: list[Client] = []

    def came() -> bool:
        found.append(inside.enter_context(Client(server.port, path, **request)))
        return found[-1].status == 200

    eventually(came)
    return found[-1]


def test_a_reader_that_is_slow_and_steady(
    serve: Callable[..., Server], cluster: Cluster, topic: str, inside: ExitStack
) -> None:
    """One that takes a piece in every fifth of the write deadline is never closed, however much it has before it."""
    server = serve(write_timeout_s=1)
    cluster.send(topic, *(value(n, 100_000) for n in range(RECORDS)))
    path = f"/{topic}?timestamp=0"
    client = inside.enter_context(Client(server.port, path, receive_buffer=SMALL_PIECE_BYTES)).ready()

    pieces = iter(range(25))

    def long_enough() -> bool:
        gevent.sleep(0.2)
        return next(pieces, None) is None

    client.until(long_enough)
    assert 1 == ask(server.port, "/-/health").json["streams"]


class TestDescriptors:
    """A worker whose process may open no more files and sockets, as by a low `ulimit -n`."""

    @pytest.fixture(scope="class")
    @classmethod
    def server(cls, serve: Callable[..., Server]) -> Server:
        return serve(kafka_timeout_s=0.5, heartbeat_s=0.2)

    @pytest.fixture(autouse=True)
    def limits(self, server: Server) -> Iterator[None]:
        """Gives back what a test has taken."""
        usual = resource.prlimit(server.worker, resource.RLIMIT_NOFILE)
        yield
        resource.prlimit(server.worker, resource.RLIMIT_NOFILE, usual)

    def test_none_is_left(self, server: Server, cluster: Cluster, topic: str, inside: ExitStack) -> None:
        """Who comes waits in the listening socket; those inside get each record; with room, all are served."""
        clients = [inside.enter_context(Client(server.port, f"/{topic}")).ready() for _ in range(CAP)]
        allow(server, more=0)

        late = [gevent.spawn(Client, server.port, f"/{topic}") for _ in range(CAP)]
        for n in range(REFUSED):
            cluster.send(topic, value(n))
        assert [list(range(REFUSED))] * CAP == [data(each.events(REFUSED)) for each in clients]
        assert [False] * CAP == [each.ready() for each in late]

        for each in clients:
            each.close()
        assert [200] * CAP == [inside.enter_context(each.get()).ready().status for each in late]

    def test_none_is_left_for_kafka(
        self, server: Server, cluster: Cluster, topic: str, fresh_name: str, inside: ExitStack
    ) -> None:
        """A stream whose connection to Kafka cannot be made is patient, as while Kafka is away; then it gets all."""
        client = inside.enter_context(Client(server.port, f"/{topic}")).ready()
        other = cluster.create(f"{fresh_name}-other")
        allow(server, more=1)

        patient = inside.enter_context(Client(server.port, f"/{other}")).ready()
        cluster.send(other, value(1))
        cluster.send(topic, value(2))
        assert [2] == data(client.events(1))
        patient.until_said(b":heartbeat", patient.body.count(b":heartbeat") + 3)
        assert b"event:" not in patient.body

        client.close()
        assert [1] == data(patient.events(1))


def test_a_soft_limit_is_raised(serve: Callable[..., Server]) -> None:
    """Most systems give a process 1,024 descriptors and let it take more: kafkasse's gunicorn does."""
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, usual[1]))
    try:
        server = serve()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)

    soft, hard = resource.prlimit(server.worker, resource.RLIMIT_NOFILE)

    assert (soft, hard) == (min(hard, 65_536), usual[1])


def allow(server: Server, more: int) -> None:
    """Let the worker open so many descriptors more, and leave the rest of its limits."""
    _, hard = resource.prlimit(server.worker, resource.RLIMIT_NOFILE)
    used = {int(each.name) for each in Path(f"/proc/{server.worker}/fd").iterdir()}
    unused: list[Any] = [each for each in range(max(used) + more + 2) if each not in used]
    resource.prlimit(server.worker, resource.RLIMIT_NOFILE, (unused[more], hard))
