"""`kafkasse cat`: print a stream in the terminal and resume after every interruption.

Events go to stdout, one line each. Messages about the connection go to stderr. The command works with any SSE server and
treats event IDs as opaque. The only parts of kafkasse's protocol that it uses are the events `error`, `gap` and `position`.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPResponse, InvalidURL
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit, urlunsplit
from urllib.request import Request, urlopen

import click

from kafkasse import __version__
from kafkasse.errors import CommandError
from kafkasse.sse import Event, EventTooLarge, Parser

MAX_SILENCE_S = 60.0  # heartbeats are more frequent, so a connection that is silent for longer is dead
DEFAULT_RETRY_S = 1.0  # between two connections, until the server sends `retry:`
MAX_BACKOFF_S = 30.0
MAX_RETRY_S = 300.0  # a cap on `retry:` and Retry-After, because a wrong value could make us wait for days
MAX_DOUBLINGS = 10
MAX_CHUNK_BYTES = 64 * 1024
MAX_PROBLEM_BYTES = 64 * 1024
MAX_DETAIL_CHARS = 500
POSITIONS = ("{}", '{"snapshot":"complete"}')  # the data of kafkasse's own position events, which contain no record
RETRYABLE_STATUSES = (408, 425, 429)  # the only client errors that may disappear without a change of the request

FORMATS: dict[str, Callable[[Event], str]] = {
    "data": lambda event: event.data,
    "event": lambda event: json.dumps(event._asdict(), ensure_ascii=False, separators=(",", ":")),
    "id": lambda event: event.id,
}

EPILOG = """\b
Examples:
  kafkasse cat http://127.0.0.1:6917/topn/updates
  kafkasse cat http://127.0.0.1:6917/countries --since 2026-01-31T12:00:00Z --count 10
