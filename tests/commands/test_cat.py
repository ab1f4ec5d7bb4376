"""`kafkasse cat`: its output, and how it resumes, retries, and sends secrets only to the requested server."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shlex
import signal
import ssl
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import gevent
import pytest

from kafkasse.commands.cat import PositionFile
from kafkasse.errors import CommandError
from tests.client.script import HEAD, Answers, Raw, Sends, chunk, sent_ids
from tests.commands.run import TIMEOUT_S, Done, Run, process
from tests.support.certificates import Authority

URL = "http://127.0.0.1/t"


def test_prints_one_line_for_each_event(cat, serve):
    """The line is the event's data. After --max events, the command exits with 0 and shows how to continue."""
    server = serve(Sends(b":ok\n\n" + event(0) + event(1) + event(2)))

    done = cat(server.url, "--max", "2", "--output", "raw")

    assert (0, "0\n1\n") == (done.code, done.out)
    assert shlex.join([server.url, "--output", "raw", "--last-event-id", ID % 2]) in done.err


@pytest.mark.parametrize(("query", "options", "line"), [
    ("", [], "GET /t HTTP/1.1"),
    ("?a=b#c", ["--since", "2026-01-31T12:00+01:00"], "GET /t?a=b&since=2026-01-31T12%3A00%2B01%3A00 HTTP/1.1"),
    ("", ["--where", "key=a é", "--where", "field.n=1", "--filter", "value.amount > 10"],
     "GET /t?key=a+%C3%A9&field.n=1&filter=value.amount+%3E+10 HTTP/1.1"),
], ids=["no options", "a start", "filters"])  # fmt: skip
def test_options_become_parameters(cat, serve, query, options, line):
    """The other parts of the request are those of an EventSource. The command to resume contains the filters."""
    server = serve(Sends(event(0)))

    done = cat(server.url + query, *options, "--max", "1")

    [sent], [headers] = server.lines, server.requests
    assert (line, "text/event-stream") == (sent, headers["accept"])
    assert headers["user-agent"].startswith("kafkasse/")
    assert "last-event-id" not in headers
    assert "--since" in options or shlex.join(options) in done.err


def test_polls_while_a_proxy_holds_back_the_stream(cat, serve, monkeypatch):
    """The command says so once."""
    monkeypatch.setattr("kafkasse_client.fallback.FIRST_EVENT_S", 0.2)
    position = b"event: position\ndata: {}\nid: 5\n\n"
    polls = [Sends(position + event(number), "ends") for number in (1, 2, 3)]
    server = serve(Sends(b""), *polls)

    done = cat(server.url, "--max", "3", "--last-event-id", "5")

    assert "1\n2\n3\n" == done.out
    assert ["GET /t HTTP/1.1", *["GET /t?live=events HTTP/1.1"] * 3] == server.lines
    assert ["5", "5", ID % 2, ID % 3] == sent_ids(server)
    assert 1 == done.err.count("continuing with long polls")
    assert 2 == done.err.count("connected to")


@pytest.mark.parametrize("output", ["raw", "json", "id"])
def test_a_position_event_is_stored_and_not_printed(cat, serve, output):
    """A position event has no record. The command resumes from its ID, and --max does not count it."""
    position = b"event: position\ndata: {}\nid: 6\n\n"
    end = b'event: position\ndata: {"snapshot":"complete"}\nid: 7\n\n'
    server = serve(Sends(position + end, "ends"), Sends(position + event(9)))

    done = cat(server.url, "--max", "1", "--output", output, "--last-event-id", "é 1")

    assert 1 == done.out.count("\n")
    assert "{}" not in done.out
    assert "snapshot" not in done.out
    assert ["é 1", "7"] == sent_ids(server)


def test_encodes_special_characters_except_those_of_the_host(cat, monkeypatch):
    """requests converts the name of the host to the form that DNS needs. A percent-encoded name does not exist."""
    requested: list[str] = []

    def send(_: object, request: Any, **options: object) -> None:
        requested.append(request.url)
        raise KeyboardInterrupt

    monkeypatch.setattr("requests.adapters.HTTPAdapter.send", send)
    cat("http://bücher.example/é b?a=é#c")

    assert ["http://xn--bcher-kva.example/%C3%A9%20b?a=%C3%A9"] == requested


