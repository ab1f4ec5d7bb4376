"""The input, the output and the exit codes of `kafkasse cat`."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import signal
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from kafkasse.commands.cat import Positions
from kafkasse.errors import CommandError
from tests.client.script import Answers, Sends, Serve, chunk, sent_ids
from tests.commands.cat import ID, event
from tests.commands.run import TIMEOUT_S, Run, process

URL = "http://127.0.0.1/t"


def test_prints_one_line_for_each_event(cat: Run, serve: Serve) -> None:
    """The line is the event's data. After --max events, the command exits with 0 and shows the last event ID."""
    server = serve(Sends(b":ok\n\n" + event(0) + event(1) + event(2)))

    done = cat(server.url, "--max", "2")

    assert (0, "0\n1\n") == (done.code, done.out)
    assert shlex.join(["--last-event-id", ID % 2]) in done.err


@pytest.mark.parametrize(
    ("query", "options", "line"),
    [
        ("", [], "GET /t HTTP/1.1"),
        ("?a=b#c", ["--since", "2026-01-31T12:00+01:00"], "GET /t?a=b&since=2026-01-31T12%3A00%2B01%3A00 HTTP/1.1"),
        ("", ["--where", "key=a b", "--where", "field.n=1", "--filter", "value.amount > 10"],
         "GET /t?key=a+b&field.n=1&filter=value.amount+%3E+10 HTTP/1.1"),
    ],
    ids=["no options", "a start", "filters"],
)  # fmt: skip
def test_options_become_parameters(cat: Run, serve: Serve, query: str, options: list[str], line: str) -> None:
    """The other parts of the request are those of an EventSource. The command to resume contains the filters."""
    server = serve(Sends(event(0)))

    done = cat(server.url + query, *options, "--max", "1")

    [sent], [headers] = server.lines, server.requests
    assert (line, "text/event-stream") == (sent, headers["accept"])
    assert headers["user-agent"].startswith("kafkasse/")
    assert "last-event-id" not in headers
    assert "--since" in options or shlex.join(options) in done.err


@pytest.mark.parametrize("output", ["raw", "json", "id"])
def test_a_position_event_is_stored_and_not_printed(cat: Run, serve: Serve, output: str) -> None:
    """A position event has no record. The command resumes from its ID, and --max does not count it."""
    position = b"event: position\ndata: {}\nid: 6\n\n"
    end = b'event: position\ndata: {"snapshot":"complete"}\nid: 7\n\n'
    server = serve(Sends(position + end, "ends"), Sends(position + event(9)))

    done = cat(server.url, "--max", "1", "--output", output, "--last-event-id", "é 1")

    assert 1 == done.out.count("\n")
    assert "{}" not in done.out
    assert "snapshot" not in done.out
    assert ["é 1", "7"] == sent_ids(server)


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        *(([URL, *option], 2, "the form is ") for option in (
            ["-H", "s3cret"], ["-H", ": s3cret"], ["-H", "A: s3cret\nB: c"], ["--cookie", "s3cret"], ["--where", "é=s3cret"]
        )),
        ([URL, "--where", "value=1"], 2, "'value' is not a part of a record: use key, header.NAME or field.NAME."),
        *(([URL, f"--max={count}"], 2, "Invalid value for '--max'") for count in ("0", "-1", "x")),
        *(([URL, "--last-event-id", "1", *more], 2, "--last-event-id needs a single URL, and neither") for more in (
            ["--since", "2026-01-31T12:00:00Z"], ["--position-file", "x"], ["http://127.0.0.1/u"]
        )),
        *(([url], 1, f"kafkasse cat: {url}") for url in (
            "127.0.0.1:1/t", "file:///etc/passwd", "http://", "http://[::1", "http://a:b/"
        )),
    ],
)  # fmt: skip
def test_rejects_what_cannot_work(cat: Run, words: list[str], code: int, sentence: str) -> None:
    """The message is one sentence, after the usage if the usage is wrong. It has no value that may be a secret."""
    done = cat(*words)

    assert code == done.code
    assert sentence in done.err.splitlines()[-1]
    assert code == 2 or 1 == len(done.err.splitlines())
    assert "s3cret" not in done.err


