"""A queue of the partitions of a cursor that have fetched records to decode. Does no I/O.

                    ┌─▶ the end of the queue
    append ─▶ queue ┼─▶ the front, while a small batch is in memory
                ▲   ├─▶ removed, after the last run or an error
                │   └─▶ waits for the slot that the next batch needs
                └─────────┘ the slot is free

A partition that waits has nothing but its compressed records in memory, and costs no time.

One such queue is for partitions with few bytes, another one for the rest, and the two take turns. In each of them, the
topics take turns, and within a topic its partitions. So a record of a quiet topic waits neither for many partitions with
large batches nor for a topic with many partitions.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Container, Iterator

from kafkasse.kafka.batches import UNREADABLE, BatchSlots, RecordRun, decode
from kafkasse.kafka.fetch_position import FetchPosition
from kafkasse.kafka.fetch_protocol import PartitionData
from kafkasse.log import Partition

MAX_SMALL_BYTES = 16_384  # of the fetched records of a partition with few bytes


def is_large(records: memoryview) -> bool:
    """Return whether a partition with these fetched records is not one with few bytes."""
    return len(records) > MAX_SMALL_BYTES


class _TopicTurns:
    """Partitions in the order of their turns: one of each topic, then another one of each topic, and so on."""

    def __init__(self) -> None:
        self._topics: OrderedDict[str, deque[FetchPosition]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._topics)

    @property
    def first(self) -> FetchPosition:
        return next(iter(self._topics.values()))[0]

    def append(self, position: FetchPosition) -> None:
        self._topics.setdefault(position.partition.topic, deque()).append(position)

    def append_left(self, position: FetchPosition) -> None:
        topic = position.partition.topic
        self._topics.setdefault(topic, deque()).appendleft(position)
        self._topics.move_to_end(topic, last=False)

    def pop_left(self) -> FetchPosition:
        topic, positions = self._topics.popitem(last=False)
        position = positions.popleft()
        if positions:
            self._topics[topic] = positions
        return position

    def keep(self, positions: Container[FetchPosition]) -> None:
        """Remove all other partitions."""
        kept = [position for of_topic in self._topics.values() for position in of_topic if position in positions]
        self._topics.clear()
        for position in kept:
            self.append(position)


class DecodingQueue:
    """Decodes the records of each partition run by run.

    Args:
        read_committed: omit the records of aborted transactions.
        max_decompressed_bytes: the maximum decompressed size of a batch.
    """

    def __init__(self, read_committed: bool, max_decompressed_bytes: int) -> None:
        self._read_committed = read_committed
        self._max_decompressed_bytes = max_decompressed_bytes
        self._slots = BatchSlots.create()
        self._runs: dict[FetchPosition, Iterator[RecordRun]] = {}
        self._fetched: dict[FetchPosition, memoryview] = {}  # the compressed records: a slice of the response's buffer
        self._ready = _TopicTurns()  # those with many bytes, and all that have waited for a slot
        self._ready_small = _TopicTurns()
        self._turn = self._ready  # the queue of the last run
        self._keeps_turn: FetchPosition | None = None  # it has a small batch in memory
        self._waiting = {slot: _TopicTurns() for slot in self._slots}

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def response_bytes(self) -> int:
        """The size of the responses in memory. A response stays in memory until its last partition is decoded."""
        responses = {id(records.obj): memoryview(records.obj).nbytes for records in self._fetched.values()}
        return sum(responses.values())

    @property
    def has_large(self) -> bool:
        """Whether a partition in the queue has many bytes."""
        return any(map(is_large, self._fetched.values()))

    def append(self, position: FetchPosition, fetched: PartitionData) -> None:
        """Add a partition, which must not be in the queue, and its fetched records."""
        (self._ready if is_large(fetched.records) else self._ready_small).append(position)
        self._fetched[position] = fetched.records
        self._runs[position] = decode(
            fetched, position.offset, self._read_committed, self._max_decompressed_bytes, self._slots
        )

    def next_run(self) -> tuple[FetchPosition, RecordRun | Exception] | None:
        """Return a partition and its next run, or the error if the run cannot be decoded.

        Return None if the queue is empty. After the last run and after an error, the partition is not in the queue any more.
        """
        if self._keeps_turn is None:
            if self._turn is self._ready and self._ready_small:
                self._turn = self._ready_small
            else:
                self._fill_slots()
                self._turn = self._ready or self._ready_small
        ready = self._turn
        if not ready:
            return None
        position = ready.first
        runs = self._runs[position]
        self._keeps_turn = None
        result: RecordRun | Exception
        try:
            result = next(runs)
        except UNREADABLE as error:
            # Otherwise, the error and the frames of its tracebacks would keep each other, and the response, alive.
            result = error.with_traceback(None)
            error.__cause__ = error.__context__ = None
        if not isinstance(result, RecordRun) or result.is_last:
            self._remove(ready.pop_left())
        elif result.waits_for is not None:
            self._waiting[result.waits_for].append(ready.pop_left())
        elif result.keeps_turn:
            self._keeps_turn = position
        else:
            ready.append(ready.pop_left())
        return position, result

    def _fill_slots(self) -> None:
        """Let partitions continue that waited for a slot that is free now."""
        for slot, waiting in self._waiting.items():
            if waiting and not slot.taken:
                self._ready.append_left(waiting.pop_left())

    def discard(self, partitions: Container[Partition]) -> list[FetchPosition]:
        """Remove these partitions. Return the positions of those that were in the queue."""
        discarded = [position for position in self._runs if position.partition in partitions]
        for position in discarded:
            self._remove(position)
        for positions in (self._ready, self._ready_small, *self._waiting.values()):
            positions.keep(self._runs)
        return discarded

    def clear(self) -> None:
        """Remove all partitions."""
        self.discard({position.partition for position in self._runs})

    def _remove(self, position: FetchPosition) -> None:
        del self._runs[position], self._fetched[position]
        if position is self._keeps_turn:
            self._keeps_turn = None  # it may be added again, and then waits for its turn