@pytest.mark.parametrize(("words", "code", "sentence"), [
    *(([URL, *option], 2, "the form is ") for option in (
        ["-H", "s3cret"], ["-H", ": s3cret"], ["-H", "A: s3cret\nB: c"], ["--cookie", "s3cret"], ["--where", "é=s3cret"]
    )),
    ([URL, "--where", "value=1"], 2, "'value' is not a part of a record: use key, header.NAME or field.NAME."),
    *(([URL, f"--max={count}"], 2, "Invalid value for '--max'") for count in ("0", "-1", "x")),
    *(([URL, "--last-event-id", "1", *more], 2, "--last-event-id cannot be combined with") for more in (
        ["--since", "2026-01-31T12:00:00Z"], ["--position-file", "x"]
    )),
    *(([url], 1, f"kafkasse cat: {url}") for url in (
        "127.0.0.1:1/t", "file:///etc/passwd", "http://", "http://[::1", "http://a:b/", f"http://{'a' * 64}/"
    )),
    (["http://ann:s3cret@127.0.0.1:1/t"], 1, "kafkasse cat: the URL contains a login"),
])  # fmt: skip
def test_rejects_what_cannot_work(cat, words, code, sentence):
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
        ('{"a":NaN}', r'"{\"a\":NaN}"'),  # only Python reads it as JSON
        ("-Infinity", '"-Infinity"'),
    ],
)
def test_json_output_contains_the_data_as_json(cat, serve, data, member):
    """JSON is copied with its digits, on one line. Other text becomes a string."""
    server = serve(Sends(f"id: 7\ndata: {data}\n\n".encode()))

    done = cat(server.url, "--max", "1", "-o", "json")

    assert f'{{"type":"message","id":"7","data":{member}}}\n' == done.out


def test_json_output_contains_base64_as_text(cat, serve):
    """It may also be a valid number."""
    server = serve(Sends(b"id: 7\nevent: base64\ndata: 1e10\n\n"))

    assert '{"type":"base64","id":"7","data":"1e10"}\n' == cat(server.url, "--max", "1", "-o", "json").out


def test_a_position_file_continues_where_the_last_run_stopped(cat, serve, tmp_path):
    """The second run resumes after the last printed event. --since applies only to a stream without a position."""
    file = tmp_path / "position"
    server = serve(Sends(event(0) + event(1), "ends"), Sends(event(1)))

    first, second = (
        cat(server.url, "--position-file", str(file), "--max", "1", "--since", "2026-01-31") for _ in range(2)
    )

    assert ("0\n", "1\n") == (first.out, second.out)
    assert "since=2026-01-31" in server.lines[0]
    assert ("GET /t HTTP/1.1", ID % 1) == (server.lines[1], server.requests[1]["last-event-id"])
    assert ID % 2 == file.read_text().strip()
    assert f"--position-file {file}" in second.err


def test_an_error_stores_the_position(cat, serve, tmp_path):
    file = tmp_path / "position"
    server = serve(Sends(event(0) + b'event: error\ndata: {"status":410}\n\n'))

    done = cat(server.url, "--position-file", str(file))

    assert (1, ID % 1) == (done.code, file.read_text().strip())


def test_a_full_disk_does_not_damage_the_position_file(tmp_path):
    """The error names the file, which keeps the old position. No other file stays."""
    file = tmp_path / "position"
    file.write_text("1")
    position = PositionFile(file, "")
    position.id = "a longer position"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))  # a longer file fails, as on a full disk
    try:
        with pytest.raises(CommandError, match=re.escape(f"the position file {file} cannot be written: ")):
            position.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert [("position", "1")] == [(path.name, path.read_text()) for path in tmp_path.iterdir()]


def test_rejects_an_empty_position_file(cat, tmp_path):
    """Otherwise, the command would skip records and not say so."""
    file = tmp_path / "position"
    file.touch()

    done = cat("http://127.0.0.1:1/t", "--position-file", str(file))

    assert (1, True) == (done.code, f"{file} is empty; to start" in done.err)


