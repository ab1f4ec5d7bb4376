"""`kafkasse cat` against a server. Each test chooses the server's responses, errors and interruptions."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.client import parse_headers
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import gevent
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kafkasse.commands import main

pytestmark = pytest.mark.processes

TIMEOUT_S = 60  # for a whole run of the command, so that a hang becomes a failure
RETRY_SOON = b"retry: 1\n\n"  # otherwise the client waits a second before it reconnects
ID = '[{"topic":"t","partition":0,"offset":%d}]'


class Response(NamedTuple):
    """The bytes that a connection receives, and how it ends: "close", "reset" or "hold" (it stays open)."""

    text: bytes
    end: str = "close"


class StreamRequest(NamedTuple):
    """A request line and the headers, with lower-case names."""

    line: str
    headers: dict[str, str]


class Server:
    """Sends each connection the next response. After the last response, it stops listening."""

    def __init__(self, *responses: Response, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[StreamRequest] = []
        self._responses = responses
        self._tls = tls
        self._held: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}/t"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def send(self, text: bytes) -> None:
        """Send more bytes to the connection that is held open."""
        self._held[-1].sendall(text)

    def close(self) -> None:
        self._listener.close()
        for connection in self._held:
            connection.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError), self._listener:
            for response in self._responses:
                connection, _ = self._listener.accept()
                # A client that does not trust the certificate disconnects during the handshake.
                with contextlib.suppress(OSError):
                    self._respond(
                        self._tls.wrap_socket(connection, server_side=True) if self._tls else connection, response
                    )

    def _respond(self, connection: socket.socket, response: Response) -> None:
        with connection.makefile("rb") as lines:
            line = lines.readline().decode("latin-1").rstrip()
            headers = parse_headers(lines).items()
        self.requests.append(StreamRequest(line, {name.lower(): value for name, value in headers}))
        if response.end == "hold":
            self._held.append(connection)
        connection.sendall(response.text)
        if response.end == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if response.end != "hold":
            connection.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    with contextlib.ExitStack() as servers:

        def start(*responses: Response, tls: ssl.SSLContext | None = None) -> Server:
            return servers.enter_context(contextlib.closing(Server(*responses, tls=tls)))

        yield start


def stream(body: bytes, end: str = "close") -> Response:
    return Response(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\r\n" + body, end)


def chunked(*chunks: bytes, rest: bytes = b"0\r\n\r\n") -> Response:
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    headers = b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return Response(b"HTTP/1.1 200 OK\r\n" + headers + body + rest)


def rejection(status: str, problem: object, *headers: str) -> Response:
    body = json.dumps(problem)
    head = [f"HTTP/1.1 {status}", "content-type: application/problem+json", f"content-length: {len(body)}", *headers]
    return Response(("\r\n".join(head) + "\r\n\r\n" + body).encode())


def event(number: int) -> bytes:
    return f"event: message\ndata: {number}\nid: {ID % (number + 1)}\n\n".encode()


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "kafkasse", "cat", *arguments]


def environment(**more: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return inherited | more


def run_cat(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command until it exits: in this process, which is faster, or with `variables` in a new one."""
    if variables:
        return subprocess.run(
            command(*arguments), capture_output=True, text=True, timeout=TIMEOUT_S, env=environment(**variables)
        )
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with (
        mock.patch("os.environ", environment()),
        mock.patch("urllib.request._opener", None),  # it remembers the proxies of an earlier environment
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        gevent.Timeout(TIMEOUT_S),
    ):
        code = main(["cat", *arguments])
    out.seek(0)
    return subprocess.CompletedProcess(arguments, code, out.read(), err.getvalue())


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


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


