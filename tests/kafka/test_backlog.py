"""A tail whose partitions have more records than it can decode. Its core runs in virtual time, with one simulated broker."""

from __future__ import annotations

import struct
from collections import Counter

from kafkasse.kafka import errors
from kafkasse.kafka.cursor_core import MAX_BACKLOG_WAIT_MS, CursorCore, CursorOptions
from kafkasse.kafka.decoding import MAX_SMALL_BYTES
from kafkasse.kafka.fetch_protocol import Broker, FetchOptions, FetchResponse, Leader, PartitionData
from kafkasse.kafka.fetch_session import FetchSession
from kafkasse.log import Partition
from tests.kafka.fake_broker import batch

BROKER, TOPIC_ID, VERSION = Broker(0, "broker", 9092), b"\1" * 16, 13
ROUND_TRIP_S, MAX_WAIT_MS, MAX_BYTES, MAX_PARTITION_BYTES = 0.001, 100, 1 << 20, 1 << 17
EMPTY, VALUE = 0, b"x" * 1000
TINY = b"x" * 10  # a batch of them takes several turns


class Cluster:
    def known_leaders(self, partitions):
        return {partition: Leader(BROKER, 0, b"t", TOPIC_ID) for partition in partitions}

    def reports_truncation(self, broker):
        return True


class Simulation:
    """Reads partitions. Each has `last` batches with this number of records from the start, or is EMPTY.

    Attributes:
        read: the number of records that were read, by partition.
        limits: by partition, the maximum bytes that the broker's session contains.
        waits_ms: the longest waits in the requests.
        idle_s: how long there was nothing to decode.
        fetched: the bytes of all responses.
    """

    def __init__(
        self, sizes: list[int], *, tail: bool = True, last: int = 1_000_000, run_s: float = 0.001, value: bytes = VALUE
    ) -> None:
        self._sizes, self._last, self._run_s = sizes, last, run_s
        self._logs = {size: batch(0, *[value] * size) for size in sizes if size != EMPTY}
        self.appended_bytes = [last * len(self._logs[size]) for size in sizes if size != EMPTY]
        fetch = FetchOptions(MAX_WAIT_MS, MAX_BYTES, MAX_PARTITION_BYTES, 0, "")
        self.core = CursorCore(Cluster(), CursorOptions(fetch, tail, 5.0, 1 << 24), errors, None)
        self._session: dict[int, int] = {}
        self._pending: tuple[float, FetchSession, FetchResponse] | None = None
        self.now_s = self.idle_s = 0.0
        self.read: Counter[int] = Counter()
        self.limits: dict[int, int] = {}
        self.waits_ms: set[int] = set()
        self.fetched = 0
        self.core.seek({Partition("t", number): 0 for number in range(len(sizes))}, {}, {})

    def run(self, duration_s: float) -> None:
        end_s = self.now_s + duration_s
        while self.now_s < end_s:
            if self._pending is not None and self._pending[0] <= self.now_s:
                _, session, response = self._pending
                self._pending = None
                self.core.on_response(self.now_s, session, response)
            for session in self.core.fetches(self.now_s):
                self._fetch(session)
            if self.core.undecoded:
                self.core.decode_run()
                self.now_s += self._run_s
                for found in self.core.take_batches():
                    assert found.records[0].offset == self.read[found.partition.partition]
                    self.read[found.partition.partition] += len(found.records)
            else:
                self.idle_s += self._pending[0] - self.now_s
                self.now_s = self._pending[0]

    def _fetch(self, session: FetchSession) -> None:
        request = self.core.request(self.now_s, session, VERSION)
        for _, number in request.forgotten:
            del self._session[number], self.limits[number]
        if request.session[1] <= 0:
            self._session.clear()
        for entry in request.partitions:
            self._session[entry.partition] = entry.fetch_offset
            self.limits[entry.partition] = request.options.max_partition_bytes
        self.waits_ms.add(request.options.max_wait_ms)
        found, left = [], request.options.max_bytes
        for number, offset in list(self._session.items()):
            size = self._sizes[number]
            if size == EMPTY:
                continue
            first, log = offset // size, self._logs[size]
            fits = max(min(left, self.limits[number]) // len(log), not found)  # as Kafka: the first batch may be larger
            if fits := min(fits, self._last - first):
                data = b"".join(struct.pack(">q", at * size) + log[8:] for at in range(first, first + fits))
                left = max(0, left - len(data))
                found.append((number, data))
                self._session[number] = self._session.pop(number)
        response = b"".join(data for _, data in found)
        self.fetched += len(response)
        partitions, at = [], 0
        for number, data in found:
            partitions.append(PartitionData(TOPIC_ID, number, 0, memoryview(response)[at : at + len(data)], (), None))
            at += len(data)
        arrives_s = self.now_s + ROUND_TRIP_S + (0.0 if found else request.options.max_wait_ms / 1000)
        self._pending = arrives_s, session, FetchResponse(0, 0, 0, 1, partitions)


def test_each_of_many_large_partitions_gets_its_share():
    """Those that were deferred come before those that were just decoded."""
    simulation = Simulation([6000] * 60 + [EMPTY], value=TINY)

    simulation.run(3.0)

    shares = [simulation.read[number] for number in range(60)]
    assert min(shares) > max(shares) / 3
    assert simulation.idle_s < 0.1


def test_does_not_wait_while_partitions_are_deferred():
    """The batches are larger than what a tail decodes without deferring others. An empty partition has no records."""
    simulation = Simulation([3000] * 3 + [EMPTY], run_s=0.005)

    simulation.run(3.0)

    assert simulation.idle_s < 0.5
    assert min(simulation.read[number] for number in range(3)) > max(simulation.read.values()) / 2


def test_small_records_do_not_keep_out_large_ones():
    """More than DEFER_ABOVE_FETCHES of small records are always undecoded."""
    simulation = Simulation([10] * 300 + [100])

    simulation.run(3.0)

    assert simulation.read[300] > 0


def test_the_limits_of_the_brokers_session_return_to_normal():
    simulation = Simulation([100] * 60 + [EMPTY], last=5)

    simulation.run(0.1)
    during = set(simulation.limits.values()), simulation.waits_ms
    assert ({MAX_SMALL_BYTES}, {MAX_WAIT_MS, MAX_BACKLOG_WAIT_MS}) == during

    simulation.run(20.0)
    simulation.waits_ms.clear()
    simulation.run(1.0)
    assert ({MAX_PARTITION_BYTES}, {MAX_WAIT_MS}) == (set(simulation.limits.values()), simulation.waits_ms)
    assert [500] * 60 == [simulation.read[number] for number in range(60)]


def test_a_catch_up_cursor_defers_nothing():
    simulation = Simulation([3000] * 3 + [EMPTY], tail=False, last=4)

    simulation.run(5.0)

    assert [12_000] * 3 == [simulation.read[number] for number in range(3)]
    assert simulation.fetched == sum(simulation.appended_bytes)
    assert {MAX_PARTITION_BYTES} == set(simulation.limits.values())
