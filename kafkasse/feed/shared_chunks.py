"""Chunks that several clients request: equal reads at the same time share one read, and full chunks are kept for a while."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable
from functools import partial
from hashlib import blake2b

import gevent
from gevent.event import AsyncResult, Event

from kafkasse.errors import ServerFull, TooManySelections, Unavailable
from kafkasse.feed.core.chunk import Chunk
from kafkasse.feed.lookup import wait_for
from kafkasse.feed.slots import Clients
from kafkasse.process.event_loop import take_turn

MAX_BYTES = 33_554_432  # of all chunks that are kept
ENTRY_BYTES = 1_000  # of a chunk without its body, at most
# Compaction and retention may remove records of a chunk that is kept.
MAX_AGE_S = 60.0


log = logging.getLogger(__name__)


class ReadWaits(Exception):
    """Not an error: a read waits for records, so its client may wait without a greenlet."""

    def __init__(self, read: SharedRead) -> None:
        super().__init__()
        self.read = read


class SharedRead(Clients):
    """A read that several clients share. It has a greenlet of its own, because the first client may leave.

    Args:
        address: the address of the first client.
        timeout_s: how long a client waits at most.

    Attributes:
        is_waiting: the read waits for records at the end of the log.
        parked: functions that answer the clients without a greenlet. They never wait.
    """

    def __init__(self, address: str, timeout_s: float) -> None:
        super().__init__(address)
        self.is_waiting = False
        self.parked: dict[Callable[[], object], None] = {}
        self._timeout_s = timeout_s
        self._result: AsyncResult[Chunk] = AsyncResult()
        self._progress = Event()  # the read has begun to wait, or it has ended

    @property
    def chunk(self) -> Chunk | None:
        """The chunk; None as long as the read has not returned it."""
        chunk: Chunk | None = self._result.value
        return chunk

    def get(self, may_park: bool = False) -> Chunk:
        """Wait for the chunk.

        Raises:
            KafkasseError: raised by the read.
            ReadWaits: the read waits, and the caller may park.
        """
        if may_park:
            self._progress.wait(self._timeout_s)
            take_turn()  # a thousand callers may have waited
            if self.is_waiting:
                raise ReadWaits(self)
        chunk: Chunk = wait_for({"": self._result}, self._timeout_s)[""]
        return chunk

    def begin_to_wait(self) -> None:
        """Let clients park. The read calls this at the end of the log."""
        self.is_waiting = True
        self._progress.set()

    def park(self, answer: Callable[[], object]) -> None:
        """Call a function when the read ends, or at once if it has ended."""
        if self._result.ready():
            answer()
        else:
            self.parked[answer] = None

    def run(self, read: Callable[[SharedRead], Chunk], forget: Callable[[], object]) -> None:
        """Read the chunk, and give it to all clients. Before, call `forget`, so that no other clients join."""
        failure: Exception = Unavailable("The request was interrupted. Retry later.")
        chunk = None
        try:
            chunk = read(self)
        except Exception as error:  # noqa: BLE001 - each client raises it
            failure = error
        finally:
            forget()
            self.is_waiting = False
            if chunk is None:
                self._result.set_exception(failure)
            else:
                self._result.set(chunk)
            self._progress.set()
            self._answer_parked()

    def _answer_parked(self) -> None:
        while self.parked:
            answer = next(iter(self.parked))
            del self.parked[answer]
            try:
                answer()
            except Exception:
                log.exception("A long poll could not be answered.")
            take_turn(urgent=True)


class SharedChunks:
    """Reads each chunk once for all clients that request it at the same time, and keeps full chunks.

    Args:
        timeout_s: how long a read may take.
        max_bytes: of all chunks that are kept. The oldest ones are dropped.
    """

    def __init__(self, timeout_s: float, max_bytes: int = MAX_BYTES) -> None:
        self._timeout_s = timeout_s
        self._reads: dict[Hashable, SharedRead] = {}  # those that are running
        self._max_bytes = max_bytes
        self._kept: dict[bytes, tuple[float, Chunk]] = {}  # with the time when they were read; the oldest is first
        self.bytes = 0

    def get(
        self,
        key: Hashable,
        read: Callable[[SharedRead], Chunk],
        address: str,
        must_wait: bool = False,
        may_park: bool = False,
    ) -> Chunk:
        """Return a chunk.

        Args:
            key: identifies the records and the offset. Clients that may not read the same records have different keys, whose
                repr() differs, too.
            read: reads the chunk, unless it is kept or another client is reading it. It gets the clients that wait for it.
            address: the address of the client.
            must_wait: `read` waits for records at the end of the log. Such reads are shared, but not with others.
            may_park: see SharedRead.get().

        Raises:
            KafkasseError: raised by `read`.
            ReadWaits: see SharedRead.get().
        """
        key = blake2b(
            repr(key).encode(errors="surrogatepass")
        ).digest()  # without compiled expressions and long filters
        self._drop_expired()
        if (kept := self._kept.get(key)) is not None:
            return kept[1]
        shared = self._join((key, must_wait), read, address)
        try:
            chunk = shared.get(may_park)
        except (TooManySelections, ServerFull):
            if shared.addresses == {address}:
                raise
            # Another client of the read may have used up its share.
            chunk = self._join((key, must_wait, address), read, address).get(may_park)
        if chunk.is_full:
            self._keep(key, chunk)
        return chunk

    def _join(self, key: Hashable, read: Callable[[SharedRead], Chunk], address: str) -> SharedRead:
        shared = self._reads.get(key)
        if shared is None:
            shared = self._reads[key] = SharedRead(address, self._timeout_s)
            gevent.spawn(shared.run, read, partial(self._reads.pop, key))
        shared.add(address)
        return shared

    def _keep(self, key: bytes, chunk: Chunk) -> None:
        self._drop(key)  # another client of the same read may have kept it
        self._kept[key] = time.monotonic(), chunk
        self.bytes += _size(chunk)
        while self.bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))

    def _drop_expired(self) -> None:
        oldest = time.monotonic() - MAX_AGE_S
        while self._kept and self._kept[key := next(iter(self._kept))][0] <= oldest:
            self._drop(key)

    def _drop(self, key: bytes) -> None:
        if (kept := self._kept.pop(key, None)) is not None:
            self.bytes -= _size(kept[1])


def _size(chunk: Chunk) -> int:
    return ENTRY_BYTES + chunk.size + len(chunk.next_offset)
