"""A client that uses requests."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from typing import TypeVar

import requests
from requests.auth import AuthBase
from urllib3.exceptions import HTTPError, ReadTimeoutError

from kafkasse_client.core import (
    CONNECT_TIMEOUT_S,
    MAX_PROBLEM_BYTES,
    MAX_SILENCE_S,
    Core,
    End,
    Retryable,
    Silence,
    State,
    StreamError,
    check_types,
)
from kafkasse_client.sse import Event
from kafkasse_client.stores import PositionStore, Save, load, save_of

T = TypeVar("T")
Token = str | Callable[[bool], str]
Headers = Mapping[str, str] | Callable[[bool], Mapping[str, str]]

MAX_PART_BYTES = 64 * 1024  # of a body, passed to the parser at once

# Errors that a retry may fix. Other exceptions of requests, such as InvalidURL, go to the caller.
_NETWORK_ERRORS = (
    requests.ConnectionError,
    requests.Timeout,
    requests.exceptions.ChunkedEncodingError,
    requests.exceptions.ContentDecodingError,  # the end of a compressed stream is missing
    requests.exceptions.RetryError,  # the application's session retries statuses
)


class Stream:
    """An endless iterator over the events of a stream. It reconnects after each break and resumes after the last event.

    The stream saves the position of an event when the caller asks for the next one. If the caller fails, it therefore
    receives the event again after a restart (at least once). For exactly once, save `event.id` in the transaction that
    saves the result, and pass it as `last_event_id`.

    Args:
        url: the URL of the stream.
        token: sent as `Authorization: Bearer …`. A function is called for each connection with False, and after a 401
            with True, which means that it must return a new token.
        headers: additional headers, or a function as for `token`. Unlike the token, they are also sent after a
            redirect to another server.
        last_event_id: where to resume. Takes precedence over the position in `store`.
        store: an object that loads and saves the position, such as a FileStore, or a function that only saves it. With a
            function, pass `last_event_id` yourself.
        timeout_s: the stream replaces a connection that is silent for this long. If nothing arrives through a new connection
            for 15 s, a proxy probably holds the stream back, and the next requests are long polls.
        retry_on: statuses to retry in addition to 408, 425, 429 and 5xx (500 only with Retry-After), such as 404 for a topic
            that is created later.
        session: the session to use, for example with certificates, proxies and cookies.
        on_state: called when the state of the connection changes.
    """

    def __init__(
        self,
        url: str,
        *,
        token: Token | None = None,
        headers: Headers | None = None,
        last_event_id: str = "",
        store: PositionStore | Save | None = None,
        timeout_s: float = MAX_SILENCE_S,
        retry_on: Collection[int] = (),
        session: requests.Session | None = None,
        on_state: Callable[[State], object] = lambda state: None,
    ) -> None:
        self._url = url
        self._token = token
        self._headers = headers
        self._save = save_of(store)
        self._timeout_s = timeout_s
        self._session = session or requests.Session()
        self._on_state = on_state
        self._closed = threading.Event()
        self._core = Core(last_event_id or load(store), callable(token) or callable(headers), retry_on)

    @property
    def position(self) -> str:
        """The ID of the last event that the caller has processed."""
        return self._core.position

    def __iter__(self) -> Iterator[Event]:
        """Yield events until close() is called.

        Raises:
            StreamError: a retry would not help.
        """
        while not self._closed.is_set():
            began_s = time.monotonic()
            if not self._core.continues_polling:
                self._on_state(State("connecting"))
            try:
                yield from self._connection()
                failure: Retryable = End()
            except Retryable as error:
                failure = error
            if not self._closed.is_set() and (wait_s := self._core.wait_s(failure, time.monotonic() - began_s)):
                if not self._core.continues_polling:
                    self._on_state(State("retrying", str(failure), wait_s))
                self._closed.wait(wait_s)

    def run(self, **handlers: Callable[[Event], object]) -> None:
        """Call the handler of each event's type until close() is called: `stream.run(message=show, gap=reload)`.

        Raises:
            StreamError: a retry would not help.
            TypeError: no event has the type of a handler, such as `mesage`.
        """
        check_types(handlers)
        for event in self:
            if handler := handlers.get(event.type):
                handler(event)

    def commit(self, event: Event) -> None:
        """Save the position of an event now, for example before you leave the loop."""
        if event.id and event.id != self._core.position:  # the rows of a snapshot have no ID
            self._save(event.id)
            self._core.position = event.id

    def close(self) -> None:
        """End the iteration: at once while it waits for a retry, otherwise at the next event or heartbeat. Thread-safe."""
        self._closed.set()

    def _connection(self) -> Iterator[Event]:
        with self._request() as response:
            self._check(response)
            if not (self._closed.is_set() or self._core.continues_polling):
                self._on_state(State("open"))
            for chunk in _chunks(response):
                for event in self._core.receive(chunk):
                    if self._closed.is_set():
                        return
                    yield event
                    self.commit(event)
                if self._closed.is_set():
                    return

    def _request(self) -> requests.Response:
        refresh = self._core.wants_new_token
        more: Mapping[str, str] | None = _ask(self._headers, refresh)
        token = _ask(self._token, refresh)
        headers = self._core.request_headers(more, token)
        try:
            return self._session.get(
                self._url,
                # Browsers send IDs as UTF-8; requests would encode a string as Latin-1.
                headers={name: value.encode() for name, value in headers.items()},
                auth=_Bearer(headers["Authorization"]) if token else None,
                params=self._core.request_parameters(),
                stream=True,
                timeout=(CONNECT_TIMEOUT_S, self._core.timeout_s(self._timeout_s)),
            )
        except _NETWORK_ERRORS as error:
            raise _network_error(error) from error

    def _check(self, response: requests.Response) -> None:
        if response.ok:
            self._core.open(response.status_code, response.headers.get("Content-Type", ""))
            return
        body = b""
        with suppress(*_NETWORK_ERRORS):
            body = next(response.iter_content(MAX_PROBLEM_BYTES), b"")
        raise self._core.response_error(response.status_code, body, response.headers.get("Retry-After"))


class _Bearer(AuthBase):
    """Sets the token. If the token were a plain header, requests would replace it with an entry of ~/.netrc."""

    def __init__(self, authorization: str) -> None:
        self._authorization = authorization.encode().decode("latin-1")  # requests encodes it as Latin-1

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = self._authorization
        return request


def _ask(option: T | Callable[[bool], T], refresh: bool) -> T:
    """Return the value of an option, which may be a function. If the function fails, the stream retries later."""
    if not callable(option):
        return option
    try:
        return option(refresh)
    except (StreamError, Retryable, NameError):  # a missing name stays missing
        raise
    except Exception as error:  # the caller's code may raise anything, for example if the issuer is down
        raise Retryable(f"the token or the headers are not available: {error!r}") from error


def _network_error(error: BaseException) -> StreamError | Retryable:
    """Return the error for an error of requests, with the reason of the first error that led to it."""
    silences = (requests.ReadTimeout, ReadTimeoutError)
    is_silence = isinstance(error, silences) or isinstance((*error.args, None)[0], silences)
    if is_silence:
        return Silence("nothing arrived through the connection")
    # urllib3 1.26 does not chain the reason of a MaxRetryError, whose text contains the URL, which may contain a secret.
    while isinstance(cause := error.__cause__ or error.__context__ or getattr(error, "reason", None), BaseException):
        error = cause
    if isinstance(error, ssl.SSLCertVerificationError):
        return StreamError(
            f"the server's certificate cannot be verified: {error.verify_message}. "
            "If a private CA signed it, set REQUESTS_CA_BUNDLE to the CA's certificate."
        )
    if str(error).endswith("base 16: b''"):  # urllib3 read the end of the response as the length of a chunk
        return Retryable("the connection failed: the response is incomplete")
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return Retryable(f"the connection failed: {reason}")


def _chunks(response: requests.Response) -> Iterator[bytes]:
    is_chunked = getattr(response.raw, "chunked", False)
    try:
        if is_chunked or not hasattr(response.raw, "read1"):  # of urllib3 2
            # requests returns a small chunk as it arrives, but if the body is not chunked, it waits for a whole part.
            yield from response.iter_content(MAX_PART_BYTES if is_chunked else 1)
            return
        while part := response.raw.read1(MAX_PART_BYTES, decode_content=True):
            yield part
    except (*_NETWORK_ERRORS, HTTPError) as error:
        raise _network_error(error) from error
