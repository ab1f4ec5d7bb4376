"""An asyncio client that uses aiohttp."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import Any, TypeVar, cast

import aiohttp

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
Token = str | Callable[[bool], str | Awaitable[str]]
Headers = Mapping[str, str] | Callable[[bool], Mapping[str, str] | Awaitable[Mapping[str, str]]]

# Errors that a retry may fix. Other exceptions of aiohttp, such as InvalidURL, go to the caller.
_NETWORK_ERRORS = (
    aiohttp.ClientConnectionError,
    aiohttp.ClientPayloadError,
    aiohttp.ClientResponseError,  # the response is not HTTP
    TimeoutError,
    ConnectionError,
)


class AsyncStream:
    """The same as `kafkasse_client.Stream` for asyncio.

    The functions `token`, `headers`, `store.save` and the handlers of run() can be coroutine functions. `store.load` and
    `on_state` cannot.
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
        session: aiohttp.ClientSession | None = None,
        on_state: Callable[[State], object] = lambda state: None,
    ) -> None:
        self._url = url
        self._token = token
        self._headers = headers
        self._save = save_of(store)
        self._timeout_s = timeout_s
        self._session = session
        self._on_state = on_state
        self._closed = asyncio.Event()
        self._core = Core(last_event_id or load(store), callable(token) or callable(headers), retry_on)

    @property
    def position(self) -> str:
        """The ID of the last event that the caller has processed."""
        return self._core.position

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Yield events until close() is called.

        Raises:
            StreamError: a retry would not help.
        """
        async with AsyncExitStack() as stack:
            session = self._session
            if session is None:
                session = await stack.enter_async_context(aiohttp.ClientSession())
            while not self._closed.is_set():
                began_s = time.monotonic()
                if not self._core.continues_polling:
                    self._on_state(State("connecting"))
                try:
                    async for event in self._connection(session):
                        yield event
                        await self.commit(event)
                    failure: Retryable = End()
                except Retryable as error:
                    failure = error
                if not self._closed.is_set() and (wait_s := self._core.wait_s(failure, time.monotonic() - began_s)):
                    if not self._core.continues_polling:
                        self._on_state(State("retrying", str(failure), wait_s))
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._closed.wait(), wait_s)

    async def run(self, **handlers: Callable[[Event], object]) -> None:
        """Call the handler of each event's type until close() is called: `await stream.run(message=show, gap=reload)`.

        Raises:
            StreamError: a retry would not help.
            TypeError: no event has the type of a handler, such as `mesage`.
        """
        check_types(handlers)
        async for event in self:
            if handler := handlers.get(event.type):
                await _result(handler(event))

    async def commit(self, event: Event) -> None:
        """Save the position of an event now, for example before you leave the loop."""
        if event.id and event.id != self._core.position:  # the rows of a snapshot have no ID
            await _result(self._save(event.id))
            self._core.position = event.id

    def close(self) -> None:
        """End the iteration: at once while it waits for a retry, otherwise at the next event or heartbeat."""
        self._closed.set()

    async def _connection(self, session: aiohttp.ClientSession) -> AsyncIterator[Event]:
        more: Mapping[str, str] | None = await self._ask(self._headers)
        headers = self._core.request_headers(more, await self._ask(self._token))
        silence_s = self._core.timeout_s(self._timeout_s)
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S, sock_read=silence_s)
        options: Any = {"headers": headers, "timeout": timeout, "raise_for_status": False}
        parameters = self._core.request_parameters() or None
        async with AsyncExitStack() as stack:
            with _network_errors():
                response = await stack.enter_async_context(session.get(self._url, params=parameters, **options))
                await self._check(response, silence_s)
            if not self._core.continues_polling:
                self._on_state(State("open"))
            while True:
                with _network_errors():
                    chunk = await _next_chunk(response, silence_s)
                if not chunk:
                    return
                for event in self._core.receive(chunk):
                    if self._closed.is_set():
                        return
                    yield event
                if self._closed.is_set():
                    return

    async def _check(self, response: aiohttp.ClientResponse, silence_s: float) -> None:
        if response.ok:
            self._core.open(response.status, response.headers.get("Content-Type", ""))
            return
        body = b""
        with suppress(Silence, *_NETWORK_ERRORS):
            async with asyncio.timeout(silence_s):
                while len(body) < MAX_PROBLEM_BYTES and (part := await _next_chunk(response, silence_s)):
                    body += part
        raise self._core.response_error(response.status, body[:MAX_PROBLEM_BYTES], response.headers.get("Retry-After"))

    async def _ask(self, option: T | Callable[[bool], T | Awaitable[T]]) -> T:
        """Return the value of an option, which may be a function. If it fails or hangs, the stream retries later."""
        if not callable(option):
            return option
        try:
            async with asyncio.timeout(self._timeout_s):
                return cast(T, await _result(option(self._core.wants_new_token)))
        except (StreamError, Retryable, NameError):  # a missing name stays missing
            raise
        except Exception as error:  # the caller's code may raise anything, for example if the issuer is down
            raise Retryable(f"the token or the headers are not available: {error!r}") from error


@contextmanager
def _network_errors() -> Iterator[None]:
    """Convert the errors of aiohttp to those of core.py."""
    try:
        yield
    except aiohttp.TooManyRedirects:  # a ClientResponseError, but permanent
        raise
    except aiohttp.ClientConnectorCertificateError as error:
        raise StreamError(f"the server's certificate cannot be verified: {error}") from error
    except aiohttp.ServerTimeoutError as error:
        is_silence = str(error).startswith("Timeout on reading")  # otherwise, the connection was not opened in time
        raise _silence() if is_silence else Retryable(str(error)) from error
    except aiohttp.ClientPayloadError as error:
        raise Retryable("the connection failed: the response is incomplete") from error
    except _NETWORK_ERRORS as error:
        reason = getattr(error, "strerror", None) or getattr(error, "message", None) or type(error).__name__
        raise Retryable(f"the connection failed: {reason}") from error


def _silence() -> Silence:
    return Silence("nothing arrived through the connection")


async def _next_chunk(response: aiohttp.ClientResponse, silence_s: float) -> bytes:
    """Return the next bytes of the body, or b"" at its end. After an invalid chunk, aiohttp would wait without end."""
    try:
        async with asyncio.timeout(silence_s) as limit:
            return await response.content.readany()
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise _silence() from error


async def _result(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
