"""Chunks that several clients request: equal reads at the same time share one read, and full chunks are kept for a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

from kafkasse.errors import ServerFull, TooManySelections
from kafkasse.feed.chunks import Chunk
from kafkasse.feed.lookup import SharedLookup
from kafkasse.feed.slots import Clients

MAX_BYTES = 33_554_432  # of all chunks that are kept
ENTRY_BYTES = 1_000  # of a chunk without its body, at most
# Compaction and retention may remove records of a chunk that is kept.
MAX_AGE_S = 60.0


@dataclass(frozen=True, slots=True)
class _Read:
    """A read. Reads with equal keys return equal chunks."""

    key: Hashable
    read: Callable[[Clients], Chunk] = field(compare=False)
    clients: Clients = field(compare=False)


class SharedChunks:
    """Reads each chunk once for all clients that request it at the same time, and keeps full chunks.

    Args:
        timeout_s: how long a read may take.
        max_bytes: of all chunks that are kept. The oldest ones are dropped.
    """

    def __init__(self, timeout_s: float, max_bytes: int = MAX_BYTES) -> None:
        self._reads = SharedLookup(self._read, timeout_s)
        self._clients: dict[Hashable, Clients] = {}  # of the reads that are running
        self._max_bytes = max_bytes
        self._kept: dict[bytes, tuple[float, Chunk]] = {}  # with the time when they were read; the oldest is first
        self.bytes = 0

    def get(self, key: Hashable, read: Callable[[Clients], Chunk], address: str, must_wait: bool = False) -> Chunk:
        """Return a chunk.

        Args:
            key: identifies the records and the offset. Clients that may not read the same records have different keys, whose
                repr() differs, too.
            read: reads the chunk, unless it is kept or another client is reading it. It gets the clients that wait for it.
            address: the address of the client.
            must_wait: `read` waits for records at the end of the log. Such reads are shared, but not with others.

        Raises:
            KafkasseError: raised by `read`.
        """
        key = blake2b(
            repr(key).encode(errors="surrogatepass")
        ).digest()  # without compiled expressions and long filters
        self._drop_expired()
        if (kept := self._kept.get(key)) is not None:
            return kept[1]
        clients = self._clients.setdefault((key, must_wait), Clients(address))
        clients.add(address)
        try:
            chunk = self._get(_Read((key, must_wait), read, clients))
        except (TooManySelections, ServerFull):
            if clients.addresses == {address}:
                raise
            # Another client of the read may have used up its share.
            chunk = self._get(_Read((key, must_wait, address), read, Clients(address)))
        if chunk.is_full:
            self._keep(key, chunk)
        return chunk

    def _get(self, request: _Read) -> Chunk:
        return self._reads.get([request])[request]

    def _read(self, requests: Iterable[_Read]) -> Mapping[_Read, Chunk]:
        try:
            return {request: request.read(request.clients) for request in requests}
        finally:
            for request in requests:
                self._clients.pop(request.key, None)

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
