"""Simulations whose clients select different records, and whose topics change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from unittest.mock import patch

import gevent

from kafkasse.feed import snapshot
from kafkasse.feed.core.reader import StopReason
from kafkasse.feed.core.start import contradictions
from kafkasse.log import Topic
from kafkasse.records.filter import Dimension, Filter, Query, Selection, Where, compile_expression
from kafkasse.records.position import Position, of_topics
from kafkasse.route import Route, StartAt
from tests.history.checker import StoredRecord
from tests.history.draws import Draws
from tests.history.simulated_log import CLUSTERS_WITH_IDS
from tests.history.simulation import PARTITIONS, TOPIC, Choice, Client, SelectingSimulation
from tests.history.wire import Partition

KEYS = [b"ada", b"ada", b"bob", b"eve", b"news", b"nobody", b"\xff", None]
MAX_TOPICS = 6
MAX_PARTITIONS = 3
FILTERED_KEYS = [f"k{number}" for number in range(300)]


def _number(stored: StoredRecord) -> int | None:
    """Return the member `n` of a record, or None for a tombstone."""
    return None if stored.value is None else int(stored.value[5:-1].split(b",")[0])


# Filters.


def _by_expression() -> Choice:
    selection = Selection(Filter.of(expressions=[compile_expression("value.n % 3 != 0")]))
    return Choice(selection, lambda stored: (number := _number(stored)) is not None and number % 3 != 0)


def _by_keys(step: int, expression: str = "") -> Choice:
    """Choose some keys, as values of a dimension. Clients with different steps share a feed."""
    keys = FILTERED_KEYS[::step]
    query = Query({Dimension("key"): frozenset(keys)}, compile_expression(expression) if expression else None)
    selection = Where().select({}, {}, query, lambda view, reason: None)
    encoded = {key.encode() for key in keys}
    return Choice(selection, lambda stored: stored.key in encoded and (not expression or (_number(stored) or 0) > 20))


EVERYTHING = Choice(Selection(), lambda stored: True)
FILTERS = [_by_expression(), _by_keys(3), _by_keys(4), _by_keys(5, "value.n > 20"), EVERYTHING]


# Personal streams.


def _of_visitor(where: dict[str, Any], *keys: bytes, sub: object = None, is_even: bool = False) -> Choice:
    """Return what a visitor with the claim `sub` selects at `/{customer}`, with the path parameter `ada`."""
    claims = {} if sub is None else {"sub": sub}
    selection = Where.parse(where).select({"customer": "ada"}, claims, Query({}, None), lambda view, reason: None)

    def keeps(stored: StoredRecord) -> bool:
        return stored.key in keys and not (is_even and (_number(stored) is None or _number(stored) % 2 == 1))

    return Choice(selection, keeps)


# The clients of all choices but the last share a feed. Two of them select the same key, and form a group.
VISITORS = [
    _of_visitor({"key": "{customer}"}, b"ada"),
    _of_visitor({"key": "{claims.sub}"}, b"bob", sub="bob"),
    _of_visitor({"key": ["{claims.sub}", "news"]}, b"ada", b"eve", b"news", sub=["ada", "eve"]),
    _of_visitor({"key": "{claims.sub}"}, b"ada", sub="ada"),
    _of_visitor({"key": "{claims.sub}"}, sub="mallory"),
    _of_visitor({"key": "{customer}", "expression": "value.n % 2 == 0"}, b"ada", is_even=True),
]


class PersonalSimulation(SelectingSimulation):
    """A simulation in which several records have the same key, and each client selects the records of some keys."""

    _choices_of_clients: Sequence[Choice] = VISITORS

    def __init__(self, draws: Draws, **settings: Any) -> None:
        super().__init__(draws, self._choices_of_clients, **settings)

    def _key(self, number: int) -> bytes | None:
        return self.draws.choice(KEYS)


class PatternSimulation(PersonalSimulation):
    """A simulation in which matching topics are created, and partitions are added. Some streams are personal."""

    _route = Route("events", "/events", (TOPIC, "events.*"))
    _start = Position()
    _choices_of_clients = EVERYTHING, *VISITORS

    def _more_moves(self) -> Iterable[Callable[[], None]]:
        return self.create_topic, self.grow

    def create_topic(self) -> None:
        topics = {topic for topic, _ in self.ends}
        if len(topics) < MAX_TOPICS:
            self.reached["new topic"] += 1
            self.create(f"events.{len(topics)}", self.draws.between(1, MAX_PARTITIONS))

    def grow(self) -> None:
        topic, _ = self._any_partition()
        partitions = sum(name == topic for name, _ in self.ends)
        self.create(topic, min(partitions + 1, MAX_PARTITIONS))


class ChangingSimulation(PatternSimulation):
    """A simulation in which topics lose records, grow, and are created and recreated, and in which workers are killed.

    Some streams open with descriptions from before the last change of a topic, as on a server that has not noticed it.
    """

    _clusters = CLUSTERS_WITH_IDS

    def __init__(self, draws: Draws, **settings: Any) -> None:
        self._former: dict[str, Topic] = {}  # the descriptions before the last changes
        super().__init__(draws, **{"late_reconnects": True, "truncates": True, **settings})

    def create(self, topic: str, partitions: int) -> None:
        self._remember(topic)
        super().create(topic, partitions)

    def _remember(self, topic: str) -> None:
        self._former |= self.log.describe([topic])

    def _describe(self, position: Position) -> dict[str, Topic]:
        topics = super()._describe(position)
        outdated = topics | {
            name: topic
            for name, topic in self._former.items()
            # A partition that the server does not know yet starts at its first record. The checker cannot know when a client
            # without an event ID starts there.
            if name in topics and (position.starts or topic.partitions == topics[name].partitions)
        }
        # Feeds.describe() returns newer descriptions if a client's position contradicts them.
        if outdated != topics and self.draws.below(3) == 1 and not contradictions(position, outdated):
            self.reached["outdated description"] += 1
            return outdated
        return topics

    def _more_moves(self) -> Iterable[Callable[[], None]]:
        return *super()._more_moves(), self.recreate, self.restart

    def recreate(self) -> None:
        """Delete a topic, rarely, and create it again."""
        topic, _ = self._any_partition()
        if self.draws.chance(2):
            self.reached["recreated"] += 1
            partitions = [partition for partition in self.ends if partition[0] == topic]
            for partition in partitions:
                self.append(partition)  # the checker knows a log by its records
            self._remember(topic)
            self.log.delete(topic)
            self.log.create(topic, len(partitions))
            self._recreated[topic] += 1
            for partition in partitions:
                self.ends[partition] = self.firsts[partition] = self._epochs[partition] = 0
                self._begin_version(partition)
                self.log.elect_leader(*partition)

    def settle(self) -> None:
        self._former.clear()
        super().settle()

    def tick(self) -> None:
        self._reconnect_ended()
        super().tick()

    def _reconnect_ended(self) -> None:
        """Let the clients reconnect whose streams the server has ended."""
        for client in self.clients:
            if client.reader.stop_reason is StopReason.ENDED:
                client.disconnect(is_cut=False)
                self.connect(client)

    def _read_all(self, client: Client) -> None:
        super()._read_all(client)
        self._reconnect_ended()


class SnapshotSimulation(PersonalSimulation):
    """A simulation of a table: all records of a key are in one partition. Some streams are personal."""

    _route = Route("table", "/table", None, start=StartAt.SNAPSHOT)
    _start = of_topics([TOPIC])
    _choices_of_clients = EVERYTHING, *VISITORS

    def __init__(self, draws: Draws, **settings: Any) -> None:
        super().__init__(draws, **{"drops": False, **settings})
        self.log.while_closing = lambda: None  # the greenlet of the snapshot closes cursors, too
        self._feeds._slots._count = 1

    def play(self, steps: int) -> list[str]:
        with patch.object(snapshot, "UNAVAILABLE_BACKOFF_S", 0.0):  # a snapshot is read again after a truncation
            return super().play(steps)

    def _partition_of(self, key: bytes | None) -> Partition:
        return TOPIC, len(key or b"") % PARTITIONS

    def turn(self) -> None:
        super().turn()
        gevent.sleep(0)  # let the greenlet of the snapshot run