@pytest.mark.parametrize(
    ("data", "member"),
    [
        ('{"area":25.00,"id":9007199254740993}', '{"area":25.00,"id":9007199254740993}'),
        ('{"a":\ndata: 1}', '{"a": 1}'),
        ("not JSON", '"not JSON"'),
    ],
)
def test_json_output_contains_the_data_as_json(cat: Run, serve: Serve, data: str, member: str) -> None:
    """JSON is copied with its digits, on one line. Other text becomes a string."""
    server = serve(Sends(f"id: 7\ndata: {data}\n\n".encode()))

    done = cat(server.url, "--max", "1", "-o", "json")

    assert f'{{"type":"message","id":"7","data":{member}}}\n' == done.out


def test_reads_several_streams(cat: Run, serve: Serve) -> None:
    """Events are printed as they arrive, with their URL in JSON. Each stream resumes after its own last event."""
    first = serve(Sends(event(0), "ends"), Sends(event(1)))
    second = serve(Sends(event(5)))

    done = cat(first.url, second.url, "--max", "3", "-o", "json")

    events = [json.loads(line) for line in done.out.splitlines()]
    assert [(0, first.url), (1, first.url), (5, second.url)] == sorted((each["data"], each["url"]) for each in events)
    assert ID % 1 == first.requests[1]["last-event-id"]
    for url, last_id in ((first.url, ID % 2), (second.url, ID % 6)):
        assert "resume with: " + shlex.join(["kafkasse", "cat", url, "--last-event-id", last_id]) in done.err


def test_ends_if_one_of_several_streams_fails(cat: Run, serve: Serve) -> None:
    first = serve(Sends(event(0)))
    second = serve(Answers(404, "There is no topic x."))

    done = cat(first.url, second.url)

    assert 1 == done.code
    assert done.err.endswith(f"kafkasse cat: {second.url}: the server answered 404: There is no topic x.\n")


def test_a_position_file_continues_where_the_last_run_stopped(cat: Run, serve: Serve, tmp_path: Path) -> None:
    """The second run resumes after the last printed event. --since applies only to a stream without a position."""
    file = tmp_path / "position.json"
    server = serve(Sends(event(0) + event(1), "ends"), Sends(event(1)))

    first, second = (
        cat(server.url, "--position-file", str(file), "--max", "1", "--since", "2026-01-31") for _ in range(2)
    )

    assert ("0\n", "1\n") == (first.out, second.out)
    assert "since=2026-01-31" in server.lines[0]
    assert ("GET /t HTTP/1.1", ID % 1) == (server.lines[1], server.requests[1]["last-event-id"])
    assert {server.url: ID % 2} == json.loads(file.read_text())
    assert f"--position-file {file}" in second.err


def test_a_position_file_keeps_the_positions_of_other_streams(cat: Run, serve: Serve, tmp_path: Path) -> None:
    """Several runs with different URLs can share a file. An error also stores the position."""
    file = tmp_path / "position.json"
    file.write_text('{"http://other/": "9"}')
    server = serve(Sends(event(0) + b'event: error\ndata: {"status":410}\n\n'))

    done = cat(server.url, "--position-file", str(file))

    assert 1 == done.code
    assert {"http://other/": "9", server.url: ID % 1} == json.loads(file.read_text())


def test_a_full_disk_does_not_damage_the_position_file(tmp_path: Path) -> None:
    """The error names the file, which keeps the old positions. A partial file does not stay on the disk."""
    file = tmp_path / "position.json"
    file.write_text('{"http://a": "1"}')
    positions = Positions(file, {"http://a": None})
    positions.ids["http://a"] = "2"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))  # a longer file fails, as on a full disk
    try:
        with pytest.raises(CommandError, match=re.escape(f"the position file {file} cannot be written: ")):
            positions.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert [file] == [*tmp_path.iterdir()]
    assert {"http://a": "1"} == json.loads(file.read_text())


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', "not JSON"])
def test_rejects_another_file_as_position_file(cat: Run, tmp_path: Path, text: str) -> None:
    """The file is not overwritten."""
    file = tmp_path / "notes.txt"
    file.write_text(text)

    done = cat("http://127.0.0.1:1/t", "--position-file", str(file))

    assert (1, text) == (done.code, file.read_text())
    assert f"{file} is not a position file" in done.err