@pytest.mark.parametrize("text", [b"a\nb\n", b"\x00", b"\xff"])
def test_rejects_another_file_as_position_file(cat, tmp_path, text):
    """The file is not overwritten."""
    file = tmp_path / "notes.txt"
    file.write_bytes(text)

    done = cat("http://127.0.0.1:1/t", "--position-file", str(file))

    assert (1, text) == (done.code, file.read_bytes())
    assert f"{file} is not a position file" in done.err


@pytest.mark.processes
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stores_the_position_when_it_is_stopped(serve, tmp_path, stop):
    """The next run neither repeats nor omits an event that was printed before Ctrl-C, SIGTERM or SIGHUP.

    Each event is printed as soon as it arrives.
    """
    file = tmp_path / "position"
    server = serve(Sends(event(0) + event(1)))

    def handle_signal() -> None:
        signal.signal(stop, signal.SIG_DFL)  # it is ignored under `nohup make test`

    with process("cat", server.url, "--position-file", str(file), preexec_fn=handle_signal) as running:
        assert ["0\n", "1\n"] == [running.stdout.readline() for _ in range(2)]
        running.send_signal(stop)
        log = running.communicate(timeout=TIMEOUT_S)[1]

    assert 130 == running.returncode
    # The signal may arrive after the event was printed and before its ID was stored. Then the event is repeated.
    assert file.read_text().strip() in (ID % 1, ID % 2)
    assert f"resume with: kafkasse cat {server.url} --position-file {file}" == log.splitlines()[-1]


def test_stores_the_first_position_at_once(tmp_path):
    """The topic may be quiet until the command is killed. Otherwise, the next run would start at the route's default."""
    file = tmp_path / "position"

    PositionFile(file, "").printed("1")

    assert "1\n" == file.read_text()


@pytest.mark.processes
def test_nohup_works(serve):
    """It starts the command with SIGHUP ignored."""
    server = serve(Sends(event(0)))

    with process("cat", server.url, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) as running:
        assert "0\n" == running.stdout.readline()
        running.send_signal(signal.SIGHUP)
        server.connections[0].sendall(chunk(event(1)))
        assert "1\n" == running.stdout.readline()


