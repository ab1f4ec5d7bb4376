"""Check the events that one client receives: no record may be lost, duplicated or out of order.

The check stores one number per partition and no events, so it can follow a client for hours. Record numbers increase by
one. A client that reconnects must continue with the number after the last one that it received, whatever its event ID
says. This module parses events and IDs itself and uses no code of kafkasse.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from bench.soak.records import Partition, read


class DeliveryError(Exception):
    """A client received a wrong event, or did not receive a record."""


class StreamCheck:
    """Follows one client through a stream, over all of its connections.

    Args:
        first_shown: returns the number of the first record, from n on, that the stream's filter passes.

    Attributes:
        id: the last event ID; "" before the first one.
        next: the expected number of the next record, by partition; empty before the first event ID.
        error: the problem in the event `error` that ended the stream, or {}.
        records: the number of received records.
    """

    def __init__(self, first_shown: Callable[[int], int] = lambda n: n) -> None:
        self.id = ""
        self.next: dict[Partition, int] = {}
        self.error: dict[str, object] = {}
        self.records = 0
        self._first_shown = first_shown
        self._rest = b""

    def copy(self) -> StreamCheck:
        """Return a copy, so that a client can resume at this position later."""
        other = StreamCheck(self._first_shown)
        other.id, other.next = self.id, dict(self.next)
        return other

    def disconnect(self) -> None:
        """The connection has ended. Discard an incomplete event."""
        self._rest = b""

    def receive(self, data: bytes) -> None:
        """Check the next bytes of the connection.

        Raises:
            DeliveryError: the bytes contain a wrong event.
        """
        *blocks, self._rest = (self._rest + data).split(b"\n\n")
        for block in blocks:
            self._event(dict(line.partition(b": ")[::2] for line in block.split(b"\n")))

    def has_all(self, ends: Mapping[Partition, int]) -> bool:
        """Whether the client received all records before these end offsets. A partition without an end is empty."""
        return bool(self.next) and all(
            n >= self._first_shown(ends.get(partition, 0)) for partition, n in self.next.items()
        )

    def _event(self, fields: Mapping[bytes, bytes]) -> None:
        event_type = fields.get(b"event")
        if event_type == b"error":
            self.error = json.loads(fields[b"data"])
        elif event_type == b"message":
            self._record(fields[b"data"])
        elif event_type not in (None, b"position"):
            raise DeliveryError(f"unexpected event {event_type.decode()!r}: {fields.get(b'data', b'')[:200].decode()}")
        if event_id := fields.get(b"id"):
            self.id = event_id.decode()
            self.next = self.next or self._positions(self.id)

    def _record(self, data: bytes) -> None:
        partition, n = read(data)
        expected = self.next.get(partition)
        if n != expected:
            what = "lost" if expected is not None and n > expected else "duplicate"
            raise DeliveryError(f"{what}: received record {n} of {partition[0]}/{partition[1]}, expected {expected}")
        self.next[partition] = self._first_shown(n + 1)
        self.records += 1

    def _positions(self, event_id: str) -> dict[Partition, int]:
        entries = json.loads(event_id)
        return {(each["topic"], each["partition"]): self._first_shown(each["offset"]) for each in entries}
