"""The states of a reader: the data of each state, the transitions, and what the driver releases after some of them."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from kafkasse.feed.core.catch_up import CatchUpCore
from kafkasse.feed.core.snapshot import SnapshotCore, SnapshotVersion
from kafkasse.feed.core.subscribers import FeedPosition, Parked
from kafkasse.log import Partition
from kafkasse.records.position import IdWriter, Places


class Slot(Protocol):
    """Permission for a reader to open its own cursor."""

    revoked: bool

    def release(self) -> None:
        """Let another reader have a cursor."""


class ReaderState(Enum):
    """The states that operators see."""

    SNAPSHOT = "reading a snapshot"
    BEHIND = "behind"
    CATCHING_UP = "catching up"
    JOINING = "joining"
    LIVE = "live"
    PARKED = "parked"
    CLOSED = "closed"

    __hash__ = object.__hash__  # faster than that of Enum, for RouteStats.readers


@dataclass(slots=True, eq=False)
class Opening:
    """Has not started."""


class FeedEnd(Enum):
    """The start of a reader at the position of its feed."""

    FEED_END = "the position of the feed"


FEED_END = FeedEnd.FEED_END


@dataclass(slots=True, eq=False)
class WaitingForSnapshot:
    """Waits until the feed's snapshot is complete."""

    snapshot: SnapshotCore


@dataclass(slots=True, eq=False)
class ReadingSnapshot:
    """Sends the rows of a snapshot, from `next_row` on."""

    version: SnapshotVersion
    next_row: int = 0


@dataclass(slots=True, eq=False)
class Behind:
    """Needs a slot, with which it may open a cursor. `ids` writes the client's own event IDs, at its position."""

    ids: IdWriter


@dataclass(slots=True, eq=False)
class Waiting:
    """Waits for its slot."""

    ids: IdWriter
    slot: Slot


@dataclass(slots=True, eq=False)
class OpeningCursor:
    """Has a slot, and opens a cursor."""

    ids: IdWriter
    slot: Slot


@dataclass(slots=True, eq=False)
class CatchingUp:
    """Reads through its own cursor, and encodes frames with its own event IDs. `events`: the records that are counted."""

    catch_up: CatchUpCore
    slot: Slot
    events: int = 0

    @property
    def ids(self) -> IdWriter:
        """Writes the client's own event IDs, at its position."""
        return self.catch_up.ids


@dataclass(slots=True, eq=False)
class Joining:
    """Reads from the ring, from `segment` on, and skips what the client already has. Still writes its own event IDs."""

    ids: IdWriter
    segment: int


@dataclass(slots=True, eq=False)
class Live:
    """Is at a position of the feed, so the client can receive the shared frames with the event IDs in them.

    Attributes:
        segment: the next segment to read.
        places: the position before that segment.
    """

    segment: int
    places: Places

    @property
    def offsets(self) -> dict[Partition, int]:
        """The next offset of each partition, where it is known."""
        return {partition: place.offset for partition, place in self.places.items() if place.offset is not None}


@dataclass(slots=True, eq=False)
class Unparked:
    """Receives nothing more until its greenlet runs. The position counts bytes that the client keeps unsent."""

    position: FeedPosition


@dataclass(slots=True, eq=False)
class Closed:
    """Has released everything. `last` is where the client is; Opening if it has not received its whole snapshot."""

    last: Opening | Behind | Live


WithOwnIds = Behind | Waiting | OpeningCursor | CatchingUp | Joining
ReaderCoreState = Opening | WaitingForSnapshot | ReadingSnapshot | WithOwnIds | Live | Parked | Unparked | Closed

NAMES: Mapping[type[ReaderCoreState], ReaderState] = {
    WaitingForSnapshot: ReaderState.SNAPSHOT,
    ReadingSnapshot: ReaderState.SNAPSHOT,
    Behind: ReaderState.BEHIND,
    Waiting: ReaderState.BEHIND,
    OpeningCursor: ReaderState.BEHIND,
    CatchingUp: ReaderState.CATCHING_UP,
    Joining: ReaderState.JOINING,
    Live: ReaderState.LIVE,
    Parked: ReaderState.PARKED,
    Unparked: ReaderState.PARKED,
    Closed: ReaderState.CLOSED,
}

# The transitions, and when each happens.
TRANSITIONS: Set[tuple[type[ReaderCoreState], type[ReaderCoreState]]] = {
    (Opening, WaitingForSnapshot),  # the route starts with a snapshot
    (Opening, Live),  # the client starts at the position of the feed
    (Opening, Joining),  # the ring covers the client's position
    (Opening, Behind),  # the ring does not cover it
    (WaitingForSnapshot, ReadingSnapshot),  # the snapshot is complete
    (ReadingSnapshot, Joining),  # the client has the snapshot, and the ring covers its position
    (ReadingSnapshot, Behind),  # the client has the snapshot, and the ring does not cover its position
    (Behind, Waiting),  # read() is called
    (Waiting, OpeningCursor),  # the reader has a slot
    (Waiting, Behind),  # others need the slot
    (OpeningCursor, CatchingUp),  # the reader has a cursor
    (OpeningCursor, Behind),  # the cursor could not be opened, or others need the slot
    (CatchingUp, Joining),  # the ring covers its position
    (CatchingUp, Behind),  # others need the slot
    (Joining, Live),  # its position is one of the feed's
    (Joining, Behind),  # the ring evicted the next segment, or the log has lost records that the client read
    (Live, Parked),  # the client has received everything
    (Live, Behind),  # the ring evicted the next segment
    (Parked, Unparked),  # the socket did not accept all bytes, the feed skipped records, or the stream ends
    (Unparked, Live),  # its greenlet runs
    *((state, Closed) for state in NAMES if state not in (Parked, Unparked, Closed)),  # the stream has ended
}


class Release(NamedTuple):
    """The driver closes the cursors, and then releases the slot: there are never more cursors than slots."""

    slot: Slot
    cursors: tuple[CatchUpCore, ...] = ()
