"""The registry of open streams: how all streams, or those of a visitor, end."""

from __future__ import annotations

import socket

import pytest

from kafkasse import end_streams
from kafkasse.process import control, runtime
from kafkasse.process.open_streams import EndReason, StreamInfo, StreamRegistry, streams
from tests.support.waiting import wait_until


class Stream:
    def __init__(self, visitor: str = "") -> None:
        self.calls: list[str] = []
        self.info = StreamInfo.new(visitor=visitor)

    def end(self, reason: EndReason) -> None:
        self.calls.append(reason.value)

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def registry() -> StreamRegistry:
    return streams


def test_counts_open_streams(registry):
    """A stream is counted until it is discarded, or until nothing refers to it."""
    first, second = Stream(), Stream()
    registry.add(first)
    registry.add(second)
    registry.discard(first)
    registry.discard(first)

    assert 1 == len(registry)
    del second
    assert 0 == len(registry)


def test_drain_ends_every_stream_and_those_that_open_later(registry):
    """A stream that was being opened when the process stopped ends at once. Those that have not ended can be closed."""
    before, after = Stream(), Stream()
    registry.add(before)

    registry.drain(within_s=0)
    registry.add(after)

    assert registry.stopping
    wait_until(lambda: [["server_stopping"]] * 2 == [before.calls, after.calls])
    registry.close_all()
    assert [["server_stopping", "close"]] * 2 == [before.calls, after.calls]


def test_ends_one_stream_by_its_id(registry):
    """An ID that no stream has is not an error: the stream may just have ended."""
    first, second = Stream(), Stream()
    registry.add(first)
    registry.add(second)

    assert registry.end(second.info.id)
    assert not registry.end("1-999999")
    assert [[], ["operator"]] == [first.calls, second.calls]


def test_ends_the_streams_of_the_visitor_that_are_open_or_still_opening(registry):
    """A stream that is requested later is the guards' concern."""
    opened, opening, other = Stream("grace"), Stream("grace"), Stream("bob")
    registry.add(opened)
    registry.add(other)

    assert 1 == end_streams("grace")

    later = Stream("grace")
    registry.add(opening)
    registry.add(later)
    revoked = [EndReason.ACCESS_REVOKED.value]
    assert [revoked, revoked, [], []] == [stream.calls for stream in (opened, opening, other, later)]


def test_a_worker_that_hangs_delays_no_other(registry, tmp_path, monkeypatch):
    """The error names the worker. The streams of the others have ended."""
    monkeypatch.setattr(control, "TIMEOUT_S", 0.05)
    hanging, stream = socket.socket(socket.AF_UNIX), Stream("grace")
    hanging.bind(str(tmp_path / "worker-1.sock"))
    hanging.listen()
    registry.add(stream)
    monkeypatch.setattr(runtime, "worker_sockets", lambda: [tmp_path / "worker-1.sock"])

    with hanging, pytest.raises(TimeoutError, match=r"did not answer, .* may be open: 1\."):
        end_streams("grace")

    assert [EndReason.ACCESS_REVOKED.value] == stream.calls


@pytest.mark.parametrize("visitor", ["", "a" * 10_000], ids=["empty", "too long"])
def test_rejects_a_name_that_no_visitor_can_have(visitor):
    with pytest.raises(ValueError, match="visitor"):
        end_streams(visitor)
