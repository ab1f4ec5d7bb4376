"""The parked clients of a feed: which of them receive a record, and the position of each. This module does no I/O.

    dispatch values of a record ─▶ groups ─▶ parked clients

Clients with equal selectors form a group: they receive the same bytes. Without dimensions, all clients are one group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, Protocol

from kafkasse.feed.core.ring import Segment
from kafkasse.records.filter import Selector
from kafkasse.records.filter.dimensions import Values
from kafkasse.records.position import Places


class FeedPosition(NamedTuple):
    """How far a client has read a feed.

    Attributes:
        segment: the number of the segment that it needs next.
        places: the place in every partition.
        id_sent: the last event ID that the client received is this position.
        events: for a parked client, the number of records that its group was sent. Use only the difference of two positions.
        bytes: the number of bytes that its group was sent.
    """

    segment: int
    places: Places
    id_sent: bool
    events: int = 0
    bytes: int = 0


class ParkedClient(Protocol):
    """A client that has received everything. It needs no greenlet while its socket accepts all bytes at once."""

    @property
    def coding(self) -> str:
        """The content coding. to_chunk() returns the same for all clients with the same coding."""

    def to_chunk(self, data: bytes) -> bytes:
        """Return `data` as it is sent over the socket."""

    def try_send(self, chunk: bytes, data: bytes) -> bool:
        """Send a chunk of `data` without waiting.

        If the socket does not accept all bytes, keep the rest, call wake() and return False.
        """

    def wake(self) -> None:
        """Start a greenlet that calls Reader.unpark()."""


class ParkedReader(Protocol):
    """The reader of a parked client."""

    def unparked(self, position: FeedPosition) -> None:
        """The feed sends nothing more to the client, which is at this position."""


class Group:
    """The parked clients with one selector.

    Attributes:
        selector: the records that they receive; None if the feed has no dimensions.
        clients: the clients, as the keys of a dict.
        events: the number of records that a client has received that was in the group all the time.
        bytes: the number of bytes that such a client has received.
        before: `events` and `bytes` before the last flush with frames for the group.
    """

    __slots__ = ("before", "bytes", "clients", "events", "selector")

    def __init__(self, selector: Selector | None) -> None:
        self.selector = selector
        self.clients: dict[Parked, None] = {}
        self.events = self.bytes = 0
        self.before = (0, 0)

    def count(self, events: int, count: int) -> None:
        """Count the records and bytes of a flush."""
        self.before = self.events, self.bytes
        self.events += events
        self.bytes += count


@dataclass(slots=True, eq=False)
class Parked:
    """A client at the position of its group. It needs no greenlet: the feed sends to its socket."""

    client: ParkedClient
    reader: ParkedReader
    group: Group


class Flush:
    """Frames that a feed sends to its parked clients.

    Args:
        before: the position of a client that has not received the frames, without `events` and `bytes`.
        after: the same for a client that has received them, or that receives none of them.
        groups: the groups that receive frames.

    Attributes:
        unsent: the clients that have not received the frames, as the keys of a dict.
        sending: the group that receives frames now. One group after another receives the frames.
    """

    __slots__ = ("after", "before", "sending", "unsent")

    def __init__(self, before: FeedPosition, after: FeedPosition, groups: Iterable[Group] = ()) -> None:
        self.before = before
        self.after = after
        self.unsent = {parked: None for group in groups for parked in group.clients}
        self.sending: Group | None = None

    def position_of(self, parked: Parked) -> FeedPosition:
        """Return the position of a client."""
        group = parked.group
        if parked not in self.unsent:
            return self.after._replace(events=group.events, bytes=group.bytes)
        events, sent_bytes = group.before if group is self.sending else (group.events, group.bytes)
        return self.before._replace(events=events, bytes=sent_bytes)


class Subscribers:
    """The groups of a feed, and an index of their selectors."""

    def __init__(self) -> None:
        self._groups: dict[Selector | None, Group] = {}
        self._by_values: dict[Values, dict[Group, None]] = {}

    def add(self, client: ParkedClient, reader: ParkedReader, selector: Selector | None) -> Parked:
        """Add a client."""
        group = self._groups.get(selector)
        if group is None:
            group = self._groups[selector] = Group(selector)
            for values in selector.values if selector is not None else ():
                self._by_values.setdefault(values, {})[group] = None
        parked = Parked(client, reader, group)
        group.clients[parked] = None
        return parked

    def remove(self, parked: Parked) -> None:
        """Remove a client."""
        group = parked.group
        del group.clients[parked]
        if group.clients:
            return
        selector = group.selector
        del self._groups[selector]
        for values in selector.values if selector is not None else ():
            groups = self._by_values[values]
            del groups[group]
            if not groups:
                del self._by_values[values]

    @property
    def groups(self) -> Collection[Group]:
        """All groups."""
        return self._groups.values()

    def groups_of(self, values: Values) -> Collection[Group]:
        """Return the groups that receive a record with these dispatch values."""
        return self._by_values.get(values, ())


class NewFrames:
    """Frames that are distributed by their dispatch values.

    Args:
        segments: the segments with the frames, in order.
        subscribers: frames that no subscriber receives are left out.
    """

    def __init__(self, segments: Iterable[Segment], subscribers: Subscribers) -> None:
        self._subscribers = subscribers
        self._frames: list[bytes] = []
        # The indexes in `_frames` by dispatch values. None: all subscribers receive the frame.
        self._indexes: dict[Values | None, list[int]] = {}
        self._values_of: dict[Group, list[Values | None]] = {}  # the values of the frames that a group receives
        for segment in segments:
            if not segment.values:
                self._add(None, segment.data)
            for index, values in enumerate(segment.values):
                if values in self._indexes or subscribers.groups_of(values):
                    self._add(values, segment.frame(index))

    def _add(self, values: Values | None, frame: bytes) -> None:
        self._indexes.setdefault(values, []).append(len(self._frames))
        self._frames.append(frame)

    def find_receivers(self) -> Iterator[int]:
        """Find the groups that receive frames, in pieces. Yields the size of each piece."""
        for values in self._indexes:
            groups = self._subscribers.groups if values is None else self._subscribers.groups_of(values)
            for group in list(groups):
                self._values_of.setdefault(group, []).append(values)
            yield len(groups)

    @property
    def receivers(self) -> Iterable[Group]:
        """The groups that receive frames."""
        return self._values_of

    def frames_for(self, group: Group) -> tuple[bytes, int]:
        """Return the frames that a group receives, in order, and the number of their records."""
        indexes = [self._indexes[values] for values in self._values_of[group]]
        in_order = indexes[0] if len(indexes) == 1 else sorted(chain.from_iterable(indexes))
        return b"".join([self._frames[index] for index in in_order]), len(in_order) - len(self._indexes.get(None, ()))
