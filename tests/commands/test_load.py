"""`kafkasse load` with a real broker: the records in Kafka and the messages on the terminal."""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkasse.commands.load import MAX_LINE_BYTES, BadRow, Lines, csv_rows, json_rows
from kafkasse.tools.broker import EmbeddedBroker
from tests.commands.run import TIMEOUT_S, Done, Run, process
from tests.support.kafka import Cluster
from tests.support.waiting import wait_until

FULL = Path("/dev/full")
COUNTRIES = Path(__file__).parents[2] / "kafkasse" / "assets" / "data" / "countries.csv"
Load = Callable[..., Done]


@pytest.fixture
def load(run: Run, broker: EmbeddedBroker) -> Load:
    return lambda *words: run("load", "--bootstrap-servers", broker.bootstrap_servers, *map(str, words))


@pytest.fixture
def topic(cluster: Cluster, fresh_name: str) -> str:
    return cluster.create(fresh_name, 2)


def test_writes_each_row_as_a_record(load, cluster, topic):
    """Each country becomes a JSON record with its code as the key. The summary reports every record."""
    done = load(COUNTRIES, "--topic", topic, "--key", "code", "--rate", "1000")

    assert 0 == done.code, done.err
    records = cluster.records(topic, 2)
    with COUNTRIES.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {record.key.decode() for record in records} == {row["code"] for row in rows}
    namibia = next(json.loads(record.value) for record in records if record.key == b"NA")
    assert namibia == {
        "name": "Namibia", "code": "NA", "continent": "Africa", "population": 2448255, "size": 825418
    }  # fmt: skip
    summary = done.out.splitlines()
    assert summary[0] == f"{len(rows)} rows acknowledged in topic {topic}"
    for partition in (0, 1):
        offsets = [record.offset for record in records if record.partition == partition]
        assert f"  partition {partition}: offsets {min(offsets)} to {max(offsets)}" in summary


def test_writes_json_lines_from_stdin_unchanged(load, cluster, topic, tmp_path, monkeypatch):
    """JSON lines keep their bytes. Without --key, the records have no key."""
    line = b'{"n": 9007199254740993, "x": 25.00, "text": "\xc3\xa9"}'
    (tmp_path / "stdin").write_bytes(line + b"\n\n" + line)

    with (tmp_path / "stdin").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        done = load("-", "--topic", topic)

    assert 0 == done.code, done.err
    assert [(record.key, record.value) for record in cluster.records(topic, 2)] == [(None, line)] * 2


def test_stops_before_an_invalid_row(load, cluster, topic, tmp_path):
    """The error contains the line number. The rows before the invalid row are sent, the rows after it are not."""
    file = tmp_path / "bad.csv"
    file.write_text('a,b\n1,"two\nlines"\n3\n4,5\n')

    done = load(file, "--topic", topic)

    assert 1 == done.code
    assert "line 4 has 1 fields where the header has 2; stopped before sending this row, 1 row acknowledged" in done.err
    assert "load only this row and the rows after it" in done.err
    assert [json.loads(record.value) for record in cluster.records(topic, 2)] == [{"a": 1, "b": "two\nlines"}]


def test_reports_a_record_that_kafka_rejects(load, cluster, fresh_name, tmp_path):
    """A record that is too large for the topic is a failure."""
    cluster.create(fresh_name, max_message_bytes="1000")
    file = tmp_path / "large.jsonl"
    file.write_text(json.dumps("x" * 5000) + "\n")

    done = load(file, "--topic", fresh_name)

    assert 1 == done.code
    assert "Kafka did not acknowledge 1 row (" in done.err
    assert "0 rows acknowledged" in done.err


def test_creates_a_topic_only_on_request(load, cluster, topic):
    """A missing topic is an error, with the similar name. --create creates it with the given number of partitions."""
    missing = load(COUNTRIES, "--topic", f"{topic}x")

    done = load(COUNTRIES, "--topic", f"{topic}x", "--create", "3")

    assert 1 == missing.code
    assert f"topic {topic}x does not exist (did you mean {topic}?)" in missing.err
    assert 0 == done.code, done.err
    assert 252 == len(cluster.records(f"{topic}x", 3))