@pytest.mark.parametrize(
    "first",
    [
        stream(RETRY_SOON + event(0) + event(1)[:-1]),
        stream(RETRY_SOON + event(0) + b"id: 9\ndata: half", end="reset"),
        chunked(RETRY_SOON + event(0), event(1)[:20]),
        chunked(RETRY_SOON + event(0), rest=b"ff\r\n" + event(1)[:20]),
        chunked(RETRY_SOON + event(0), rest=b"not a length\r\n"),
    ],
    ids=["closed in a frame", "reset in a frame", "ended in a frame", "closed in a chunk", "invalid chunk"],
)
def test_resumes_after_the_last_complete_event(serve: Callable[..., Server], first: Response) -> None:
    """No event is lost or printed twice, however the connection breaks."""
    server = serve(first, stream(event(1) + event(2), end="hold"))

    done = run_cat(server.url, "--max", "3")

    assert "0\n1\n2\n" == done.stdout
    assert ID % 1 == server.requests[1].headers["last-event-id"]


def test_resumes_from_an_id_without_data(serve: Callable[..., Server]) -> None:
    """A stream that only sends its position, without an event, is resumed from that position."""
    server = serve(stream(RETRY_SOON + b"id: 7\n\n"), stream(b"data: a\n\n", end="hold"))

    done = run_cat(server.url, "--max", "1", "--last-event-id", "5")

    assert ["5", "7"] == [request.headers["last-event-id"] for request in server.requests]
    assert "--last-event-id 7" in done.stderr


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
    ("status", "headers"),
    [
        ("500 Internal Server Error", ["Retry-After: 1"]),
        ("500 Internal Server Error", ["Retry-After: 0"]),
        ("502 Bad Gateway", []),
    ],
)
def test_retries_after_a_temporary_server_error(serve: Callable[..., Server], status: str, headers: list[str]) -> None:
    """A 500 with Retry-After is temporary, and so is any other 5xx status."""
    server = serve(stream(RETRY_SOON), rejection(status, {}, *headers), stream(event(0), end="hold"))

    assert "0\n" == run_cat(server.url, "--max", "1").stdout


@pytest.mark.parametrize(
    "response",
    [
        rejection("500 Internal Server Error", {"detail": "The filter failed."}),
        stream(b'event: error\ndata: {"status":500,"detail":"The filter failed."}\n\n', end="hold"),
    ],
    ids=["response", "event"],
)
def test_stops_at_a_500_without_retry_after(serve: Callable[..., Server], response: Response) -> None:
    """Such an error lasts until the operator fixes its cause."""
    server = serve(response)

    done = run_cat(server.url)

    assert 1 == done.returncode
    assert done.stderr.endswith(": The filter failed.\n")


def test_retries_after_a_503(serve: Callable[..., Server]) -> None:
    """The command waits for the time in Retry-After, and prints the reason without control characters."""
    busy = rejection("503 Service Unavailable", {"detail": "Kafka is unavailable.\n\x1b[31m"}, "Retry-After: 1")
    server = serve(stream(RETRY_SOON), busy, stream(event(0), end="hold"))

    done = run_cat(server.url, "--max", "1")

    assert "0\n" == done.stdout
    assert "answered 503: Kafka is unavailable. \N{REPLACEMENT CHARACTER}[31m; retrying in 1." in done.stderr


def test_retries_if_the_connection_is_refused(serve: Callable[..., Server]) -> None:
    """The command retries until the server is back. Ctrl-C stops it without a traceback."""
    server = serve(stream(RETRY_SOON))

    with running(server.url) as process:
        assert process.stderr is not None
        lines = [process.stderr.readline() for _ in range(3)]
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()

    assert f"{server.url}: cannot connect: Connection refused; retrying in " in lines[2]
    assert (130, False) == (process.returncode, "Traceback" in rest)


@pytest.mark.parametrize("status", ["400 Bad Request", "404 Not Found", "410 Gone", "401 Unauthorized"])
def test_stops_after_a_permanent_error(serve: Callable[..., Server], status: str) -> None:
    """A 4xx response ends the command. The message contains the detail of the problem."""
    server = serve(rejection(status, {"title": "No", "detail": "There is no topic x."}))

    done = run_cat(server.url)

    assert 1 == done.returncode
    assert f"kafkasse cat: {server.url}: the server answered {status[:3]}: There is no topic x.\n" == done.stderr


