"""A broker returns no records although its log has some. The core of a cursor runs in virtual time."""

from __future__ import annotations

import pytest

from kafkasse.errors import Unavailable
from kafkasse.kafka import errors
from kafkasse.kafka.cursor_core import CursorCore, CursorOptions
from kafkasse.kafka.fetch_protocol import FetchOptions, FetchResponse, PartitionData
from kafkasse.log import PartitionsFailed
from tests.kafka.fake_broker import batch
from tests.kafka.logs import at
from tests.kafka.test_backlog import TOPIC_ID, VERSION, Cluster

TIMEOUT_S = 8


class Reader:
    """Reads two partitions, one fetch per second."""

    def __init__(self, tail: bool) -> None:
        options = CursorOptions(FetchOptions(100, 1 << 20, 1 << 20, 0), tail, TIMEOUT_S, 1 << 24)
        self.core = CursorCore(Cluster(), options, errors, None)
        self.core.seek({at(0): 0, at(1): 0}, {}, {})
        self._now = 0.0

    def fetch(self, ends: dict[int, int], records: dict[int, bytes] | None = None) -> Exception | None:
        """Respond to a fetch with these ends and records of partitions. Return the cursor's error."""
        (session,) = self.core.fetches(self._now)
        self.core.request(self._now, session, VERSION)
        partitions = [
            PartitionData(TOPIC_ID, number, 0, memoryview((records or {}).get(number, b"")), (), None, stable_end=end)
            for number, end in ends.items()
        ]
        self.core.on_response(self._now, session, FetchResponse(0, 0, 0, 1, partitions))
        while self.core.undecoded:
            self.core.decode_run()
        self._now += 1.0
        return self.core.next_error(self._now)


@pytest.mark.parametrize("tail", [False, True])
def test_a_partition_whose_records_the_broker_does_not_return_fails(tail, caplog):
    """Otherwise, its streams would wait forever. For example, Kafka does not find a batch whose length is damaged."""
    reader = Reader(tail)
    responses = [reader.fetch({0: 5, 1: 0}) for _ in range(TIMEOUT_S // 2 + 1)]

    assert [None] * (TIMEOUT_S // 2) == responses[:-1]
    assert isinstance(responses[-1], PartitionsFailed)
    assert [at(0)] == list(responses[-1].errors)
    assert isinstance(responses[-1].errors[at(0)], Unavailable)
    assert (
        "Kafka returns no records of t/0 from offset 0 on, although there are records before offset 5." in caplog.text
    )


def test_a_partition_whose_records_are_late_does_not_fail():
    """A broker that reads old segments from remote storage returns no records at first."""
    reader = Reader(tail=False)
    late = [reader.fetch({0: 5}) for _ in range(TIMEOUT_S // 2)]
    late.append(reader.fetch({0: 5}, {0: batch(0, b"a")}))

    assert {None} == {*late, *[reader.fetch({0: 5}) for _ in range(TIMEOUT_S // 2)]}


def test_a_partition_without_room_in_the_responses_does_not_fail():
    """The records of other partitions come first."""
    reader = Reader(tail=False)

    assert {None} == {reader.fetch({0: 5, 1: 99}, {1: batch(offset, b"a")}) for offset in range(20)}
