"""A cluster, servers, writers and clients at work, to be harmed; and at the end what was wrong with what each client had.

    Author ──▶ three Kafkas ──▶ network ──▶ kafkasse ──▶ network ──▶ Reader
                    └──▶ Witness: reads what there is, also before a fault takes it away

Knows faults only as things that happen meanwhile. What is right or wrong is for tests/history/checker.py to say.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import gevent
import yaml
from gevent.lock import RLock
from kafka.errors import KafkaError, KafkaTimeoutError

from tests.chaos.cluster import EmbeddedCluster
from tests.chaos.network import HOST, Network
from tests.history.checker import Acknowledged, History, StoredRecord, last_id, violations
from tests.history.cluster import Witness, Writer
from tests.history.recorder import Recorder
from tests.history.wire import Partition, parse_id
from tests.support.kafka import Cluster, patiently
from tests.support.server import Server
from tests.support.waiting import eventually

SILENCE_S_MAX = 5.0  # heartbeats come every 0.3 s: a client that hears nothing for so long comes again
RETRY_MS_MAX = 300
READING_S_MAX = 10.0
SENT_AT_ONCE = 4
TAIL_BYTES = 16_384  # most likely to hold a whole event: to read all of a long stream for its last id takes long
# What takes a producer seconds to notice by itself, where nodes come and go.
PATIENCE = {
    "reconnect_backoff_max_ms": 200,
    "request_timeout_ms": 3_000,
    "metadata_max_age_ms": 500,
    "delivery_timeout_ms": 8_000,
    "max_block_ms": 8_000,
}
TURN_S_MAX = 10.0

SETTINGS: dict[str, Any] = {
    "heartbeat_s": 0.3,
    "metadata_refresh_s": 0.3,
    "kafka_timeout_s": 2,
    "write_timeout_s": 2,
    "idle_feed_timeout_s": 1,
    # So small that clients fall out of the ring now and then, and join it again.
    "max_ring_records": 100,
    "max_fetch_bytes": 65_536,
}


class Author:
    """Writes to a topic until it is closed.

    Attributes:
        partitions: how many of the topic's partitions it writes to.
        acknowledged: what a broker has said it keeps; whole once the author is closed.
        turns: how many times it has written, some records each.
        began_ms: when, in milliseconds since the epoch.
    """

    transactional = False

    def __init__(self, cluster: EmbeddedCluster, topic: str, partitions: int, per_s: float) -> None:
        self.topic = topic
        self.partitions = partitions
        self.turns = 0
        name = f"{topic}-author" if self.transactional else None
        self.acknowledged: list[Acknowledged] = []
        self._new_writer = lambda: Writer(cluster.bootstrap_servers, name, **PATIENCE)
        self._writer = self._new_writer()
        self.began_ms = time.time_ns() // 1_000_000
        self._pause_s = SENT_AT_ONCE / per_s
        self._lock = RLock()
        self._writing = gevent.spawn(self._write)

    def spread(self, partitions: int) -> None:
        """Write to so many partitions from now on."""
        eventually(lambda: len(self._writer._producer.partitions_for(self.topic)) >= partitions)
        self.partitions = partitions

    def close(self) -> None:
        """Write no more; raises what has kept it from writing."""
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
                    with gevent.Timeout(TURN_S_MAX, KafkaTimeoutError):
                        self._append(self.turns)
                except (
                    KafkaError
                ):  # a fault has ended a transaction, or the producer hangs: nobody was told of a record
                    self._begin_anew()
            self.turns += 1
            gevent.sleep(self._pause_s)

    def _begin_anew(self) -> None:
        with suppress(KafkaError):  # then it is tried again at the next turn
            old, self._writer = self._writer, self._new_writer()
            self.acknowledged += old.acknowledged
            gevent.spawn(old.close)

    def _append(self, turn: int) -> None:
        self._send(turn)
        self._writer.flush()

    def _send(self, turn: int) -> None:
        for n in range(turn * SENT_AT_ONCE, (turn + 1) * SENT_AT_ONCE):
            self._writer.send(self.topic, n % self.partitions, _value(n), key=b"key %d" % (n % 7))


class TransactionAuthor(Author):
    """Writes in transactions that stay open for a while; every third is aborted."""

    transactional = True

    def _append(self, turn: int) -> None:
        self._writer.begin()
        self._send(turn)
        gevent.sleep(self._pause_s)
        self._writer.end(commit=turn % 3 != 2)


def _value(number: int) -> bytes | None:
    """Mostly JSON objects of various sizes; sometimes a tombstone or what is no JSON."""
    if number % 41 == 40:
        return None
    if number % 43 == 42:
        return b"no JSON %d" % number
    return json.dumps({"n": number, "x": "é" * (number * 7919 % 200)}, ensure_ascii=False).encode()


class Reader:
    """A client that comes back with its last id until it is closed, and keeps all that it is sent.

    Attributes:
        topics: that it reads.
        about: what History is to know of it besides.
    """

    def __init__(self, name: str, recorder: Recorder, topics: Sequence[str], about: dict[str, Any]) -> None:
        self.name = name
        self.topics = topics
        self.about = about
        self._recorder = recorder
        self._closing = False
        self._reading = gevent.spawn(recorder.follow, lambda _: self._closing)

    @property
    def last_id(self) -> str | None:
        """What it would come back with now."""
        _, _, tail = bytes(self._recorder.body[-TAIL_BYTES:]).partition(b"\n\n")
        return last_id(tail) or last_id(bytes(self._recorder.body), self._recorder.last_id)

    @property
    def body(self) -> bytes:
        """All that it was sent."""
        return b"".join(each.body for each in self._recorder.connections) + bytes(self._recorder.body)

    @property
    def connections(self) -> int:
        """How many of its connections are over."""
        return len(self._recorder.connections)

    @property
    def statuses(self) -> set[int]:
        """What it was answered in connections that are over; 0 where there was no answer."""
        return {each.status for each in self._recorder.connections}

    def close(self) -> None:
        """Come back no more."""
        self._closing = True
        with suppress(gevent.Timeout), gevent.Timeout(SILENCE_S_MAX):
            self._reading.join()
        self._reading.kill()

    def has_reached(self, ends: dict[Partition, int]) -> bool:
        """Whether its last id says that it has had all before these ends."""
        if self.last_id is None:
            return False
        told = parse_id(self.last_id)
        wanted = [partition for partition in ends if partition[0] in self.topics and partition[0] not in told.only]
        return all(
            partition in told.entries and (told.entries[partition].offset or 0) >= ends[partition]
            for partition in (*wanted, *told.entries)
        )

    def history(self, statuses: frozenset[int]) -> History:
        """All that it had, for the checker."""
        return History(self.name, self.topics, self._recorder.connections, **{"statuses": statuses, **self.about})


class Scene:
    """All of it, for as long as a `with` block lasts.

    Args:
        cluster: a running one.
        directory: for the servers' settings.
        seed: of all that is left to chance.
        servers: how many, behind one network each.
        settings: of the servers, over SETTINGS.

    Attributes:
        written: what witnesses have read so far.
        ways: to the servers, in their order.
    """

    def __init__(
        self, cluster: EmbeddedCluster, directory: Path, seed: int = 0, servers: int = 1, **settings: Any
    ) -> None:
        self.cluster = cluster
        self.lots = random.Random(seed)  # noqa: S311 - chance that can be had again
        self.authors: dict[str, Author] = {}
        self.readers: list[Reader] = []
        self.servers: list[Server] = []
        self.ways: list[Network] = []
        self.written: dict[tuple[Any, ...], StoredRecord] = {}
        self._acknowledged: list[Acknowledged] = []
        self._firsts: dict[Partition, int] = {}
        self._versions: dict[str, tuple[int, int]] = {}
        self._count = servers
        self._file = directory / "kafkasse.yaml"
        self._settings = {"kafka": cluster.settings, "allowed_topics": ["*"], **SETTINGS, **settings}
        self._stack = ExitStack()

    def __enter__(self) -> Scene:
        self._file.write_text(yaml.safe_dump(self._settings))
        with self._stack as stack:
            self.kafka = stack.enter_context(closing(Cluster(self.cluster.bootstrap_servers)))
            for _ in range(self._count):
                self.servers.append(self.serve())
                self.ways.append(stack.enter_context(closing(Network(self.servers[-1].port))))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for each in (*self.readers, *self.authors.values()):
            each.close()
        for server in self.servers:
            server.terminate()  # all of them before the first is waited for
        for server in self.servers:
            server.stop()
        self._stack.close()

    def serve(self, **environment: str) -> Server:
        """Another server of the same settings."""
        return Server(KAFKASSE_CONFIG=str(self._file), **environment)

    # The actors.

    def topic(
        self,
        name: str,
        partitions: int = 2,
        author: type[Author] = Author,
        per_s: float = 60,
        replicas: int = 3,
        **configs: str,
    ) -> str:
        """Make a topic, and let somebody write to it. Returns its name."""
        self.kafka.create(name, partitions, replicas, **configs)
        self._versions[name] = 0, 0
        self.hire(name, partitions, author, per_s)
        return name

    def read(self, *topics: str, query: str = "", first_id: str | None = None, **about: Any) -> Reader:
        """Let a client read these topics; `about` is what History is to know of it."""
        path = f"/{','.join(topics)}{query}"
        recorder = Recorder(
            lambda: (HOST, self.lots.choice(self.ways).port),
            path,
            last_id=first_id,
            retry_ms_max=RETRY_MS_MAX,
            silence_s=SILENCE_S_MAX,
        )
        self.readers.append(Reader(f"reader {len(self.readers)} of {path}", recorder, topics, about))
        return self.readers[-1]

    # What becomes of topics and servers.

    def hire(self, topic: str, partitions: int, author: type[Author] = Author, per_s: float = 60) -> None:
        """Let somebody write to a topic."""
        self.authors[topic] = author(self.cluster, topic, partitions, per_s)

    def retire(self, topic: str) -> None:
        """Let nobody write to a topic any more."""
        author = self.authors.pop(topic)
        author.close()
        topic_id = self._versions[topic][0]
        self._acknowledged += [each._replace(topic_id=topic_id) for each in author.acknowledged]

    def delete(self, topic: str) -> None:
        """Delete a topic, once all of it was read; nobody writes to it any more."""
        self.retire(topic)
        self.witness(topic)
        self.kafka.delete(topic)

    def make_again(self, topic: str, partitions: int = 2, per_s: float = 60) -> None:
        """Make a topic that was deleted, and let somebody write to it."""
        topic_id, _ = self._versions[topic]
        self.topic(topic, partitions, per_s=per_s)
        self._versions[topic] = topic_id + 1, 0

    def grow(self, topic: str, partitions: int) -> None:
        """Let a topic have more partitions, which are written to."""
        self.kafka.grow(topic, partitions)
        self.authors[topic].spread(partitions)

    def replace(self, at: int, **environment: str) -> Server:
        """Let the way to a server lead to a new one from the next connection on. Returns the old one, which still runs."""
        old, self.servers[at] = self.servers[at], self.serve(**environment)
        self.ways[at].target_port = self.servers[at].port
        self._stack.callback(old.stop)
        return old

    # The truth.

    def witness(self, *topics: str) -> dict[Partition, int]:
        """Read all that these topics hold now. Returns their ends."""
        ends: dict[Partition, int] = {}
        for topic in topics:
            ends |= patiently(lambda topic=topic: self._witness(topic))
        return ends

    def _witness(self, topic: str) -> dict[Partition, int]:
        # Where leaders have just changed, kafka-python's consumer may wait for an answer for ever.
        with (
            gevent.Timeout(READING_S_MAX, KafkaTimeoutError),
            closing(Witness(self.cluster.bootstrap_servers, [topic], *self._versions[topic])) as witness,
        ):
            ends = witness.read()
            self._firsts |= witness.firsts()
        self.written |= {(*each[:3], *each[-2:]): each for each in witness.stored}
        return ends

    def holds(self, topic: str) -> int:
        """How many records a topic holds now."""
        with closing(Witness(self.cluster.bootstrap_servers, [topic])) as witness:
            witness.read()
            return len(witness.stored)

    def truncated(self, topic: str) -> None:
        """From now on the topic's log may be another one than the one that was read so far."""
        topic_id, epoch = self._versions[topic]
        self._versions[topic] = topic_id, epoch + 1

    # The verdict.

    def violations(self, statuses: Iterable[int] = (), **about: Any) -> list[str]:
        """Let the authors stop and the readers come to the end, and leave. Returns what is wrong; nothing where all is well.

        Args:
            statuses: that clients may be answered, beside 200.
            about: what the checker is to know besides: topics that are `excused` or `compacted`.
        """
        for topic in list(self.authors):
            self.retire(topic)
        ends = self.witness(*self._versions)
        with suppress(gevent.Timeout):
            eventually(lambda: all(each.has_reached(ends) for each in self.readers))
        late = [
            f"{each.name}: has not come to the end, {each.last_id}"
            for each in self.readers
            if not each.has_reached(ends)
        ]
        gevent.joinall([gevent.spawn(each.close) for each in self.readers])
        return late + violations(
            [each.history(frozenset(statuses)) for each in self.readers],
            list(self.written.values()),
            acknowledged=self._acknowledged,
            reached=ends,
            firsts=self._firsts,
            **about,
        )


# What tests wait for.


def watch(scene: Scene, topic: str) -> list[Reader]:
    """Clients of every kind: live, from the beginning, from the first record of partition 0 alone."""
    only = f'[{{"topic":"{topic}","partition":0,"offset":0}}]'
    readers = [scene.read(topic), scene.read(topic, query="?timestamp=0", start=0), scene.read(topic, first_id=only)]
    eventually(lambda: all(moves(each) for each in readers))
    return readers


def moves(reader: Reader, since: int = 0) -> bool:
    """Whether it has had a record after so many bytes."""
    return reader.body.find(b"event: message", since) >= 0


def go_on(readers: list[Reader]) -> None:
    """Wait until each has had something new."""
    had = {each: len(each.body) for each in readers}
    eventually(lambda: all(moves(each, since) for each, since in had.items()))


def beat(readers: list[Reader]) -> None:
    """Wait until each has heard nothing but two heartbeats for a while."""
    eventually(lambda: all(each.body.endswith(b":heartbeat\n\n" * 2) for each in readers))


def unbroken(readers: list[Reader]) -> bool:
    """Whether none of them had to come back."""
    return not any(each.connections for each in readers)
