"""`kafkasse cat` resumes, retries temporary errors, and sends tokens, headers and cookies only to the requested server."""

from __future__ import annotations

import re
import signal
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.commands.cat import (
    ID,
    RETRY_SOON,
    Response,
    Server,
    chunked,
    event,
    rejection,
    run_cat,
    running,
    stream,
)

pytestmark = pytest.mark.processes


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
    """No event is lost or printed twice, no matter how the connection breaks."""
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
