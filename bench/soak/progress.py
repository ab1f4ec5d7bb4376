"""What one client has had, checked as it comes. Knows the form of events and ids, and no code of kafkasse.

It keeps one number for each partition, not what came, so a client can be followed for hours: numbers rise by one, and a
client that comes back goes on at the number after the last that it had, whatever its id says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from bench.soak.records import Place, read


class Wrong(Exception):
    """A client was sent what it must not be sent, or not sent what it must."""


class Progress:
    """One client's way through a stream, over all of its connections.

    Args:
        first_shown: the first record from the n-th on that the stream shows.

    Attributes:
        id: the last id, "" before the first.
        next: by partition the number of the record that must come next; empty before the first id.
        error: the problem that ended the stream, if one did.
        records: how many came.
    """

    def __init__(self, first_shown: Callable[[int], int] = lambda n: n) -> None:
        self.id = ""
        self.next: dict[Place, int] = {}
        self.error: dict[str, object] = {}
        self.records = 0
        self._first_shown = first_shown
        self._rest = b""

    def copy(self) -> Progress:
        """The same place again, for whoever comes back to it later."""
        other = Progress(self._first_shown)
        other.id, other.next = self.id, dict(self.next)
        return other

    def cut(self) -> None:
        """The connection is over; half an event that came is none."""
        self._rest = b""

    def take(self, data: bytes) -> None:
        """What came next over the connection.

        Raises:
            Wrong: see there.
        """
        *blocks, self._rest = (self._rest + data).split(b"\n\n")
        for block in blocks:
            self._take(dict(line.partition(b": ")[::2] for line in block.split(b"\n")))

    def has_all(self, ends: Mapping[Place, int]) -> bool:
        """Whether all came that the stream shows before these ends, 0 where none is given."""
        return bool(self.next) and all(n >= self._first_shown(ends.get(place, 0)) for place, n in self.next.items())

    def _take(self, fields: Mapping[bytes, bytes]) -> None:
        kind = fields.get(b"event")
        if kind == b"error":
            self.error = json.loads(fields[b"data"])
        elif kind == b"message":
            self._record(fields[b"data"])
        elif kind is not None:
            raise Wrong(f"an event {kind.decode()!r}: {fields.get(b'data', b'')[:200].decode()}")
        if told := fields.get(b"id"):
            self.id = told.decode()
            self.next = self.next or self._begin(self.id)

    def _record(self, data: bytes) -> None:
        place, n = read(data)
        expected = self.next.get(place)
        if n != expected:
            what = "lost" if expected is not None and n > expected else "twice"
            raise Wrong(f"{what}: record {n} of {place[0]}/{place[1]} came where {expected} was next")
        self.next[place] = self._first_shown(n + 1)
        self.records += 1

    def _begin(self, told: str) -> dict[Place, int]:
        entries = json.loads(told)
        return {(each["topic"], each["partition"]): self._first_shown(each["offset"]) for each in entries}
