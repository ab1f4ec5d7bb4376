"""`kafkasse pipeline replay-dead-letters`: write the records of dead letters to their source topics again.

Each batch is a Kafka transaction that contains the records and the position in the topic of dead letters. Therefore, each
dead letter is replayed exactly once, even if the command is killed and started again. kafkasse.pipelines.kafka.contract
defines the headers of a dead letter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import click
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, ProducerFencedError
from kafka.structs import OffsetAndMetadata

from kafkasse.commands.kafka_clients import connected
from kafkasse.config import Config
from kafkasse.errors import CommandError
from kafkasse.process.log_line import one_line
from kafkasse.tools.progress import Progress

PREFIX = "kafkasse-dead-letter-"
HEADER_COUNT = 6  # the number of headers that the pipeline appends to those of the record
BATCH_RECORDS = 500
POLL_TIMEOUT_MS = 1000
GROUP_PREFIX = "kafkasse-replay-"  # of the consumer group that holds the position, and of the transactional ID
MAX_REQUEST_BYTES = 33_000_000
CONSUMER = {"enable_auto_commit": False, "isolation_level": "read_committed", "max_poll_records": BATCH_RECORDS}

Headers = Sequence[tuple[str, bytes | None]]


class Original(NamedTuple):
    """The original record of a dead letter, and the reason why it became a dead letter."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    reason: str


def replay(topic: str, kafka: Mapping[str, Any] | None, dry_run: bool) -> None:
    """Replay the dead letters of a topic, or list them.

    Args:
        kafka: settings of kafka-python's client that override those of kafkasse, if there are any.

    Raises:
        CommandError: Kafka does not complete the replay.
    """
    settings = Config.load(kafka=kafka).kafka_settings()
    try:
        with closing(connected(KafkaConsumer, settings, group_id=f"{GROUP_PREFIX}{topic}", **CONSUMER)) as consumer:
            if dry_run:
                _list(_Letters(consumer, topic))
            else:
                _replay(consumer, topic, settings)
    except ProducerFencedError as error:
        raise CommandError(f"another call replays {topic} now; wait until it has ended") from error
    except KafkaError as error:
        raise CommandError(
            f"Kafka did not complete the replay ({type(error).__name__}: {error}). Call the command again: it continues"
            " after the last complete batch"
        ) from error


class _Letters:
    """The dead letters of a topic that have not been replayed yet.

    Attributes:
        total: the number of offsets to read.
        done: the number of offsets that were read.
        positions: the position to commit after the batch.
        skipped: for each reason, the number of dead letters that cannot be replayed.
    """

    def __init__(self, consumer: KafkaConsumer, topic: str) -> None:
        self._consumer = consumer
        partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]
        if not partitions:
            raise CommandError(f"the topic {topic} does not exist, or you may not read it")
        consumer.assign(partitions)
        first, self._ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
        self.positions: dict[Any, int] = {}
        for partition in partitions:
            committed = consumer.committed(partition)
            self.positions[partition] = max(first[partition], committed if committed is not None else 0)
            consumer.seek(partition, self.positions[partition])
        self.total = sum(max(0, self._ends[partition] - self.positions[partition]) for partition in partitions)
        self.done = 0
        self.skipped: Counter[str] = Counter()
        self._seen: set[tuple[str, int, int]] = set()

    def batches(self) -> Iterator[list[Original]]:
        """Yield the records of each batch. Afterwards, `positions` is the position after the batch."""
        while any(self.positions[partition] < end for partition, end in self._ends.items()):
            polled = self._consumer.poll(POLL_TIMEOUT_MS)
            read = [self._original(record) for records in polled.values() for record in records]
            for partition in self.positions:
                position = self._consumer.position(partition)
                self.done += position - self.positions[partition]
                self.positions[partition] = position
            yield [original for original in read if original]

    def _original(self, record: Any) -> Original | None:
        headers, last_headers = record.headers[:-HEADER_COUNT], record.headers[-HEADER_COUNT:]
        texts = {
            name.removeprefix(PREFIX): (value or b"").decode(errors="replace")
            for name, value in last_headers
            if name.startswith(PREFIX)
        }
        if reason := _reason_to_skip(texts) or _reason_not_to_send(record, headers):
            self.skipped[reason] += 1
            return None
        where = texts["topic"], int(texts["partition"]), int(texts["offset"])
        if where in self._seen:
            self.skipped["they are duplicates"] += 1
            return None
        self._seen.add(where)
        return Original(*where, record.key, record.value, headers, texts["reason"])


def _reason_to_skip(texts: Mapping[str, str]) -> str:
    if len(texts) != HEADER_COUNT:
        return "they are no dead letters"
    if not texts["partition"]:
        return "they are results, which the pipeline computes again from its sources"
    return "they are incomplete, because they were too large" if texts["omitted"] else ""


def _reason_not_to_send(record: Any, headers: Headers) -> str:
    """Return why kafka-python would reject a record."""
    if record.key is None and record.value is None:
        return "they have neither a key nor a value"
    return "they have a header without a value" if any(value is None for _, value in headers) else ""


def _list(letters: _Letters) -> None:
    for batch in letters.batches():
        for original in batch:
            key = None if original.key is None else original.key.decode(errors="replace")
            where = f"{original.topic} partition {original.partition} offset {original.offset}"
            click.echo(one_line(f"{where} key {key}: {original.reason}"))
    _report_skipped(letters)


def _replay(consumer: KafkaConsumer, topic: str, settings: Any) -> None:
    replayed: Counter[str] = Counter()
    name = f"{GROUP_PREFIX}{topic}"
    more = {"transactional_id": name, "max_request_size": MAX_REQUEST_BYTES, "allow_auto_create_topics": False}
    with closing(connected(KafkaProducer, settings, **more)) as producer:
        producer.init_transactions()  # before the position is read: it ends the transaction of another call
        letters = _Letters(consumer, topic)
        with Progress(f"replaying {topic}", letters.total) as bar:
            for batch in letters.batches():
                _check_partitions(consumer, batch)
                _write(producer, batch, letters.positions, name)
                replayed.update(original.topic for original in batch)
                bar.show(letters.done, f"{replayed.total()} replayed")
    for source, count in sorted(replayed.items()):
        click.echo(f"{count} records written to {source}")
    if not replayed:
        click.echo("no dead letters to replay")
    _report_skipped(letters)


def _check_partitions(consumer: KafkaConsumer, batch: list[Original]) -> None:
    """Check that the partitions of the records exist. The producer would only time out."""
    for topic, partition in sorted({(original.topic, original.partition) for original in batch}):
        if partition not in (consumer.partitions_for_topic(topic) or ()):
            raise CommandError(
                f"dead letters belong to {topic} partition {partition}, which does not exist; create it, and call the "
                "command again"
            )


def _write(producer: Any, batch: list[Original], positions: dict[Any, int], group: str) -> None:
    """Write the records of a batch and the position after it in one transaction."""
    producer.begin_transaction()
    try:
        sent = [
            producer.send(
                original.topic,
                key=original.key,
                value=original.value,
                headers=list(original.headers),
                partition=original.partition,
            )
            for original in batch
        ]
        producer.flush()
        for future in sent:
            future.get(0)
        offsets = {partition: OffsetAndMetadata(position, "", -1) for partition, position in positions.items()}
        producer.send_offsets_to_transaction(offsets, group)
    except BaseException:
        producer.abort_transaction()
        raise
    producer.commit_transaction()


def _report_skipped(letters: _Letters) -> None:
    for reason, count in sorted(letters.skipped.items()):
        click.echo(f"{count} not replayed: {reason}")
