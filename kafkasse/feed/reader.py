"""A reader returns the frames of one client: a ReaderCore that waits for frames and slots, and opens cursors.

core/reader_states.py describes the states.

A slow client costs other readers nothing: its reader falls behind, and catches up through its own cursor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import gevent

from kafkasse.errors import Unavailable
from kafkasse.feed.catch_up import CatchUp
from kafkasse.feed.core.reader import ReaderCore, Start, StopReason
from kafkasse.feed.core.reader_states import (
    Behind,
    CatchingUp,
    Closed,
    Joining,
    Live,
    Opening,
    ReaderState,
    ReadingSnapshot,
    Waiting,
    WaitingForSnapshot,
)
from kafkasse.feed.core.subscribers import Parked
from kafkasse.feed.lookup import UNAVAILABLE_BACKOFF_S
from kafkasse.feed.shared_feed import SharedFeed
from kafkasse.feed.slots import CatchUpSlots, Slot
from kafkasse.feed.snapshot import Snapshot
from kafkasse.log import Gap
from kafkasse.process.event_loop import take_turn
from kafkasse.records.filter import Selector
from kafkasse.records.position import IdWriter


class Cursors(NamedTuple):
    """Opens the cursors with which the readers of a log catch up.

    Attributes:
        open: opens the cursor of one reader, given its feed, its ID writer (the position) and its selector.
        slots: grants the slot that a cursor needs.
        max_chunk_bytes: the approximate maximum size of the data that Reader.read() returns.
    """

    open: Callable[[SharedFeed, IdWriter, Selector | None], CatchUp]
    slots: CatchUpSlots
    max_chunk_bytes: int


class Reader(ReaderCore):
    """One client's view of a feed. One greenlet calls its methods; other greenlets may call stop() and close().

    See ReaderCore for the other arguments.

    Args:
        feed: the feed to join, whose `readers` already counts this reader.
        cursors: opens the reader's own cursor.
        client: the address of the client. Clients get slots in turn.
    """

    __slots__ = ("_address", "_cursors")
    _feed: SharedFeed

    def __init__(
        self,
        start: Start,
        feed: SharedFeed,
        cursors: Cursors,
        client: str,
        gaps: Sequence[Gap] = (),
        selector: Selector | None = None,
    ) -> None:
        super().__init__(start, feed, cursors.max_chunk_bytes, gaps, selector)
        self._cursors = cursors
        self._address = client

    # State changes.

    def _open_cursor(self, waiting: Waiting) -> None:
        ids, slot = waiting.ids, waiting.slot
        waiting.is_opening = True
        try:
            catch_up = self._cursors.open(self._feed, ids, self._selector)  # may switch greenlets
        except Unavailable:
            self._give_up(waiting)  # let others try; Kafka may be able to serve them
            gevent.sleep(UNAVAILABLE_BACKOFF_S)
            return
        if self._state is not waiting or slot.revoked:  # another greenlet closed the reader meanwhile
            try:
                catch_up.close()  # may switch greenlets
            finally:
                self._give_up(waiting)
            return
        self._enter(CatchingUp(catch_up, slot))
        self.stats.catch_ups += 1
        self.stats.catching_up[self] = None

    def _give_up(self, waiting: Waiting) -> None:
        if self._state is waiting:
            self._enter(Behind(waiting.ids))
        waiting.slot.release()

    def _release(self, catching_up: CatchingUp) -> None:
        self.stats.catching_up.pop(self, None)
        try:
            catching_up.catch_up.close()  # may switch greenlets
        finally:
            catching_up.slot.release()

    def _join(self, catching_up: CatchingUp) -> None:
        self._enter_ring(catching_up.ids)
        self.stats.joins += 1
        # This may switch greenlets. If the ring evicts the segment meanwhile, the next read() detects it.
        self._release(catching_up)

    def _on_revoked(self) -> None:
        # The position is exact: if another greenlet is inside read(), that call returns all frames that it has encoded.
        if isinstance(self._state, CatchingUp):
            catching_up = self._state
            self._enter(Behind(catching_up.ids))
            self._release(catching_up)
        elif isinstance(self._state, Waiting) and not self._state.is_opening:
            self._give_up(self._state)  # its client accepts no bytes, so the reader has not used the slot

    def stop(self, reason: StopReason) -> None:
        """Make the current and all later calls of read() return b"". Never waits, so event loop callbacks may call it."""
        if self.stop_reason is not StopReason.CLIENT_LEFT:
            self.stop_reason = reason
        match self._state:
            case WaitingForSnapshot(Snapshot() as snapshot):
                snapshot.wake()
            case Waiting(slot=Slot() as slot):
                slot.wake()
            case Joining() | Live():
                self._feed.wake_readers()

    def close(self) -> None:
        """Release everything. May be called twice."""
        if isinstance(self._state, Closed):
            return
        if isinstance(self._state, Parked):
            self.unpark()
        last = self._state
        # Without the cursor and its slot, which refer to this reader: no reference cycle waits for the garbage collector.
        match last:
            case WaitingForSnapshot() | ReadingSnapshot():
                self._enter(Closed(Opening()))
            case Waiting() | CatchingUp():
                self._enter(Closed(Behind(last.ids)))
            case Behind() | Joining() | Live():
                self._enter(Closed(last))
        self.stop_reason = self.stop_reason or StopReason.CLIENT_LEFT
        self._feed.readers -= 1
        self._feed.idle_since = time.monotonic()
        if isinstance(last, Waiting):
            last.slot.release()
        elif isinstance(last, CatchingUp):
            self._release(last)

    # Reading.

    def read(self, timeout_s: float) -> bytes:
        """Return the next frames. Return b"" after `timeout_s` seconds, or as soon as the reader is stopped.

        Raises:
            KafkasseError: the stream cannot continue.
        """
        deadline = time.monotonic() + timeout_s
        while self.stop_reason is None:
            take_turn()  # because many readers may wake up at once
            if self.stop_reason is not None:
                break
            name = self.state
            data = self._read_once(deadline)
            # A reader without own records may fall behind again and again, and must still return for its heartbeats.
            has_paused = self.state in (name, ReaderState.BEHIND)
            if data or (has_paused and time.monotonic() >= deadline):
                return data
        return b""

    def _read_once(self, deadline: float) -> bytes:
        match self._state:
            case WaitingForSnapshot(Snapshot() as snapshot):
                return self._wait_for_snapshot(snapshot, deadline)
            case ReadingSnapshot() as state:
                return self._next_rows(state)
            case Behind(ids):
                self._enter(Waiting(ids, self._cursors.slots.request(self._address, self._on_revoked)))
                return self._read_once(deadline)
            case Waiting(slot=Slot() as slot) as waiting:
                self._wait_for_slot(waiting, slot, deadline)
                return b""
            case CatchingUp(CatchUp() as catch_up, Slot() as slot) as state:
                return self._read_cursor(state, catch_up, slot, deadline)
            case Joining() | Live() as state:
                return self._read_ring(state, deadline)
        raise RuntimeError(f"A reader that is {self.state.value} cannot read.")

    def _read_ring(self, state: Joining | Live, deadline: float) -> bytes:
        data = self._next_frames(state)
        if not data and self._is_at_head:
            self._wait(self._feed.ring.head, deadline - time.monotonic())
        return data

    def _wait(self, segment: int, timeout_s: float) -> None:
        feed = self._feed
        if timeout_s > 0:
            feed.wait(segment, timeout_s)
        if feed.ring.head <= segment and self.stop_reason is None:
            self._check_feed()

    def _check_feed(self) -> None:
        """Stop if the feed has failed or ended."""
        if self._feed.failure is not None:
            raise self._feed.failure
        if self._feed.ended:
            self.stop_reason = StopReason.ENDED

    def _wait_for_snapshot(self, snapshot: Snapshot, deadline: float) -> bytes:
        version = snapshot.version(max(0.0, deadline - time.monotonic()), self._selector)
        if isinstance(self._state, Closed):  # during the wait
            return b""
        if version is not None:
            return self._start_snapshot(version)
        if self.stop_reason is None:
            self._check_feed()
        return b""

    def _wait_for_slot(self, waiting: Waiting, slot: Slot, deadline: float) -> None:
        if slot.wait(max(0.0, deadline - time.monotonic())) and self.stop_reason is None:
            self._open_cursor(waiting)

    def _read_cursor(self, state: CatchingUp, catch_up: CatchUp, slot: Slot, deadline: float) -> bytes:
        def must_stop() -> bool:
            return self.stop_reason is not None or self._state is not state or self._may_join(state)

        catch_up.id_sent = self._id_sent
        events = catch_up.events
        data = catch_up.read(max(0.0, deadline - time.monotonic()), must_stop)
        self._count_events(catch_up.events - events)
        self._id_sent = catch_up.id_sent
        if data:
            slot.started()
        if catch_up.ended and self.stop_reason is None:
            self.stop_reason = StopReason.ENDED
        if not data and self.stop_reason is None and self._state is state and self._may_join(state):
            self._check_feed()
            if self.stop_reason is None:
                self._join(state)
        return data

    def _may_join(self, state: CatchingUp) -> bool:
        return state.catch_up.idle and (self._feed.covers(state.ids) or not self._feed.is_open)
