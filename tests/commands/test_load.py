"""`kafkasse load`: what becomes of rows on their way, and what is said about them, with a real broker."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition

from kafkasse.broker import EmbeddedBroker
from kafkasse.commands.load import MAX_LINE_BYTES, BadRow, Lines, csv_rows, json_rows

COUNTRIES = Path(__file__).parents[2] / "kafkasse" / "data" / "countries.csv"


def load(broker: EmbeddedBroker, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """`kafkasse load …` as a person runs it."""
    return subprocess.run(command(broker, *words), input=stdin, capture_output=True, timeout=120)


def command(broker: EmbeddedBroker, *words: str) -> list[str]:
    """Its words."""
    return [sys.executable, "-m", "kafkasse", "load", "--bootstrap-servers", broker.bootstrap_servers, *words]


@pytest.fixture
def topic(broker: EmbeddedBroker, fresh_name: str) -> Iterator[str]:
    """A topic of two partitions."""
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    admin.create_topics({fresh_name: {"num_partitions": 2, "replication_factor": 1}}, wait_for_metadata=True)
    yield fresh_name
    admin.delete_topics([fresh_name])
    admin.close()


def records(broker: EmbeddedBroker, topic: str, partitions: int = 2) -> list[Any]:
    """All that a topic holds."""
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest")
    all_of_it = [TopicPartition(topic, partition) for partition in range(partitions)]
    consumer.assign(all_of_it)
    ends = consumer.end_offsets(all_of_it)
    found: list[Any] = []
    while any(consumer.position(each) < ends[each] for each in all_of_it):
        for batch in consumer.poll(timeout_ms=1000).values():
            found += batch
    consumer.close()
    return found


def test_countries(broker: EmbeddedBroker, topic: str) -> None:
    """All 252 countries arrive as JSON with their codes as keys, and the summary accounts for each."""
    done = load(broker, str(COUNTRIES), "--topic", topic, "--key", "code", "--rate", "1000")

    assert done.returncode == 0, done.stderr
    found = records(broker, topic)
    with COUNTRIES.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {record.key.decode() for record in found} == {row["code"] for row in rows}
    namibia = next(json.loads(record.value) for record in found if record.key == b"NA")
    assert namibia == {
        "name": "Namibia", "code": "NA", "continent": "Africa", "population": 2448255, "size": 825418
    }  # fmt: skip
    said = done.stdout.decode().splitlines()
    assert said[0] == f"{len(rows)} rows acknowledged in topic {topic}"
    for partition in (0, 1):
        offsets = [record.offset for record in found if record.partition == partition]
        assert f"  partition {partition}: offsets {min(offsets)} to {max(offsets)}" in said


def test_json_lines_from_stdin(broker: EmbeddedBroker, topic: str) -> None:
    """JSON lines are sent untouched; without --key a record has no key."""
    line = b'{"n": 9007199254740993, "x": 25.00, "text": "\xc3\xa9"}'

    done = load(broker, "-", "--topic", topic, stdin=line + b"\n\n" + line)

    assert done.returncode == 0, done.stderr
    assert [(record.key, record.value) for record in records(broker, topic)] == [(None, line)] * 2


def test_a_bad_row_stops_before_it(broker: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    """A row with a field too few is named by its line; what came before is sent, what comes after is not."""
    file = tmp_path / "bad.csv"
    file.write_text('a,b\n1,"two\nlines"\n3\n4,5\n')

    done = load(broker, str(file), "--topic", topic)

    assert done.returncode == 1
    assert (
        b"line 4 has 1 fields where the header has 2; stopped before sending this row, 1 rows acknowledged"
        in done.stderr
    )
    assert [json.loads(record.value) for record in records(broker, topic)] == [{"a": 1, "b": "two\nlines"}]


def test_a_row_that_kafka_takes_not(broker: EmbeddedBroker, fresh_name: str, tmp_path: Path) -> None:
    """A row that makes too large a record is told as Kafka's refusal, not as success."""
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    admin.create_topics({fresh_name: {"configs": {"max.message.bytes": "1000"}}}, wait_for_metadata=True)
    admin.close()
    file = tmp_path / "large.jsonl"
    file.write_text(json.dumps("x" * 5000) + "\n")

    done = load(broker, str(file), "--topic", fresh_name)

    assert done.returncode == 1
    assert b"Kafka did not acknowledge 1 more rows" in done.stderr
    assert b"0 rows acknowledged" in done.stderr


def test_a_topic_that_does_not_exist(broker: EmbeddedBroker, fresh_name: str) -> None:
    """It is not made by mistake; --create makes it, with as many partitions as asked for."""
    words = str(COUNTRIES), "--topic", fresh_name
    done = load(broker, *words)
    assert done.returncode == 1
    assert f"topic {fresh_name} does not exist".encode() in done.stderr

    done = load(broker, *words, "--create", "3")

    assert done.returncode == 0, done.stderr
    assert len(records(broker, fresh_name, 3)) == 252


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(broker: EmbeddedBroker, topic: str, stop: signal.Signals) -> None:
    """Ctrl-C ends the loading; what was sent is waited for and told."""
    process = subprocess.Popen(
        command(broker, "-", "--topic", topic), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin
    process.stdin.write(b'{"a":1}\n' * 3)
    process.stdin.flush()
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(topic, partition) for partition in (0, 1)])
    next(consumer)
    consumer.close()

    process.send_signal(stop)
    stdout, stderr = process.communicate(timeout=60)

    assert process.returncode == 130, stderr
    assert f"rows acknowledged in topic {topic}" in stdout.decode()


