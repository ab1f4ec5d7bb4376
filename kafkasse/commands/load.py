"""`kafkasse load`: a CSV or JSON-lines file into a topic, row by row, and what became of it.

Rows become JSON without being rewritten: a CSV field that is a JSON number goes out digit by digit as it stood in the
file, any other is text (so `007` and Namibia's code `NA` stay what they are), and a JSON line is sent as it is. A row
that cannot be sent as meant stops everything before it; what was acknowledged until then is told. Nothing is made up:
a topic that does not exist is created only when asked for.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import KafkaError, KafkaTimeoutError, MessageSizeTooLargeError

from kafkasse.config import Config
from kafkasse.errors import CommandError
from kafkasse.progress import Progress, say

LINE_BYTES_MAX = (
    1_000_000  # brokers take records of about that size, and a file without line breaks must not fill memory
)
UNACKNOWLEDGED_MAX = 10_000
BOOTSTRAP_TIMEOUT_S = 5.0
DELIVERY_TIMEOUT_S = 30.0
FLUSH_TIMEOUT_S = DELIVERY_TIMEOUT_S + 5.0
PRODUCER_SETTINGS = {
    "acks": "all",
    "enable_idempotence": True,
    "allow_auto_create_topics": False,
    "linger_ms": 5,
    "batch_size": 65_536,
    "delivery_timeout_ms": int(DELIVERY_TIMEOUT_S * 1000),
    "request_timeout_ms": int(DELIVERY_TIMEOUT_S * 1000) - 10,  # kafka-python wants it below the delivery's
}
JSON_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)


class BadRow(Exception):
    """A row that cannot be sent as meant: in which line, and why."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line} {why}")


class Row(NamedTuple):
    """A row as it goes to Kafka, and the line where it begins. A key of None is no key at all, not the empty one."""

    line: int
    key: bytes | None
    value: bytes


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("file", metavar="FILE", help="CSV with a header, or JSON lines (.jsonl, .ndjson, - for stdin)")
    parser.add_argument("--topic", required=True, help="where the rows go")
    parser.add_argument("--key", metavar="COLUMN", help="the column whose text is the key; without it there is no key")
    parser.add_argument(
        "--rate", metavar="R", type=_rate, help="rows a second; without it, as fast as Kafka takes them"
    )
    parser.add_argument("--bootstrap-servers", metavar="H:P", help="Kafka (KAFKASSE_BOOTSTRAP_SERVERS; localhost:9092)")
    parser.add_argument(
        "--create", metavar="PARTITIONS", nargs="?", type=int, const=1, help="create the topic if it does not exist"
    )


def run(args: argparse.Namespace) -> int:
    """Load a file; tell how many of its rows were acknowledged, and where they are. 130 when it was interrupted."""
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # it says in thirty lines what we say in one
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    read_rows = _reader(args.file)
    settings = Config.load(
        kafka={"bootstrap_servers": args.bootstrap_servers} if args.bootstrap_servers else {}
    ).kafka_settings()
    with _open(args.file) as file, ExitStack() as stack:
        _ensure_topic(args.topic, args.create, settings)
        delivery = _Delivery(_client(KafkaProducer, settings, **PRODUCER_SETTINGS), args.topic)
        stack.callback(delivery.close)
        lines, pace = Lines(file), _Pace(args.rate)
        progress = stack.enter_context(Progress(f"loading {Path(args.file).name}", os.fstat(file.fileno()).st_size))

        def show() -> None:
            done = lines.read_bytes * delivery.acknowledged // max(delivery.sent, 1)
            progress.show(done, f"{delivery.acknowledged} acknowledged, {pace.reached():.0f}/s")

        stopped = _send_all(read_rows(lines, args.key), delivery, pace, show)
        delivery.finish()
        show()
    return _report(args, delivery, stopped)


def _send_all(rows: Iterator[Row], delivery: _Delivery, pace: _Pace, show: Callable[[], None]) -> BaseException | None:
    """Send until the end, a bad row, a failed delivery or Ctrl-C. Returns what stopped it."""
    try:
        for row in rows:
            pace.wait()
            delivery.send(row)
            show()
    except (BadRow, KafkaError, KeyboardInterrupt) as stopped:
        return stopped
    return None


