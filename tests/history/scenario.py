"""Writers and clients of every type on real servers and a real Kafka; connections are cut at random bytes.

One seed decides every random choice. This module knows kafkasse only by its settings and over sockets.
"""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import count
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import gevent
import yaml
from gevent.event import Event

from tests.history.app import HIDDEN, MUTANT_VARIABLE
from tests.history.checker import Acknowledged, History, StoredRecord, last_id, violations
from tests.history.cluster import Watch, Witness, Writer
from tests.history.payloads import is_json
from tests.history.recorder import LEFT, READ_TIMEOUT_S, Recorder, Response
from tests.history.wire import Partition
from tests.support.kafka import Cluster
from tests.support.server import CURRENT, Checkout, Server

PARTITIONS = 3
HEARTBEAT_S = 0.15
# An impatient client stops waiting after the last write: after so many heartbeats in a row, or after so many seconds.
HEARTBEATS_ENOUGH = 4
PATIENCE_S = 8.0
TIMEOUT_S = 400.0  # a client that hangs fails the test after this time
MAX_COMPACTION_S = 300.0  # only a hang takes so long
MAX_CUTS = 6
MAX_CONNECTIONS = 25  # of an impatient client: a broken server may end every stream
# Of an impatient client: a broken server may repeat its records forever. Each read takes time in proportion to the body, so
# a few such clients would occupy the whole test process.
MAX_BODY_BYTES = 1_000_000
LINES = "application/x-ndjson"
SETTINGS = {
    "heartbeat_s": HEARTBEAT_S,
    "metadata_refresh_s": 0.2,
    "retry_ms": 1,
}
END = b"end"  # the key of the last record of each partition


@dataclass(frozen=True)
class ClientType:
    """A type of client: the blueprint, the stream and what the stream promises."""

    name: str
    blueprint: str
    path: str
    promises: dict[str, Any]
    query: str = ""
    accept: str = "text/event-stream"
    is_cut: bool = True

    def url(self) -> str:
        return f"/{self.blueprint}{self.path}{self.query}"


def keeps(record: StoredRecord) -> bool:
    """Return whether the filter of app.py keeps a record. The filter never sees records that are not JSON."""
    value = record.value
    return value is None or (is_json(value) and HIDDEN.encode() not in value)


def client_types(topic: str, table: str) -> list[ClientType]:
    """Return a client for every format, ID type, start and wire format, with the promises of docs/wire.md."""
    earliest = {"start": "earliest"}
    table_of = {"format": "value", "start": "snapshot", "topics": [table]}
    return [
        ClientType("live", "plain", f"/{topic}", {}),
        ClientType("from the start", "plain", "/kafkasse", earliest),
        ClientType("value", "plain", "/value", {"format": "value", **earliest}),
        ClientType("envelope", "plain", "/envelope", {"format": "envelope", **earliest}),
        ClientType("cloudevents", "plain", "/cloudevents", {"format": "cloudevents", **earliest}),
        ClientType("both", "plain", "/both", {"id_type": "both", **earliest}),
        ClientType("timestamps", "plain", "/times", {"id_type": "timestamp", **earliest}),
        ClientType("compact", "plain", "/compact", earliest),
        ClientType("filtered", "filtered", "/kafkasse", {"keeps": keeps, **earliest}),
        ClientType("filtered and live", "filtered", f"/{topic}", {"keeps": keeps}),
        ClientType("an ID per run", "run", "/kafkasse", {"id_frequency": "run", **earliest}),
        ClientType("an ID per run, live", "run", f"/{topic}", {"id_frequency": "run"}),
        ClientType("personal", "plain", "/of/ada", {"keeps": lambda stored: stored.key in (b"ada", END), **earliest}),
        ClientType("personal and live", "plain", "/live_of/bob", {"keeps": lambda stored: stored.key in (b"bob", END)}),
        ClientType("table", "plain", "/table", table_of),
        ClientType("two topics", "plain", f"/{topic},{table}", {"topics": [topic, table], "start": 0}, "?timestamp=0"),
        lines("lines", "envelope"),
        lines("cloudevents in lines", "cloudevents"),
        lines("values in lines", "value", is_cut=False),  # a value does not contain its offset
    ]