def test_no_kafka(tmp_path: Path) -> None:
    """Where nobody listens, one sentence says where it looked."""
    words = [sys.executable, "-m", "kafkasse", "load", str(COUNTRIES), "--topic", "t"]
    environ = {**os.environ, "KAFKASSE_BOOTSTRAP_SERVERS": "127.0.0.1:1"}

    done = subprocess.run(words, env=environ, capture_output=True, timeout=60)

    assert done.returncode == 1
    assert done.stderr.startswith(b"kafkasse load: cannot reach Kafka at 127.0.0.1:1")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("file", "sentence"),
    [("nowhere.csv", b"cannot read nowhere.csv: No such file"), ("x.xlsx", b"use a .csv, .jsonl or .ndjson file")],
)
def test_files_that_cannot_be(file: str, sentence: bytes) -> None:
    """A file that is not there, or is neither CSV nor JSON lines, is refused before Kafka is asked."""
    done = subprocess.run(
        [sys.executable, "-m", "kafkasse", "load", file, "--topic", "t"], capture_output=True, timeout=60
    )

    assert done.returncode == 1
    assert sentence in done.stderr


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("25.00", "25.00"), ("9007199254740993", "9007199254740993"), ("-1e5", "-1e5"), ("0", "0"),
        ("007", '"007"'), ("NA", '"NA"'), ("", '""'), ("1.", '"1."'), (".5", '".5"'), ("+1", '"+1"'), ("NaN", '"NaN"'),
        ("1_000", '"1_000"'), ("٣", '"٣"'), ("true", '"true"'), (" 1", '" 1"'), ("1\n", '"1\\n"'),
    ],
)  # fmt: skip
def test_what_is_a_number(field: str, expected: str) -> None:
    """A field is a number only if JSON would write it so, and then with the very digits of the file."""
    file = io.StringIO(newline="")
    csv.writer(file).writerows([["a", "b"], [field, "x"]])
    file.seek(0)

    [row] = csv_rows(file, None)

    assert row.value.decode() == f'{{"a":{expected},"b":"x"}}'


@given(st.lists(st.lists(st.text(st.characters(codec="utf-8")), min_size=2, max_size=2), max_size=5))
def test_any_text_survives(rows: list[list[str]]) -> None:
    """Whatever a CSV writer writes comes out as JSON with the same text, and the key is the field's text."""
    file = io.StringIO(newline="")
    csv.writer(file).writerows([["a", "b"], *rows])
    lines = Lines(io.BytesIO(file.getvalue().encode()))

    found = list(csv_rows(lines, "a"))

    assert [row.key for row in found] == [row[0].encode() for row in rows]
    assert [
        {name: value if isinstance(value, str) else None for name, value in json.loads(row.value).items()}
        for row in found
    ] == [
        {name: None if _is_number(value) else value for name, value in zip("ab", row, strict=True)} for row in rows
    ]  # fmt: skip


def _is_number(text: str) -> bool:
    try:
        return type(json.loads(text, parse_constant=str)) in (int, float) and text == text.strip()
    except ValueError:
        return False


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        ('{"k":"007"}', "k", b"007"), ('{"k":""}', "k", b""), ('{"k":null}', "k", None), ('{"k":1.50}', "k", b"1.50"),
        ('{"k":false}', "k", b"false"), ("[1]", None, None),
    ],
)  # fmt: skip
def test_keys_of_json_lines(text: str, key: str | None, expected: bytes | None) -> None:
    """The key is the member's text; null makes no key, which is not the same as an empty one."""
    [row] = json_rows([text], key)

    assert row == (1, expected, text.encode())


@pytest.mark.parametrize(
    ("text", "key", "sentence"),
    [
        (b"a,b\n1,2\n1,2,3\n", None, "line 3 has 3 fields where the header has 2"),
        (b"", None, "line 1 must name the columns"),
        (b"a,a\n", None, "line 1 names the column 'a' twice"),
        (b"a,b\n1,2\n", "c", "line 1 has no column 'c', only a, b"),
        (b'a,b\n1,2\n3,"4\n', None, "line 3 is not CSV: unexpected end of data"),
        (b"a,b\n1,\xff\n", None, "line 2 is not UTF-8"),
        (b"a\n" + b"x" * (MAX_LINE_BYTES + 1), None, f"line 2 is longer than {MAX_LINE_BYTES} bytes"),
    ],
)
def test_bad_csv(text: bytes, key: str | None, sentence: str) -> None:
    """Each way in which a CSV file can be wrong names its line."""
    with pytest.raises(BadRow) as bad:
        list(csv_rows(Lines(io.BytesIO(text)), key))

    assert sentence in str(bad.value)


@pytest.mark.parametrize(
    ("text", "key", "sentence"),
    [
        (b'{"a":1}\n{"a":\n', None, "line 2 is not JSON"),
        (b"NaN\n", None, "line 1 is not JSON: NaN is not JSON"),
        (b"[" * 100_000, None, "line 1 is not JSON"),
        (b'\n{"a":1}\n', "b", "line 2 has no 'b'"),
        (b"1\n", "b", "line 1 has no 'b'"),
        (b'{"b":[1]}\n', "b", "line 1 has an object or array in 'b'"),
        (b'{"b":"\\ud800"}\n', "b", "line 1 is not JSON"),
    ],
)
def test_bad_json_lines(text: bytes, key: str | None, sentence: str) -> None:
    """Each way in which a JSON line can be wrong names its line."""
    with pytest.raises(BadRow) as bad:
        list(json_rows(Lines(io.BytesIO(text)), key))

    assert sentence in str(bad.value)


def test_byte_order_mark() -> None:
    """A spreadsheet's byte order mark is no part of the first column's name."""
    [row] = csv_rows(Lines(io.BytesIO(b"\xef\xbb\xbfa,b\r\n1,2\r\n")), "a")

    assert row == (2, b"1", b'{"a":1,"b":2}')