def test_an_error_without_a_problem_object(serve: Callable[..., Server]) -> None:
    """If the body is not JSON, the message contains the status."""
    server = serve(Response(b"HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\n\r\n[oops"))

    assert f"kafkasse cat: {server.url}: the server answered 404\n" == run_cat(server.url).stderr


def test_stops_after_an_error_event_with_a_permanent_status(serve: Callable[..., Server]) -> None:
    """`event: error` with a 4xx status ends the command. It is not printed as data."""
    problem = b'event: error\ndata: {"status":410,"title":"Gone","detail":"Topic t was deleted."}\n\n'
    server = serve(stream(event(0) + problem, end="hold"))

    done = run_cat(server.url)

    assert (1, "0\n") == (done.returncode, done.stdout)
    assert done.stderr.endswith(f"kafkasse cat: {server.url}: the server ended the stream: Topic t was deleted.\n")


@pytest.mark.parametrize("data", [b'{"status":503,"detail":"stopping"}', b"oops", b"[]", b'{"status":"?"}'])
def test_retries_after_an_error_event_of_the_server(serve: Callable[..., Server], data: bytes) -> None:
    """After `event: error` with a 5xx status or without a valid one, the command resumes from the ID of that event."""
    server = serve(
        stream(RETRY_SOON + event(0) + b"event: error\ndata: " + data + b"\nid: 5\n\n"), stream(event(1), end="hold")
    )

    assert "0\n1\n" == run_cat(server.url, "--max", "2").stdout
    assert "5" == server.requests[1].headers["last-event-id"]


def test_sends_the_token_of_a_file(serve: Callable[..., Server], tmp_path: Path) -> None:
    """The file is read for each connection, so that a renewed token is used. The output does not contain the token."""
    file = tmp_path / "token"
    file.write_text("secret-1\n")
    server = serve(stream(RETRY_SOON + event(1)), stream(event(2), "hold"))

    done = run_cat(server.url, "--token-file", str(file), "--max", "2")

    assert ["Bearer secret-1"] * 2 == [request.headers["authorization"] for request in server.requests]
    assert "secret-1" not in done.stdout + done.stderr


def test_does_not_send_the_token_to_another_server(serve: Callable[..., Server], tmp_path: Path) -> None:
    """The target of a redirect does not receive the token."""
    file = tmp_path / "token"
    file.write_text("secret-1")
    other = serve(stream(event(1), "hold"))
    redirect = f"HTTP/1.1 307 Temporary Redirect\r\nLocation: {other.url}\r\nContent-Length: 0\r\n\r\n"
    server = serve(Response(redirect.encode()))

    run_cat(server.url, "--token-file", str(file), "--max", "1")

    assert "authorization" not in other.requests[0].headers
    assert "authorization" in server.requests[0].headers


@pytest.mark.parametrize("text", [None, "", "two tokens", "a\nb", "\xff"])
def test_a_token_file_that_is_not_valid(serve: Callable[..., Server], tmp_path: Path, text: str | None) -> None:
    """The error names the file, and nothing is sent."""
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text, "latin-1")
    server = serve(stream(event(1)))

    done = run_cat(server.url, "--token-file", str(file))

    assert 1 == done.returncode
    assert str(file) in done.stderr
    assert not server.requests


def test_sends_headers_and_cookies(serve: Callable[..., Server]) -> None:
    """Their values appear in no message."""
    server = serve(stream(event(0), end="hold"))

    options = ["-H", "X-Shop: s3cret-1", "--cookie", "session=s3cret=2", "--cookie", "theme=dark"]
    done = run_cat(server.url, *options, "--max", "1")

    headers = server.requests[0].headers
    assert ("s3cret-1", "session=s3cret=2; theme=dark") == (headers["x-shop"], headers["cookie"])
    assert "resume with the same headers and cookies with: kafkasse cat" in done.stderr
    assert "s3cret" not in done.stdout + done.stderr