@pytest.mark.processes
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_stores_the_position_when_it_is_stopped(serve: Serve, tmp_path: Path, stop: signal.Signals) -> None:
    """The next run neither repeats nor omits an event that was printed before Ctrl-C or SIGTERM.

    Each event is printed as soon as it arrives.
    """
    file = tmp_path / "position.json"
    server = serve(Sends(event(0) + event(1)))

    with process("cat", server.url, "--position-file", str(file)) as running:
        assert ["0\n", "1\n"] == [running.stdout.readline() for _ in range(2)]
        running.send_signal(stop)
        log = running.communicate(timeout=TIMEOUT_S)[1]

    assert 130 == running.returncode
    # The signal may arrive after the event was printed and before its ID was stored. Then the event is repeated.
    assert json.loads(file.read_text())[server.url] in (ID % 1, ID % 2)
    assert f"resume with: kafkasse cat {server.url} --position-file {file}" == log.splitlines()[-1]


@pytest.mark.parametrize(("variables", "colored"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_gets_pretty_output_in_color(
    cat: Run, serve: Serve, variables: dict[str, str], colored: bool
) -> None:
    """On a terminal, the default is indented and colored. NO_COLOR switches the colors off."""
    server = serve(Sends(b'id: 1\ndata: {"a":1}\n\n'))
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen, os.fdopen(theirs, "w") as terminal:
        with redirect_stdout(terminal):
            done = cat(server.url, "--max", "1", **variables)
        shown = screen.read(1000).decode().replace("\r\n", "\n")

    assert 0 == done.code
    assert 'message  1\n{\n  "a": 1\n}\n' == re.sub("\x1b\\[[0-9]*m", "", shown)
    assert colored == ("\x1b[" in shown)


def test_reports_a_gap_on_stderr(cat: Run, serve: Serve) -> None:
    """A gap is not data, so it is not printed to stdout."""
    gap = b'event: gap\nid: 9\ndata: {"partition":0,"from":1,"to":9}\n\n'
    server = serve(Sends(gap + event(9)))

    done = cat(server.url, "--max", "1")

    assert "9\n" == done.out
    assert 'records are missing: {"partition":0,"from":1,"to":9}\n' in done.err


@pytest.mark.parametrize(
    ("sent", "output", "line"),
    [
        *(("id: 7\nevent: delete\ndata: é\n\n", output, line) for output, line in (
            ("raw", "é"), ("id", "7"), ("json", '{"type":"delete","id":"7","data":"é"}'), ("pretty", "delete  7\né")
        )),
        ('event: position\ndata: {"lat":1}\n\n', "raw", '{"lat":1}'),  # an event of another server
    ],
)  # fmt: skip
def test_prints_the_chosen_format(cat: Run, serve: Serve, sent: str, output: str, line: str) -> None:
    """--output chooses between the data, the ID, the whole event, and text for people."""
    server = serve(Sends(sent.encode()))

    assert line + "\n" == cat(server.url, "--max", "1", "--output", output).out


@pytest.mark.processes
def test_exits_silently_if_the_pipe_is_closed(serve: Serve) -> None:
    """When the reader of the pipe exits, as `head` does, the command ends without an error."""
    server = serve(Sends(event(0)))

    with process("cat", server.url) as running:
        assert "0\n" == running.stdout.readline()
        running.stdout.close()
        server.connections[0].sendall(chunk(event(1)))
        log = running.stderr.read()

    assert (0, f"connected to {server.url}\n") == (running.returncode, log)


@pytest.mark.processes
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_reports_a_full_disk(serve: Serve) -> None:
    server = serve(Sends(event(0)))

    with Path("/dev/full").open("wb") as full, process("cat", server.url, stdout=full) as running:
        log = running.communicate(timeout=TIMEOUT_S)[1]

    assert 1 == running.returncode
    assert "kafkasse cat: cannot write to stdout: No space left on device" == log.splitlines()[-1]
