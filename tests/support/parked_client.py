"""The client of a parked reader, for tests of feeds without sockets."""

from __future__ import annotations


class ParkedClient:
    """Accepts everything."""

    def __init__(self) -> None:
        self.received = b""

    coding = ""

    def to_chunk(self, data: bytes) -> bytes:
        return data

    def try_send(self, chunk: bytes, data: bytes = b"") -> bool:
        self.received += chunk
        return True

    def wake(self) -> None:
        """Called when the feed ends."""
