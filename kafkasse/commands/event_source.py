"""The client of `kafkasse cat`, on the standard library, so that the command needs neither requests nor aiohttp.

kafkasse_client.core has the rules: what to send, which errors to retry, and how long to wait.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from http.client import HTTPException, HTTPResponse, InvalidURL
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from kafkasse import __version__
from kafkasse.commands.pretty import printable
from kafkasse.errors import CommandError
from kafkasse.tools.progress import waiting
from kafkasse_client.core import MAX_PROBLEM_BYTES, MAX_SILENCE_S, Core, Retryable, StreamError
from kafkasse_client.sse import Event

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
        self._core = Core(last_event_id)
        self._headers = headers
        self._token_file = token_file
        self._report = status
        self._stopped = False

    def events(self) -> Iterator[Event]:
        """Yield each event once, except `error` events.

        Raises:
            CommandError: a permanent failure, which a retry would not fix.
        """
        while not self._stopped:
            began_s = time.monotonic()
            try:
                yield from self._connection()
                failure = Retryable("the server ended the stream")
            except Retryable as error:
                failure = error
            except StreamError as error:
                raise CommandError(f"{self._url}: {one_line(str(error))}") from None
            wait_s = self._core.wait_s(failure, time.monotonic() - began_s)
            self._status(f"{self._url}: {one_line(str(failure))}; retrying in {wait_s:.1f} s")
            time.sleep(wait_s)

    def stop(self) -> None:
        """Report nothing more, and end the iterator of another thread at the end of its connection."""
        self._stopped = True

    def _status(self, sentence: str) -> None:
        if not self._stopped:
            self._report(sentence)

    def _connection(self) -> Iterator[Event]:
        with self._open() as response:
            self._core.open(response.status, response.headers.get("Content-Type", ""))
            self._status(f"connected to {self._url}")
            for chunk in _chunks(response):
                for event in self._core.receive(chunk):
                    yield event
                    self._core.position = event.id

    def _open(self) -> HTTPResponse:
        headers = self._core.request_headers() | {"User-Agent": f"kafkasse/{__version__}"}
        # http.client encodes headers as Latin-1, but browsers send UTF-8, so servers expect UTF-8.
        headers = {name: value.encode().decode("latin-1") for name, value in headers.items()}
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
                raise self._response_error(error) from None
        except (InvalidURL, ValueError) as error:
            raise CommandError(f"{self._url} is not a valid URL: {error}") from None
        except (OSError, HTTPException) as error:
            raise _connection_error(error) from None
        return response

    def _response_error(self, error: HTTPError) -> Exception:
        body = b""
        with suppress(OSError, HTTPException):
            body = error.read(MAX_PROBLEM_BYTES)
        return self._core.response_error(error.code, body, error.headers.get("Retry-After"))


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


def _chunks(response: HTTPResponse) -> Iterator[bytes]:
    try:
        while chunk := response.read1(MAX_CHUNK_BYTES):
            yield chunk
    except TimeoutError:
        raise Retryable(f"the server sent nothing for {MAX_SILENCE_S:.0f} s") from None
    except (OSError, HTTPException):
        raise Retryable("the connection broke") from None


def _connection_error(error: OSError | HTTPException) -> Exception:
    reason = error.reason if isinstance(error, URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return StreamError(
            f"the server's certificate cannot be verified: {reason.verify_message}. "
            "If a private CA signed it, set SSL_CERT_FILE to the CA's certificate."
        )
    text = reason.strerror if isinstance(reason, OSError) else ""
    return Retryable(f"cannot connect: {text or reason or type(reason).__name__}")


def one_line(text: str) -> str:
    """Return untrusted `text` without line breaks and control characters, which the terminal could execute."""
    return printable(" ".join(text[:MAX_DETAIL_CHARS].split()))


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
