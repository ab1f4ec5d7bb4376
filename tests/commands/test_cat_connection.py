"""`kafkasse cat` resumes, retries temporary errors, and sends tokens, headers and cookies only to the requested server."""

from __future__ import annotations

import json
import re
import ssl
from pathlib import Path
from typing import Any

import pytest

from tests.client.script import HEAD, Answers, Raw, Sends, Serve, chunk, sent_ids
from tests.commands.cat import ID, event, sleeping
from tests.commands.run import Run
from tests.support.certificates import Authority
from tests.support.server import ROOT

UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
CONTRACT = json.loads((ROOT / "tests/client/retry_contract.json").read_text())


@pytest.mark.parametrize(
    "first",
    [
        Raw(UNTIL_CLOSED + event(0) + event(1)[:-1]),
        Sends(event(0) + b"id: 9\ndata: half", "is reset"),
        Sends(event(0) + event(1)[:20], "ends"),
        Raw(HEAD + chunk(event(0)) + b"ff\r\n" + event(1)[:20]),
        Raw(HEAD + chunk(event(0)) + b"not a length\r\n"),
    ],
    ids=["closed in a frame", "reset in a frame", "ended in a frame", "closed in a chunk", "invalid chunk"],
)
def test_resumes_after_the_last_complete_event(cat: Run, serve: Serve, first: Raw) -> None:
    """No event is lost or printed twice, no matter how the connection breaks."""
    server = serve(first, Sends(event(1) + event(2)))

    done = cat(server.url, "--max", "3")

    assert "0\n1\n2\n" == done.out
    assert ID % 1 == server.requests[1]["last-event-id"]


@pytest.mark.parametrize("case", CONTRACT["responses"], ids=str)
def test_retries_after_a_temporary_response(cat: Run, serve: Serve, case: dict[str, Any]) -> None:
    """The table is the same for all clients."""
    headers = {} if case["retry_after"] is None else {"Retry_After": case["retry_after"]}
    server = serve(Answers(case["status"], "No.", **headers), Sends(event(0)))

    done = cat(server.url, "--max", "1")

    assert ((0, "0\n", 2) if case["is_retried"] else (1, "", 1)) == (done.code, done.out, len(server.requests))
    assert f"{server.url}: the server answered {case['status']}: No." in done.err


@pytest.mark.parametrize("case", CONTRACT["error_events"], ids=str)
def test_retries_after_a_temporary_error_event(cat: Run, serve: Serve, case: dict[str, Any]) -> None:
    """The event is not printed as data. The command resumes from its ID."""
    error = f"event: error\ndata: {case['data']}\nid: 5\n\n".encode()
    server = serve(Sends(event(0) + error), Sends(event(1)))

    done = cat(server.url, "--max", "2")

    assert ((0, "0\n1\n") if case["is_retried"] else (1, "0\n")) == (done.code, done.out)
    assert ["5"] * case["is_retried"] == sent_ids(server)[1:]


def test_waits_as_long_as_the_server_requests(cat: Run, serve: Serve) -> None:
    """The wait has up to 50 % of jitter. The reason is printed without control characters."""
    server = serve(Answers(503, "Kafka is unavailable.\n\x1b[31m", Retry_After="8"), Sends(event(0)))

    done = cat(server.url, "--max", "1")

    assert "0\n" == done.out
    reason = "answered 503: Kafka is unavailable. \N{REPLACEMENT CHARACTER}[31m"
    assert re.search(rf"{re.escape(reason)}; retrying in (8|9|10|11|12)\.\d s", done.err)


def test_retries_if_the_connection_is_refused(run: Run) -> None:
    """The command retries until Ctrl-C."""
    with sleeping([None, KeyboardInterrupt]):
        done = run("cat", "http://127.0.0.1:1/t")

    assert 130 == done.code
    assert 2 == done.err.count("http://127.0.0.1:1/t: cannot connect: Connection refused; retrying in ")


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (Answers(404, "There is no topic x."), "answered 404: There is no topic x."),
        (Raw(b"HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\n\r\n[oops"), "answered 404"),
        (Sends(event(0) + b'event: error\ndata: {"status":410,"detail":"Topic t was deleted."}\n\n'),
         "ended the stream: Topic t was deleted."),
        (Raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n<p>hello"),
         "answered 200 with text/html, not with an event stream; check the URL"),
    ],
)  # fmt: skip
def test_a_permanent_error_is_one_sentence(cat: Run, serve: Serve, response: Raw, reason: str) -> None:
    """The message contains the detail of the problem, if there is one."""
    server = serve(response)

    done = cat(server.url)

    assert (1, f"kafkasse cat: {server.url}: the server {reason}") == (done.code, done.err.splitlines()[-1])


def test_stops_at_an_event_that_is_too_large(cat: Run, serve: Serve) -> None:
    """An event above the parser's limit is a permanent error, because the server would send the event again."""
    server = serve(Sends(event(0) + b"data: " + b"x" * 17 * 1024 * 1024))

    done = cat(server.url)

    assert (1, "0\n") == (done.code, done.out)
    assert done.err.endswith("the stream contains an event larger than 16,777,216 bytes\n")


def test_sends_the_token_of_a_file(cat: Run, serve: Serve, tmp_path: Path) -> None:
    """The file is read for each connection, so that a renewed token is used. The output does not contain the token."""
    file = tmp_path / "token"
    file.write_text("secret-1\n")
    server = serve(Sends(event(1), "ends"), Sends(event(2)))

    done = cat(server.url, "--token-file", str(file), "--max", "2")

    assert ["Bearer secret-1"] * 2 == [request["authorization"] for request in server.requests]
    assert "secret-1" not in done.out + done.err


@pytest.mark.parametrize("text", [None, "", "two tokens", "a\nb", "\xff"])
def test_a_token_file_that_is_not_valid(cat: Run, serve: Serve, tmp_path: Path, text: str | None) -> None:
    """The error names the file, and nothing is sent."""
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text, "latin-1")
    server = serve(Sends(event(1)))

    done = cat(server.url, "--token-file", str(file))

    assert (1, []) == (done.code, server.requests)
    assert str(file) in done.err


def test_sends_headers_and_cookies(cat: Run, serve: Serve) -> None:
    """Their values appear in no message."""
    server = serve(Sends(event(0)))

    options = ["-H", "X-Shop: s3cret-1", "--cookie", "session=s3cret=2", "--cookie", "theme=dark"]
    done = cat(server.url, *options, "--max", "1")

    headers = server.requests[0]
    assert ("s3cret-1", "session=s3cret=2; theme=dark") == (headers["x-shop"], headers["cookie"])
    assert "resume with the same headers and cookies with: kafkasse cat" in done.err
    assert "s3cret" not in done.out + done.err


def test_follows_a_redirect_without_credentials(cat: Run, serve: Serve, tmp_path: Path) -> None:
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


def test_uses_the_proxy_of_the_environment(cat: Run, serve: Serve) -> None:
    """The request goes to `http_proxy`, with the complete URL in its first line."""
    proxy = serve(Sends(event(0)))

    done = cat("http://stream.invalid/t", "--max", "1", http_proxy=proxy.url)

    assert "0\n" == done.out
    assert "GET http://stream.invalid/t HTTP/1.1" == proxy.lines[0]


@pytest.mark.parametrize("is_trusted", [True, False])
def test_verifies_the_certificate(cat: Run, serve: Serve, tmp_path: Path, is_trusted: bool) -> None:
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
