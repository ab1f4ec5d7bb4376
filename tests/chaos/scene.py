"""A cluster, servers, producers and clients, on which tests inject faults; and a check of what each client received.

    Producer ──▶ Kafka cluster ──▶ network ──▶ kafkasse ──▶ network ──▶ Client
                      └──▶ Witness: reads all records, including those that a fault removes later

This module does not inject faults. tests/history/checker.py decides what is correct.
"""

from __future__ import annotations

import json
import os
import random
import re
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from math import ceil, inf
from pathlib import Path
from typing import Any

import gevent
import yaml
from gevent.lock import RLock
from kafka.errors import KafkaError, KafkaTimeoutError

from tests.chaos.cluster import EmbeddedCluster
from tests.chaos.network import HOST, Network
from tests.history.checker import Acknowledged, Allowance, History, StoredRecord, last_id, violations
from tests.history.cluster import Watch, Witness, Writer
from tests.history.payloads import is_json
from tests.history.recorder import Recorder
from tests.history.wire import Partition, parse_id
from tests.support.kafka import Cluster, retry
from tests.support.server import Server
from tests.support.waiting import TIMEOUT_S, wait_until

READ_TIMEOUT_S = 5.0  # heartbeats come every 0.3 s; a client that receives nothing for this long reconnects
# `make chaos` checks the documented delays, on a machine that does nothing else. In `make test`, only a hang is too late.
CHECKS_DELAYS = os.environ.get("DELAYS") == "documented"
MAX_RETRY_MS = 300
MAX_READING_S = 10.0
RECORDS_PER_TURN = 4
FAULTS_PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
EVIDENCE_PAGE = Path(__file__).with_name("README.md")
FAULT_TABLE = re.compile(r"^\| fault \|.*\n\| -.*\n((?:\|.*\n)+)", re.MULTILINE)
DOCUMENTED_DELAY = re.compile(r"[Aa]t most (\d+) s\b")
TAIL_BYTES = 16_384  # usually contains a whole event; parsing a long stream for its last event ID is slow
# By default a producer takes several seconds to notice that a node stopped or started.
PRODUCER_SETTINGS = {
    "reconnect_backoff_max_ms": 200,
    "request_timeout_ms": 3_000,
    "metadata_max_age_ms": 500,
    "delivery_timeout_ms": 8_000,
    "max_block_ms": 8_000,
}
MAX_TURN_S = 10.0
MAX_PRINTED_BYTES = 3000

SETTINGS: dict[str, Any] = {
    "heartbeat_s": 0.3,
    "metadata_refresh_s": 0.3,
    "kafka_timeout_s": 2,
    "write_timeout_s": 2,
    "idle_feed_timeout_s": 1,
    # So small that clients fall out of the ring and join it again.
    "max_ring_bytes": 50_000,
    "max_fetch_bytes": 65_536,
}


class Producer:
    """Writes to a topic until it is closed.

    Attributes:
        began_ms: when it started, in milliseconds since the epoch.
    """

    transactional = False

    def __init__(self, cluster: EmbeddedCluster, topic: str, partitions: int, per_s: float) -> None:
        self.topic = topic
        self.partitions = partitions
        self.turns = 0
        name = f"{topic}-producer" if self.transactional else None
        self.acknowledged: list[Acknowledged] = []
        self._new_writer = lambda: Writer(cluster.bootstrap_servers, name, **PRODUCER_SETTINGS)
        self._writer = self._new_writer()
        self.began_ms = time.time_ns() // 1_000_000
        self._pause_s = RECORDS_PER_TURN / per_s
        self._lock = RLock()
        self._writing = gevent.spawn(self._write)

    def spread(self, partitions: int) -> None:
        wait_until(lambda: len(self._writer._producer.partitions_for(self.topic)) >= partitions)
        self.partitions = partitions

    def close(self) -> None:
        """Stop writing. Raises the error that stopped the producer, if any."""
        with self._lock:
            if self._writing.dead:
                self._writing.get()
            self._writing.kill()
        self.acknowledged += self._writer.acknowledged
        self._writer.close()

    def _write(self) -> None:
        while True:
            with self._lock:
                try:
                    with gevent.Timeout(MAX_TURN_S, KafkaTimeoutError):
                        self._append(self.turns)
                except KafkaError:  # a fault ended a transaction, or the producer hangs; no record was acknowledged
                    self._restart()
            self.turns += 1
            gevent.sleep(self._pause_s)

    def _restart(self) -> None:
        with suppress(KafkaError):  # then the next turn tries again
            old, self._writer = self._writer, self._new_writer()
            self.acknowledged += old.acknowledged
            gevent.spawn(old.close)

    def _append(self, turn: int) -> None:
        self._send(turn)
        self._writer.flush()

    def _send(self, turn: int) -> None:
        for n in range(turn * RECORDS_PER_TURN, (turn + 1) * RECORDS_PER_TURN):
            self._writer.send(self.topic, n % self.partitions, _value(n), key=b"key %d" % (n % 7))


