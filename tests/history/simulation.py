"""The same checker on feeds in this process, where drawn or recorded numbers decide the order of all steps.

Some faults need an order of steps that no black-box test can force, such as an eviction while a cursor is being closed. Here
the brokers are simulated, and the simulation advances the tail. The bytes that readers return are those that a client
receives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, NamedTuple

from kafkasse.config import Config
from kafkasse.errors import KafkasseError
from kafkasse.feed.core.reader import StopReason
from kafkasse.feed.core.reader_states import ReaderState
from kafkasse.feed.core.tail import TailPartition
from kafkasse.feed.feeds import Feeds, OpenRequest
from kafkasse.feed.reader import Reader
from kafkasse.feed.tail import Tail
from kafkasse.log import Log, Topic
from kafkasse.log import Partition as LogPartition
from kafkasse.records.encoder import Encoder
from kafkasse.records.filter import Selection, Selector
from kafkasse.records.position import Position, of_topics, parse
from kafkasse.route import Route, StartAt
from tests.history.checker import Bounds, Connection, History, StoredRecord, last_id, violations
from tests.history.draws import Draws
from tests.history.payloads import is_json
from tests.history.simulated_log import CLUSTERS, FAULTS, ClusterType, SimulatedLog
from tests.history.stored_logs import LogVersion
from tests.history.wire import Partition, blocks
from tests.support.turns import turn

TOPIC = "t"
PARTITIONS = 3
HIDDEN = 3  # the filter drops one record in three
MAX_CLIENTS = 6
MAX_READS_TO_PARK = 10
MAX_IDLE_READS = 20
MIN_TURNS, MAX_TURNS = 2, 60  # until a tail is at the end: it notices changes of topics in the first two turns
MAX_READS = 5000  # of one client that reads to the end


def _is_shown(message: Any) -> bool:
    return bool(message.get("n", 1) % HIDDEN)


def _keeps(stored: StoredRecord) -> bool:
    value = stored.value
    return value is None or (is_json(value) and bool(int(value[5:-1].split(b",")[0]) % HIDDEN))


class Client:
    """One client and its socket: what it received over the open connection, and its earlier connections.

    Attributes:
        room: how many bytes of the next chunk the socket of the parked client accepts. None: all.
    """

    coding = ""

    def __init__(self, simulation: Simulation) -> None:
        self.connections: list[Connection] = []
        self.body = b""
        self.sent_id: str | None = None
        self.reader: Any = None
        self.room: int | None = None
        self._simulation = simulation
        self._unsent = b""
        self._is_parked = self._is_woken = False
        self._began = 0
        self._arrivals: list[tuple[int, float]] = []

    def connect(self, reader: Reader) -> None:
        self.reader, self._began = reader, self._simulation.now
        self._receive(reader.begin())

    def _receive(self, data: bytes) -> None:
        self.body += data
        self._arrivals.append((len(self.body), self._simulation.now))

    @property
    def is_live(self) -> bool:
        """Whether the client receives new records from the feed."""
        return self.reader.state in (ReaderState.LIVE, ReaderState.PARKED)

    # The greenlet of the stream.

    def read(self) -> None:
        """Send what the reader returns next. A parked client receives nothing unless it was woken."""
        if self._resume():
            self._receive(self.reader.read(0))

    def heartbeat(self) -> None:
        """Send the event ID that is due at a heartbeat. The feed sends it to parked clients."""
        if self._resume():
            self._send_id()

    def _send_id(self) -> bytes:
        data: bytes = self.reader.id_if_moved()
        self._receive(data)
        return data

    def park(self) -> None:
        """Send what the reader returns, and park the client once it has received everything."""
        for _ in range(MAX_READS_TO_PARK):
            self.read()
            if self._is_parked or (self.reader.can_park and not self._send_id()):
                break
        if not self._is_parked and self.reader.can_park:
            self.reader.park(self)
            self._simulation.reached["parked"] += 1
            self._is_parked, self._is_woken = True, False

    def end(self) -> None:
        """End the stream as a server does when a token expires."""
        self.reader.stop(StopReason.ENDED)
        self.wake()
        self._resume()
        self._send_id()

    def _resume(self) -> bool:
        """Unpark a client that was woken, and send the rest of its last chunk. Return whether it is not parked."""
        if self._is_parked and self._is_woken:
            self.reader.unpark()
            self._is_parked = False
            self._receive(self._unsent)
            self._unsent = b""
        return not self._is_parked

    def disconnect(self, received: int | None = None, is_cut: bool = True) -> None:
        """End the connection after its first `received` bytes."""
        self.reader.close()
        what = self.sent_id, 200, self.body[:received], is_cut, self._began, self._arrivals
        self.connections.append(Connection(*what))
        self.sent_id, self.body, self._arrivals = last_id(self.body[:received], self.sent_id), b"", []
        self._is_parked, self._unsent, self.room = False, b"", None

    # The feed calls these while the client is parked.

    def to_chunk(self, data: bytes) -> bytes:
        return data

    def try_send(self, chunk: bytes, data: bytes) -> bool:
        room, self.room = self.room, None
        self._unsent = b"" if room is None else chunk[room:]
        self._receive(chunk[:room])
        if self._unsent:
            self._simulation.reached["sent in part"] += 1
            self.wake()
        return not self._unsent

    def wake(self) -> None:
        self._is_woken = True


class Simulation:
    """A log, a feed and clients.

    Args:
        late_reconnects: whether clients may reconnect after retention removed the records they need next.

    Attributes:
        reached: how often the situations occurred that only some orders of steps cause.
        events: what happened, for people.
    """

    _clusters: Sequence[ClusterType] = CLUSTERS
    _route = Route("topics", "/{topics}", None)
    _start = of_topics([TOPIC])  # of a client without an event ID

    def __init__(
        self,
        draws: Draws,
        filtered: bool = False,
        id_frequency: str = "event",
        drops: bool = True,
        late_reconnects: bool = False,
        truncates: bool = False,
    ) -> None:
        self.draws = draws
        self.reached: Counter[str] = Counter()
        self.filtered, self.id_frequency, self.drops = filtered, id_frequency, drops
        self.late_reconnects, self.truncates = late_reconnects, truncates
        self.events: list[str] = []
        self.stored: list[StoredRecord] = []
        self._written = 0
        self.ends: dict[Partition, int] = {}
        self.firsts: dict[Partition, int] = {}
        self._epochs: dict[Partition, int] = {}
        self._recreated: Counter[str] = Counter()
        self._versions_began: dict[Partition, dict[LogVersion, float]] = {}
        self.clients: list[Client] = []
        self.now = 0  # the number of the step
        self._bounds: dict[Partition, list[Bounds]] = {}
        self._tails: list[Tail] = []
        ring = self.draws.choice([1, 3, 8])
        self.log = self._new_log()
        self.log.while_closing = self._run_others
        config = Config(heartbeat_s=300, idle_feed_timeout_s=3600)
        # Refresh the metadata whenever a tail or a cursor checks it.
        self._settings = replace(config.feed, metadata_refresh_s=0.0, max_ring_records=ring, max_chunk_bytes=1024)
        self._feeds = self._new_feeds()
        self.create(TOPIC, PARTITIONS)
        self._encoder = Encoder(filterer=_is_shown if filtered else None, id_frequency=id_frequency)

    def play(self, steps: int) -> list[str]:
        """Run this many steps, or the recorded ones. Return the violations."""
        moves = [self.append, self.append, self.append, self.mark, self.turn, self.turn, self.open]
        moves += [self.read, self.read, self.read, self.cut, self.cut_at_any_byte, self.heartbeat, self.drop]
        moves += [self.park, self.park, self.fill_socket, self.end, *[self.truncate] * 3, *self._moves_of_cluster()]
        moves += self._more_moves()
        named = {move.__name__: move for move in moves}
        for name in self.draws.moves(steps, [move.__name__ for move in moves]):
            self.tick()
            self.note(name)
            named[name]()
        return self.violations()

    def note(self, event: str) -> None:
        """Add an event, for people."""
        self.events.append(f"{self.now:4} {event}")

    def violations(self) -> list[str]:
        """Let every client read to the end. Return the violations."""
        self.draws.settle()
        self.note("from now on, nothing fails")
        self.settle()
        self.reached["gap"] += self.gaps
        for stats in {id(client.reader.stats): client.reader.stats for client in self.clients}.values():
            self.reached["catch-up"] += stats.catch_ups
            self.reached["falls behind"] += stats.falls_behind
        histories = [self._history(number, client) for number, client in enumerate(self.clients)]
        of_clients = violations(
            histories, self.stored, reached=self.ends, bounds=self._bounds, versions_began=self._versions_began
        )
        return [*self.log.violations, *of_clients]

    def _new_feeds(self) -> Feeds:
        """Return the feeds of a worker that has just started."""
        self._tails.clear()
        return Feeds(self._readable_log(), self._settings, self._add_tail)

    def _add_tail(self, tail: Tail) -> None:
        tail._check_at = inf  # turn() calls _check_topics(), so that time decides nothing
        self._tails.append(tail)

    def _new_log(self) -> Any:
        """Return the log that the writers write to."""
        return SimulatedLog(self.draws, self.draws.choice(self._clusters), self.reached, self.note)

    def _readable_log(self) -> Log:
        return self.log

    def _moves_of_cluster(self) -> Iterable[Callable[[], None]]:
        return self.elect, self.lose_leader, self.evict_sessions, self.disturb, self.disturb, self.disturb

    def _more_moves(self) -> Iterable[Callable[[], None]]:
        """Return the other steps of this simulation."""
        return ()

    def tick(self) -> None:
        """Begin the next step. During a step, writers may append, but nothing is removed."""
        self.now += 1
        for partition, bounds in self._bounds.items():
            at = LogPartition(*partition)
            held = self.log.bounds(at)
            bounds.append(self._held(partition, Bounds(self.now, self.now, held.start, held.end)))

    def _held(self, partition: Partition, bounds: Bounds) -> Bounds:
        """Return the bounds of a partition, given those of its log."""
        return bounds

    @property
    def gaps(self) -> int:
        return sum(
            connection.body.count(b"event: gap\n") for client in self.clients for connection in client.connections
        )

    # Steps.

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic, or add partitions to it."""
        self.log.create(topic, partitions)
        for partition in [(topic, at) for at in range(partitions) if (topic, at) not in self.ends]:
            self.ends[partition] = self.firsts[partition] = 0
            self._epochs[partition] = 0
            self._bounds[partition] = [Bounds(self.now, self.now, 0, 0)]
            self._versions_began[partition] = {}
            self._begin_version(partition)
            self.log.elect_leader(*partition)  # so that the records have leader epochs

    def append(self, partition: Partition | None = None) -> None:
        number, self._written = self._written, self._written + 1
        value = None if number % 7 == 6 else b'{"n":%d,"price":25.00}' % number
        key = self._key(number) if partition is None else None  # a key of a table belongs to one partition
        topic, at = partition or self._partition_of(key)
        offset = self.log.append(topic, value, at, key, timestamp=1000 + number)
        epoch = self._epochs[topic, at]
        topic_id = self._recreated[topic]
        self.stored.append(StoredRecord(topic, at, offset, 1000 + number, key, value, topic_id=topic_id, epoch=epoch))
        self.ends[topic, at] = offset + 1

    def _any_partition(self) -> Partition:
        return self.draws.choice(list(self.ends))

    def _key(self, number: int) -> bytes | None:
        return b"k%d" % number

    def _partition_of(self, key: bytes | None) -> Partition:
        return self._any_partition()

    def mark(self) -> None:
        self.log.append_marker(*self._any_partition())

    def drop(self) -> None:
        """Remove the oldest records of a partition, as retention does; rarely."""
        partition = self._any_partition()
        if self.drops and self.draws.chance(2) and self.ends[partition]:
            self.drop_before(partition, self.draws.between(self.firsts[partition], self.ends[partition] + 1))

    def drop_before(self, partition: Partition, first: int) -> None:
        topic, at = partition
        self.reached["retention"] += 1
        self.log.drop_before(topic, first, at)
        self.firsts[partition] = first

    def truncate(self) -> None:
        """Remove the last records of a partition, rarely, as an unclean leader election does.

        Clients that do not know the leader epoch cannot notice a truncation exactly, so their partitions are not truncated.
        The tail notices each truncation before a client returns. Otherwise, the client may receive a gap, the lost records
        from the ring, and another gap (docs/faults.md).
        """
        partition = self._any_partition()
        stored = self._stored_in(partition)
        if self.truncates and self.draws.chance(2) and stored and self._all_know_epoch(partition):
            first = max(stored[0].offset + 1, self.firsts[partition])  # retention has removed the records before
            end = self.log.bounds(LogPartition(*partition)).end  # there may be markers before it
            self.truncate_at(partition, self.draws.between(first, self.ends[partition] + 1))
            if self.drops and self.draws.below(2):
                self.log.before_lookup = partial(self._drop_after, partition, end)
            self._turn_to_end()
            self.log.before_lookup = lambda: None

    def _drop_after(self, partition: Partition, end: int) -> None:
        """Let a truncated log grow past its former end, and let retention remove its records up to about the new end.

        Thus no client returns exactly at the log's start, where no leader epoch would show the truncation (docs/faults.md).
        """
        self.reached["retention after a truncation"] += 1
        while self.ends[partition] <= end + 1:
            self.append(partition)
        self.drop_before(partition, self.ends[partition] - self.draws.below(2))
        self.tick()

    def truncate_at(self, partition: Partition, end: int) -> None:
        topic, at = partition
        self.reached["truncation"] += 1
        self.log.truncate(topic, end, at)
        kept = [record for record in self._stored_in(partition) if record.offset < end]
        self.ends[partition] = end
        self._epochs[partition] += 1
        self._begin_version(partition)
        self.stored += [record._replace(epoch=self._epochs[partition]) for record in kept]

    def _begin_version(self, partition: Partition) -> None:
        version = self._recreated[partition[0]], self._epochs[partition]
        self._versions_began[partition][version] = self.now

    def _stored_in(self, partition: Partition) -> list[StoredRecord]:
        """Return the records of a partition since its last truncation."""
        version = *partition, self._recreated[partition[0]], self._epochs[partition]
        return [record for record in self.stored if (*record[:2], record.topic_id, record.epoch) == version]

    def _all_know_epoch(self, partition: Partition) -> bool:
        """Return whether all event IDs with which clients may resume contain the partition's leader epoch."""
        clients = self._clients_of(partition[0])
        ids = {block.id for client in clients for block in blocks(client.body)}
        starts = [parse(event_id).starts for event_id in {*ids, *(client.sent_id for client in clients)} if event_id]
        places = [start.get(LogPartition(*partition)) for start in starts]  # an ID may be older than the partition
        return all(place is not None and place.epoch is not None for place in places)

    def _clients_of(self, topic: str) -> list[Client]:
        """Return the clients whose event IDs contain a topic."""
        return self.clients

    def elect(self) -> None:
        self.log.elect_leader(*self._any_partition(), leader=self.draws.below(3))

    def lose_leader(self) -> None:
        self.log.lose_leader(*self._any_partition())

    def evict_sessions(self) -> None:
        self.draws.choice(self.log.cluster.brokers).evict_sessions()

    def disturb(self) -> None:
        """Let requests, responses, lookups or connections fail in the next calls of poll()."""
        for _ in range(self.draws.between(1, 5)):
            self.log.faults.append(self.draws.choice([*FAULTS]))
        self.note(f"the next polls: {', '.join(self.log.faults)}")

    def turn(self) -> None:
        for tail in self._tails:
            turn(tail)
            self._check_topics(tail)

    def _check_topics(self, tail: Tail) -> None:
        tail._check_topics()

    def _turn_to_end(self) -> None:
        self.log.calm()
        for _ in range(MIN_TURNS):
            self.turn()
        for _ in range(MAX_TURNS):
            if self._is_at_end():
                return
            self.turn()

    def _is_at_end(self) -> bool:
        """Return whether the tail is at the end of all partitions of its topics."""
        return all(
            isinstance(state := tail.partitions.get(at), TailPartition) and state.offset == self.log.bounds(at).end
            for tail in self._tails
            for at in (LogPartition(*partition) for partition in self.ends)
            if at.topic in tail.topics
        )

    def open(self) -> None:
        if len(self.clients) < MAX_CLIENTS:
            self._turn_to_end()  # a client that starts at the end starts at the tail
            self.clients.append(Client(self))
            self.connect(self.clients[-1])

    def read(self) -> None:
        for client in self._some():
            client.read()

    def heartbeat(self) -> None:
        for client in self._some():
            client.heartbeat()
        for tail in self._tails:
            for feed in list(tail.feeds.values()):
                feed._heartbeat_at = 0.0
                feed.flush()

    def park(self) -> None:
        for client in self._some():
            client.park()

    def fill_socket(self) -> None:
        """Let the socket of a parked client accept only a part of the next chunk."""
        for client in self._some():
            client.room = self.draws.below(200)

    def cut(self) -> None:
        for client in self._some():
            self._cut(client, None)

    def cut_at_any_byte(self) -> None:
        for client in self._some():
            self._cut(client, self.draws.below(len(client.body) + 1))

    def _cut(self, client: Client, received: int | None) -> None:
        if self._may_reconnect(client, received):
            client.disconnect(received)
            self.connect(client)

    def end(self) -> None:
        """End a stream as the server does when its token expires."""
        for client in self._some():
            if self._may_reconnect(client, None):
                client.end()
                client.disconnect(is_cut=False)
                self.connect(client)

    def restart(self) -> None:
        """Kill the worker, rarely, and start another one. The connections end at any byte."""
        received = [self.draws.below(len(client.body) + 1) for client in self.clients]
        if self.draws.chance(2) and all(map(self._may_reconnect, self.clients, received)):
            self.reached["restart"] += 1
            for client, count in zip(self.clients, received, strict=True):
                client.disconnect(count)
            self._feeds = self._new_feeds()
            for client in self.clients:
                self.connect(client)

    def settle(self) -> None:
        """Let every client read until there is nothing more."""
        self.log.while_closing = lambda: None  # otherwise new records would never stop
        self.log.calm()
        for partition in [each for each, epoch in self._epochs.items() if epoch or self._recreated[each[0]]]:
            self.append(partition)  # a client that was ahead of the tail notices a truncation at the next record
        for number in range(MAX_TURNS):
            if number > MIN_TURNS and self._is_at_end() and all(client.is_live for client in self.clients):
                break
            self.tick()
            self.turn()
            for client in self.clients:
                self._read_all(client)
        for client in self.clients:
            client.disconnect()

    def _read_all(self, client: Client) -> None:
        idle = 0
        for _ in range(MAX_READS):  # a client that joins needs a few reads without bytes; a broken one would never end
            if idle == MAX_IDLE_READS:
                return
            before = client.body
            try:
                client.read()
            except KafkasseError:
                return
            if client.body != before:
                idle = 0
            elif client.is_live:
                return
            else:
                idle += 1

    def _run_others(self) -> None:
        """Run the steps that other greenlets may take while this one waits."""
        for _ in range(self.draws.below(6)):
            self.append()
        self.turn()

    def _some(self) -> list[Client]:
        return [self.draws.choice(self.clients)] if self.clients else []

    def _may_reconnect(self, client: Client, received: int | None) -> bool:
        kept = last_id(client.body[:received], client.sent_id)
        starts = parse(kept).starts if kept else {}
        late = any((start.offset or 0) < self.firsts[partition] for partition, start in starts.items())
        has_start = (
            bool(kept) or self._route_of(client).start is StartAt.SNAPSHOT
        )  # without an ID, a snapshot starts again
        return has_start and (self.late_reconnects or not late)

    def connect(self, client: Client) -> None:
        self._open(client, self._encoder)

    def _open(self, client: Client, encoder: Encoder, selector: Selector | None = None) -> None:
        """Open a stream as the web package does."""
        if not client.sent_id:
            self.log.calm()  # a partition without a leader would start at the time of the server, which the checker lacks
        log = self._feeds.log
        route = self._route_of(client)
        matching = [*log.describe(route.matching(log.topic_names()))]
        position = route.adapt(parse(client.sent_id) if client.sent_id else self._start_of(client), matching)
        topics = self._describe(position)
        client.connect(self._feeds.open(OpenRequest(route, position, topics, encoder, selector=selector)))

    def _route_of(self, client: Client) -> Route:
        return self._route

    def _start_of(self, client: Client) -> Position:
        return self._start

    def _describe(self, position: Position) -> dict[str, Topic]:
        """Return what the server knows about the topics of a position when a stream opens."""
        return self._feeds.log.describe(position.topics)

    def _history(self, number: int, client: Client) -> History:
        promises = {"keeps": _keeps} if self.filtered else {}
        return self._promised(number, client, self.id_frequency, **promises)

    def _promised(self, number: int, client: Client, id_frequency: str, **promises: Any) -> History:
        """Return the history of a client. The server may end all of its streams."""
        connections = client.connections
        start = self._route_of(client).start.value
        limits = {"start": start, "id_frequency": id_frequency, "max_ended": len(connections)}
        topics = sorted({topic for topic, _ in self.ends})
        return History(f"client {number}", topics, connections, **limits, **promises)


class Choice(NamedTuple):
    """What a client selects, and the same as a function of a stored record."""

    selection: Selection
    keeps: Callable[[StoredRecord], bool]


class SelectingSimulation(Simulation):
    """A simulation whose clients select different records. Clients with equal filters and dimensions share an encoder.

    Args:
        choices: what the clients select, in turn.
    """

    def __init__(self, draws: Draws, choices: Sequence[Choice], **settings: Any) -> None:
        super().__init__(draws, **settings)
        self._choices = choices
        self._encoders: dict[Any, Encoder] = {}

    def _choice(self, client: Client) -> Choice:
        return self._choices[self.clients.index(client) % len(self._choices)]

    def connect(self, client: Client) -> None:
        chosen = self._choice(client).selection
        encoder = self._encoders.setdefault(
            (chosen.filter, chosen.dimensions),
            Encoder(filter=chosen.filter, dimensions=chosen.dimensions, id_frequency=self.id_frequency),
        )
        self._open(client, encoder, chosen.selector)

    def _history(self, number: int, client: Client) -> History:
        choice = self._choice(client)
        id_frequency = self.id_frequency if choice.selection.selector is None else "event"
        return self._promised(number, client, id_frequency, keeps=choice.keeps)
