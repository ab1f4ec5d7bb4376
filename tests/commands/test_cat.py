"""`kafkasse cat` as a process, against a server that answers, breaks off and refuses as each test tells it to."""

from __future__ import annotations

import contextlib
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
from email.utils import format_datetime
from http.client import parse_headers
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from kafkasse.commands import cat

ANSWER_S_MAX = 60  # for a whole run of the command: a hang becomes a failure
SOON = b"retry: 1\n\n"  # so that no test waits a second for its next connection
ID = '[{"topic":"t","partition":0,"offset":%d}]'


class Answer(NamedTuple):
    """What a connection is sent, and how it ends: "close", "reset" or "hold"."""

    text: bytes
    end: str = "close"


class StreamRequest(NamedTuple):
    """A request line and its fields, with lower-case names."""

    line: str
    fields: dict[str, str]


class Server:
    """Gives each connection the next of its answers; when they are used up, it listens no more."""

    def __init__(self, *answers: Answer, tls: ssl.SSLContext | None = None) -> None:
        self.asked: list[StreamRequest] = []
        self._answers = answers
        self._tls = tls
        self._held: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}/t"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def send(self, text: bytes) -> None:
        """Send more to the connection that is held."""
        self._held[-1].sendall(text)

    def close(self) -> None:
        self._listener.close()
        for connection in self._held:
            connection.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError), self._listener:
            for answer in self._answers:
                connection, _ = self._listener.accept()
                # A client that does not trust the certificate leaves in the middle of the handshake.
                with contextlib.suppress(OSError):
                    self._give(self._tls.wrap_socket(connection, server_side=True) if self._tls else connection, answer)

    def _give(self, connection: socket.socket, answer: Answer) -> None:
        with connection.makefile("rb") as lines:
            line = lines.readline().decode("latin-1").rstrip()
            fields = parse_headers(lines).items()
        self.asked.append(StreamRequest(line, {name.lower(): value for name, value in fields}))
        if answer.end == "hold":
            self._held.append(connection)
        connection.sendall(answer.text)
        if answer.end == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if answer.end != "hold":
            connection.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    with contextlib.ExitStack() as servers:

        def start(*answers: Answer, tls: ssl.SSLContext | None = None) -> Server:
            return servers.enter_context(contextlib.closing(Server(*answers, tls=tls)))

        yield start