def _report(args: argparse.Namespace, delivery: _Delivery, stopped: BaseException | None) -> int:
    done = f"{delivery.acknowledged} rows acknowledged in topic {args.topic}"
    say(done)
    for partition, (first, last) in sorted(delivery.offsets.items()):
        say(f"  partition {partition}: offsets {first} to {last}")
    if isinstance(stopped, BadRow):
        raise CommandError(f"{args.file}: {stopped}; stopped before sending it, {done}")
    missing = delivery.sent - delivery.acknowledged
    if missing or isinstance(stopped, KafkaError):
        why = _said(delivery.failure or stopped or KafkaTimeoutError())
        raise CommandError(f"Kafka did not acknowledge {missing} more rows ({why}): {done}")
    return 130 if stopped else 0


class Lines:
    """The lines of a UTF-8 file, as text. `read_bytes` tells how far the reading is.

    Raises:
        BadRow: a line is not UTF-8, or longer than LINE_BYTES_MAX.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.read_bytes = 0

    def __iter__(self) -> Iterator[str]:
        number = 0
        while raw := self._file.readline(LINE_BYTES_MAX + 1):
            number += 1
            self.read_bytes += len(raw)
            if len(raw) > LINE_BYTES_MAX:
                raise BadRow(number, f"is longer than {LINE_BYTES_MAX} bytes")
            try:
                # Spreadsheets begin their files with a byte order mark.
                yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                raise BadRow(number, "is not UTF-8") from None


def csv_rows(lines: Iterable[str], key: str | None) -> Iterator[Row]:
    """Rows of a CSV file as JSON objects with the header's names, each field a number if JSON calls it one, else text.

    Args:
        lines: the file's lines, the header first.
        key: the column whose text is the key, or None.

    Raises:
        BadRow: not CSV, not as many fields as the header, or a header that lacks the key or has a name twice.
    """
    reader = csv.reader(lines, strict=True)
    line = 1
    try:
        header = next(reader, [])
        at = _check_header(header, key)
        names = [json.dumps(name, ensure_ascii=False) for name in header]
        line = reader.line_num + 1
        for fields in reader:
            if fields:
                if len(fields) != len(names):
                    raise BadRow(line, f"has {len(fields)} fields where the header has {len(names)}")
                members = ",".join(f"{name}:{_as_json(field)}" for name, field in zip(names, fields, strict=True))
                yield Row(line, None if at is None else fields[at].encode(), f"{{{members}}}".encode())
            line = reader.line_num + 1
    except csv.Error as error:
        raise BadRow(line, f"is not CSV: {error}") from None


def _check_header(header: list[str], key: str | None) -> int | None:
    """Where the key stands."""
    if not header:
        raise BadRow(1, "should name the columns")
    twice = [name for name in header if header.count(name) > 1]
    if twice:
        raise BadRow(1, f"names the column {twice[0]!r} twice")
    if key is not None and key not in header:
        raise BadRow(1, f"has no column {key!r}, only {', '.join(header)}")
    return None if key is None else header.index(key)


def _as_json(field: str) -> str:
    """The field's own digits if it is a number, so that neither 25.00 nor 9007199254740993 is rewritten."""
    return field if JSON_NUMBER.fullmatch(field) else json.dumps(field, ensure_ascii=False)


def json_rows(lines: Iterable[str], key: str | None) -> Iterator[Row]:
    """Lines of JSON, each sent as it stands; empty ones are left out.

    Args:
        lines: the file's lines.
        key: the member whose text is the key, or None. A member that is null makes no key.

    Raises:
        BadRow: not JSON, or no such member, or one that is neither text, number, true, false nor null.
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
    if not isinstance(document, dict) or name not in document:
        raise LookupError(f"has no {name!r}")
    value = document[name]
    if isinstance(value, (dict, list)):
        raise LookupError(f"has no text in {name!r} but more JSON")
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return None if value is None else str(value).encode()


class _Pace:
    """So many rows a second, and how many it has really been."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._rows = 0
        self._began_s = time.monotonic()

    def wait(self) -> None:
        """Until the next row is due."""
        if self._rate:
            time.sleep(max(0.0, self._began_s + self._rows / self._rate - time.monotonic()))
        self._rows += 1

    def reached(self) -> float:
        """Rows a second since the beginning."""
        return self._rows / max(time.monotonic() - self._began_s, 0.001)


