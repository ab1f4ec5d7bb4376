"""The input, the output and the exit codes of `kafkasse cat`."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkasse.commands.cat import Positions
from kafkasse.errors import CommandError
from tests.commands.cat import (
    ID,
    RETRY_SOON,
    TIMEOUT_S,
    Server,
    command,
    environment,
    event,
    rejection,
    run_cat,
    running,
    stream,
)

pytestmark = pytest.mark.processes


def test_prints_one_line_for_each_event(serve: Callable[..., Server]) -> None:
    """The line is the event's data. After --max events, the command exits with 0 and shows the last event ID."""
    server = serve(stream(b":ok\n\n" + event(0) + event(1) + event(2), end="hold"))

    done = run_cat(server.url, "--max", "2")

    assert (0, "0\n1\n") == (done.returncode, done.stdout)
    assert shlex.join(["--last-event-id", ID % 2]) in done.stderr


def test_sends_the_request_of_an_event_source(serve: Callable[..., Server]) -> None:
    """The request accepts an event stream, names its user agent, and has no Last-Event-ID until there is one."""
    server = serve(stream(event(0), end="hold"))

    run_cat(server.url, "--max", "1")

    (request,) = server.requests
    assert "GET /t HTTP/1.1" == request.line
    assert "text/event-stream" == request.headers["accept"]
    assert request.headers["user-agent"].startswith("kafkasse/")
    assert "last-event-id" not in request.headers


def test_starts_at_the_requested_position(serve: Callable[..., Server]) -> None:
    """--last-event-id becomes a header in UTF-8. --since is added to the query."""
    server = serve(stream(event(0)), stream(event(0), end="hold"))

    run_cat(server.url, "--max", "1", "--last-event-id", "é 1")
    run_cat(server.url + "?a=b#c", "--max", "1", "--since", "2026-01-31T12:00:00+01:00")

    assert "é 1" == server.requests[0].headers["last-event-id"].encode("latin-1").decode()
    assert "GET /t?a=b&since=2026-01-31T12%3A00%3A00%2B01%3A00 HTTP/1.1" == server.requests[1].line


@pytest.mark.parametrize("output", ["raw", "json", "id"])
def test_a_position_event_is_stored_and_not_printed(serve: Callable[..., Server], output: str) -> None:
    """A position event has no record. The command resumes from its ID, and --max does not count it."""
    position = b"event: position\ndata: {}\nid: 6\n\n"
    end = b'event: position\ndata: {"snapshot":"complete"}\nid: 7\n\n'
    server = serve(stream(RETRY_SOON + position + end), stream(position + event(9), end="hold"))

    done = run_cat(server.url, "--max", "1", "--output", output)

    assert 1 == done.stdout.count("\n")
    assert "{}" not in done.stdout
    assert "snapshot" not in done.stdout
    assert "7" == server.requests[1].headers["last-event-id"]


def test_prints_a_position_event_of_another_server(serve: Callable[..., Server]) -> None:
    """Another server may use the name `position` for events with data."""
    server = serve(stream(b'event: position\ndata: {"lat":1}\n\n', end="hold"))

    assert '{"lat":1}\n' == run_cat(server.url, "--max", "1").stdout


@pytest.mark.parametrize(
    "option",
    [["-H", "s3cret"], ["-H", ": s3cret"], ["-H", "A: s3cret\nB: c"], ["--cookie", "s3cret"], ["--where", "é=s3cret"]],
)
def test_rejects_an_invalid_header(option: list[str]) -> None:
    """The message has the form, but not the value, which may be a secret."""
    done = run_cat("http://127.0.0.1/t", *option)

    assert 2 == done.returncode
    assert "the form is " in done.stderr
    assert "s3cret" not in done.stderr


def test_rejects_a_condition_that_the_server_would_ignore() -> None:
    """A condition names a part of a record."""
    done = run_cat("http://127.0.0.1/t", "--where", "value=1")

    assert 2 == done.returncode
    assert "'value' is not a part of a record: use key, header.NAME or field.NAME." in done.stderr


def test_filters_become_parameters(serve: Callable[..., Server]) -> None:
    """The command to resume contains the filters, too."""
    server = serve(stream(event(0), end="hold"))

    filters = ["--where", "key=a b", "--where", "field.n=1", "--filter", "value.amount > 10"]
    done = run_cat(server.url, *filters, "--max", "1")

    assert "GET /t?key=a+b&field.n=1&filter=value.amount+%3E+10 HTTP/1.1" == server.requests[0].line
    assert shlex.join(filters) in done.stderr


