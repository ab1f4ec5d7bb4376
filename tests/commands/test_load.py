"""`kafkasse load` as a process with a real broker: the records in Kafka and the messages on the terminal."""

from __future__ import annotations

import csv
import json
import logging
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition

from kafkasse.broker import EmbeddedBroker
from kafkasse.commands import main

COUNTRIES = Path(__file__).parents[2] / "kafkasse" / "data" / "countries.csv"


def load(broker: EmbeddedBroker, *args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command(broker, *args), input=stdin, capture_output=True, timeout=120)


def command(broker: EmbeddedBroker, *args: str) -> list[str]:
    return [sys.executable, "-m", "kafkasse", "load", "--bootstrap-servers", broker.bootstrap_servers, *args]


@pytest.fixture
def topic(broker: EmbeddedBroker, fresh_name: str) -> Iterator[str]:
    """A topic with two partitions."""
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    admin.create_topics({fresh_name: {"num_partitions": 2, "replication_factor": 1}}, wait_for_metadata=True)
    yield fresh_name
    admin.delete_topics([fresh_name])
    admin.close()


def records(broker: EmbeddedBroker, topic: str, partitions: int = 2) -> list[Any]:
    """Return all records of a topic."""
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest")
    all_partitions = [TopicPartition(topic, partition) for partition in range(partitions)]
    consumer.assign(all_partitions)
    ends = consumer.end_offsets(all_partitions)
    found: list[Any] = []
    while any(consumer.position(each) < ends[each] for each in all_partitions):
        for batch in consumer.poll(timeout_ms=1000).values():
            found += batch
    consumer.close()
    return found


def test_writes_each_row_as_a_record(broker: EmbeddedBroker, topic: str) -> None:
    """Each country becomes a JSON record with its code as the key. The summary reports every record."""
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
    summary = done.stdout.decode().splitlines()
    assert summary[0] == f"{len(rows)} rows acknowledged in topic {topic}"
    for partition in (0, 1):
        offsets = [record.offset for record in found if record.partition == partition]
        assert f"  partition {partition}: offsets {min(offsets)} to {max(offsets)}" in summary


def test_writes_json_lines_from_stdin_unchanged(broker: EmbeddedBroker, topic: str) -> None:
    """JSON lines keep their bytes. Without --key, the records have no key."""
    line = b'{"n": 9007199254740993, "x": 25.00, "text": "\xc3\xa9"}'

    done = load(broker, "-", "--topic", topic, stdin=line + b"\n\n" + line)

    assert done.returncode == 0, done.stderr
    assert [(record.key, record.value) for record in records(broker, topic)] == [(None, line)] * 2


def test_stops_before_an_invalid_row(broker: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    """The error contains the line number. The rows before the invalid row are sent, the rows after it are not."""
    file = tmp_path / "bad.csv"
    file.write_text('a,b\n1,"two\nlines"\n3\n4,5\n')

    done = load(broker, str(file), "--topic", topic)

    assert done.returncode == 1
    assert (
        b"line 4 has 1 fields where the header has 2; stopped before sending this row, 1 rows acknowledged"
        in done.stderr
    )
    assert [json.loads(record.value) for record in records(broker, topic)] == [{"a": 1, "b": "two\nlines"}]


def test_reports_a_record_that_kafka_rejects(broker: EmbeddedBroker, fresh_name: str, tmp_path: Path) -> None:
    """A record that is too large for the topic is a failure."""
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    admin.create_topics({fresh_name: {"configs": {"max.message.bytes": "1000"}}}, wait_for_metadata=True)
    admin.close()
    file = tmp_path / "large.jsonl"
    file.write_text(json.dumps("x" * 5000) + "\n")

    done = load(broker, str(file), "--topic", fresh_name)

    assert done.returncode == 1
    assert b"Kafka did not acknowledge 1 more rows" in done.stderr
    assert b"0 rows acknowledged" in done.stderr


def test_suggests_the_topic_with_a_similar_name(broker: EmbeddedBroker, topic: str) -> None:
    """A mistyped topic does not exist, and the message contains the right name."""
    done = load(broker, str(COUNTRIES), "--topic", f"{topic}x")

    assert f"topic {topic}x does not exist (did you mean {topic}?)".encode() in done.stderr


def test_creates_a_topic_only_on_request(broker: EmbeddedBroker, fresh_name: str) -> None:
    """A missing topic is an error. --create creates it with the given number of partitions."""
    args = str(COUNTRIES), "--topic", fresh_name
    done = load(broker, *args)
    assert done.returncode == 1
    assert f"topic {fresh_name} does not exist".encode() in done.stderr

    done = load(broker, *args, "--create", "3")

    assert done.returncode == 0, done.stderr
    assert len(records(broker, fresh_name, 3)) == 252


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_waits_for_acknowledgments_after_an_interruption(
    broker: EmbeddedBroker, topic: str, stop: signal.Signals
) -> None:
    """Ctrl-C and SIGTERM stop the command with exit code 130. It reports what Kafka acknowledged."""
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


@pytest.fixture
def failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., str]]:
    """Runs `kafkasse load` in this process and returns the sentence that it fails with."""

    def failure(*args: str) -> str:
        assert 1 == main(["load", *args])
        (sentence,) = capsys.readouterr().err.splitlines()
        return sentence

    log = logging.getLogger("kafka")
    level = log.level
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # the command would change the handlers of this process
    monkeypatch.setattr("kafkasse.commands.load.BOOTSTRAP_TIMEOUT_S", 0.5)
    yield failure
    log.setLevel(level)


def test_names_the_kafka_that_does_not_answer(failure: Callable[..., str]) -> None:
    """If no broker listens, the error contains the address and how to change it."""
    sentence = failure(str(COUNTRIES), "--topic", "t", "--bootstrap-servers", "127.0.0.1:1")

    assert sentence.startswith("kafkasse load: cannot reach Kafka at 127.0.0.1:1")
    assert "--bootstrap-servers" in sentence


def test_names_the_default_address_if_none_is_set(failure: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkasse.config.kafka.BOOTSTRAP_DEFAULT", "127.0.0.1:1")

    sentence = failure(str(COUNTRIES), "--topic", "t")

    assert sentence.startswith("kafkasse load: cannot reach Kafka at 127.0.0.1:1")


@pytest.mark.parametrize(
    ("file", "reason"),
    [("missing.csv", "cannot read missing.csv: No such file"), ("x.xlsx", "use a .csv, .jsonl or .ndjson file")],
)
def test_checks_the_file_before_it_connects(failure: Callable[..., str], file: str, reason: str) -> None:
    """A missing file and an unknown format are errors even if Kafka does not answer."""
    assert reason in failure(file, "--topic", "t", "--bootstrap-servers", "127.0.0.1:1")
