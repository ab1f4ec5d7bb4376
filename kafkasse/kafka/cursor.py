"""Reads partitions of Kafka by fetches of its own: for each broker a connection and a session.

    seek ─▶ place ─▶ fetch ─▶ answer ─▶ runs of records ─▶ poll
              ▲                 │
              └──── leaders ◀───┘ moved, away, unknown

kafka-python's consumer does the same with a millisecond of CPU a round. Knows offsets and leaders; no clients, no frames.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

import gevent
from gevent import get_hub
from gevent.event import Event
from kafka import errors as kafka_errors

from kafkasse.errors import KafkasseError, Unavailable
from kafkasse.kafka import fetch_protocol
from kafkasse.kafka.batches import RUN_RECORDS_MAX, Run, Unpackable, runs
from kafkasse.kafka.connection import Broker, Connection, Connections
from kafkasse.kafka.errors import PERMANENT_ERRORS, translate_errors
from kafkasse.kafka.fetch_protocol import (
    ANY_EPOCH,
    BY_NAME,
    BY_TOPIC_ID,
    NEW_SESSION,
    NO_SESSION,
    Answer,
    Fetched,
    Terms,
    Wanted,
)
from kafkasse.log import Batch, OffsetOutOfRange, Partition

log = logging.getLogger(__name__)

BACKOFF_S = 0.02  # times the square of the failures in a row
BACKOFF_MAX_S = 1.0
TOO_LARGE = "too large when unpacked"
EPOCHS_MAX = 100  # of a partition that are remembered; leaders change rarely
TOLD_AGAIN_S = 0.5  # that a partition is lost, until it is moved
SESSION_EPOCH_MAX = 2**31 - 1

_NONE, _OUT_OF_RANGE, _UNKNOWN = 0, 1, -1  # error codes


class Leader(NamedTuple):
    """Who leads a partition, since which epoch, and what its topic is called."""

    broker: Broker
    epoch: int
    name: bytes
    id: bytes  # b"" where the cluster has no topic ids


class Cluster(Protocol):
    """What a cursor asks for besides records."""

    connections: Connections

    def leaders(self, partitions: Iterable[Partition]) -> Mapping[Partition, Leader]:
        """The leaders of those partitions that have one now. Raises Unavailable where Kafka does not say."""
        ...


class _Place:
    """One partition: where it is read next, and from whom."""

    __slots__ = ("asked", "epochs", "last_epoch", "leader", "node", "offset", "partition")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.offset = 0
        self.last_epoch = ANY_EPOCH  # of the record before `offset`
        self.epochs: list[tuple[int, int]] = []  # and those before, each with the offset from which on it was read
        self.asked = -1  # the offset that the last request for it named
        self.leader: Leader | None = None
        self.node: _Node | None = None

    def stand(self, offset: int) -> None:
        """Be read from here on, whatever was read before."""
        self.offset, self.last_epoch, self.epochs = offset, ANY_EPOCH, []

    def go_on(self, run: Run) -> None:
        """This was read. Markers have an epoch too: without it a broker would see the one before go on beyond its end."""
        if run.epoch != self.last_epoch:
            self.epochs = [*self.epochs[-EPOCHS_MAX:], (run.epoch, self.offset)]
            self.last_epoch = run.epoch
        self.offset = run.next_offset

    def agreed(self, epoch: int, end_offset: int) -> int:
        """Up to where a log is the one that was read, if no later epoch than this one is in both, and it ends there."""
        return min([end_offset, *(first for later, first in self.epochs if later > epoch)])


class KafkaCursor:
    """See contract.Cursor.

    Args:
        cluster: finds leaders, opens connections.
        offsets: where to begin.
        leaders: of these partitions, as far as they are known.
        terms: of each fetch.
        tail: it stays at the end for long. It fetches in a session, and only when it is polled: records gather meanwhile.
            One that does not tail fetches ahead as long as there is much to come.
        timeout_s: how long a broker may be late with an answer.
        max_decompressed_bytes: how large a compressed batch of records may become; larger ones are lost.
        done: told once that it was closed.
    """

    def __init__(
        self,
        cluster: Cluster,
        offsets: Mapping[Partition, int],
        leaders: Mapping[Partition, Leader],
        terms: Terms,
        tail: bool,
        timeout_s: float,
        max_decompressed_bytes: int,
        done: Callable[[], object],
    ) -> None:
        self.cluster = cluster
        self.terms = terms
        self.tail = tail
        self.timeout_s = timeout_s
        self.max_decompressed_bytes = max_decompressed_bytes
        self.closed = False
        self._done = done
        self._places: dict[Partition, _Place] = {}
        self._homeless: dict[Partition, _Place] = {}  # whose leader is to be found
        self._topics: dict[str, bytes] = {}  # their ids: one that was made again under its name is another one
        self._nodes: dict[Broker, _Node] = {}
        self._answers: deque[tuple[_Node, Answer]] = deque()
        self._ready: deque[tuple[_Place, Iterator[Run]]] = deque()
        self._lost: dict[Partition, bool] = {}  # see OffsetOutOfRange
        self._tell_lost_at = 0.0
        self._divergent: dict[Partition, int] = {}
        self._unreadable: dict[Partition, tuple[int, str]] = {}
        self._error: Exception | None = None
        self._news = Event()
        self._is_looking = False
        self._failures = 0
        self._fetches_ahead = False
        self.seek(offsets)
        self._settle(leaders)

    # The contract.

    def seek(self, offsets: Mapping[Partition, int]) -> None:
        for partition, offset in offsets.items():
            place = self._places.setdefault(partition, _Place(partition))
            place.stand(offset)
            for lost in (self._lost, self._divergent, self._unreadable):
                lost.pop(partition, None)
            if place.node is None:
                self._homeless[partition] = place
            else:
                place.node.changed[partition] = place
        self._ready = deque(each for each in self._ready if each[0].partition not in offsets)

    def poll(self, timeout_s: float) -> list[Batch]:
        deadline = time.monotonic() + timeout_s
        while not self.closed:
            if batches := self._batches():
                if self._fetches_ahead and not self._ready:
                    self._ask()
                return batches
            self._raise()
            self._news.clear()
            self._ask()
            if not self._answers and not self._news.wait(max(0.0, deadline - time.monotonic())):
                return []
            while self._answers:
                self._take(*self._answers.popleft())
        return []

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            for node in self._nodes.values():
                node.leave()
            # Buffers and records are not to wait for the garbage collector, as what refers to itself in a circle would.
            for place in self._places.values():
                place.node = None
            for each in (self._nodes, self._answers, self._ready):
                each.clear()
            self._news.set()
            self._done()

    # What came.

    def _batches(self) -> list[Batch]:
        batches: list[Batch] = []
        count = 0
        while self._ready and count < RUN_RECORDS_MAX:
            place, rest = self._ready[0]
            try:
                run = next(rest, None)
            except kafka_errors.CorruptRecordError as error:
                self._error, run = error, None
            except Unpackable as error:
                log.error("records of %s/%d before offset %d are %s", *place.partition, error.next_offset, TOO_LARGE)
                self._lose(place)
                self._unreadable[place.partition] = error.next_offset, TOO_LARGE
                run = None
            if run is None:
                self._ready.popleft()
            elif run.next_offset > place.offset:
                place.go_on(run)
                batches.append(Batch(place.partition, run.records, run.next_offset))
                count += len(run.records)
        return batches

    def _raise(self) -> None:
        """What ends the reading, or waits for a seek(). All that came before has been handed on."""
        if self._error is not None:
            error, self._error = self._error, None
            with translate_errors():
                raise error
        if self._lost and time.monotonic() >= self._tell_lost_at:
            # Whoever could not find out how to go on is asked again.
            self._tell_lost_at = time.monotonic() + TOLD_AGAIN_S
            raise OffsetOutOfRange(self._lost, dict(self._divergent), dict(self._unreadable))

    def _take(self, node: _Node, answer: Answer) -> None:
        node.busy = False  # not before: what was asked for again would come twice, and into the same buffer
        if answer.error_code != _NONE:
            log.info("broker %d refuses a fetch: %s", node.broker.node_id, kafka_errors.for_code(answer.error_code))
            self.abandon(node)
            return
        # Where much came more will tail. At the end nothing should be under way when the cursor is closed.
        brought = sum(len(each.records) for each in answer.partitions)
        self._fetches_ahead = not self.tail and brought > self.terms.bytes_max // 2
        for fetched in answer.partitions:
            place = node.named.get((fetched.topic, fetched.partition))
            if place is None or place.node is not node or place.asked != place.offset:
                continue  # it was moved since
            if fetched.error_code != _NONE or fetched.diverging is not None:
                self._mend(place, fetched)
            elif fetched.records:
                if not self._homeless:
                    self._failures = 0
                self._ready.append((place, self._runs(fetched, place)))
                node.move_on(place)

    def _runs(self, fetched: Fetched, place: _Place) -> Iterator[Run]:
        return runs(fetched, place.offset, bool(self.terms.isolation_level), self.max_decompressed_bytes)

    def _mend(self, place: _Place, fetched: Fetched) -> None:
        """A partition that cannot be read here, or not as it was asked for."""
        error = kafka_errors.for_code(fetched.error_code)
        if fetched.error_code == _OUT_OF_RANGE or fetched.diverging is not None:
            self._lose(place)
            if fetched.diverging is not None:
                self._divergent[place.partition] = place.agreed(*fetched.diverging)
        elif error.retriable or fetched.error_code == _UNKNOWN:
            log.info("%s/%d cannot be read now: %s", *place.partition, error.__name__)
            self._leave(place)
            self._failures += 1
        else:
            self._error = error(f"{place.partition.topic}/{place.partition.partition}")

    # Whom to ask.

    def _ask(self) -> None:
        if self._homeless and not self._is_looking:
            self._is_looking = True
            gevent.spawn(self._look)
        for node in list(self._nodes.values()):
            node.ask()

    def _look(self) -> None:
        """Find the leaders of those who have none."""
        try:
            gevent.sleep(min(BACKOFF_MAX_S, BACKOFF_S * self._failures**2))
            leaders = {} if self.closed else self.cluster.leaders(self._homeless)
            if not self.closed:
                self._settle(leaders)
        except Unavailable:
            pass  # patience: it is asked again
        except KafkasseError as error:
            self._error = error
        finally:
            self._failures += bool(self._homeless)
            self._is_looking = False
            self._news.set()

    def _settle(self, leaders: Mapping[Partition, Leader]) -> None:
        for place in list(self._homeless.values()):
            leader = leaders.get(place.partition)
            if leader is None or leader.id != (self._topics.get(place.partition.topic) or leader.id):
                continue
            if place.leader is not None and leader.epoch < place.leader.epoch:
                continue  # by a broker that lags behind
            self._topics[place.partition.topic] = leader.id
            if leader.broker not in self._nodes:
                self._nodes[leader.broker] = _Node(self, leader.broker)
            place.leader, place.node = leader, self._nodes[leader.broker]
            place.node.take_in(place)
            del self._homeless[place.partition]

    def _lose(self, place: _Place) -> None:
        """It is not read until a seek()."""
        self._leave(place)
        del self._homeless[place.partition]
        self._lost[place.partition] = True
        self._tell_lost_at = 0.0

    def _leave(self, place: _Place) -> None:
        if place.node is not None:
            place.node.let_go(place)
            place.node = None
        self._homeless[place.partition] = place

    def abandon(self, node: _Node, at_once: bool = False) -> None:
        """Its partitions are read from whoever leads them now. Unless `at_once`, patience grows with each failure."""
        self._failures += not at_once
        if self._nodes.get(node.broker) is node:
            del self._nodes[node.broker]
        node.abandoned = True
        places, node.places = node.places, {}
        for place in places.values():
            place.node = None
            self._homeless[place.partition] = place
        node.leave()
        self._news.set()

    def broke(self, node: _Node, error: Exception, at_once: bool) -> None:
        """A node has lost its connection, or could not have one."""
        if isinstance(error, PERMANENT_ERRORS):
            self._error = error
        log.info("broker %d is away: %s: %s", node.broker.node_id, type(error).__name__, error)
        self.abandon(node, at_once)

    def answered(self, node: _Node, answer: Answer) -> None:
        """A node has an answer."""
        if not self.closed:
            self._answers.append((node, answer))
            self._news.set()


class _Node:
    """One broker, for as long as a cursor reads from it. It asks when told to; the event loop brings the answers."""

    def __init__(self, cursor: KafkaCursor, broker: Broker) -> None:
        self.broker = broker
        # In a request without a session those that brought nothing come first.
        self.places: dict[Partition, _Place] = {}
        self.changed: dict[Partition, _Place] = {}  # what a session is still to be told
        self.named: dict[tuple[bytes, int], _Place] = {}  # as answers call them
        self.abandoned = False
        self._forgotten: list[tuple[bytes, int]] = []
        self._cursor = cursor
        self._session = NEW_SESSION if cursor.tail else NO_SESSION
        self._connection: Connection | None = None
        self._version = 0  # of the fetch that is under way
        self._by_name = False  # a topic has no id
        self.busy = False
        answer_s_max = cursor.terms.wait_ms / 1000 + cursor.timeout_s
        self._patience = get_hub().loop.timer(answer_s_max, answer_s_max)

    def take_in(self, place: _Place) -> None:
        self.places[place.partition] = self.changed[place.partition] = place
        self._by_name = self._by_name or not (place.leader and place.leader.id)

    def let_go(self, place: _Place) -> None:
        del self.places[place.partition]
        self.changed.pop(place.partition, None)
        name = next((name for name, each in self.named.items() if each is place), None)
        if name is not None:
            del self.named[name]
            self._forgotten.append(name)

    def move_on(self, place: _Place) -> None:
        """It brought records: it is to be asked for at its new offset, and after the others."""
        self.places[place.partition] = self.changed[place.partition] = self.places.pop(place.partition)

    def ask(self) -> None:
        """Send a request, unless one is under way."""
        if self.places and not self.busy:
            self.busy = True
            if self._connection is None and (warm := self._cursor.cluster.connections.warm(self.broker)) is not None:
                self._take(warm)
            elif self._connection is None:
                gevent.spawn(self._open)
            else:
                self._send_or_break(self._connection)

    def leave(self) -> None:
        """Be asked no more. Whoever comes next may have the connection, once the answer that is under way has come."""
        connection, self._connection = self._connection, None
        if connection is None or connection.awaited is None:
            self._part_with(connection)
        else:
            self._patience.again(self._part_with, connection)
            connection.listen(lambda _: self._part_with(connection), lambda _: self._part_with(connection))

    def _part_with(self, connection: Connection | None) -> None:
        self._patience.close()
        if connection is not None:
            self._cursor.cluster.connections.give_back(connection)

    def _open(self) -> None:
        try:
            connection = self._cursor.cluster.connections.open(self.broker)
        except Exception as error:  # noqa: BLE001 - whatever it is, reading goes on by another connection
            self._break(error)
            return
        if self._cursor.closed or self.abandoned:
            self._cursor.cluster.connections.give_back(connection)
        else:
            self._take(connection)

    def _take(self, connection: Connection) -> None:
        self._connection = connection
        connection.listen(self._answered, self._break_soon)
        self._send_or_break(connection)

    def _answered(self, data: memoryview) -> None:
        self._patience.stop()
        answer = fetch_protocol.answer(self._version, data)
        if self._session != NO_SESSION and answer.error_code == _NONE:
            epoch = self._session[1] % SESSION_EPOCH_MAX + 1
            self._session = (answer.session_id, epoch) if answer.session_id else NEW_SESSION
        if answer.throttle_ms:
            gevent.spawn_later(answer.throttle_ms / 1000, self._cursor.answered, self, answer)
        else:
            self._cursor.answered(self, answer)

    def _send_or_break(self, connection: Connection) -> None:
        try:
            self._send(connection)
        except OSError as error:
            self._break(error)

    def _send(self, connection: Connection) -> None:
        self._version = BY_NAME if self._by_name else connection.version
        if self._session in (NEW_SESSION, NO_SESSION):
            self.changed, self._forgotten, self.named = self.places, [], {}
        wanted = [self._wanted_of(place, place.leader) for place in self.changed.values() if place.leader]
        # One that was let go and taken in again is wanted: the protocol does not say what comes of it if it is named twice.
        forgotten = [name for name in self._forgotten if name not in self.named]
        self.changed, self._forgotten = {}, []
        request = fetch_protocol.request(self._cursor.terms, self._session, wanted, forgotten)
        self._patience.again(self._break_soon, TimeoutError("no answer in time"))
        connection.ask(self._version, request)

    def _wanted_of(self, place: _Place, leader: Leader) -> Wanted:
        topic = leader.id if self._version >= BY_TOPIC_ID else leader.name
        self.named[topic, place.partition.partition] = place
        place.asked = place.offset
        return Wanted(topic, place.partition.partition, leader.epoch, place.offset, place.last_epoch)

    def _break_soon(self, error: Exception) -> None:
        """For the event loop, which must not wait, for the lock of a log even."""
        self._patience.stop()
        gevent.spawn(self._break, error)

    def _break(self, error: Exception) -> None:
        if self.abandoned or self._cursor.closed:
            return
        connection, self._connection = self._connection, None
        was_kept = connection is not None and connection.fresh
        if connection is not None:
            connection.close()
            if was_kept:
                self._cursor.cluster.connections.drop(self.broker)
        self._cursor.broke(self, error, at_once=was_kept)
