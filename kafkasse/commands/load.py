"""`kafkasse load`: write the rows of a CSV or JSON lines file to a topic and report what Kafka acknowledged.

Values are not changed. A CSV field that is a JSON number keeps its digits; any other field becomes a JSON string, so that
`007` and Namibia's code `NA` are preserved. A JSON line is sent unchanged. The command stops before the first invalid row.
It creates a missing topic only if --create is given.
"""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

import click
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import KafkaError, KafkaTimeoutError, MessageSizeTooLargeError

from kafkasse.commands import options
from kafkasse.commands.kafka_clients import connected, message
from kafkasse.config import Config
from kafkasse.errors import CommandError, did_you_mean
from kafkasse.process.log_line import one_line
from kafkasse.tools.progress import Progress

# About the largest record that a broker accepts by default. The limit protects our memory from a file without newlines.
MAX_LINE_BYTES = 1_000_000
MAX_IN_FLIGHT = 10_000
DELIVERY_TIMEOUT_S = 30.0
FLUSH_TIMEOUT_S = DELIVERY_TIMEOUT_S + 5.0
PRODUCER_SETTINGS = {
    "acks": "all",
    "enable_idempotence": True,
    "allow_auto_create_topics": False,
    "linger_ms": 5,
    "batch_size": 65_536,
    "delivery_timeout_ms": int(DELIVERY_TIMEOUT_S * 1000),
    "request_timeout_ms": int(DELIVERY_TIMEOUT_S * 1000) - 10,  # kafka-python requires less than the delivery timeout
}
JSON_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)

EPILOG = """\b
Examples:
  kafkasse load countries.csv --topic countries --key code --create
  jq -c .items[] shop.json | kafkasse load - --topic items
"""


class BadRow(Exception):
    """A row that cannot be sent. The message contains its line number and the reason."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line} {reason}")


class Row(NamedTuple):
    """The key and the value of a record, and the number of the row's first line. An empty key is not the same as None."""

    line: int
    key: bytes | None
    value: bytes


@click.command(epilog=EPILOG)
@click.argument("file")
@click.option("--topic", required=True, callback=options.not_empty, help="The topic to write to, without topic_prefix.")
@click.option(
    "--key", metavar="COLUMN", help="The column that becomes the record's key. Without it, records have no key."
)
@click.option(
    "--rate",
    metavar="R",
    type=options.Number(min=1e-6),  # time.sleep() overflows below about 1e-10
    help="Send at most R rows per second. Without it, there is no limit.",
)
@options.KAFKA
@click.option(
    "--create",
    metavar="[PARTITIONS]",
    is_flag=False,
    flag_value=1,
    type=click.IntRange(min=1),
    help="Create the topic if it does not exist, with this number of partitions [default: 1]",
)
@click.pass_context
def command(
    ctx: click.Context,
    file: str,
    topic: str,
    key: str | None,
    rate: float | None,
    kafka: dict[str, str] | None,
    create: int | None,
) -> None:
    """Write FILE to a topic, one record for each row.

    FILE is CSV with a header line (.csv), JSON lines (.jsonl, .ndjson), or - for JSON lines on stdin. Each record has a
    value. For a tombstone, which deletes a key, use a producer or Kafka's console producer with null.marker. The exit code
    is 130 if Ctrl-C or SIGTERM interrupted the command.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    read_rows = _row_reader(file)
    config = Config.load(kafka=kafka)
    topic, settings = config.topic_prefix("") + topic, config.kafka_settings()
    with _open(file) as source:
        _ensure_topic(topic, create, settings)
        producer = connected(KafkaProducer, settings, **PRODUCER_SETTINGS)
        lines, pace = Lines(source), _Pace(rate)
        progress = Progress(f"loading {Path(file).name}", os.fstat(source.fileno()).st_size)
        with closing(_Delivery(producer, topic)) as delivery, progress:

            def show() -> None:
                done_bytes = lines.read_bytes * delivery.acknowledged // max(delivery.sent, 1)
                progress.show(done_bytes, f"{delivery.acknowledged} acknowledged, {pace.rows_per_s():.0f}/s")

            stopped_by = _send_all(read_rows(lines, key), delivery, pace, show)
            delivery.finish()
            show()
    _report(file, topic, delivery, stopped_by)
    if stopped_by:
        ctx.exit(130)


def _send_all(rows: Iterator[Row], delivery: _Delivery, pace: _Pace, show: Callable[[], None]) -> BaseException | None:
    """Send rows until the end, an invalid row, a failed delivery or Ctrl-C. Returns the reason for stopping early."""
    try:
        for row in rows:
            pace.wait()
            delivery.send(row)
            show()
    except (BadRow, KafkaError, KeyboardInterrupt) as stopped_by:
        return stopped_by
    return None


def _report(file: str, topic: str, delivery: _Delivery, stopped_by: BaseException | None) -> None:
    done = f"{_rows(delivery.acknowledged)} acknowledged in topic {topic}"
    click.echo(done)
    for partition, (first, last) in sorted(delivery.offsets.items()):
        click.echo(f"  partition {partition}: offsets {first} to {last}")
    if isinstance(stopped_by, BadRow):
        advice = ". Correct this row, then load only this row and the rows after it" if delivery.acknowledged else ""
        raise CommandError(f"{file}: {stopped_by}; stopped before sending this row, {done}{advice}")
    missing = delivery.sent - delivery.acknowledged
    if missing or isinstance(stopped_by, KafkaError):
        reason = message(delivery.failure or stopped_by or KafkaTimeoutError())
        raise CommandError(f"Kafka did not acknowledge {_rows(missing)} ({reason}): {done}")


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


class Lines:
    """The lines of a UTF-8 file, as text. `read_bytes` is the number of bytes read so far.

    Raises:
        BadRow: a line is not UTF-8, or longer than MAX_LINE_BYTES.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.read_bytes = 0

    def __iter__(self) -> Iterator[str]:
        number = 0
        while raw := self._file.readline(MAX_LINE_BYTES + 1):
            number += 1
            self.read_bytes += len(raw)
            if len(raw) > MAX_LINE_BYTES:
                raise BadRow(number, f"is longer than {MAX_LINE_BYTES} bytes")
            try:
                # Spreadsheets write a byte order mark at the start of a file.
                yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                raise BadRow(number, "is not UTF-8") from None


