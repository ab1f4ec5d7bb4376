"""Writers and clients of every kind at one kafkasse over a real Kafka, cut at random bytes; then the checker is asked.

Everything that chance decides comes from one seed. Knows kafkasse by its settings and over sockets only.
"""

from __future__ import annotations

import json
import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import gevent
import yaml

from tests.history.app import HIDDEN, MUTANT_VARIABLE
from tests.history.checker import Acknowledged, History, Written, complaints
from tests.history.cluster import Witness, Writer
from tests.history.payloads import is_json
from tests.history.recorder import Recorder
from tests.history.wire import Place
from tests.support.kafka import Cluster
from tests.support.server import Server

PARTITIONS = 3
HEARTBEAT_S = 0.15
HEARTBEATS_ENOUGH = 4  # of silence in a row, once nobody writes any more: nothing more will come
PATIENCE_S = 60.0  # a hang becomes a failure
COMPACTION_S_MAX = 20.0
CUTS_MAX = 6
LINES = "application/x-ndjson"


@dataclass(frozen=True)
class Kind:
    """A kind of client: which of the app's blueprints, which stream of it, and what that promises."""

    name: str
    blueprint: str
    path: str
    promises: dict[str, Any]
    query: str = ""
    accept: str = "text/event-stream"
    is_cut: bool = True

    def url(self) -> str:
        return f"/{self.blueprint}{self.path}{self.query}"


def keeps(written: Written) -> bool:
    """The filter of app.py, as far as it can be told from a record: what is no JSON never comes to it."""
    value = written.value
    return value is None or (is_json(value) and HIDDEN.encode() not in value)


def kinds(topic: str, table: str) -> list[Kind]:
    """Every format, id, start and wire, each with the promises of docs/wire.md."""
    earliest = {"start": "earliest"}
    table_of = {"format": "value", "start": "snapshot", "topics": [table]}
    return [
        Kind("live", "plain", f"/{topic}", {}),
        Kind("from the first", "plain", "/kafkasse", earliest),
        Kind("value", "plain", "/value", {"format": "value", **earliest}),
        Kind("envelope", "plain", "/envelope", {"format": "envelope", **earliest}),
        Kind("cloudevents", "plain", "/cloudevents", {"format": "cloudevents", **earliest}),
        Kind("both", "plain", "/both", {"id_kind": "both", **earliest}),
        Kind("timestamps", "plain", "/times", {"id_kind": "timestamp", **earliest}),
        Kind("compact", "plain", "/compact", earliest),
        Kind("filtered", "filtered", "/kafkasse", {"keeps": keeps, **earliest}),
        Kind("filtered and live", "filtered", f"/{topic}", {"keeps": keeps}),
        Kind("sparse", "sparse", "/kafkasse", {"id_every": "run", **earliest}),
        Kind("sparse and live", "sparse", f"/{topic}", {"id_every": "run"}),
        Kind("table", "plain", "/table", table_of),
        Kind("two topics", "plain", f"/{topic},{table}", {"topics": [topic, table], "start": 0}, "?timestamp=0"),
        Kind("lines", "plain", "/envelope", {"format": "envelope", "wire": "lines", **earliest}, "", LINES, False),
        Kind("values in lines", "plain", "/value", {"format": "value", "wire": "lines", **earliest}, "", LINES, False),
    ]


def routes(topic: str, table: str) -> dict[str, Any]:
    """The setting of that name which kinds() wants."""
    named = {
        "kafkasse": {},
        "value": {"format": "value"},
        "envelope": {"format": "envelope"},
        "cloudevents": {"format": "cloudevents"},
        "both": {"id": "both"},
        "times": {"id": "timestamp"},
        "compact": {"compact_ids": True},
        "table": {"format": "value", "start": "snapshot", "topics": [table]},
    }
    usual = {"topics": [topic], "start": "earliest"}
    return {name: {"path": f"/{name}", **usual, **more} for name, more in named.items()}