class TransactionalProducer(Producer):
    """Writes in transactions that stay open for a while. Every third transaction is aborted."""

    transactional = True

    def _append(self, turn: int) -> None:
        self._writer.begin()
        self._send(turn)
        gevent.sleep(self._pause_s)
        self._writer.end(commit=turn % 3 != 2)


def _value(number: int) -> bytes | None:
    """Return a JSON object of varying size, or sometimes a tombstone or text that is not JSON."""
    if number % 41 == 40:
        return None
    if number % 43 == 42:
        return b"no JSON %d" % number
    return json.dumps({"n": number, "x": "é" * (number * 7919 % 200)}, ensure_ascii=False).encode()


class Client:
    """A client that reconnects with its last event ID until it is closed, and records everything."""

    def __init__(self, name: str, recorder: Recorder, topics: Sequence[str], about: dict[str, Any]) -> None:
        self.name = name
        self.reads_lines = about.get("wire") == "lines"
        self.topics = topics
        self.about = about
        self._recorder = recorder
        self._closing = False
        self._reading = gevent.spawn(recorder.follow, lambda _: self._closing)

    @property
    def last_id(self) -> str | None:
        """The Last-Event-ID that it would send now. Only for Server-Sent Events."""
        _, _, tail = bytes(self._recorder.body[-TAIL_BYTES:]).partition(b"\n\n")
        return last_id(tail) or last_id(bytes(self._recorder.body), self._recorder.last_id)

    @property
    def body(self) -> bytes:
        return b"".join(connection.body for connection in self._recorder.connections) + bytes(self._recorder.body)

    @property
    def connections(self) -> int:
        """The number of connections that have ended."""
        return len(self._recorder.connections)

    @property
    def ended_streams(self) -> list[str]:
        """The last bytes of each stream that has ended."""
        return [f"{connection.body[-200:]!r}" for connection in self._recorder.connections if connection.status == 200]

    @property
    def statuses(self) -> set[int]:
        """The statuses of the connections that have ended; 0 if there was no response."""
        return {connection.status for connection in self._recorder.connections}

    def close(self) -> None:
        """Stop reading, and do not reconnect."""
        self._closing = True
        with suppress(gevent.Timeout), gevent.Timeout(READ_TIMEOUT_S):
            self._reading.join()
        self._reading.kill()

    def has_reached(self, ends: dict[Partition, int], visible_ends: dict[Partition, int]) -> bool:
        """Return whether its last event ID is at or after the ends; for lines, whether it has the last record of each."""
        if self.reads_lines:
            offsets = self._recorder.next_offsets(TAIL_BYTES)
            of_topics = (partition for partition in visible_ends if partition[0] in self.topics)
            return all(offsets.get(partition, 0) >= visible_ends[partition] for partition in of_topics)
        if self.last_id is None:
            return False
        parsed = parse_id(self.last_id)
        wanted = [partition for partition in ends if partition[0] in self.topics and partition[0] not in parsed.only]
        return all(
            partition in parsed.entries and (parsed.entries[partition].offset or 0) >= ends[partition]
            for partition in (*wanted, *parsed.entries)
        )

    def history(self, allowances: Iterable[tuple[Allowance, frozenset[str]]], **promises: Any) -> History:
        own = [allowance for allowance, topics in allowances if not topics or topics & set(self.topics)]
        about = {"allowances": own, **promises, **self.about}
        return History(self.name, self.topics, self._recorder.connections, **about)