def test_commands_add_the_prefix_of_all_topics(run, broker, cluster, fresh_name):
    """The server adds topic_prefix, too."""
    settings = {"BOOTSTRAP_SERVERS": broker.bootstrap_servers, "TOPIC_PREFIX": f"{fresh_name}."}
    variables = {f"KAFKASSE_{name}": value for name, value in settings.items()}

    created = run("topics", "create", "a", **variables)
    loaded = run("load", str(COUNTRIES), "--topic", "a", **variables)
    listed = run("topics", "--json", **variables)

    assert (0, "a: created\n", 0) == (*created[:2], loaded.code)
    assert 252 == len(cluster.records(f"{fresh_name}.a", 1))
    assert ("a", 1) == (json.loads(listed.out)["topic"], json.loads(listed.out)["partitions"])


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_waits_for_acknowledgments_after_an_interruption(broker, cluster, topic, stop):
    """Ctrl-C and SIGTERM stop the command with exit code 130. It reports what Kafka acknowledged."""
    words = "load", "--bootstrap-servers", broker.bootstrap_servers, "-", "--topic", topic
    with process(*words, stdin=subprocess.PIPE) as loading:
        loading.stdin.write('{"a":1}\n' * 3)
        loading.stdin.flush()
        wait_until(lambda: cluster.records(topic, 2))

        loading.send_signal(stop)
        out, err = loading.communicate(timeout=TIMEOUT_S)

    assert 130 == loading.returncode, err
    assert f"rows acknowledged in topic {topic}" in out


@pytest.mark.skipif(not FULL.exists(), reason="only Linux has a device that is full")
def test_a_stderr_that_cannot_be_written_does_not_end_the_command(broker, cluster, topic):
    """The progress is lost, but all rows are loaded and reported."""
    words = "load", "--bootstrap-servers", broker.bootstrap_servers, str(COUNTRIES), "--topic", topic
    with FULL.open("w") as stderr, process(*words, stderr=stderr) as loading:
        out = loading.communicate(timeout=TIMEOUT_S)[0]

    assert 0 == loading.returncode
    assert f"252 rows acknowledged in topic {topic}" == out.splitlines()[0]


@pytest.mark.parametrize(("words", "sentence"), [
    (["missing.csv", "--bootstrap-servers", "127.0.0.1:1"], "cannot read missing.csv: No such file"),
    (["-", "--bootstrap-servers", "127.0.0.1:1"], "stdin is closed; pipe JSON lines to the command, or pass a file\n"),
    (["x.xlsx", "--bootstrap-servers", "127.0.0.1:1"], "the format of x.xlsx is unknown: use a .csv, .jsonl or"),
    ([str(COUNTRIES), "--bootstrap-servers", "127.0.0.1:1"],
     "cannot reach Kafka at 127.0.0.1:1 within 0 s; start it, or pass another address with --bootstrap-servers\n"),
    ([str(COUNTRIES)],
     "cannot reach Kafka at 127.0.0.1:2 within 0 s; start it, or pass another address with --bootstrap-servers. "
     "`kafkasse broker` starts a Kafka for development\n"),
])  # fmt: skip
def test_a_failure_is_one_sentence(run, monkeypatch, words, sentence):
    """The file is checked before the command connects. An address that does not answer is named, also the default one."""
    monkeypatch.setattr(sys, "stdin", None)  # as with `<&-`
    monkeypatch.setattr("kafkasse.config.kafka.BOOTSTRAP_DEFAULT", "127.0.0.1:2")
    monkeypatch.setattr("kafkasse.commands.kafka_clients.BOOTSTRAP_TIMEOUT_S", 0.3)

    code, _, err = run("load", *words, "--topic", "t")

    assert (1, 1) == (code, len(err.splitlines()))
    assert err.startswith(f"kafkasse load: {sentence}")


@pytest.mark.parametrize(("field", "expected"), [
    ("25.00", "25.00"), ("9007199254740993", "9007199254740993"), ("-1e5", "-1e5"), ("0", "0"),
    ("007", '"007"'), ("NA", '"NA"'), ("", '""'), ("1.", '"1."'), (".5", '".5"'), ("+1", '"+1"'), ("NaN", '"NaN"'),
    ("1_000", '"1_000"'), ("٣", '"٣"'), ("true", '"true"'), (" 1", '" 1"'), ("1\n", '"1\\n"'),
])  # fmt: skip
def test_keeps_the_digits_of_a_number(field, expected):
    """A CSV field that is a JSON number keeps its text. Any other field becomes a string."""
    file = io.StringIO(newline="")
    csv.writer(file).writerows([["a", "b"], [field, "x"]])
    file.seek(0)

    [row] = csv_rows(file, None)

    assert row.value.decode() == f'{{"a":{expected},"b":"x"}}'


