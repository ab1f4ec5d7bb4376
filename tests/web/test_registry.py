"""The registry of open streams: which one a stream belongs to, and how all of them end."""

from __future__ import annotations

import gevent
import pytest

from kafkasse.web.registry import ENVIRON_KEY, EndReason, StreamInfo, StreamRegistry


class Stream:
    """A stream that notes what the registry did to it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.info = StreamInfo.new()

    def end(self, reason: EndReason) -> None:
        self.calls.append(reason.value)

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def registry() -> StreamRegistry:
    return StreamRegistry()


def test_a_request_uses_the_registry_of_its_worker(registry: StreamRegistry) -> None:
    """Under another server, it uses the registry of its blueprint."""
    worker = StreamRegistry()

    assert worker is StreamRegistry.of({ENVIRON_KEY: worker}, registry)
    assert registry is StreamRegistry.of({}, registry)


def test_counts_open_streams(registry: StreamRegistry) -> None:
    """A stream is counted until it is discarded, or until nothing refers to it."""
    first, second = Stream(), Stream()
    registry.add(first)
    registry.add(second)
    registry.discard(first)
    registry.discard(first)

    assert 1 == len(registry)
    del second
    assert 0 == len(registry)


def test_drain_ends_every_stream_and_those_that_open_later(registry: StreamRegistry) -> None:
    """A stream that was being opened when the process stopped ends at once."""
    before, after = Stream(), Stream()
    registry.add(before)

    registry.drain(within_s=0)
    registry.add(after)
    gevent.sleep(0.01)

    assert registry.stopping
    assert [["server_stopping"], ["server_stopping"]] == [before.calls, after.calls]


def test_close_all_closes_the_streams_that_have_not_ended(registry: StreamRegistry) -> None:
    """The process exits, so nothing waits for their clients."""
    stream = Stream()
    registry.add(stream)

    registry.close_all()

    assert ["close"] == stream.calls


def test_ends_one_stream_by_its_id(registry: StreamRegistry) -> None:
    """An ID that no stream has is not an error: the stream may just have ended."""
    first, second = Stream(), Stream()
    registry.add(first)
    registry.add(second)

    assert registry.end(second.info.id)
    assert not registry.end("1-999999")
    assert [[], ["operator"]] == [first.calls, second.calls]