@pytest.mark.parametrize(
    ("data", "member"),
    [
        ('{"area":25.00,"id":9007199254740993}', '{"area":25.00,"id":9007199254740993}'),
        ('{"a":\ndata: 1}', '{"a": 1}'),
        ("not JSON", '"not JSON"'),
    ],
)
def test_json_output_contains_the_data_as_json(serve: Callable[..., Server], data: str, member: str) -> None:
    """JSON is copied with its digits, on one line. Other text becomes a string."""
    server = serve(stream(f"id: 7\ndata: {data}\n\n".encode(), end="hold"))

    done = run_cat(server.url, "--max", "1", "-o", "json")

    assert f'{{"type":"message","id":"7","data":{member}}}\n' == done.stdout


def test_reads_several_streams(serve: Callable[..., Server]) -> None:
    """Events are printed as they arrive, with their URL in JSON. Each stream resumes after its own last event."""
    first = serve(stream(RETRY_SOON + event(0)), stream(event(1), end="hold"))
    second = serve(stream(event(5), end="hold"))

    done = run_cat(first.url, second.url, "--max", "3", "-o", "json", PYTHONUTF8="1")

    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(0, first.url), (1, first.url), (5, second.url)] == sorted((each["data"], each["url"]) for each in events)
    assert ID % 1 == first.requests[1].headers["last-event-id"]
    for url, last_id in ((first.url, ID % 2), (second.url, ID % 6)):
        assert "resume with: " + shlex.join(["kafkasse", "cat", url, "--last-event-id", last_id]) in done.stderr


def test_ends_if_one_of_several_streams_fails(serve: Callable[..., Server]) -> None:
    """A permanent error of one stream ends the command."""
    first = serve(stream(event(0), end="hold"))
    second = serve(rejection("404 Not Found", {"detail": "There is no topic x."}))

    done = run_cat(first.url, second.url, PYTHONUTF8="1")

    assert 1 == done.returncode
    assert done.stderr.endswith(f"kafkasse cat: {second.url}: the server answered 404: There is no topic x.\n")


def test_a_position_file_continues_where_the_last_run_stopped(serve: Callable[..., Server], tmp_path: Path) -> None:
    """The second run resumes after the last printed event. --since applies only to a stream without a position."""
    file = tmp_path / "position.json"
    server = serve(stream(event(0) + event(1)), stream(event(1), end="hold"))

    first = run_cat(server.url, "--position-file", str(file), "--max", "1", "--since", "2026-01-31")
    second = run_cat(server.url, "--position-file", str(file), "--max", "1", "--since", "2026-01-31")

    assert ("0\n", "1\n") == (first.stdout, second.stdout)
    assert "since=2026-01-31" in server.requests[0].line
    assert ("GET /t HTTP/1.1", ID % 1) == (server.requests[1].line, server.requests[1].headers["last-event-id"])
    assert {server.url: ID % 2} == json.loads(file.read_text())
    assert f"--position-file {file}" in second.stderr


def test_a_position_file_keeps_the_positions_of_other_streams(serve: Callable[..., Server], tmp_path: Path) -> None:
    """Several runs with different URLs can share a file. An error also stores the position."""
    file = tmp_path / "position.json"
    file.write_text('{"http://other/": "9"}')
    server = serve(stream(event(0) + b'event: error\ndata: {"status":410}\n\n', end="hold"))

    done = run_cat(server.url, "--position-file", str(file))

    assert 1 == done.returncode
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
def test_rejects_another_file_as_position_file(tmp_path: Path, text: str) -> None:
    """The file is not overwritten."""
    file = tmp_path / "notes.txt"
    file.write_text(text)

    done = run_cat("http://127.0.0.1:1/t", "--position-file", str(file))

    assert (1, text) == (done.returncode, file.read_text())
    assert f"{file} is not a position file" in done.stderr


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_stores_the_position_when_it_is_stopped(
    serve: Callable[..., Server], tmp_path: Path, stop: signal.Signals
) -> None:
    """The next run neither repeats nor omits an event that was printed before Ctrl-C or SIGTERM."""
    file = tmp_path / "position.json"
    server = serve(stream(event(0) + event(1), end="hold"))

    with running(server.url, "--position-file", str(file)) as process:
        assert process.stdout is not None
        assert ["0\n", "1\n"] == [process.stdout.readline() for _ in range(2)]
        process.send_signal(stop)
        process.wait(TIMEOUT_S)

    assert 130 == process.returncode
    assert json.loads(file.read_text())[server.url] in (ID % 1, ID % 2)  # see test_ctrl_c_shows_how_to_resume


