"""An SSE client for the command line: it reconnects after every interruption and resumes after the last event.

It works with any SSE server and treats event IDs as opaque. The only part of kafkasse's protocol that it uses is the data of
`error` events.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from http.client import HTTPException, HTTPResponse, InvalidURL
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from kafkasse import __version__
from kafkasse.client.core import (
    DEFAULT_RETRY_S,
    MAX_BACKOFF_S,
    MAX_PROBLEM_BYTES,
    MAX_SILENCE_S,
    Retryable,
    is_retryable,
    problem_in,
    retry_after_s,
    wait_s,
)
from kafkasse.errors import CommandError
from kafkasse.progress import waiting
from kafkasse.sse import Event, EventTooLarge, Parser

MAX_CHUNK_BYTES = 64 * 1024
MAX_DETAIL_CHARS = 500


class EventSource:
    """An endless iterator over the events of one URL, which reconnects after every interruption.

    Args:
        url: an address from address().
        last_event_id: the position to start from; "" if there is none.
        headers: further header fields. Redirects to another address do not receive them.
        token_file: a file with a bearer token, which is read for each connection.
        status: receives sentences about the connection.
    """

    def __init__(
        self,
        url: str,
        last_event_id: str,
        headers: Sequence[tuple[str, str]],
        token_file: Path | None,
        status: Callable[[str], None],
    ) -> None:
        self._url = url
        self._last_event_id = last_event_id
        self._headers = headers
        self._token_file = token_file
        self._report = status
        self._stopped = False
        self._retry_s = DEFAULT_RETRY_S
        self._failures = 0

    def events(self) -> Iterator[Event]:
        """Yield each event once, except `error` events.

        Raises:
            CommandError: a permanent failure, which a retry would not fix.
        """
        while not self._stopped:
            try:
                yield from self._connection()
                failure = Retryable("the stream ended")
            except Retryable as error:
                failure = error
            delay_s = wait_s(self._failures, self._retry_s, failure.retry_after_s)
            self._status(f"{failure}; retrying in {delay_s:.1f} s")
            time.sleep(delay_s)
            self._failures += 1

    def stop(self) -> None:
        """Report nothing more, and end the iterator of another thread at the end of its connection."""
        self._stopped = True

    def _status(self, sentence: str) -> None:
        if not self._stopped:
            self._report(sentence)

    def _connection(self) -> Iterator[Event]:
        parser = Parser(last_event_id=self._last_event_id)
        with self._open() as response:
            self._status(f"connected to {self._url}")
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
                    self._last_event_id = event.id
                    raise _stream_error(event)
                yield event
                self._failures = 0
        except EventTooLarge as error:
            raise CommandError(f"{self._url}: {error}") from None
        self._last_event_id = parser.last_event_id  # an ID without data also moves the position

    def _open(self) -> HTTPResponse:
        headers = {"Accept": "text/event-stream", "User-Agent": f"kafkasse/{__version__}"}
        if self._last_event_id:
            # http.client encodes headers as Latin-1, but browsers send UTF-8, so servers expect UTF-8.
            headers["Last-Event-ID"] = self._last_event_id.encode().decode("latin-1")
        request = Request(self._url, headers=headers)  # noqa: S310 - address() accepts only http and https
        # Not sent to the target of a redirect, which may be another server.
        for name, value in self._headers:
            request.add_unredirected_header(name, value)
        if self._token_file is not None:
            request.add_unredirected_header("Authorization", f"Bearer {_token(self._token_file)}")
        try:
            with waiting(f"connecting to {self._url}"):
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
        raise Retryable(f"the server sent nothing for {MAX_SILENCE_S:.0f} s") from None
    except (OSError, HTTPException):
        raise Retryable("the connection broke") from None


def _http_error(url: str, error: HTTPError) -> Exception:
    raw = b""
    with suppress(OSError, HTTPException):
        raw = error.read(MAX_PROBLEM_BYTES)
    detail = _detail(problem_in(raw)) or error.reason
    return _failure(
        error.code,
        f"{url} answered {error.code}: {one_line(detail)}",
        retry_after_s(error.headers.get("Retry-After", ""), datetime.now(UTC)),
    )


def _stream_error(event: Event) -> Exception:
    problem = problem_in(event.data)
    status = problem.get("status")
    detail = _detail(problem) or "the server gave no reason"
    return _failure(status if isinstance(status, int) else 503, f"the server ended the stream: {one_line(detail)}")


def _failure(status: int, sentence: str, requested_s: float | None = None) -> Exception:
    if is_retryable(status, requested_s):
        return Retryable(sentence, requested_s or 0)
    return CommandError(sentence)


def _connection_error(url: str, error: OSError | HTTPException) -> Exception:
    reason = error.reason if isinstance(error, URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return CommandError(
            f"the certificate of {url} cannot be verified: {reason.verify_message}. "
            "If a private CA signed it, set SSL_CERT_FILE to the CA's certificate."
        )
    if isinstance(reason, OSError) and reason.strerror:
        return Retryable(f"cannot connect to {url}: {reason.strerror}")
    return Retryable(f"cannot connect to {url}: {one_line(str(reason) or type(reason).__name__)}")


def _detail(problem: dict[str, Any]) -> str:
    return str(problem.get("detail") or problem.get("title") or "")


def one_line(text: str) -> str:
    """Return untrusted `text` without line breaks and control characters, which the terminal could execute."""
    words = " ".join(text[:MAX_DETAIL_CHARS].split())
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in words)


def address(url: str, parameters: Sequence[tuple[str, str]]) -> str:
    """Return `url` with special characters encoded and with more parameters in its query.

    Raises:
        CommandError: `url` is not an http or https URL.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise CommandError(f"{url} is not a valid URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise CommandError(f"{url} is not the URL of a stream: it must begin with http:// or https:// and a host name")
    query = "&".join(filter(None, [parts.query, urlencode(parameters)]))
    return quote(urlunsplit(parts._replace(query=query, fragment="")), safe="%/:=&?~+!$,;'@()*[]")