def stream(body: bytes, end: str = "close") -> Answer:
    return Answer(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\r\n" + body, end)


def chunked(*chunks: bytes, rest: bytes = b"0\r\n\r\n") -> Answer:
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    fields = b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return Answer(b"HTTP/1.1 200 OK\r\n" + fields + body + rest)


def refusal(status: str, problem: object, *fields: str) -> Answer:
    body = json.dumps(problem)
    head = [f"HTTP/1.1 {status}", "content-type: application/problem+json", f"content-length: {len(body)}", *fields]
    return Answer(("\r\n".join(head) + "\r\n\r\n" + body).encode())


def event(number: int) -> bytes:
    return f"event: message\nid: {ID % (number + 1)}\ndata: {number}\n\n".encode()


def words(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "kafkasse", "cat", *arguments]


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return kept | more


def cat_of(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words(*arguments), capture_output=True, text=True, timeout=ANSWER_S_MAX, env=environment(**more)
    )


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        words(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_one_line_for_each_event(serve: Callable[..., Server]) -> None:
    """The data of each event is a line of stdout; after --count of them the command ends well and says the last id."""
    server = serve(stream(b":ok\n\n" + event(0) + event(1) + event(2), end="hold"))

    done = cat_of(server.url, "--count", "2")

    assert (0, "0\n1\n") == (done.returncode, done.stdout)
    assert shlex.join(["--last-event-id", ID % 2]) in done.stderr


def test_asks_as_an_event_source_does(serve: Callable[..., Server]) -> None:
    """The request accepts an event stream, says who asks, and has no Last-Event-ID when there is none."""
    server = serve(stream(event(0), end="hold"))

    cat_of(server.url, "--count", "1")

    (asked,) = server.asked
    assert "GET /t HTTP/1.1" == asked.line
    assert "text/event-stream" == asked.fields["accept"]
    assert asked.fields["user-agent"].startswith("kafkasse/")
    assert "last-event-id" not in asked.fields


def test_starts_where_it_is_told(serve: Callable[..., Server]) -> None:
    """--last-event-id goes into the header, as UTF-8, and --since into the query beside what is there."""
    server = serve(stream(event(0)), stream(event(0), end="hold"))

    cat_of(server.url, "--count", "1", "--last-event-id", "é 1")
    cat_of(server.url + "?a=b#c", "--count", "1", "--since", "2026-01-31T12:00:00+01:00")

    assert "é 1" == server.asked[0].fields["last-event-id"].encode("latin-1").decode()
    assert "GET /t?a=b&since=2026-01-31T12%3A00%3A00%2B01%3A00 HTTP/1.1" == server.asked[1].line


@pytest.mark.parametrize(
    "first",
    [
        stream(SOON + event(0) + event(1)[:-1]),
        stream(SOON + event(0) + b"id: 9\ndata: half", end="reset"),
        chunked(SOON + event(0), event(1)[:20]),
        chunked(SOON + event(0), rest=b"ff\r\n" + event(1)[:20]),
        chunked(SOON + event(0), rest=b"not a length\r\n"),
    ],
    ids=["closed in a frame", "reset in a frame", "ended in a frame", "cut in a chunk", "garbage for a chunk"],
)
def test_goes_on_after_a_break(serve: Callable[..., Server], first: Answer) -> None:
    """However a connection breaks, the next one begins after the last whole event: nothing lost, nothing twice."""
    server = serve(first, stream(event(1) + event(2), end="hold"))

    done = cat_of(server.url, "--count", "3")

    assert "0\n1\n2\n" == done.stdout
    assert ID % 1 == server.asked[1].fields["last-event-id"]


def test_an_id_alone_is_gone_on_from(serve: Callable[..., Server]) -> None:
    """A stream that only said where it is, without an event, is resumed there."""
    server = serve(stream(SOON + b"id: 7\n\n"), stream(b"data: a\n\n", end="hold"))

    done = cat_of(server.url, "--count", "1", "--last-event-id", "5")

    assert ["5", "7"] == [asked.fields["last-event-id"] for asked in server.asked]
    assert "--last-event-id 7" in done.stderr


def test_waits_for_a_server_that_is_not_ready(serve: Callable[..., Server]) -> None:
    """503 is tried again, not before Retry-After, and its reason is told."""
    busy = refusal("503 Service Unavailable", {"detail": "Kafka is away.\n\x1b[31m"}, "Retry-After: 1")
    server = serve(stream(SOON), busy, stream(event(0), end="hold"))

    done = cat_of(server.url, "--count", "1")

    assert "0\n" == done.stdout
    assert "answered 503: Kafka is away. \N{REPLACEMENT CHARACTER}[31m; retrying in 1." in done.stderr


def test_waits_for_a_server_that_is_not_there(serve: Callable[..., Server]) -> None:
    """A refused connection is tried again for as long as it takes."""
    server = serve(stream(SOON))

    with running(server.url) as process:
        assert process.stderr is not None
        said = [process.stderr.readline() for _ in range(3)]
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()

    assert f"cannot connect to {server.url}: Connection refused; retrying in " in said[2]
    assert (0, False) == (process.returncode, "Traceback" in rest)


@pytest.mark.parametrize("status", ["400 Bad Request", "404 Not Found", "410 Gone", "401 Unauthorized"])
def test_stops_where_waiting_does_not_help(serve: Callable[..., Server], status: str) -> None:
    """An answer of 4xx ends the command with one sentence, which is the problem's."""
    server = serve(refusal(status, {"title": "No", "detail": "There is no topic x."}))

    done = cat_of(server.url)

    assert 1 == done.returncode
    assert f"kafkasse cat: {server.url} answered {status[:3]}: There is no topic x.\n" == done.stderr


def test_stops_without_a_problem_object(serve: Callable[..., Server]) -> None:
    """An answer that is no JSON is told by its status."""
    server = serve(Answer(b"HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\n\r\n[oops"))

    assert f"kafkasse cat: {server.url} answered 404: Not Found\n" == cat_of(server.url).stderr


def test_an_error_event_that_the_client_must_mend(serve: Callable[..., Server]) -> None:
    """`event: error` with a 4xx status ends the command; it is never printed as data."""
    problem = b'event: error\ndata: {"status":410,"title":"Gone","detail":"Topic t was deleted."}\n\n'
    server = serve(stream(event(0) + problem, end="hold"))

    done = cat_of(server.url)

    assert (1, "0\n") == (done.returncode, done.stdout)
    assert done.stderr.endswith("kafkasse cat: the server ended the stream: Topic t was deleted.\n")


@pytest.mark.parametrize("data", [b'{"status":503,"detail":"stopping"}', b"oops", b"[]", b'{"status":"?"}'])
def test_an_error_event_that_passes(serve: Callable[..., Server], data: bytes) -> None:
    """`event: error` that is the server's trouble, or says nothing, is followed by another try, from where it says."""
    server = serve(
        stream(SOON + event(0) + b"event: error\nid: 5\ndata: " + data + b"\n\n"), stream(event(1), end="hold")
    )

    assert "0\n1\n" == cat_of(server.url, "--count", "2").stdout
    assert "5" == server.asked[1].fields["last-event-id"]


def test_a_gap_is_told_and_not_printed(serve: Callable[..., Server]) -> None:
    """Records that are gone are reported on stderr: they are not data."""
    gap = b'event: gap\nid: 9\ndata: {"partition":0,"from":1,"to":9}\n\n'
    server = serve(stream(gap + event(9), end="hold"))

    done = cat_of(server.url, "--count", "1")

    assert "9\n" == done.stdout
    assert 'records are missing: {"partition":0,"from":1,"to":9}\n' in done.stderr


@pytest.mark.parametrize(
    ("form", "line"),
    [("data", "é"), ("id", "7"), ("event", '{"type":"delete","data":"é","id":"7"}')],
)
def test_formats(serve: Callable[..., Server], form: str, line: str) -> None:
    """--format chooses between the data, the id and the whole event."""
    server = serve(stream("id: 7\nevent: delete\ndata: é\n\n".encode(), end="hold"))

    assert line + "\n" == cat_of(server.url, "--count", "1", "--format", form, PYTHONUTF8="1").stdout


def test_ctrl_c_ends_well(serve: Callable[..., Server]) -> None:
    """An event is printed as soon as it is there; Ctrl-C then ends the command with how to go on, losing nothing."""
    server = serve(stream(event(0) + event(1), end="hold"))

    with running(server.url) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert ["0\n", "1\n"] == [process.stdout.readline() for _ in range(2)]
        process.send_signal(signal.SIGINT)
        last = process.stderr.read().splitlines()[-1]

    assert 0 == process.returncode
    # The signal may come between an event's line and the noting of its id: then the event comes again.
    ways = ["resume with: " + shlex.join(["kafkasse", "cat", server.url, "--last-event-id", ID % n]) for n in (1, 2)]
    assert last in ways


def test_a_closed_pipe_is_no_error(serve: Callable[..., Server]) -> None:
    """When the reader of the pipe has gone, the command ends without a word about it."""
    server = serve(stream(event(0), end="hold"))

    with running(server.url) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "0\n" == process.stdout.readline()
        process.stdout.close()
        server.send(event(1))
        said = process.stderr.read()

    assert (0, f"connected to {server.url}\n") == (process.returncode, said)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_sentence(serve: Callable[..., Server]) -> None:
    """What cannot be written ends the command with the reason."""
    server = serve(stream(event(0), end="hold"))

    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            words(server.url), stdout=full, stderr=subprocess.PIPE, text=True, timeout=ANSWER_S_MAX, env=environment()
        )

    assert 1 == done.returncode
    assert "kafkasse cat: cannot write to stdout: No space left on device" == done.stderr.splitlines()[-1]


def test_an_answer_that_is_no_stream(serve: Callable[..., Server]) -> None:
    """200 with something else, as from the wrong server, is said at once."""
    server = serve(Answer(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n<p>hello"))

    assert f"kafkasse cat: {server.url} answered 200 with text/html, not with an event stream. Check the URL.\n" == (
        cat_of(server.url).stderr
    )


def test_an_event_too_large_to_hold(serve: Callable[..., Server]) -> None:
    """An event over the parser's bound ends the command: another try would bring it again."""
    server = serve(stream(event(0) + b"data: " + b"x" * 17 * 1024 * 1024))

    done = cat_of(server.url)

    assert "0\n" == done.stdout
    assert done.stderr.endswith("an event of this stream is larger than 16,777,216 bytes\n")


@pytest.mark.parametrize("url", ["127.0.0.1:1/t", "file:///etc/passwd", "http://", "http://[::1", "http://a:b/"])
def test_an_address_that_is_none(url: str) -> None:
    """What cannot be an address is one sentence, not a try for ever."""
    done = cat_of(url)

    assert (1, 1) == (done.returncode, len(done.stderr.splitlines()))
    assert done.stderr.startswith(f"kafkasse cat: {url}")


@pytest.mark.parametrize("count", ["0", "-1", "x"])
def test_a_count_that_is_none(count: str) -> None:
    """--count takes a number from 1."""
    assert 2 == cat_of("http://127.0.0.1/t", f"--count={count}").returncode


def test_goes_through_the_proxy_of_the_environment(serve: Callable[..., Server]) -> None:
    """`http_proxy` is where the request goes, with the whole address in its first line."""
    proxy = serve(stream(event(0), end="hold"))

    done = cat_of("http://stream.invalid/t", "--count", "1", http_proxy=proxy.url)

    assert "0\n" == done.stdout
    assert "GET http://stream.invalid/t HTTP/1.1" == proxy.asked[0].line


def test_follows_a_redirect(serve: Callable[..., Server]) -> None:
    """A stream that has moved is read where it is, from where it was."""
    target = serve(stream(event(0), end="hold"))
    server = serve(Answer(f"HTTP/1.1 307 Moved\r\nlocation: {target.url}\r\ncontent-length: 0\r\n\r\n".encode()))

    assert "0\n" == cat_of(server.url, "--count", "1", "--last-event-id", "5").stdout
    assert "5" == target.asked[0].fields["last-event-id"]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost that nobody has signed, with its key, in one file."""
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
def test_https(serve: Callable[..., Server], certificate: Path, trusted: bool) -> None:
    """A trusted server is read over TLS; one that is not ends the command, for no waiting would mend it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = serve(stream(event(0), end="hold"), tls=context)
    url = server.url.replace("127.0.0.1", "localhost")

    done = cat_of(url, "--count", "1", **({"SSL_CERT_FILE": str(certificate)} if trusted else {}))

    assert ("0\n", 0) == (done.stdout, done.returncode) if trusted else ("", 1) == (done.stdout, done.returncode)
    assert trusted or re.fullmatch(
        r"kafkasse cat: the certificate of https://\S+ cannot be verified: [^\n]+\n", done.stderr
    )


def test_the_example_for_python(serve: Callable[..., Server]) -> None:
    """docs/clients.md goes on after a break and a 503, and ends with the reason of the server."""
    text = (Path(__file__).parents[2] / "docs/clients.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    shown = [f'event: message\nid: {number}\ndata: {{"n":{number}}}\n\n'.encode() for number in (1, 2)]
    final = b'event: error\ndata: {"status":410,"detail":"gone"}\n\n'
    server = serve(
        chunked(SOON + shown[0], shown[1][:9]), refusal("503 Busy", {}), chunked(b"id: 1b\n\n" + shown[1], final)
    )

    program = example.replace("http://127.0.0.1:6917/topn/updates", server.url).replace("2000", "1")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=ANSWER_S_MAX, env=environment()
    )

    assert ("{'n': 1}\n{'n': 2}\n", "gone\n") == (done.stdout, done.stderr)
    assert [None, "1", "1"] == [asked.fields.get("last-event-id") for asked in server.asked]


NOW = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        *[("5", 5), ("0", 0), (format_datetime(NOW + timedelta(seconds=90)), 90)],
        *[("", 0), ("soon", 0), ("-1", 0), ("Fri, 99 Foo 2026 12:00:00 GMT", 0)],
    ],
)
def test_retry_after(value: str, seconds: float) -> None:
    """Retry-After is a number of seconds or a date; anything else asks for nothing."""
    assert seconds == cat._retry_after_s(value, NOW)


@given(st.integers(0, 10**6), st.floats(0, 10**12), st.floats(-(10**12), 10**12))
def test_waits_within_bounds(failures: int, retry_s: float, retry_after_s: float) -> None:
    """A wait is at least what was asked for within reason, and never longer than one can understand."""
    wait_s = cat._wait_s(failures, retry_s, retry_after_s)

    assert min(cat.MAX_RETRY_S, max(retry_s, retry_after_s)) <= wait_s <= 1.5 * cat.MAX_RETRY_S


def test_waits_longer_with_each_failure() -> None:
    """Even spread out, the third failure in a row waits longer than the first."""
    assert cat._wait_s(0, 1, 0) < cat._wait_s(2, 1, 0) < cat._wait_s(4, 1, 0)
