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
from kafkasse.feed.core.reader import ReaderCore, ReaderStart, StopReason
from kafkasse.feed.core.reader_states import (
    Behind,
    CatchingUp,
    Joining,
    Live,
    OpeningCursor,
    ReaderState,
    ReadingSnapshot,
    Release,
    Waiting,
    WaitingForSnapshot,
)
from kafkasse.feed.lookup import UNAVAILABLE_BACKOFF_S
from kafkasse.feed.shared_feed import SharedFeed
from kafkasse.feed.slots import CatchUpSlots, QueuedSlot
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
        start: ReaderStart,
        feed: SharedFeed,
        cursors: Cursors,
        client: str,
        gaps: Sequence[Gap] = (),
        selector: Selector | None = None,
    ) -> None:
        super().__init__(start, feed, cursors.max_chunk_bytes, gaps, selector)
        self._cursors = cursors
        self._address = client

    def _release(self, release: Release | None) -> None:
        if release is not None:
            try:
                for cursor in release.cursors:
                    cursor.close()
            finally:
                release.slot.release()

    def stop(self, reason: StopReason) -> None:
        """Make the current and all later calls of read() return b"". Never waits, so event loop callbacks may call it."""
        self.stopped(reason)
        match self.core_state:
            case WaitingForSnapshot(Snapshot() as snapshot):
                snapshot.wake()
            case Waiting(slot=QueuedSlot() as slot):
                slot.wake()
            case Joining() | Live():
                self._feed.wake_readers()

    def close(self) -> None:
        """Release everything. May be called twice."""
        self._release(self.closed(time.monotonic()))

    def read(self, timeout_s: float) -> bytes:
        """Return the next frames. Return b"" after `timeout_s` seconds, or as soon as the reader is stopped.

        Raises:
            KafkasseError: the stream cannot continue.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            take_turn()  # because many readers may wake up at once
            if self.is_stopped:
                return b""
            name = self.state
            data = self._read_once(deadline)
            # A reader without own records may fall behind again and again, and must still return for its heartbeats.
            has_paused = self.state in (name, ReaderState.BEHIND)
            if data or (has_paused and time.monotonic() >= deadline):
                return data

    def _read_once(self, deadline: float) -> bytes:
        match self.core_state:
            case Live() | Joining() as state:
                return self._read_ring(state, deadline)
            case WaitingForSnapshot(Snapshot() as snapshot) as state:
                version = snapshot.version(max(0.0, deadline - time.monotonic()), self._selector)
                return self.snapshot_waited(state, version)
            case ReadingSnapshot() as state:
                return self._next_rows(state)
            case Behind() as state:
                self.slot_requested(state, self._cursors.slots.request(self._address, self._on_revoked))
                return self._read_once(deadline)
            case Waiting(slot=QueuedSlot() as slot) as state:
                if slot.wait(max(0.0, deadline - time.monotonic())) and self.slot_granted(state):
                    return self._read_once(deadline)
                return b""
            case OpeningCursor() as state:
                self._open_cursor(state)
                return b""
            case CatchingUp(CatchUp() as catch_up, QueuedSlot() as slot) as state:
                return self._read_cursor(state, catch_up, slot, deadline)
        raise RuntimeError(f"A reader that is {self.state.value} cannot read.")

    def _on_revoked(self) -> None:
        self._release(self.slot_revoked())

    def _open_cursor(self, opening: OpeningCursor) -> None:
        try:
            catch_up = self._cursors.open(self._feed, opening.ids, self._selector)
        except Unavailable:
            self._release(self.cursor_failed(opening))
            gevent.sleep(UNAVAILABLE_BACKOFF_S)
        else:
            self._release(self.cursor_opened(opening, catch_up))

    def _read_cursor(self, state: CatchingUp, catch_up: CatchUp, slot: QueuedSlot, deadline: float) -> bytes:
        catch_up.id_sent = self._id_sent
        data = catch_up.read(max(0.0, deadline - time.monotonic()), lambda: not self.may_read(state))
        if data:
            slot.started()
        self._release(self.cursor_read(state, data))
        return data

    def _read_ring(self, state: Joining | Live, deadline: float) -> bytes:
        data = self._next_frames(state)
        if not data and self._is_at_head:
            feed, head = self._feed, self._feed.ring.head
            if (timeout_s := deadline - time.monotonic()) > 0:
                feed.wait(head, timeout_s)
            if feed.ring.head == head:
                self._check_feed()
        return data
