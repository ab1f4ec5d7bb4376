"""Offsets, times and leader epochs of topics, from Kafka's Java client, which Spark's connector loads into the JVM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped,unused-ignore]
from pyspark.sql import SparkSession

from kafkasse.log import UNKNOWN_EPOCH
from kafkasse.pipelines.kafka.admin import CONSUMER
from kafkasse.pipelines.spark import private_spark
from kafkasse.pipelines.supervisor import DependencyUnavailable

ANSWER_TIMEOUT_S = 20  # of a fetch; a broker may pause, or limit the rate of fetches
MAX_PEEK_BYTES = "65536"
TIMEOUTS = {"request.timeout.ms": "10000", "default.api.timeout.ms": "20000"}


class Available(NamedTuple):
    """The offsets `[start, end)` that a partition holds, up to the first open transaction."""

    start: int
    end: int


class Seen(NamedTuple):
    """The offset, leader epoch and timestamp of a record."""

    offset: int
    epoch: int
    timestamp: int


class Removed(Exception):
    """Kafka has removed a record since it reported the offsets that it holds."""


class Truncated(Exception):
    """The log was truncated: `end` is the first offset at which it differs from the log before."""

    def __init__(self, end: int) -> None:
        super().__init__(f"the log was truncated at offset {end}")
        self.end = end


class KafkaOffsets:
    """Asks Kafka about one topic, with the client in the session's JVM. Close it with the `with` statement."""

    def __init__(self, spark: SparkSession, kafka: Mapping[str, str], topic: str) -> None:
        jvm = private_spark.java(spark)
        self._jvm = jvm
        self._topic = topic
        peeking = {"max.partition.fetch.bytes": MAX_PEEK_BYTES, "auto.offset.reset": "none"}
        properties = private_spark.properties(spark, {**kafka, **TIMEOUTS, **CONSUMER, **peeking})
        self._admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
        self._consumer = jvm.org.apache.kafka.clients.consumer.KafkaConsumer(properties)

    def __enter__(self) -> KafkaOffsets:
        return self

    def __exit__(self, *error: object) -> None:
        for client in (self._consumer, self._admin):
            client.close()

    def available(self) -> dict[int, Available]:
        """Return the committed offsets of each partition."""
        infos = self._consumer.partitionsFor(self._topic)
        partitions = [info.partition() for info in infos]
        spec = self._jvm.org.apache.kafka.clients.admin.OffsetSpec
        starts = self._list(dict.fromkeys(partitions, spec.earliest()))
        ends = self._list(dict.fromkeys(partitions, spec.latest()))
        return {partition: Available(starts[partition].offset(), ends[partition].offset()) for partition in partitions}

    def at_time(self, partition: int, timestamp_ms: int) -> Seen | None:
        """Return the first record at or after a time, or None. Its epoch is not known."""
        spec = self._jvm.org.apache.kafka.clients.admin.OffsetSpec.forTimestamp(timestamp_ms)
        record = self._list({partition: spec})[partition]
        return Seen(record.offset(), UNKNOWN_EPOCH, record.timestamp()) if record.offset() >= 0 else None

    def _list(self, specs: Mapping[int, Any]) -> dict[int, Any]:
        requested = {self._partition(partition): spec for partition, spec in specs.items()}
        committed = self._jvm.org.apache.kafka.common.IsolationLevel.READ_COMMITTED
        options = self._jvm.org.apache.kafka.clients.admin.ListOffsetsOptions(committed)
        result = self._admin.listOffsets(requested, options)
        return {partition: result.partitionResult(self._partition(partition)).get() for partition in specs}

    def first(self, partition: int, start: int, end: int, epoch: int = UNKNOWN_EPOCH) -> Seen | None:
        """Return the first record in `[start, end)`, or None.

        Args:
            epoch: the leader epoch of the record before `start`, if it is known.

        Raises:
            Removed: Kafka does not hold the offset `start`.
            Truncated: the log no longer contains the record before `start`.
        """
        records = self._poll(partition, start, end, epoch)
        record = _seen(records.get(0)) if records else None
        return record if record and record.offset < end else None

    def last(self, partition: int, start: int, end: int) -> Seen | None:
        """Return the last record in `[start, end)`, or None. The last offsets may be those of transaction markers."""
        empty_from, step = end, 1  # there is no record in `[empty_from, end)`
        while empty_from > start:
            at = max(start, end - step)
            latest = None
            position = at
            while position < empty_from and (seen := self._last_before(partition, position, empty_from)):
                latest, position = seen, seen.offset + 1
            if latest:
                return latest
            empty_from, step = at, step * 2
        return None

    def _last_before(self, partition: int, start: int, end: int) -> Seen | None:
        """Return the last record before `end` of those that Kafka returns at `start`, or None."""
        records = self._poll(partition, start, end)
        seen = (_seen(records.get(index)) for index in reversed(range(records.size())))
        return next((record for record in seen if record.offset < end), None)

    def epoch_starts(self, partition: int, first: Seen, last: Seen) -> list[Seen]:
        """Return the first record of each leader epoch from the record `first` to the record `last`."""
        starts = [first]
        while starts[-1].epoch != last.epoch:
            starts.append(self._next_epoch(partition, starts[-1], last))
        return starts

    def _next_epoch(self, partition: int, first: Seen, last: Seen) -> Seen:
        """Return the first record of a later epoch than that of `first`. `last` has a later epoch."""
        low, high, record = first.offset, last.offset, last  # `record` is the first known record at or after `high`
        while high - low > 1:
            middle = (low + high) // 2
            seen = self.first(partition, middle, high)
            if seen is not None and seen.epoch == first.epoch:
                low = seen.offset
            else:
                high, record = middle, seen or record
        return record

    def _poll(self, partition: int, offset: int, end: int, epoch: int = UNKNOWN_EPOCH) -> Any:
        """Return the next records from an offset on, as a Java list. It is empty if `[offset, end)` has no records.

        Raises:
            DependencyUnavailable: Kafka has not returned the records before `end`. This is not proof that there are none.
        """
        at = self._partition(partition)
        self._consumer.assign(self._jvm.java.util.List.of(at))
        if epoch == UNKNOWN_EPOCH:
            self._consumer.seek(at, offset)
        else:
            known = self._jvm.java.util.Optional.of(epoch)
            metadata = self._jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata(offset, known, "")
            self._consumer.seek(at, metadata)
        timeout = self._jvm.java.time.Duration.ofSeconds(ANSWER_TIMEOUT_S)
        try:
            # poll() returns records, or nothing as soon as the position has moved past markers and aborted records.
            while (records := self._consumer.poll(timeout).records(at)).isEmpty():
                before, offset = offset, self._consumer.position(at)
                if offset >= end:
                    break
                if offset == before:
                    raise DependencyUnavailable(f"Kafka does not return the records of {self._topic}/{partition}")
        except Py4JJavaError as error:
            name = error.java_exception.getClass().getSimpleName()
            if name == "OffsetOutOfRangeException":
                raise Removed(partition, offset) from error
            if name != "LogTruncationException":
                raise
            diverged = error.java_exception.divergentOffsets().get(at)
            raise Truncated(diverged.offset() if diverged is not None else offset) from error
        return records

    def _partition(self, partition: int) -> Any:
        return self._jvm.org.apache.kafka.common.TopicPartition(self._topic, partition)


def _seen(record: Any) -> Seen:
    epoch = record.leaderEpoch()
    return Seen(record.offset(), epoch.get() if epoch.isPresent() else UNKNOWN_EPOCH, record.timestamp())