def value(number: int, chance: random.Random) -> bytes | None:
    """A value that no other number has, of any kind that there is."""
    made: list[Callable[[], bytes]] = [
        lambda: b'{"n":%d,"price":25.00,"large":9007199254740993}' % number,
        lambda: b'{"n":%d,"text":"%s"}' % (number, b"x" * chance.randrange(200)),
        lambda: b'{"n":%d,"why":"%s"}' % (number, HIDDEN.encode()),
        lambda: b'{\r\n  "n": %d,\n  "text": "\\r\\n\\u2028"\r}\n' % number,
        lambda: b'{"_kafka":"forged","n":%d}' % number,
        lambda: b'["%d", null, true]' % number,
        lambda: b"plain text %d\nid: 0\n\nevent: gap" % number,
        lambda: b"text with a CR %d\r" % number,
        lambda: b"\xff\xfe%d" % number,
        lambda: ' {"n":%d,"é":"\U0001f600\u2028"} '.encode() % number,
    ]
    return chance.choice(made * 2 + made[:2] * 6)()


def headers(chance: random.Random) -> list[tuple[str, bytes]]:
    some = [("trace", b"1"), ("trace", b"\xff"), ("ce_type", b"test.record"), ("content-type", b"application/json")]
    return chance.sample(some, chance.choice([0, 0, 0, 1, 3]))