def lines(name: str, format: str, is_cut: bool = True) -> ClientType:
    promises = {"format": format, "wire": "lines", "start": "earliest"}
    return ClientType(name, "plain", f"/{format}", promises, "", LINES, is_cut)


def routes(topic: str, table: str) -> dict[str, Any]:
    own = {"key": ["{customer}", END.decode()]}
    named = {
        "kafkasse": {},
        "value": {"format": "value"},
        "envelope": {"format": "envelope"},
        "cloudevents": {"format": "cloudevents"},
        "both": {"id_type": "both"},
        "times": {"id_type": "timestamp"},
        "compact": {"compact_ids": True},
        "of": {"path": "/of/{customer}", "where": own},
        "live_of": {"path": "/live_of/{customer}", "where": own, "start": "latest"},
        "table": {"format": "value", "start": "snapshot", "topics": [table]},
    }
    defaults = {"topics": [topic], "start": "earliest"}
    return {name: {"path": f"/{name}", **defaults, **more} for name, more in named.items()}


def value(number: int, rng: random.Random) -> bytes | None:
    """Return a random value that is different for each number."""
    made: list[Callable[[], bytes]] = [
        lambda: b'{"n":%d,"price":25.00,"large":9007199254740993}' % number,
        lambda: b'{"n":%d,"text":"%s"}' % (number, b"x" * rng.randrange(200)),
        lambda: b'{"n":%d,"why":"%s"}' % (number, HIDDEN.encode()),
        lambda: b'{\r\n  "n": %d,\n  "text": "\\r\\n\\u2028"\r}\n' % number,
        lambda: b'{"_kafka":"forged","n":%d}' % number,
        lambda: b'["%d", null, true]' % number,
        lambda: b"plain text %d\nid: 0\n\nevent: gap" % number,
        lambda: b"text with a CR %d\r" % number,
        lambda: b"\xff\xfe%d" % number,
        lambda: ' {"n":%d,"é":"\U0001f600\u2028"} '.encode() % number,
    ]
    return rng.choice(made * 2 + made[:2] * 6)()


def headers(rng: random.Random) -> list[tuple[str, bytes]]:
    some = [("trace", b"1"), ("trace", b"\xff"), ("ce_type", b"test.record"), ("content-type", b"application/json")]
    return rng.sample(some, rng.choice([0, 0, 0, 1, 3]))


class Outcome(NamedTuple):
    """The violations, and how often the mutant applied its fault."""

    violations: list[str]
    applied: int


class BlackBox:
    """Servers, an independent consumer of some topics, and the clock of the writes. Close it at the end.

    Args:
        topics: the topics. More may be added to this list.
    """

    def __init__(self, cluster: Cluster, directory: Path, seed: int, topics: list[str]) -> None:
        self._cluster = cluster
        self._bootstrap = cluster.bootstrap_servers
        self._directory = directory
        self._file = directory / f"{topics[0]}.yaml"
        self._seed = seed
        self._rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
        self._numbers = count()
        self._acknowledged: list[Acknowledged] = []
        self._written_at = self._servers_began = inf
        self._ends = 0  # how often the last records have been written
        self._topics = topics
        self._witness = Witness(self._bootstrap, topics)
        self._watch = Watch(self._bootstrap, topics)
        self._watch.now()

    def close(self) -> None:
        self._watch.close()
        self._witness.close()

    def configure(self, **settings: Any) -> None:
        kafka = {"kafka": {"bootstrap_servers": self._bootstrap}}
        self._file.write_text(yaml.safe_dump(kafka | SETTINGS | settings))

    @contextmanager
    def servers(self, mutants: Sequence[str]) -> Iterator[list[Server]]:
        """Start one server for each of `mutants`, with that fault ("" for none). All are stopped together."""
        self._watch.now()
        self._servers_began = time.monotonic()
        with ExitStack() as stack:
            starting = [gevent.spawn(self.server, mutant) for mutant in mutants]
            servers = [stack.enter_context(greenlet.get()) for greenlet in starting]
            yield servers
            for server in servers:
                server.terminate()

    def server(self, mutant: str = "", checkout: Checkout = CURRENT) -> Server:
        environment = {"KAFKASSE_CONFIG": str(self._file), MUTANT_VARIABLE: mutant}
        return (_FaultyServer if mutant else Server)("tests.history.app:create()", checkout, **environment)

    def violations(
        self,
        histories: list[History],
        reached: dict[Partition, int],
        stored: Sequence[StoredRecord] | None = None,
        **about: Any,
    ) -> list[str]:
        return violations(
            histories,
            self._witness.stored if stored is None else stored,
            acknowledged=self._acknowledged,
            reached=reached,
            bounds=self._watch.bounds,
            began=self._servers_began,
            **about,
        )