class _Delivery:
    """What was sent, and what Kafka said to it. The producer's own thread calls back."""

    def __init__(self, producer: KafkaProducer, topic: str) -> None:
        self._producer, self._topic = producer, topic
        self._room = threading.Semaphore(UNACKNOWLEDGED_MAX)  # the producer itself takes whatever memory can hold
        self.sent = 0
        self.acknowledged = 0
        self.offsets: dict[int, tuple[int, int]] = {}
        self.failure: BaseException | None = None

    def send(self, row: Row) -> None:
        """Hand a row to the producer; waits while UNACKNOWLEDGED_MAX are on their way."""
        if self.failure:
            raise self.failure
        self._room.acquire()
        try:
            future = self._producer.send(self._topic, row.value, row.key)
        except MessageSizeTooLargeError:
            raise BadRow(row.line, f"makes a record of {len(row.value)} bytes, which is too large") from None
        self.sent += 1
        future.add_callback(self._on_acknowledged)
        future.add_errback(self._on_failed)

    def finish(self) -> None:
        """Wait until all that was sent is acknowledged or has failed; after a failure the rest will fail as well."""
        with suppress(KafkaTimeoutError):
            self._producer.flush(0 if self.failure else FLUSH_TIMEOUT_S)

    def close(self) -> None:
        """Let go of Kafka, and of what it has not acknowledged."""
        with suppress(KafkaTimeoutError):
            self._producer.close(timeout=0)

    def _on_acknowledged(self, record: Any) -> None:
        first, last = self.offsets.get(record.partition, (record.offset, record.offset))
        self.offsets[record.partition] = (min(first, record.offset), max(last, record.offset))
        self.acknowledged += 1
        self._room.release()

    def _on_failed(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self._room.release()


def _reader(file: str) -> Callable[[Iterable[str], str | None], Iterator[Row]]:
    suffix = Path(file).suffix.lower()
    if file == "-" or suffix in (".jsonl", ".ndjson"):
        return json_rows
    if suffix == ".csv":
        return csv_rows
    raise CommandError(
        f"cannot tell what {file} holds: it must be .csv, .jsonl or .ndjson, or - for JSON lines on stdin"
    )


def _open(file: str) -> BinaryIO:
    try:
        return sys.stdin.buffer if file == "-" else Path(file).open("rb")
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror}") from None


def _ensure_topic(topic: str, partitions: int | None, settings: dict[str, Any]) -> None:
    admin = _client(KafkaAdminClient, settings)
    try:
        if topic not in admin.list_topics():
            if partitions is None:
                raise CommandError(f"there is no topic {topic}; create it, or have it created by --create [PARTITIONS]")
            admin.create_topics({topic: {"num_partitions": partitions}}, wait_for_metadata=True)
    except KafkaError as error:
        raise CommandError(f"cannot create topic {topic}: {_said(error)}") from error
    finally:
        admin.close()


def _client(kind: Any, settings: dict[str, Any], **own: Any) -> Any:
    """A client of kafka-python's, given those of our settings that its kind knows."""
    known = {name: value for name, value in settings.items() if name in kind.DEFAULT_CONFIG}
    try:
        return kind(**{**known, **own, "bootstrap_timeout_ms": int(BOOTSTRAP_TIMEOUT_S * 1000)})
    except KafkaTimeoutError:
        servers = settings["bootstrap_servers"]
        raise CommandError(
            f"cannot reach Kafka at {servers if isinstance(servers, str) else ','.join(servers)} within "
            f"{BOOTSTRAP_TIMEOUT_S:.0f} s; see that it runs, or name another by --bootstrap-servers"
        ) from None
    except (KafkaError, ValueError, OSError) as error:
        raise CommandError(f"cannot use these settings for Kafka: {_said(error)}") from error


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _rate(text: str) -> float:
    rate = float(text)
    if not 0 < rate < float("inf"):
        raise ValueError
    return rate