def csv_rows(lines: Iterable[str], key: str | None) -> Iterator[Row]:
    """Convert each row of a CSV file to a JSON object with the names of the header.

    A field that is a valid JSON number becomes a number, any other field a string.

    Args:
        lines: the file's lines, starting with the header.
        key: the column that becomes the record's key, or None.

    Raises:
        BadRow: not CSV, the wrong number of fields, or a header that lacks the key or has a duplicate name.
    """
    csv.field_size_limit(MAX_LINE_BYTES)  # instead of 128 KiB
    reader = csv.reader(lines, strict=True)
    line = 1
    try:
        header = next(reader, [])
        key_index = _key_index(header, key)
        names = [json.dumps(name, ensure_ascii=False) for name in header]
        line = reader.line_num + 1
        for fields in reader:
            if fields:
                if len(fields) != len(names):
                    raise BadRow(line, f"has {len(fields)} fields where the header has {len(names)}")
                members = ",".join(f"{name}:{_as_json(field)}" for name, field in zip(names, fields, strict=True))
                yield Row(line, None if key_index is None else fields[key_index].encode(), f"{{{members}}}".encode())
            line = reader.line_num + 1
    except csv.Error as error:
        raise BadRow(line, f"is not CSV: {error}") from None


def _key_index(header: list[str], key: str | None) -> int | None:
    """Check the header and return the index of the key's column."""
    if not header:
        raise BadRow(1, "must name the columns")
    duplicates = [name for name in header if header.count(name) > 1]
    if duplicates:
        raise BadRow(1, f"names the column {duplicates[0]!r} twice")
    if key is not None and key not in header:
        raise BadRow(1, f"has no column {key!r}, only {', '.join(header)}")
    return None if key is None else header.index(key)


def _as_json(field: str) -> str:
    """Return a number with its original digits, because float() would change 25.00 and 9007199254740993."""
    return field if JSON_NUMBER.fullmatch(field) else json.dumps(field, ensure_ascii=False)


def json_rows(lines: Iterable[str], key: str | None) -> Iterator[Row]:
    """Yield each JSON line unchanged and skip empty lines.

    Args:
        key: the member that becomes the record's key, or None. If the member is null, the record has no key.

    Raises:
        BadRow: not JSON, or the key's member is missing, an object or an array.
    """
    for number, text in enumerate(lines, 1):
        if text := text.strip():
            try:
                document = json.loads(text, parse_int=str, parse_float=str, parse_constant=_not_json)
                yield Row(number, None if key is None else _member(document, key), text.encode())
            except (ValueError, RecursionError) as error:
                raise BadRow(number, f"is not JSON: {error}") from None
            except LookupError as error:
                raise BadRow(number, str(error.args[0])) from None