def follow(recorder: Recorder, enough: Callable[[Recorder], bool], cuts: int, rng: random.Random) -> None:
    """Read until `enough` returns True. The first `cuts` connections are cut at random bytes."""

    def cut_after() -> int | None:
        return rng.randrange(1, 6000) if len(recorder.connections) < cuts else None

    try:
        with gevent.Timeout(TIMEOUT_S):
            recorder.follow(enough, cut_after)
    finally:
        recorder.leave()


class _FaultyServer(Server):
    """A server with a fault. Its log may contain anything, such as damaged records."""

    def stop(self) -> None:
        self._end()


class Scenario(BlackBox):
    """A topic, a compacted table, servers, clients and writers. Close it at the end."""

    def __init__(self, cluster: Cluster, topic: str, directory: Path, seed: int) -> None:
        self.topic = cluster.create(topic, PARTITIONS)
        compacts = {"cleanup_policy": "compact", "segment_ms": "1", "min_cleanable_dirty_ratio": "0.001"}
        self.table = cluster.create(f"{topic}-table", 1, **compacts)
        super().__init__(cluster, directory, seed, [self.topic, self.table])
        self._partitions = PARTITIONS
        self._is_growing = False  # play() will add a partition
        self._broken: defaultdict[int, list[str]] = defaultdict(list)  # by port: why connections broke
        self._seen: dict[int, float] = {}  # by offset of the table: when a consumer last read the record
        self.configure(allowed_topics=["*"], idle_feed_timeout_s=0.2, routes=routes(self.topic, self.table))

    # Writers.

    def write(self, batches: int, pause_s: float = 0.005, first: int = 0) -> None:
        """Append batches, from number `first` on. Every fifth is a transaction; the first of these, and every second one
        after it, is aborted."""
        with (
            closing(Writer(self._bootstrap, linger_ms=2)) as plain,
            closing(Writer(self._bootstrap, f"{self.topic}-writer", linger_ms=2)) as transactional,
        ):
            for turn in range(first, first + batches):
                if turn % 5 == 4:
                    transactional.begin()
                    self._batch(transactional)
                    transactional.end(commit=turn % 10 == 9)
                else:
                    self._batch(plain)
                    plain.flush()
                gevent.sleep(pause_s)
            self._acknowledged += plain.acknowledged + transactional.acknowledged

    def _batch(self, writer: Writer) -> None:
        for _ in range(self._rng.randrange(1, 8)):
            number = next(self._numbers)
            key = self._rng.choice([b"k%d" % number, b"a key: %d" % number, b"\xff%d" % number, None, b"ada", b"bob"])
            partition = self._rng.randrange(self._partitions)
            if number % 9 == 8:
                writer.send(self.topic, partition, None, b"gone%d" % number)
            else:
                writer.send(self.topic, partition, value(number, self._rng), key, headers(self._rng))

    def _grow(self) -> None:
        self._partitions, self._is_growing = self._partitions + 1, False
        self._cluster.grow(self.topic, self._partitions)

    def fill_table(self, turns: int = 4) -> None:
        """Write the same keys until compaction has removed records. Compaction continues while clients read."""
        with closing(Writer(self._bootstrap)) as writer:
            for turn in range(turns):
                for key in range(6):
                    gone = turn == turns - 1 and key == 5
                    writer.send(self.table, 0, None if gone else b'{"row":%d,"turn":%d}' % (key, turn), b"row%d" % key)
                writer.flush()
            with gevent.Timeout(MAX_COMPACTION_S):
                while not self._has_holes():
                    gevent.sleep(0.1)
                    number = next(self._numbers)
                    writer.send(self.table, 0, b'{"more":%d}' % number, b"more%d" % number)
                    writer.flush()
        self.read()  # compaction may later remove records that clients receive

    def _has_holes(self) -> bool:
        began = time.monotonic()
        with closing(Witness(self._bootstrap, [self.table])) as witness:
            end = witness.read()[self.table, 0]
            self._seen |= {record.offset: began for record in witness.stored}
            return len(witness.stored) < end

    def end(self) -> None:
        """Write the last record of each partition. A client that receives it has received everything."""
        with closing(Writer(self._bootstrap)) as writer:
            for partition in range(self._partitions):
                writer.send(self.topic, partition, b'{"end":%d,"of":%d}' % (partition, self._ends), END)
            writer.send(self.table, 0, b'{"end":"table","of":%d}' % self._ends, b"end%d" % self._ends)
            writer.flush()
            self._acknowledged += [record for record in writer.acknowledged if record.topic == self.topic]
        self._written_at = time.monotonic()

    # Clients.

    def client(
        self,
        servers: Sequence[Server],
        client_type: ClientType,
        patient: bool = True,
        began: Event | None = None,
        known_id: str | None = None,
        received: bytes = b"",
    ) -> History:
        """Run one client to its end. Each connection goes to a random server.

        An impatient client (`patient=False`) gives up if nothing arrives or every connection breaks; a fault can cause both.
        `began` is set once the client has an event ID (or bytes, if the wire has no IDs): from then on it must receive
        the last records. A client that starts with `known_id` has already received the bytes `received`.
        """
        rng = random.Random(f"{self._seed} {client_type.name}")  # noqa: S311
        promised = {"topics": [self.topic], **client_type.promises}
        recorder = Recorder(
            lambda: ("127.0.0.1", rng.choice(servers).port),
            client_type.url(),
            client_type.accept,
            known_id,
            silence_s=READ_TIMEOUT_S if patient else PATIENCE_S,
            lines_of=promised["topics"] if client_type.accept == LINES else None,
        )
        enough = self._enough(promised["topics"], client_type.accept == LINES, patient, received)

        def stop(recorder: Recorder) -> bool:
            if began is not None and not began.is_set() and _has_begun(recorder, client_type):
                began.set()
            return enough(recorder)

        follow(recorder, stop, rng.randrange(MAX_CUTS) if client_type.is_cut else 0, rng)
        self._broken[servers[0].port] += [f"{client_type.name}: {error}" for error in recorder.errors if error != LEFT]
        return History(client_type.name, connections=recorder.connections, **promised)

    def _enough(self, topics: list[str], is_lines: bool, patient: bool, received: bytes) -> Callable[[Recorder], bool]:
        """Return a function that returns True when a client has every last record, or has given up."""
        turn = self._ends
        partitions = self._partitions + self._is_growing if self.topic in topics else 0
        missing = [b'"end":%d,"of":%d' % (partition, turn) for partition in range(partitions)]
        missing += [b'"end":"table","of":%d' % turn] if self.table in topics else []
        missing = [mark for mark in missing if mark not in received]
        silence = b"\n" * HEARTBEATS_ENOUGH if is_lines else b":heartbeat\n\n" * HEARTBEATS_ENOUGH

        def enough(recorder: Recorder) -> bool:
            body = bytes(recorder.body or (recorder.connections[-1].body if recorder.connections else b""))
            kept = body[: body.rfind(b"\n") + 1] if is_lines else kept_part(body)
            missing[:] = [mark for mark in missing if mark not in kept]
            if bool(kept) and not missing:
                return True
            waited_s = time.monotonic() - self._written_at
            is_over = waited_s > PATIENCE_S or (waited_s > 0 and body.endswith(silence))
            is_flooded = len(body) > MAX_BODY_BYTES or len(recorder.connections) > MAX_CONNECTIONS
            return not patient and (is_over or is_flooded)

        return enough

    # The whole test.

    def play(
        self, mutants: Sequence[str], batches: int, workers: int = 1, types: Sequence[str] = ()
    ) -> dict[str, Outcome]:
        """Run every type of client on servers with each mutant during writes. Return the outcome of each mutant.

        Half of the writes come after a partition was added. `types` are names of client types; by default all.
        """
        self._ends += 1
        self._written_at = inf
        self._is_growing = True
        with self.servers([mutant for mutant in mutants for _ in range(workers)]) as servers:
            of = {mutant: servers[at * workers : (at + 1) * workers] for at, mutant in enumerate(mutants)}
            began: list[Event] = []
            impatient: list[Event] = []
            clients = {
                mutant: self._clients(of[mutant], not mutant, impatient if mutant else began, types)
                for mutant in mutants
            }
            gevent.wait(began, timeout=TIMEOUT_S)
            gevent.wait(impatient, timeout=PATIENCE_S)
            self.write(batches // 2)
            self._grow()
            self.write(batches - batches // 2, first=batches // 2)
            self.end()
            gevent.joinall([client for some in clients.values() for client in some], raise_error=True)
            applied = {mutant: times_applied(of[mutant][0]).get(mutant, 0) for mutant in mutants}
        reached = self.read()
        histories = {mutant: [client.get() for client in some] for mutant, some in clients.items()}
        broken = {mutant: self._broken[of[mutant][0].port] for mutant in mutants}
        findings = {mutant: [*broken[mutant], *self.check(histories[mutant], reached)] for mutant in mutants}
        return {mutant: Outcome(findings[mutant], applied[mutant]) for mutant in mutants}

    def _clients(
        self, servers: Sequence[Server], patient: bool, began: list[Event], types: Sequence[str]
    ) -> list[gevent.Greenlet]:
        every = [
            (client_type, patient, Event())
            for client_type in client_types(self.topic, self.table)
            if client_type.name in types or not types
        ]
        began += [arguments[-1] for arguments in every]
        return [gevent.spawn(self.client, servers, *arguments) for arguments in every]

    def read(self) -> dict[Partition, int]:
        """Let the independent consumer read to the end. Return the ends by partition."""
        self._watch.now()
        self._has_holes()
        return self._witness.read()

    def check(self, histories: list[History], reached: dict[Partition, int]) -> list[str]:
        stored = [
            record._replace(seen=self._seen.get(record.offset, -inf)) if record.topic == self.table else record
            for record in self._witness.stored
        ]
        about = {"compacted": [self.table], "first_at": self._witness.first_at}
        return self.violations(histories, reached, stored, **about)


def kept_part(body: bytes) -> bytes:
    """Return the part of a body that is not sent again after a cut: up to the last complete block with an ID."""
    at = len(body)
    while (at := body.rfind(b"\nid: ", 0, at)) >= 0:
        if (end := body.find(b"\n\n", at)) >= 0:
            return body[: end + 2]
    return b""


def _has_begun(recorder: Recorder, client_type: ClientType) -> bool:
    if client_type.accept == LINES:
        return bool(recorder.body)
    return last_id(bytes(recorder.body), recorder.last_id) is not None


def times_applied(server: Server) -> dict[str, int]:
    """Return how often each mutant of a server applied its fault."""
    response = Response(("127.0.0.1", server.port), "/-/mutants", {})
    while response.read():
        pass
    response.close()
    return dict(json.loads(bytes(response.body)))