class Scene:
    """Servers, producers and clients. They run until the `with` block ends.

    Args:
        servers: the number of servers. Each has its own network to clients.

    Attributes:
        networks: the networks between clients and servers, in the order of the servers.
        max_delay_s: how long after its acknowledgment a client may receive a record, without the outages.
        outages: the times, as begin and end, in which the test prevents clients from receiving records.
        allowances: the refused connections and ended streams that faults may cause, and the topics of the affected clients;
            an empty set stands for all topics.
    """

    def __init__(
        self,
        cluster: EmbeddedCluster,
        directory: Path,
        seed: int = 0,
        servers: int = 1,
        max_delay_s: float = 0,
        **settings: Any,
    ) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)  # noqa: S311 - reproducible, not secret
        self.producers: dict[str, Producer] = {}
        self.clients: list[Client] = []
        self.servers: list[Server] = []
        self.networks: list[Network] = []
        self.stored: dict[tuple[Any, ...], StoredRecord] = {}
        self._acknowledged: list[Acknowledged] = []
        self.max_delay_s = (max_delay_s or documented_delay_s("")) if CHECKS_DELAYS else TIMEOUT_S
        self.outages: list[tuple[float, float]] = []
        self.allowances: list[tuple[Allowance, frozenset[str]]] = []
        self._versions: dict[str, tuple[int, int]] = {}
        self._count = servers
        self._file = directory / "kafkasse.yaml"
        self._settings = {"kafka": cluster.settings, "allowed_topics": ["*"], **SETTINGS, **settings}
        self._stack = ExitStack()

    def __enter__(self) -> Scene:
        self._file.write_text(yaml.safe_dump(self._settings))
        with self._stack as stack:
            self.kafka = stack.enter_context(closing(Cluster(self.cluster.bootstrap_servers)))
            self._watch = stack.enter_context(closing(Watch(self.cluster.bootstrap_servers, [])))
            for _ in range(self._count):
                self.servers.append(self.serve())
                self.networks.append(stack.enter_context(closing(Network(self.servers[-1].port))))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for each in (*self.clients, *self.producers.values()):
            each.close()
        for server in self.servers:
            server.terminate()  # terminate all servers before waiting for the first
        for server in self.servers:
            server.stop()
        self._stack.close()

    def serve(self, **environment: str) -> Server:
        """Start another server with the same settings."""
        return Server(KAFKASSE_CONFIG=str(self._file), **environment)

    # Topics and clients.

    def topic(
        self,
        name: str,
        partitions: int = 2,
        producer: type[Producer] = Producer,
        per_s: float = 60,
        replicas: int = 3,
        **configs: str,
    ) -> str:
        """Create a topic and start a producer for it. Return its name."""
        self.kafka.create(name, partitions, replicas, **configs)
        self._versions[name] = 0, 0
        if name not in self._watch.topics:
            self._watch.topics.append(name)
        retry(self._watch.now)
        self.start_producer(name, partitions, producer, per_s)
        return name

    def read(self, *topics: str, query: str = "", first_id: str | None = None, path: str = "", **about: Any) -> Client:
        """Connect a client to these topics, or to a route by its path. `about` are further arguments for History."""
        path = path or f"/{','.join(topics)}{query}"
        reads_lines = about.get("wire") == "lines"
        recorder = Recorder(
            lambda: (HOST, self.random.choice(self.networks).port),
            path,
            "application/x-ndjson" if reads_lines else "text/event-stream",
            last_id=first_id,
            max_retry_ms=MAX_RETRY_MS,
            silence_s=READ_TIMEOUT_S,
            lines_of=topics if reads_lines else None,
        )
        self.clients.append(Client(f"client {len(self.clients)} of {path}", recorder, topics, about))
        return self.clients[-1]

    # Changes to topics and servers.

    def start_producer(
        self, topic: str, partitions: int, producer: type[Producer] = Producer, per_s: float = 60
    ) -> None:
        self.producers[topic] = producer(self.cluster, topic, partitions, per_s)

    def stop_producer(self, topic: str) -> None:
        producer = self.producers.pop(topic)
        producer.close()
        topic_id = self._versions[topic][0]
        self._acknowledged += [record._replace(topic_id=topic_id) for record in producer.acknowledged]

    def delete(self, topic: str) -> None:
        """Stop the producer of a topic, read the whole topic, then delete it."""
        self.stop_producer(topic)
        self.witness(topic)
        retry(self._watch.now)  # the next bounds may be those of the recreated topic
        self.kafka.delete(topic)

    def recreate(self, topic: str, partitions: int = 2, per_s: float = 60) -> None:
        topic_id, _ = self._versions[topic]
        self.topic(topic, partitions, per_s=per_s)
        self._versions[topic] = topic_id + 1, 0

    def grow(self, topic: str, partitions: int) -> None:
        """Add partitions to a topic. Its producer writes to them, too."""
        self.kafka.grow(topic, partitions)
        self.producers[topic].spread(partitions)

    def replace_server(self, at: int, **environment: str) -> Server:
        """Start a new server and route new connections to it. Return the old server, which still runs."""
        old, self.servers[at] = self.servers[at], self.serve(**environment)
        self.networks[at].target_port = self.servers[at].port
        self._stack.callback(old.stop)
        return old

    # The content of the topics.

    def witness(self, *topics: str) -> dict[Partition, int]:
        """Read everything that these topics hold now. Return their ends."""
        ends: dict[Partition, int] = {}
        for topic in topics:
            ends |= retry(lambda topic=topic: self._witness(topic))
        return ends

    def _witness(self, topic: str) -> dict[Partition, int]:
        # kafka-python's consumer may wait forever for a response if a leader has just changed.
        began = time.monotonic()
        with (
            gevent.Timeout(MAX_READING_S, KafkaTimeoutError),
            closing(Witness(self.cluster.bootstrap_servers, [topic], *self._versions[topic])) as witness,
        ):
            ends = witness.read()
        records = (record._replace(seen=began) for record in witness.stored)
        self.stored |= {(*record[:3], record.topic_id, record.epoch): record for record in records}
        return ends

    def mark_truncated(self, topic: str) -> None:
        """Declare that the log of the topic may differ from the one that was read so far."""
        topic_id, epoch = self._versions[topic]
        self._versions[topic] = topic_id, epoch + 1

    def _visible_ends(self) -> dict[Partition, int]:
        """Return the offset after the last record of each partition that the format `kafkasse` shows."""
        ends: dict[Partition, int] = {}
        for record in self.stored.values():
            is_current = (record.topic_id, record.epoch) == self._versions[record.topic]
            if is_current and (record.value is None or is_json(record.value)):
                partition = record.topic, record.partition
                ends[partition] = max(record.offset + 1, ends.get(partition, 0))
        return ends

    # The result.

    @contextmanager
    def outage(self, max_s: float = inf) -> Iterator[None]:
        """Do not count the first `max_s` of this block as a delay, because no client can receive records."""
        began = time.monotonic()
        yield
        self.outages.append((began, min(began + max_s, time.monotonic())))

    @contextmanager
    def allowance(self, refused: int, ended: int, topics: frozenset[str]) -> Iterator[None]:
        """Allow refused connections and ended streams in this block, and until clients must have recovered."""
        began = time.monotonic()
        yield
        until = time.monotonic() + self.max_delay_s
        self.allowances.append((Allowance(began, until, refused, ended), topics))

    def violations(
        self,
        undisturbed: Iterable[Client] = (),
        statuses: Iterable[int] = (),
        max_ended: int = 0,
        max_refused: int | None = None,
        **about: Any,
    ) -> list[str]:
        """Stop the producers, let the clients read to the end, and return all violations.

        Args:
            undisturbed: the clients none of whose streams may have ended so far.
            statuses: the statuses that responses may have in addition to 200 and 503. A server answers 503 if Kafka is slow,
                so a busy machine causes it, too; `max_refused` limits how often.
            max_ended: how many streams of each client a server may end.
            max_refused: how many connections in a row may get no stream. By default, as many as the outages and
                `max_delay_s` allow.
            about: further arguments for the checker: topics that are `excused` or `compacted`.
        """
        disturbed = [f"{client.name}: a stream ended: {how}" for client in undisturbed for how in client.ended_streams]
        for topic in list(self.producers):
            self.stop_producer(topic)
        ends = self.witness(*self._versions)
        last = self._visible_ends()
        with suppress(gevent.Timeout):
            wait_until(lambda: all(client.has_reached(ends, last) for client in self.clients))
        late = [
            f"{client.name}: did not reach the end: {client.last_id}"
            for client in self.clients
            if not client.has_reached(ends, last)
        ]
        gevent.joinall([gevent.spawn(client.close) for client in self.clients])
        retry(self._watch.now)
        out_s = sum(end - begin for begin, end in self.outages)
        if max_refused is None:
            max_refused = ceil((self.max_delay_s + out_s) * 1000 / MAX_RETRY_MS)  # clients wait between attempts
        promises = {"statuses": frozenset({503, *statuses}), "max_refused": max_refused, "max_ended": max_ended}
        histories = [client.history(self.allowances, **promises) for client in self.clients]
        findings = (
            disturbed
            + late
            + violations(
                histories,
                list(self.stored.values()),
                acknowledged=self._acknowledged,
                reached=ends,
                bounds=self._watch.bounds,
                max_delay_s=self.max_delay_s,
                outages=self.outages,
                max_behind_s=self.max_delay_s + out_s,
                **about,
            )
        )
        _print_connections(
            history for history in histories if any(line.startswith(history.client) for line in findings)
        )
        return findings