def test_a_csv_field_may_be_larger_than_128_kib():
    [row] = csv_rows(["a\n", "x" * 200_000], None)

    assert 200_000 < len(row.value)


@given(st.lists(st.lists(st.text(st.characters(codec="utf-8")), min_size=2, max_size=2), max_size=5))
def test_converts_any_csv_file_without_loss(rows):
    """The JSON contains the text of each CSV field, and the key is the text of the key's column."""
    file = io.StringIO(newline="")
    csv.writer(file).writerows([["a", "b"], *rows])
    lines = Lines(io.BytesIO(file.getvalue().encode()))

    records = list(csv_rows(lines, "a"))

    assert [row.key for row in records] == [row[0].encode() for row in rows]
    assert [
        {name: value if isinstance(value, str) else None for name, value in json.loads(row.value).items()}
        for row in records
    ] == [
        {name: None if _is_number(value) else value for name, value in zip("ab", row, strict=True)} for row in rows
    ]  # fmt: skip


def _is_number(text: str) -> bool:
    try:
        return type(json.loads(text, parse_constant=str)) in (int, float) and text == text.strip()
    except ValueError:
        return False


@pytest.mark.parametrize(("text", "key", "expected"), [
    ('{"k":"007"}', "k", b"007"), ('{"k":""}', "k", b""), ('{"k":null}', "k", None), ('{"k":1.50}', "k", b"1.50"),
    ('{"k":false}', "k", b"false"), ("[1]", None, None),
])  # fmt: skip
def test_takes_the_key_from_a_member(text, key, expected):
    """The key is the member's text. If the member is null, there is no key, which differs from an empty key."""
    [row] = json_rows([text], key)

    assert row == (1, expected, text.encode())


@pytest.mark.parametrize(
    ("rows", "text", "key", "sentence"),
    [
        (csv_rows, b"a,b\n1,2\n1,2,3\n", None, "line 3 has 3 fields where the header has 2"),
        (csv_rows, b'a\n"' + b"x\n" * (MAX_LINE_BYTES // 2) + b'x"', None, "line 2 is not CSV: field larger than"),
        (csv_rows, b"", None, "line 1 must name the columns"),
        (csv_rows, b"a,a\n", None, "line 1 names the column 'a' twice"),
        (csv_rows, b"a,b\n1,2\n", "c", "line 1 has no column 'c', only a, b"),
        (csv_rows, b'a,b\n1,2\n3,"4\n', None, "line 3 is not CSV: unexpected end of data"),
        (csv_rows, b"a,b\n1,\xff\n", None, "line 2 is not UTF-8"),
        (csv_rows, b"a\n" + b"x" * (MAX_LINE_BYTES + 1), None, f"line 2 is longer than {MAX_LINE_BYTES} bytes"),
        (json_rows, b'{"a":1}\n{"a":\n', None, "line 2 is not JSON"),
        (json_rows, b"NaN\n", None, "line 1 is not JSON: NaN is not JSON"),
        (json_rows, b"[" * 100_000, None, "line 1 is not JSON"),
        (json_rows, b'\n{"a":1,"c":2}\n', "b", "line 2 has no 'b', only a, c"),
        (json_rows, b"1\n", "b", "line 1 is not an object, so it has no 'b'"),
        (json_rows, b'{"b":[1]}\n', "b", "line 1 has an object or array in 'b'"),
        (json_rows, b'{"b":"\\ud800"}\n', "b", "line 1 is not JSON"),
    ],
)
def test_names_the_invalid_line(rows, text, key, sentence):
    """The error contains the line number and the reason."""
    with pytest.raises(BadRow) as error:
        list(rows(Lines(io.BytesIO(text)), key))

    assert sentence in str(error.value)


def test_ignores_a_byte_order_mark():
    """A byte order mark, which spreadsheets write, is not part of the first column's name."""
    [row] = csv_rows(Lines(io.BytesIO(b"\xef\xbb\xbfa,b\r\n1,2\r\n")), "a")

    assert row == (2, b"1", b'{"a":1,"b":2}')
