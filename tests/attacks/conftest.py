"""One server and one Kafka for each module of attacks, and the checks after all attacks of a module."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from kafkasse.tools.broker import EmbeddedBroker
from tests.attacks.memory import IDLE_WORKER_BYTES, MIB, Load, growth
from tests.attacks.meter import MAX_TURN_S, VARIABLE, Turn, turns
from tests.attacks.quiet_stream import quiet_stream
from tests.attacks.sizes import is_full
from tests.support.client import Client, fetch
from tests.support.kafka import Cluster
from tests.support.server import Server
from tests.support.waiting import wait_until
from tests.web.conftest import browser as browser

ORIGIN = "https://a.example"
MAX_KEPT = 4  # idle connections to Kafka that a worker keeps for the next readers
LARGE_RECORDS = 120  # of 100 kB: more than the ring and the sockets of a client that does not read
HOSTILE_WORDS = ("evil.example", "forged", "<script>", "\x1b")  # from requests and records
LISTENING = "0A"  # the state in /proc/net/tcp


@pytest.fixture(scope="module")
def serve(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Attacked]]:
    """Starts servers: serve(gunicorn_options, setting=value, …). They stop at the end of the module.

    Then no turn of their event loops may have taken too long.
    """
    started: list[Attacked] = []
    with ExitStack() as servers:

        def serve(gunicorn: str = "", **settings: Any) -> Attacked:
            folder = tmp_path_factory.mktemp("server")
            started.append(servers.enter_context(Attacked(folder, broker, gunicorn, settings)))
            return started[-1]

        yield serve
    assert [] == [str(turn) for server in started for turn in server.turns() if turn.cpu_s > MAX_TURN_S]


class Attacked(Server):
    """A server that measures its event loop and its memory.

    Args:
        folder: for the configuration file and the results of the meter.
        broker: the broker, unless the settings name another.
        gunicorn: gunicorn's options.
        settings: kafkasse's settings.
    """

    def __init__(self, folder: Path, broker: EmbeddedBroker, gunicorn: str, settings: Mapping[str, Any]) -> None:
        self._meter_file = folder / "meter.jsonl"
        file = folder / "kafkasse.yaml"
        kafka = {"bootstrap_servers": broker.bootstrap_servers}
        defaults = {"kafka": kafka, "allowed_topics": ["*"], "idle_feed_timeout_s": 0, "max_rejections_per_s": 0}
        file.write_text(yaml.safe_dump(defaults | settings))
        options = f"--worker-class tests.attacks.metered.Worker {gunicorn}"  # the last worker class counts
        meter = {VARIABLE: str(self._meter_file)}
        super().__init__(KAFKASSE_CONFIG=str(file), GUNICORN_CMD_ARGS=options, **meter)

    def turns(self) -> list[Turn]:
        """Return the longest turns of the worker's event loop so far, the longest first."""
        return turns(self._meter_file)

    def reset_peak(self) -> int:
        """Return the memory of the worker now. peak_bytes() starts here."""
        Path(f"/proc/{self.worker}/clear_refs").write_text("5")
        return self.memory_bytes()

    def peak_bytes(self) -> int:
        """Return the most memory that the worker has used since reset_peak()."""
        status = Path(f"/proc/{self.worker}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024

    def cpu_s(self) -> float:
        """Return the CPU time of the worker so far."""
        after_name = Path(f"/proc/{self.worker}/stat").read_text().rpartition(")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")

    def connections_to(self, port: int) -> int:
        """Return the number of the worker's connections to this port."""
        return sum(int(row[2].split(":")[1], 16) == port for row in sockets(self))


class Unharmed:
    """Checks that a server works as before, and has leaked nothing, after the attacks.

    Args:
        server: the attacked server.
        cluster: its Kafka cluster.
        topic: a topic that the server allows, with one partition.
    """

    def __init__(self, server: Server, cluster: Cluster, topic: str) -> None:
        self._server, self._cluster, self._topic = server, cluster, topic
        fetch(server.port, f"/{topic}", "HEAD")  # connects the client for metadata, but no reader
        wait_until(lambda: not clients(server))
        sockets = server.sockets()
        self.serves()
        cluster.send(topic, *[b'{"x":"%b"}' % (b"x" * 100_000)] * LARGE_RECORDS)
        self._fill_the_pool()
        wait_until(lambda: server.sockets() == sockets + MAX_KEPT)
        self._before = len(server.descriptors())

    def serves(self) -> None:
        """A well-behaved client receives a new record."""
        with Client(self._server.port, f"/{self._topic}") as client:
            client.ready()
            self._cluster.send(self._topic, b'{"n":1}')
            assert '{"n":1,' in client.events(1)[0].data

    def _fill_the_pool(self) -> None:
        """Fill the worker's pool of idle connections to Kafka, so that every further connection is a leak.

        A client that catches up and does not read has its own connection, which returns to the pool when the client leaves.
        """
        with ExitStack() as readers:
            for _ in range(MAX_KEPT + 2):
                path = f"/{self._topic}?timestamp=0"
                readers.enter_context(Client(self._server.port, path, receive_buffer=65_536)).ready()
        wait_until(lambda: fetch(self._server.port, "/-/health").json["streams"] == 0)
        wait_until(lambda: not clients(self._server))

    def holds(self) -> None:
        """The server works, has no clients, no additional descriptors, and no traceback or hostile words in its log."""
        self.serves()
        self._fill_the_pool()
        wait_until(lambda: len(self._server.descriptors()) <= self._before)
        assert [] == [word for word in ("Traceback", *HOSTILE_WORDS) if word in self._server.log]


def clients(server: Server) -> list[str]:
    rows = [row for row in sockets(server) if row[3] != LISTENING]
    return [row[2] for row in rows if int(row[1].split(":")[1], 16) == server.port]


def sockets(server: Server) -> list[list[str]]:
    """Return the rows of /proc/net/tcp with the sockets of the worker."""
    held = {link[len("socket:[") : -1] for link in server.descriptors() if link.startswith("socket:")}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [row for row in rows if row[9] in held]


@pytest.fixture(scope="module")
def unharmed(server: Server, cluster: Cluster, attacked: str) -> Iterator[Unharmed]:
    """Checks the server after all attacks of the module."""
    unharmed = Unharmed(server, cluster, attacked)
    yield unharmed
    unharmed.holds()


class Attack:
    """Measures one attack on one server.

    Attributes:
        server: the attacked server, which has served one client.
        port: its port.
        measured: the figures of the attack, which `pytest -s` shows.
    """

    def __init__(self, server: Attacked, settings: Mapping[str, Any], quiet: str) -> None:
        self.server, self.port, self._settings = server, server.port, settings
        self.measured: dict[str, Any] = {}
        with Client(server.port, f"/{quiet}") as client:
            client.ready()
        self._before = server.reset_peak()
        self._cpu_s = server.cpu_s()

    def is_bounded(self, load: Load) -> None:
        """Check that no turn of the event loop was too long, and that the memory stayed below the bound for this load."""
        turns, grown = self.server.turns(), self.server.peak_bytes() - self._before
        allowed = growth(load, self._settings)
        longest = turns[0] if turns else Turn(0, 0, [])
        self.measured |= {
            "turn_ms": round(longest.cpu_s * 1000),
            "wall_ms": round(longest.wall_s * 1000),
            "idle_mb": round(self._before / MIB, 1),
            "grown_mb": round(grown / MIB, 1),
            "allowed_mb": round(allowed / MIB, 1),
            "cpu_s": round(self.server.cpu_s() - self._cpu_s, 2),
            "stacks": longest.stacks,
        }
        assert [] == [str(turn) for turn in turns if turn.cpu_s > MAX_TURN_S]
        assert grown < allowed
        assert self._before < IDLE_WORKER_BYTES


NewAttack = Callable[..., Attack]


@pytest.fixture
def attack(
    broker: EmbeddedBroker, cluster: Cluster, fresh_name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[NewAttack]:
    """Starts a server: attack(setting=value, …). It stops after the test. `quiet` names a topic that it has.

    In full size, a client of a quiet topic measures the delay of its records, unless the server has another Kafka.
    """
    numbers = itertools.count()
    with ExitStack() as servers:

        def attack(quiet: str = "", **settings: Any) -> Attack:
            folder = tmp_path / f"{fresh_name}-{next(numbers)}"
            folder.mkdir()
            quiet = quiet or cluster.create(f"quiet-{folder.name}")
            limits = {"heartbeat_s": 5, "max_streams": 10_000, "trusted_proxies": 1}
            server = servers.enter_context(Attacked(folder, broker, "", limits | settings))
            started = Attack(server, settings, quiet)
            servers.callback(lambda: print(f"\n{request.node.name} {json.dumps(started.measured)}"))
            if is_full() and "kafka" not in settings:
                address = started.port, quiet, broker.bootstrap_servers
                servers.enter_context(quiet_stream(*address, started.measured))
            return started

        yield attack