class World:
    """One topic, one compacted table, a server over them, clients and writers.

    Args:
        cluster: where the topics are made.
        directory: for the server's settings.
        seed: decides everything that chance decides.
        settings: of the server, over those that this scenario likes.
    """

    def __init__(self, cluster: Cluster, directory: Path, seed: int, **settings: Any) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
        self.topic = cluster.create(f"t-{secrets.token_hex(4)}", PARTITIONS)
        compacts = {"cleanup_policy": "compact", "segment_ms": "1", "min_cleanable_dirty_ratio": "0.001"}
        self.table = cluster.create(f"table-{secrets.token_hex(4)}", 1, **compacts)
        self.histories: list[History] = []
        self.acknowledged: list[Acknowledged] = []
        self.all_written = False
        self._numbers = count()
        self._cluster = cluster
        self._file = directory / f"{self.topic}.yaml"
        usual = {"heartbeat_s": HEARTBEAT_S, "ring_records_max": 40, "feed_grace_s": 0.2, "topic_check_s": 0.2}
        kafka = {"bootstrap_servers": cluster.bootstrap_servers}
        told = {"kafka": kafka, "pages": False, "chunk_bytes_max": 2048, "retry_ms": 1, **usual, **settings}
        self._file.write_text(yaml.safe_dump({**told, "routes": routes(self.topic, self.table)}))

    @contextmanager
    def server(self, mutant: str = "") -> Iterator[Server]:
        """kafkasse, with a fault in it if one is named."""
        environment = {"KAFKASSE_CONFIG": str(self._file), MUTANT_VARIABLE: mutant}
        with Server("tests.history.app:create()", **environment) as server:
            yield server

    # Writers.

    def write(self, batches: int, pause_s: float = 0.005) -> None:
        """Append batches of records to all partitions, one in five by a transaction, half of these aborted."""
        bootstrap = self._cluster.bootstrap_servers
        with (
            closing(Writer(bootstrap, linger_ms=2)) as plain,
            closing(Writer(bootstrap, f"{self.topic}-{secrets.token_hex(4)}", linger_ms=2)) as careful,
        ):
            for turn in range(batches):
                if turn % 5 == 4:
                    careful.begin()
                    self._batch(careful)
                    careful.end(commit=turn % 10 == 4)
                else:
                    self._batch(plain)
                    plain.flush()
                gevent.sleep(pause_s)
            self.acknowledged += plain.acknowledged + careful.acknowledged

    def _batch(self, writer: Writer) -> None:
        for _ in range(self.chance.randrange(1, 8)):
            number = next(self._numbers)
            key = self.chance.choice([b"k%d" % number, b"a key: %d" % number, b"\xff%d" % number, None])
            partition = self.chance.randrange(PARTITIONS)
            if number % 9 == 8:
                writer.send(self.topic, partition, None, b"gone%d" % number)
            else:
                writer.send(self.topic, partition, value(number, self.chance), key, headers(self.chance))

    def fill_table(self, turns: int = 4) -> None:
        """Write the same keys again and again, until compaction has made holes. What comes later has keys of its own."""
        with closing(Writer(self._cluster.bootstrap_servers)) as writer:
            for turn in range(turns):
                for key in range(6):
                    gone = turn == turns - 1 and key == 5
                    writer.send(self.table, 0, None if gone else b'{"row":%d,"turn":%d}' % (key, turn), b"row%d" % key)
                writer.flush()
            number = count()
            with gevent.Timeout(COMPACTION_S_MAX):
                while not self._has_holes():
                    gevent.sleep(0.1)
                    writer.send(self.table, 0, b'{"more":%d}' % next(number), b"more%d" % next(number))
                    writer.flush()

    def _has_holes(self) -> bool:
        with closing(Witness(self._cluster.bootstrap_servers, [self.table])) as witness:
            end = witness.read()[self.table, 0]
            return len(witness.written) < end

    def end(self) -> None:
        """The last record of each partition, by which clients know that they have had all."""
        with closing(Writer(self._cluster.bootstrap_servers)) as writer:
            for partition in range(PARTITIONS):
                writer.send(self.topic, partition, b'{"end":%d}' % partition, b"end")
            writer.send(self.table, 0, b'{"end":"table"}', b"end")
            writer.flush()
            self.acknowledged += [each for each in writer.acknowledged if each.topic == self.topic]
        self.all_written = True

    # Clients.

    def client(self, server: Server, kind: Kind, last_id: str | None = None) -> None:
        """One client from beginning to end; its history is kept."""
        recorder = Recorder(lambda: ("127.0.0.1", server.port), kind.url(), kind.accept, last_id)
        promised = {"topics": [self.topic], **kind.promises}
        cuts = self.chance.randrange(CUTS_MAX) if kind.is_cut else 0

        def cut_after() -> int | None:
            return self.chance.randrange(1, 6000) if len(recorder.attempts) < cuts else None

        try:
            with gevent.Timeout(PATIENCE_S):
                recorder.follow(self._enough(promised["topics"], kind.accept == LINES), cut_after)
        finally:
            recorder.leave()
            self.histories.append(History(kind.name, attempts=recorder.attempts, **promised))

    def _enough(self, topics: list[str], is_lines: bool) -> Callable[[Recorder], bool]:
        """Whether a client has had the last record of each partition, or waited for it while nothing came."""
        missing = [b'"end":%d' % partition for partition in range(PARTITIONS) if self.topic in topics]
        missing += [b'"end":"table"'] if self.table in topics else []
        silence = b"\n" * HEARTBEATS_ENOUGH if is_lines else b":heartbeat\n\n" * HEARTBEATS_ENOUGH

        def enough(recorder: Recorder) -> bool:
            body = recorder.body
            missing[:] = [mark for mark in missing if mark not in body]
            whole = body.endswith(b"\n" if is_lines else b"\n\n")
            return whole and (not missing or (self.all_written and body.endswith(silence)))

        return enough

    # The end.

    def complaints(self, firsts: dict[Place, int] | None = None) -> list[str]:
        """What the checker has to say."""
        with closing(Witness(self._cluster.bootstrap_servers, [self.topic, self.table])) as witness:
            reached = witness.read()
            return complaints(
                self.histories,
                witness.written,
                acknowledged=self.acknowledged,
                reached=reached,
                firsts=firsts,
                first_at=witness.first_at,
            )


def play(world: World, mutant: str = "", batches: int = 30, copies: int = 1) -> tuple[list[str], dict[str, int]]:
    """Records, clients while more are written, cuts and resumes. Returns the complaints, and how often a fault was done."""
    world.fill_table()
    world.write(batches, pause_s=0)
    with world.server(mutant) as server:
        clients = [
            gevent.spawn(world.client, server, kind) for kind in kinds(world.topic, world.table) for _ in range(copies)
        ]
        world.write(batches)
        world.end()
        gevent.joinall(clients, raise_error=True)
        done = Recorder(lambda: ("127.0.0.1", server.port), "/-/done", accept="*/*")
        done.connect()
        while done.read():
            pass
        return world.complaints(), json.loads(done.attempts[-1].body)