def test_does_not_send_headers_to_another_server(serve: Callable[..., Server]) -> None:
    """The target of a redirect receives neither headers nor cookies."""
    other = serve(stream(event(1), "hold"))
    redirect = f"HTTP/1.1 307 Temporary Redirect\r\nLocation: {other.url}\r\nContent-Length: 0\r\n\r\n"
    server = serve(Response(redirect.encode()))

    run_cat(server.url, "-H", "X-Shop: 1", "--cookie", "a=b", "--max", "1")

    assert not {"x-shop", "cookie"} & other.requests[0].headers.keys()


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


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', "not JSON"])
def test_rejects_another_file_as_position_file(tmp_path: Path, text: str) -> None:
    """The file is not overwritten."""
    file = tmp_path / "notes.txt"
    file.write_text(text)

    done = run_cat("http://127.0.0.1:1/t", "--position-file", str(file))

    assert (1, text) == (done.returncode, file.read_text())
    assert f"{file} is not a position file" in done.stderr


def test_stores_the_position_after_ctrl_c(serve: Callable[..., Server], tmp_path: Path) -> None:
    """The next run neither repeats nor omits an event that was printed before Ctrl-C."""
    file = tmp_path / "position.json"
    server = serve(stream(event(0) + event(1), end="hold"))

    with running(server.url, "--position-file", str(file)) as process:
        assert process.stdout is not None
        assert ["0\n", "1\n"] == [process.stdout.readline() for _ in range(2)]
        process.send_signal(signal.SIGINT)
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


def test_rejects_a_response_that_is_not_a_stream(serve: Callable[..., Server]) -> None:
    """A 200 response with another content type, such as a web page, is a permanent error."""
    server = serve(Response(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n<p>hello"))

    reason = "the server answered 200 with text/html, not with an event stream; check the URL"
    assert f"kafkasse cat: {server.url}: {reason}\n" == run_cat(server.url).stderr


def test_stops_at_an_event_that_is_too_large(serve: Callable[..., Server]) -> None:
    """An event above the parser's limit is a permanent error, because the server would send the event again."""
    server = serve(stream(event(0) + b"data: " + b"x" * 17 * 1024 * 1024))

    done = run_cat(server.url)

    assert "0\n" == done.stdout
    assert done.stderr.endswith("the stream contains an event larger than 16,777,216 bytes\n")


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


def test_uses_the_proxy_of_the_environment(serve: Callable[..., Server]) -> None:
    """The request goes to `http_proxy`, with the complete URL in its first line."""
    proxy = serve(stream(event(0), end="hold"))

    done = run_cat("http://stream.invalid/t", "--max", "1", http_proxy=proxy.url)

    assert "0\n" == done.stdout
    assert "GET http://stream.invalid/t HTTP/1.1" == proxy.requests[0].line


def test_follows_a_redirect(serve: Callable[..., Server]) -> None:
    """The request to the new address has the same Last-Event-ID."""
    target = serve(stream(event(0), end="hold"))
    server = serve(Response(f"HTTP/1.1 307 Moved\r\nlocation: {target.url}\r\ncontent-length: 0\r\n\r\n".encode()))

    assert "0\n" == run_cat(server.url, "--max", "1", "--last-event-id", "5").stdout
    assert "5" == target.requests[0].headers["last-event-id"]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for localhost and its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(hours=1))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = tmp_path_factory.mktemp("tls") / "localhost.pem"
    path.write_bytes(private + builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return path


@pytest.mark.parametrize("trusted", [True, False])
def test_verifies_the_certificate(serve: Callable[..., Server], certificate: Path, trusted: bool) -> None:
    """A server with a trusted certificate is read over TLS. An untrusted certificate is a permanent error."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = serve(stream(event(0), end="hold"), tls=context)
    url = server.url.replace("127.0.0.1", "localhost")

    done = run_cat(url, "--max", "1", **({"SSL_CERT_FILE": str(certificate)} if trusted else {}))

    assert ("0\n", 0) == (done.stdout, done.returncode) if trusted else ("", 1) == (done.stdout, done.returncode)
    assert trusted or re.fullmatch(
        r"kafkasse cat: https://\S+: the server's certificate cannot be verified: [^\n]+\n", done.stderr
    )