@pytest.mark.parametrize(("variables", "colored"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_gets_pretty_output_in_color(
    serve: Callable[..., Server], variables: dict[str, str], colored: bool
) -> None:
    """On a terminal, the default is indented and colored. NO_COLOR switches the colors off."""
    server = serve(stream(b'id: 1\ndata: {"a":1}\n\n', end="hold"))
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen, os.fdopen(theirs, "wb") as terminal:
        done = subprocess.run(
            command(server.url, "--max", "1"),
            stdout=terminal, stderr=subprocess.PIPE, timeout=TIMEOUT_S, env=environment(**variables),
        )  # fmt: skip
        shown = screen.read(1000).decode().replace("\r\n", "\n")

    assert 0 == done.returncode
    assert 'message  1\n{\n  "a": 1\n}\n' == re.sub("\x1b\\[[0-9]*m", "", shown)
    assert colored == ("\x1b[" in shown)


def test_reports_a_gap_on_stderr(serve: Callable[..., Server]) -> None:
    """A gap is not data, so it is not printed to stdout."""
    gap = b'event: gap\nid: 9\ndata: {"partition":0,"from":1,"to":9}\n\n'
    server = serve(stream(gap + event(9), end="hold"))

    done = run_cat(server.url, "--max", "1")

    assert "9\n" == done.stdout
    assert 'records are missing: {"partition":0,"from":1,"to":9}\n' in done.stderr


@pytest.mark.parametrize(
    ("output", "line"),
    [("raw", "é"), ("id", "7"), ("json", '{"type":"delete","id":"7","data":"é"}'), ("pretty", "delete  7\né")],
)
def test_prints_the_chosen_format(serve: Callable[..., Server], output: str, line: str) -> None:
    """--output chooses between the data, the ID, the whole event, and text for people."""
    server = serve(stream("id: 7\nevent: delete\ndata: é\n\n".encode(), end="hold"))

    assert line + "\n" == run_cat(server.url, "--max", "1", "--output", output).stdout


def test_ctrl_c_shows_how_to_resume(serve: Callable[..., Server]) -> None:
    """Each event is printed as soon as it arrives. After Ctrl-C, the command to resume loses no event."""
    server = serve(stream(event(0) + event(1), end="hold"))

    with running(server.url) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert ["0\n", "1\n"] == [process.stdout.readline() for _ in range(2)]
        process.send_signal(signal.SIGINT)
        last = process.stderr.read().splitlines()[-1]

    assert 130 == process.returncode
    # The signal may arrive after the event was printed and before its ID was stored. Then the event is repeated.
    expected = [
        "resume with: " + shlex.join(["kafkasse", "cat", server.url, "--last-event-id", ID % n]) for n in (1, 2)
    ]
    assert last in expected


def test_exits_silently_if_the_pipe_is_closed(serve: Callable[..., Server]) -> None:
    """When the reader of the pipe exits, as `head` does, the command ends without an error."""
    server = serve(stream(event(0), end="hold"))

    with running(server.url) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "0\n" == process.stdout.readline()
        process.stdout.close()
        server.send(event(1))
        log = process.stderr.read()

    assert (0, f"connected to {server.url}\n") == (process.returncode, log)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_reports_a_full_disk(serve: Callable[..., Server]) -> None:
    """If an event cannot be written, the command ends with the reason."""
    server = serve(stream(event(0), end="hold"))

    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command(server.url), stdout=full, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S, env=environment()
        )

    assert 1 == done.returncode
    assert "kafkasse cat: cannot write to stdout: No space left on device" == done.stderr.splitlines()[-1]


@pytest.mark.parametrize("url", ["127.0.0.1:1/t", "file:///etc/passwd", "http://", "http://[::1", "http://a:b/"])
def test_rejects_an_invalid_url(url: str) -> None:
    """An invalid URL is an error in one line. The command does not retry."""
    done = run_cat(url)

    assert (1, 1) == (done.returncode, len(done.stderr.splitlines()))
    assert done.stderr.startswith(f"kafkasse cat: {url}")


def test_rejects_two_start_positions() -> None:
    """--last-event-id contradicts --since and --position-file, and is the position of a single stream."""
    for more in (["--since", "2026-01-31T12:00:00Z"], ["--position-file", "x"], ["http://127.0.0.1/u"]):
        done = run_cat("http://127.0.0.1/t", "--last-event-id", "1", *more)

        assert 2 == done.returncode
        assert "--last-event-id needs a single URL, and neither --since nor --position-file." in done.stderr


@pytest.mark.parametrize("count", ["0", "-1", "x"])
def test_rejects_an_invalid_count(count: str) -> None:
    """--max is a number of at least 1."""
    assert 2 == run_cat("http://127.0.0.1/t", f"--max={count}").returncode