"""


@click.command(epilog=EPILOG)
@click.argument("url")
@click.option("--last-event-id", metavar="ID", default="", help="Start after the event with this ID.")
@click.option("--since", metavar="TIME", help="Start at this time, in ISO 8601, such as 2026-01-31T12:00:00Z.")
@click.option(
    "--token-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A file with a token or an API key. It is read for each connection, so that it may be renewed.",
)
@click.option("--count", metavar="N", type=click.IntRange(min=1), help="Stop after N events.")
@click.option(
    "--format",
    "format_name",
    type=click.Choice(list(FORMATS)),
    default="data",
    show_default=True,
    help="What to print of each event: its data, the whole event as a JSON object (type, data, id), or its ID.",
)
def command(
    url: str, last_event_id: str, since: str | None, token_file: Path | None, count: int | None, format_name: str
) -> None:
    """Print the stream at URL, one line for each event.

    The command reconnects after every interruption and resumes after the last event that it printed. Ctrl-C stops it and
    shows how to resume later. Messages about the connection go to stderr.
    """
    if last_event_id and since:
        raise click.UsageError("--last-event-id and --since cannot be used together.")
    stream = EventSource(_address(url, since), last_event_id, token_file)
    try:
        for number, event in enumerate(stream.events(), start=1):
            _print(FORMATS[format_name](event))
            stream.last_event_id = event.id  # set after printing, so that an event that was not printed is sent again
            if number == count:
                break
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:  # the reader of the pipe, such as head, has exited
        return
    if stream.last_event_id:
        token = ["--token-file", str(token_file)] if token_file else []
        words = ["kafkasse", "cat", url, *token, "--last-event-id", stream.last_event_id]
        _status("resume with: " + shlex.join(words))


class EventSource:
    """An endless iterator over the events of one URL, which reconnects after every interruption.

    `last_event_id` is the position of the next connection. The caller sets it to the ID of each event that it has processed.
    """

    def __init__(self, url: str, last_event_id: str, token_file: Path | None = None) -> None:
        self.last_event_id = last_event_id
        self._url = url
        self._token_file = token_file
        self._retry_s = DEFAULT_RETRY_S
        self._failures = 0

    def events(self) -> Iterator[Event]:
        """Yield each event once.

        Raises:
            CommandError: a permanent failure, which a retry would not fix.
        """
        while True:
            try:
                yield from self._connection()
                failure = _Retryable("the stream ended")
            except _Retryable as error:
                failure = error
            wait_s = _wait_s(self._failures, self._retry_s, failure.retry_after_s)
            _status(f"{failure}; retrying in {wait_s:.1f} s")
            time.sleep(wait_s)
            self._failures += 1

    def _connection(self) -> Iterator[Event]:
        parser = Parser(last_event_id=self.last_event_id)
        with self._open() as response:
            _status(f"connected to {self._url}")
            opened_s = time.monotonic()
            try:
                for chunk in _chunks(response):
                    yield from self._receive(parser, chunk)
            finally:
                if parser.retry_ms is not None:
                    self._retry_s = parser.retry_ms / 1000
                if time.monotonic() - opened_s > MAX_BACKOFF_S:  # a success, even without events
                    self._failures = 0

    def _receive(self, parser: Parser, chunk: bytes) -> Iterator[Event]:
        try:
            for event in parser.receive(chunk):
                if event.type == "error":
                    self.last_event_id = event.id
                    raise _stream_error(event)
                if event.type == "gap":
                    _status(f"records are missing: {_one_line(event.data)}")
                elif event.type == "position" and event.data in POSITIONS:
                    self.last_event_id = event.id
                else:
                    yield event
                self._failures = 0
        except EventTooLarge as error:
            raise CommandError(f"{self._url}: {error}") from None
        self.last_event_id = parser.last_event_id  # an ID without data also moves the position

    def _open(self) -> HTTPResponse:
        headers = {"Accept": "text/event-stream", "User-Agent": f"kafkasse/{__version__}"}
        if self.last_event_id:
            # http.client encodes headers as Latin-1, but browsers send UTF-8, so servers expect UTF-8.
            headers["Last-Event-ID"] = self.last_event_id.encode().decode("latin-1")
        request = Request(self._url, headers=headers)  # noqa: S310 - _address() accepts only http and https
        if self._token_file is not None:
            # Not sent to the target of a redirect, which may be another server.
            request.add_unredirected_header("Authorization", f"Bearer {_token(self._token_file)}")
        try:
            response: HTTPResponse = urlopen(request, timeout=MAX_SILENCE_S)  # noqa: S310 - as above
        except HTTPError as error:
            with error:
                raise _http_error(self._url, error) from None
        except (InvalidURL, ValueError) as error:
            raise CommandError(f"{self._url} is not a valid URL: {error}") from None
        except (OSError, HTTPException) as error:
            raise _connection_error(self._url, error) from None
        return _event_stream(self._url, response)


def _token(file: Path) -> str:
    """Return the token in a file. The error does not quote the file, which may contain anything."""
    try:
        text = file.read_text("ascii").strip()
    except OSError as error:
        raise CommandError(f"the token file {file} cannot be read: {error.strerror}") from None
    except ValueError:
        text = ""
    if len(text.split()) != 1:
        raise CommandError(f"the token file {file} must contain one token and nothing else")
    return text


class _Retryable(Exception):
    """A failure that may be temporary. The next attempt can succeed after `retry_after_s` seconds at the earliest."""

    def __init__(self, reason: str, retry_after_s: float = 0) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


def _event_stream(url: str, response: HTTPResponse) -> HTTPResponse:
    media_type = response.headers.get_content_type()
    if response.status != 200 or media_type != "text/event-stream":
        response.close()
        raise CommandError(
            f"{url} answered {response.status} with {media_type}, not with an event stream; check the URL"
        )
    return response


def _chunks(response: HTTPResponse) -> Iterator[bytes]:
    try:
        while chunk := response.read1(MAX_CHUNK_BYTES):
            yield chunk
    except TimeoutError:
        raise _Retryable(f"the server sent nothing for {MAX_SILENCE_S:.0f} s") from None
    except (OSError, HTTPException):
        raise _Retryable("the connection broke") from None


def _http_error(url: str, error: HTTPError) -> Exception:
    raw = b""
    with suppress(OSError, HTTPException):
        raw = error.read(MAX_PROBLEM_BYTES)
    detail = _detail(_problem(raw)) or error.reason
    return _failure(
        error.code,
        f"{url} answered {error.code}: {_one_line(detail)}",
        _retry_after_s(error.headers.get("Retry-After", ""), datetime.now(UTC)),
    )


def _stream_error(event: Event) -> Exception:
    problem = _problem(event.data)
    status = problem.get("status")
    detail = _detail(problem) or "the server gave no reason"
    return _failure(status if isinstance(status, int) else 503, f"the server ended the stream: {_one_line(detail)}")


def _failure(status: int, sentence: str, retry_after_s: float | None = None) -> Exception:
    # A 500 without Retry-After is permanent: kafkasse sends it if a setting is wrong or a filter fails.
    if status > 500 or status in RETRYABLE_STATUSES or (status == 500 and retry_after_s is not None):
        return _Retryable(sentence, retry_after_s or 0)
    return CommandError(sentence)


def _connection_error(url: str, error: OSError | HTTPException) -> Exception:
    reason = error.reason if isinstance(error, URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return CommandError(
            f"the certificate of {url} cannot be verified: {reason.verify_message}. "
            "If a private CA signed it, set SSL_CERT_FILE to the CA's certificate."
        )
    if isinstance(reason, OSError) and reason.strerror:
        return _Retryable(f"cannot connect to {url}: {reason.strerror}")
    return _Retryable(f"cannot connect to {url}: {_one_line(str(reason) or type(reason).__name__)}")


def _problem(raw: str | bytes) -> dict[str, Any]:
    try:
        problem = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return problem if isinstance(problem, dict) else {}


def _detail(problem: dict[str, Any]) -> str:
    return str(problem.get("detail") or problem.get("title") or "")


def _one_line(text: str) -> str:
    """Return untrusted `text` without line breaks and control characters, which the terminal could execute."""
    words = " ".join(text[:MAX_DETAIL_CHARS].split())
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in words)


def _retry_after_s(value: str, now: datetime) -> float | None:
    """Parse a Retry-After header, which is a number of seconds or a date. Returns None if it is neither."""
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        return (parsedate_to_datetime(value) - now).total_seconds()
    except (ValueError, TypeError):
        return None


def _wait_s(failures: int, retry_s: float, retry_after_s: float) -> float:
    """Return the seconds to wait before the next attempt: exponential backoff, plus up to 50 % of jitter.

    The result is never less than the server requested.
    """
    backoff_s = min(MAX_BACKOFF_S, retry_s * 2.0 ** min(failures, MAX_DOUBLINGS))
    requested_s = min(MAX_RETRY_S, max(retry_s, retry_after_s))
    return max(backoff_s, requested_s) * random.uniform(1, 1.5)  # noqa: S311 - spreads the clients, not a secret


def _address(url: str, since: str | None) -> str:
    """Return `url` with special characters encoded and with `since` in its query.

    Raises:
        CommandError: `url` is not an http or https URL.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise CommandError(f"{url} is not a valid URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise CommandError(f"{url} is not the URL of a stream: it must begin with http:// or https:// and a host name")
    query = "&".join(filter(None, [parts.query, urlencode({"since": since}) if since else ""]))
    return quote(urlunsplit(parts._replace(query=query, fragment="")), safe="%/:=&?~+!$,;'@()*[]")


def _print(line: str) -> None:
    try:
        sys.stdout.buffer.write(line.encode() + b"\n")
        sys.stdout.buffer.flush()
    except OSError as error:
        # The rest of the line is still in the buffer, and Python would fail to flush it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise CommandError(f"cannot write to stdout: {error.strerror}") from None


def _status(sentence: str) -> None:
    click.echo(sentence, err=True)