def _not_json(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _member(document: Any, name: str) -> bytes | None:
    if not isinstance(document, dict):
        raise LookupError(f"is not an object, so it has no {name!r}")
    if name not in document:
        others = one_line(", ".join(document))
        raise LookupError(f"has no {name!r}, only {others}" if others else f"has no {name!r}")
    value = document[name]
    if isinstance(value, (dict, list)):
        raise LookupError(f"has an object or array in {name!r}, which cannot be a key")
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return None if value is None else str(value).encode()


class _Pace:
    """Limits the rate to `rate` rows per second, and measures it. None means no limit."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._rows = 0
        self._started_s = time.monotonic()

    def wait(self) -> None:
        """Sleep until the next row is due."""
        if self._rate:
            time.sleep(max(0.0, self._started_s + self._rows / self._rate - time.monotonic()))
        self._rows += 1

    def rows_per_s(self) -> float:
        """Return the average rate since the start."""
        return self._rows / max(time.monotonic() - self._started_s, 0.001)


class _Delivery:
    """Sends rows and counts Kafka's acknowledgments. The producer's thread runs the callbacks."""

    def __init__(self, producer: KafkaProducer, topic: str) -> None:
        self._producer, self._topic = producer, topic
        self._free_slots = threading.Semaphore(MAX_IN_FLIGHT)  # the producer's own buffer has no limit
        self.sent = 0
        self.acknowledged = 0
        self.offsets: dict[int, tuple[int, int]] = {}
        self.failure: BaseException | None = None

    def send(self, row: Row) -> None:
        """Pass a row to the producer. Blocks while MAX_IN_FLIGHT rows are unacknowledged."""
        if self.failure:
            raise self.failure
        self._free_slots.acquire()
        try:
            future = self._producer.send(self._topic, row.value, row.key)
        except MessageSizeTooLargeError:
            raise BadRow(row.line, f"is a record of {len(row.value)} bytes, which is too large") from None
        self.sent += 1
        future.add_callback(self._on_acknowledged)
        future.add_errback(self._on_failed)

    def finish(self) -> None:
        """Wait until every row is acknowledged or has failed. After a failure, do not wait: the other rows fail too."""
        with suppress(KafkaTimeoutError):
            self._producer.flush(0 if self.failure else FLUSH_TIMEOUT_S)

    def close(self) -> None:
        """Close the producer and discard unacknowledged rows."""
        with suppress(KafkaTimeoutError):
            self._producer.close(timeout=0)

    def _on_acknowledged(self, record: Any) -> None:
        first, last = self.offsets.get(record.partition, (record.offset, record.offset))
        self.offsets[record.partition] = (min(first, record.offset), max(last, record.offset))
        self.acknowledged += 1
        self._free_slots.release()

    def _on_failed(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self._free_slots.release()


def _row_reader(file: str) -> Callable[[Iterable[str], str | None], Iterator[Row]]:
    suffix = Path(file).suffix.lower()
    if file == "-" or suffix in (".jsonl", ".ndjson"):
        return json_rows
    if suffix == ".csv":
        return csv_rows
    raise CommandError(
        f"the format of {file} is unknown: use a .csv, .jsonl or .ndjson file, or - for JSON lines on stdin"
    )


def _open(file: str) -> BinaryIO:
    if file == "-" and sys.stdin is None:
        raise CommandError("stdin is closed; pipe JSON lines to the command, or pass a file")
    try:
        return sys.stdin.buffer if file == "-" else Path(file).open("rb")
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror}") from None


def _ensure_topic(topic: str, partitions: int | None, settings: dict[str, Any]) -> None:
    admin = connected(KafkaAdminClient, settings)
    try:
        existing = admin.list_topics()
        if topic not in existing:
            if partitions is None:
                hint = did_you_mean(topic, existing)
                raise CommandError(f"topic {topic} does not exist{hint}; create it, or pass --create [PARTITIONS]")
            admin.create_topics({topic: {"num_partitions": partitions}}, wait_for_metadata=True)
    except KafkaError as error:
        raise CommandError(f"cannot create topic {topic}: {message(error)}") from error
    finally:
        admin.close()
