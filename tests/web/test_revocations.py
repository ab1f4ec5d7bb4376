"""The streams of a visitor end when an app asks for it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from kafkasse import end_streams
from kafkasse.server import control, runtime
from kafkasse.web.registry import EndReason, StreamInfo, StreamRegistry


class Stream:
    """An open stream of a visitor."""

    def __init__(self, visitor: str) -> None:
        self.info = StreamInfo.new(visitor=visitor)
        self.ended: EndReason | None = None

    def end(self, reason: EndReason) -> None:
        self.ended = reason


def test_ends_the_streams_of_the_visitor_that_are_open_or_still_opening() -> None:
    """A stream that is requested later is the guards' concern."""
    registry = StreamRegistry()
    opened, opening, other = Stream("ada"), Stream("ada"), Stream("bob")
    registry.add(opened)
    registry.add(other)

    assert 1 == end_streams("ada")

    later = Stream("ada")
    registry.add(opening)
    registry.add(later)
    revoked = EndReason.ACCESS_REVOKED
    assert [revoked, revoked, None, None] == [stream.ended for stream in (opened, opening, other, later)]


def test_a_worker_that_hangs_delays_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the worker. The streams of the others have ended."""
    monkeypatch.setattr(control, "TIMEOUT_S", 0.05)
    hanging, registry, stream = socket.socket(socket.AF_UNIX), StreamRegistry(), Stream("ada")
    hanging.bind(str(tmp_path / "worker-1.sock"))
    hanging.listen()
    registry.add(stream)
    monkeypatch.setattr(runtime, "worker_sockets", lambda: [tmp_path / "worker-1.sock"])

    with hanging, pytest.raises(TimeoutError, match=r"did not answer, .* may be open: 1\."):
        end_streams("ada")

    assert EndReason.ACCESS_REVOKED is stream.ended


@pytest.mark.parametrize("visitor", ["", "a" * 10_000], ids=["empty", "too long"])
def test_rejects_a_name_that_no_visitor_can_have(visitor: str) -> None:
    with pytest.raises(ValueError, match="visitor"):
        end_streams(visitor)