@pytest.mark.parametrize(("variables", "colored"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_gets_pretty_output_in_color(cat, serve, variables, colored):
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


def test_reports_a_gap_on_stderr(cat, serve):
    """A gap is not data, so it is not printed to stdout."""
    gap = b'event: gap\nid: 9\ndata: {"partition":0,"from":1,"to":9}\n\n'
    server = serve(Sends(gap + event(9)))

    done = cat(server.url, "--max", "1")

    assert "9\n" == done.out
    assert 'records are missing: {"partition":0,"from":1,"to":9}\n' in done.err


@pytest.mark.parametrize(("sent", "output", "line"), [
    *(("id: 7\nevent: delete\ndata: é\n\n", output, line) for output, line in (
        ("raw", "é"), ("id", "7"), ("json", '{"type":"delete","id":"7","data":"é"}'), ("pretty", "delete  7\né")
    )),
    ('event: position\ndata: {"lat":1}\n\n', "raw", '{"lat":1}'),  # an event of another server
])  # fmt: skip
def test_prints_the_chosen_format(cat, serve, sent, output, line):
    """--output chooses between the data, the ID, the whole event, and text for people."""
    server = serve(Sends(sent.encode()))

    assert line + "\n" == cat(server.url, "--max", "1", "--output", output).out


@pytest.mark.processes
def test_prints_events_if_stderr_is_closed(serve):
    server = serve(Sends(event(0)))
    command = shlex.join([sys.executable, "-m", "kafkasse", "cat", server.url, "--max", "1"])

    done = subprocess.run(["sh", "-c", f"{command} 2>&-"], stdout=subprocess.PIPE, timeout=TIMEOUT_S, check=False)

    assert (0, b"0\n") == (done.returncode, done.stdout)


@pytest.mark.processes
def test_reports_a_closed_stdout():
    command = shlex.join([sys.executable, "-m", "kafkasse", "cat", URL])

    done = subprocess.run(["sh", "-c", f"{command} >&-"], stderr=subprocess.PIPE, timeout=TIMEOUT_S, check=False)

    assert (1, b"kafkasse cat: stdout is closed, so nothing can be printed\n") == (done.returncode, done.stderr)


@pytest.mark.processes
def test_exits_silently_if_the_pipe_is_closed(serve):
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
def test_reports_a_full_disk(serve):
    server = serve(Sends(event(0)))

    with Path("/dev/full").open("wb") as full, process("cat", server.url, stdout=full) as running:
        log = running.communicate(timeout=TIMEOUT_S)[1]

    assert 1 == running.returncode
    assert "kafkasse cat: cannot write to stdout: No space left on device" == log.splitlines()[-1]


ID = '[{"topic":"t","partition":0,"offset":%d}]'


@pytest.fixture
def cat(run: Run) -> Run:
    """Runs `kafkasse cat` in this process. It retries at once."""

    def cat(*words: str, **variables: str) -> Done:
        with sleeping(lambda _: gevent.sleep(0)):
            return run("cat", *words, **variables)

    return cat


def sleeping(effect: Any) -> contextlib.AbstractContextManager[object]:
    """Replace the waits of the client, and not those of other greenlets of the tests."""
    closed = mock.Mock(is_set=lambda: False, wait=mock.Mock(side_effect=effect))
    return mock.patch("kafkasse_client.stream.threading", mock.Mock(Event=lambda: closed))


def event(number: int) -> bytes:
    return f"event: message\ndata: {number}\nid: {ID % (number + 1)}\n\n".encode()


@pytest.mark.parametrize("first", [
    Sends(event(0) + event(1)[:20], "breaks"), Raw(HEAD + chunk(event(0)) + b"not a length\r\n")
], ids=["it breaks", "invalid chunk"])  # fmt: skip
def test_resumes_after_the_last_complete_event(cat, serve, first):
    """No event is lost or printed twice. tests/client breaks the connection in other ways."""
    server = serve(first, Sends(event(1) + event(2)))

    done = cat(server.url, "--max", "3")

    assert "0\n1\n2\n" == done.out
    assert ID % 1 == server.requests[1]["last-event-id"]


def test_waits_as_long_as_the_server_requests(cat, serve):
    """The wait has up to 50 % of jitter. The reason is printed with its control characters escaped."""
    server = serve(Answers(503, "Kafka is unavailable.\n\x1b[31m", Retry_After="8"), Sends(event(0)))

    done = cat(server.url, "--max", "1")

    assert "0\n" == done.out
    reason = r"answered 503: Kafka is unavailable.\n\x1b[31m"
    assert re.search(rf"{re.escape(reason)}; retrying in (8|9|10|11|12)\.\d s", done.err)


def test_retries_if_the_connection_is_refused(run):
    """The command retries until Ctrl-C."""
    with sleeping([None, KeyboardInterrupt]):
        done = run("cat", "http://127.0.0.1:1/t")

    assert 130 == done.code
    assert 2 == done.err.count("http://127.0.0.1:1/t: the connection failed: Connection refused; retrying in ")


@pytest.mark.parametrize(("response", "reason"), [
    (Answers(404, "There is no topic x."), "answered 404: There is no topic x."),
    (Raw(b"HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\n\r\n[oops"), "answered 404"),
    (Sends(event(0) + b'event: error\ndata: {"status":410,"detail":"Topic t was deleted."}\n\n'),
     "ended the stream: Topic t was deleted."),
    (Raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n<p>hello"),
     "answered 200 with text/html, not with an event stream; check the URL"),
])  # fmt: skip
def test_a_permanent_error_is_one_sentence(cat, serve, response, reason):
    """The message contains the detail of the problem, if there is one."""
    server = serve(response)

    done = cat(server.url)

    assert (1, f"kafkasse cat: {server.url}: the server {reason}") == (done.code, done.err.splitlines()[-1])


def test_stops_at_an_event_that_is_too_large(cat, serve):
    """An event above the parser's limit is a permanent error, because the server would send the event again."""
    server = serve(Sends(event(0) + b"data: " + b"x" * 17 * 1024 * 1024))

    done = cat(server.url)

    assert (1, "0\n") == (done.code, done.out)
    assert done.err.endswith("the stream contains an event larger than 16,777,216 bytes\n")


def test_sends_the_token_of_a_file(cat, serve, tmp_path):
    """The file is read for each connection, so that a renewed token is used. The output does not contain the token."""
    file = tmp_path / "token"
    file.write_text("secret-1\n")
    server = serve(Sends(event(1), "ends"), Sends(event(2)))

    done = cat(server.url, "--token-file", str(file), "--max", "2")

    assert ["Bearer secret-1"] * 2 == [request["authorization"] for request in server.requests]
    assert "secret-1" not in done.out + done.err


@pytest.mark.parametrize("text", [None, "", "two tokens", "a\nb", "\xff"])
def test_a_token_file_that_is_not_valid(cat, serve, tmp_path, text):
    """The error names the file, and nothing is sent."""
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text, "latin-1")
    server = serve(Sends(event(1)))

    done = cat(server.url, "--token-file", str(file))

    assert (1, []) == (done.code, server.requests)
    assert str(file) in done.err


def test_sends_headers_and_cookies(cat, serve):
    """Their values appear in no message."""
    server = serve(Sends(event(0)))

    options = ["-H", "X-Shop: s3cret-1", "--cookie", "session=s3cret=2", "--cookie", "theme=dark"]
    done = cat(server.url, *options, "--max", "1")

    headers = server.requests[0]
    assert ("s3cret-1", "session=s3cret=2; theme=dark") == (headers["x-shop"], headers["cookie"])
    assert "resume with the same headers and cookies with: kafkasse cat" in done.err
    assert "s3cret" not in done.out + done.err


def test_follows_a_redirect_without_credentials(cat, serve, tmp_path):
    """The other server receives the Last-Event-ID, but neither the token nor headers nor cookies."""
    (tmp_path / "token").write_text("secret-1")
    other = serve(Sends(event(0)))
    server = serve(Raw(f"HTTP/1.1 307 Moved\r\nlocation: {other.url}\r\ncontent-length: 0\r\n\r\n".encode()))

    options = ["--token-file", str(tmp_path / "token"), "-H", "X-Shop: 1", "--cookie", "a=b", "--last-event-id", "5"]
    done = cat(server.url, *options, "--max", "1")

    secrets = {"authorization", "x-shop", "cookie"}
    assert ("0\n", "5") == (done.out, other.requests[0]["last-event-id"])
    assert secrets <= server.requests[0].keys()
    assert not secrets & other.requests[0].keys()


def test_uses_the_proxy_of_the_environment(cat, serve):
    """The request goes to `http_proxy`, with the complete URL in its first line."""
    proxy = serve(Sends(event(0)))

    done = cat("http://stream.invalid/t", "--max", "1", http_proxy=proxy.url)

    assert "0\n" == done.out
    assert "GET http://stream.invalid/t HTTP/1.1" == proxy.lines[0]


def test_says_why_a_proxy_rejects_the_request(run, serve):
    """The command retries until Ctrl-C."""
    proxy = serve(Raw(b"HTTP/1.1 407 Login Required\r\n\r\n"))

    with sleeping([KeyboardInterrupt]):
        done = run("cat", "https://stream.invalid/t", https_proxy=proxy.url)

    assert "the connection failed: Tunnel connection failed: 407 Login Required; retrying" in done.err


@pytest.mark.parametrize("is_trusted", [True, False])
def test_verifies_the_certificate(cat, serve, tmp_path, is_trusted):
    """A server with a trusted certificate is read over TLS. An untrusted certificate is a permanent error."""
    authority = Authority()
    (tmp_path / "server.pem").write_text("".join(authority.issue("server", "127.0.0.1")))
    (tmp_path / "ca.pem").write_text((authority if is_trusted else Authority()).certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    server = serve(Sends(event(0)), tls=context)

    done = cat(server.url, "--max", "1", SSL_CERT_FILE=str(tmp_path / "ca.pem"))

    assert ((0, "0\n") if is_trusted else (1, "")) == (done.code, done.out)
    assert is_trusted or re.fullmatch(
        r"kafkasse cat: https://\S+: the server's certificate cannot be verified: [^\n]+\n", done.err
    )