def _print_connections(histories: Iterable[History]) -> None:
    """Print how each connection of these clients started, to explain a rare violation."""
    for history in histories:
        for number, connection in enumerate(history.connections):
            print(
                f"{history.client}, connection {number}: {connection.status} for {connection.sent_id}"
                f" at {connection.began:.1f}"
            )
            print(textwrap.indent(connection.body[:MAX_PRINTED_BYTES].decode(errors="replace"), "    "))


def rows(page: Path) -> dict[str, str]:
    """Return the rows of the tables of faults on a page, by the name of the fault."""
    return {
        row.strip("| ").split(" | ")[0]: row
        for table in FAULT_TABLE.findall(page.read_text())
        for row in table.splitlines()
    }


def documented_delay_s(test: str) -> int:
    """Return how late docs/faults.md says that a record may arrive: in the row of the fault of a test, or at the top."""
    fault = next((fault for fault, row in rows(EVIDENCE_PAGE).items() if test and f"::{test}`" in row), "")
    match = DOCUMENTED_DELAY.search(rows(FAULTS_PAGE).get(fault, "")) or DOCUMENTED_DELAY.search(
        FAULTS_PAGE.read_text()
    )
    assert match, "docs/faults.md must say how late a record may arrive: at most N s"
    return int(match[1])


# Conditions that tests wait for.


def connect_clients(scene: Scene, topic: str, partitions: int = 2) -> list[Client]:
    """Connect clients: live, from the start, and from the start of only one of several partitions.

    Waits until each has a record.
    """
    only = f'[{{"topic":"{topic}","partition":0,"offset":0}}]'
    clients = [scene.read(topic), scene.read(topic, query="?timestamp=0", start=0)]
    if partitions > 1:  # otherwise this ID names all partitions, so it stands for the whole topic
        clients.append(scene.read(topic, first_id=only))
    wait_until(lambda: all(has_record(client) for client in clients))
    return clients


def has_record(client: Client, since: int = 0) -> bool:
    """Return whether a client received a record after its first `since` bytes."""
    return client.body.find(b"event: message", since) >= 0


def wait_for_records(clients: list[Client]) -> None:
    before = {client: len(client.body) for client in clients}
    wait_until(lambda: all(has_record(client, since) for client, since in before.items()))


def wait_for_heartbeats(clients: list[Client]) -> None:
    """Wait until the last two events of each client are heartbeats."""
    wait_until(lambda: all(client.body.endswith(b":heartbeat\n\n" * 2) for client in clients))
