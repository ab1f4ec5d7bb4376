"""Simulations of clients that read chunks and wait at the end, through a shared cache, while topics change."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from kafkasse.errors import KafkasseError, OffsetGone
from kafkasse.feed import chunks
from kafkasse.feed.core import chunk as core
from kafkasse.feed.core.chunk import Chunk
from kafkasse.feed.core.reader import StopReason
from kafkasse.feed.feeds import Feeds
from kafkasse.feed.shared_chunks import SharedChunks
from kafkasse.log import Partition as LogPartition
from kafkasse.log import Topic
from kafkasse.records.encoder import Encoder
from kafkasse.records.frame import JsonLines
from kafkasse.records.position import Position, parse, stream_offset
from kafkasse.web import finite_reads
from kafkasse.web.finite_reads import RecordSource
from kafkasse.web.request import BEGINNING, NOW
from tests.history.checker import Connection, History
from tests.history.draws import Draws
from tests.history.simulation import MAX_CLIENTS
from tests.history.visitors import ChangingSimulation
from tests.history.wire import Partition

BLOCK_OFFSETS, TURN_BLOCKS, MAX_CHUNK_BYTES = 4, 3, 500
MAX_READS = 200  # of one client that reads to the end; a broken one would never reach it
LONG_POLL_S = 5e-9  # a few reads of the clock of a simulated world


class FiniteClient:
    """A client with the offset of its last response. Each response is a connection to the checker."""

    stats = SimpleNamespace(catch_ups=0, falls_behind=0)
    reader = SimpleNamespace(stop_reason=StopReason.NOT_STOPPED, core_state=None, stats=stats)
    body = b""  # no response is open between two steps
    is_live = True
    room: int | None = None

    def __init__(self, simulation: FiniteReads, offset: str) -> None:
        self.connections: list[Connection] = []
        self.start = self.offset = offset
        self.is_up_to_date = False
        self._simulation = simulation

    @property
    def sent_id(self) -> str | None:
        """The offset as an event ID."""
        return None if self.offset == self.start else f"~~{self.offset.partition('.')[2]}~"

    def read(self, is_live: bool = False) -> None:
        """Send a request. The client may lose the response, and send the request again later."""
        simulation = self._simulation
        began = simulation.now
        try:
            chunk = simulation.request(self, is_live)
            lines = [line.strip(b",") for line in b"".join(chunk.parts)[1:-1].split(b"\n")]
            next_offset, self.is_up_to_date = chunk.next_offset, chunk.is_up_to_date
        except OffsetGone as gone:
            simulation.reached["gone"] += 1
            lines = [json.dumps({"event": "gap", **gap}).encode() for gap in gone.extra["gaps"]]
            next_offset, self.is_up_to_date = gone.extra["next_offset"], False
        except KafkasseError:
            return
        if simulation.loses_responses and simulation.draws.chance(1):
            return
        body = b"".join(line + b"\n" for line in lines if line)
        arrivals = [(len(body), simulation.now)]
        self.connections.append(Connection(self.sent_id, 200, body, False, began, arrivals))
        self.offset = next_offset

    heartbeat = end = read

    def park(self) -> None:
        """Long-poll."""
        self.read(is_live=True)

    def disconnect(self, received: int | None = None, is_cut: bool = True) -> None:
        """Nothing is open."""


class FiniteReads(ChangingSimulation):
    """A simulation in which some clients are FiniteClients. A shared cache keeps full chunks forever."""

    loses_responses = True

    def __init__(self, draws: Draws, **settings: Any) -> None:
        self._caches: dict[Any, Chunk] = {}
        super().__init__(draws, **settings)

    def play(self, steps: int) -> list[str]:
        wait = finite_reads.wait_for_lines

        def wait_for_lines(reader: Any) -> bytes:
            self._run_others()
            lines = wait(reader)
            self.reached["long poll with records"] += bool(lines)
            return lines

        with (
            patch.multiple(core, BLOCK_OFFSETS=BLOCK_OFFSETS, TURN_BLOCKS=TURN_BLOCKS, MAX_CHUNK_BYTES=MAX_CHUNK_BYTES),
            patch.object(chunks, "MAX_POLL_S", LONG_POLL_S),
            patch.multiple(finite_reads, LONG_POLL_S=LONG_POLL_S, wait_for_lines=wait_for_lines),
        ):
            return super().play(steps)

    def _new_feeds(self) -> Feeds:
        self._shared = SharedChunks(finite_reads.MAX_READ_S)
        return super()._new_feeds()

    @property
    def gaps(self) -> int:
        return self.reached["gone"] + super().gaps

    def open_finite(self) -> None:
        self.clients.append(FiniteClient(self, self.draws.choice([BEGINNING, NOW])))  # type: ignore[arg-type]

    def connect(self, client: Any) -> None:
        if not isinstance(client, FiniteClient):
            super().connect(client)

    def _may_reconnect(self, client: Any, received: int | None) -> bool:
        return isinstance(client, FiniteClient) or super()._may_reconnect(client, received)

    def _all_know_epoch(self, partition: Partition) -> bool:
        finite = [client for client in self.clients if isinstance(client, FiniteClient)]
        starts = [parse(client.sent_id).starts for client in finite if client.sent_id]
        found = [places[at] for places in starts if (at := LogPartition(*partition)) in places]
        knows = all(place.epoch is not None or not place.offset for place in found)
        return knows and super()._all_know_epoch(partition)

    def _streams_of(self, topic: str) -> list[Any]:
        return [client for client in super()._streams_of(topic) if not isinstance(client, FiniteClient)]

    def request(self, client: FiniteClient, is_live: bool) -> Chunk:
        """Return the response to a request of a client, or raise its error."""
        selection = self._choice(client).selection  # type: ignore[arg-type]
        filters = selection.filter, selection.dimensions
        encoder = self._encoders.setdefault(
            ("finite", *filters), Encoder(wire=JsonLines(), filter=selection.filter, dimensions=selection.dimensions)
        )
        key = *filters, selection.selector
        if not is_live and (cached := self._caches.get((key, client.offset))) and self.draws.chance(5):
            self.reached["cached chunk"] += 1
            return cached
        opened = SimpleNamespace(wait_for=lambda read: read())
        source = RecordSource(
            self._feeds, self._shared, self._route, encoder, selection.selector, key, "", 3600, opened, self._adapt  # type: ignore[arg-type]
        )  # fmt: skip
        offset = client.offset
        position = self._start if offset in (BEGINNING, NOW) else stream_offset.parse(offset)
        chunk = source.chunk(offset, *self._adapt(position), must_wait=is_live)
        if chunk.is_full:
            self.reached["full chunk"] += 1
            self._caches[key, offset] = chunk
        return chunk

    def _adapt(self, position: Position) -> tuple[Position, Mapping[str, Topic]]:
        log = self._feeds.log
        position = self._route.adapt(position, [*log.describe(self._route.matching(log.topic_names()))])
        return position, self._describe(position)

    def settle(self) -> None:
        self.loses_responses = False
        super().settle()

    def _read_all(self, client: Any) -> None:
        if not isinstance(client, FiniteClient):
            return super()._read_all(client)
        client.is_up_to_date = False
        for _ in range(MAX_READS):
            if client.is_up_to_date:
                return
            client.read()

    def _history(self, number: int, client: Any) -> History:
        if not isinstance(client, FiniteClient):
            return super()._history(number, client)
        start = "earliest" if client.start == BEGINNING else "latest"
        topics = sorted({topic for topic, _ in self.ends})
        limits: dict[str, Any] = {"max_ended": len(client.connections)}
        keeps: Callable[..., bool] = self._choice(client).keeps
        return History(
            f"client {number}", topics, client.connections, start=start, wire="chunks", keeps=keeps, **limits
        )


class FiniteSimulation(FiniteReads):
    """A simulation of finite reads only.

    Args:
        changes: whether topics grow, and are created and recreated. Otherwise, they are truncated more often.
    """

    def __init__(self, draws: Draws, changes: bool = True, **settings: Any) -> None:
        self._changes = changes
        super().__init__(draws, **settings)

    def open(self) -> None:
        if len(self.clients) < MAX_CLIENTS:
            self.open_finite()

    def read(self) -> None:
        for client in self._some():
            client.read(is_live=self.draws.chance(4))  # type: ignore[call-arg]

    cut = cut_at_any_byte = fill_socket = park = heartbeat = end = read

    def restart(self) -> None:
        """Kill the worker, rarely, and start another one."""
        if self.draws.chance(2):
            self.reached["restart"] += 1
            self._feeds = self._new_feeds()

    def _more_moves(self) -> Iterable[Callable[[], None]]:
        return super()._more_moves() if self._changes else [self.truncate] * 4
