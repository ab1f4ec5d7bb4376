"""The rules of a client: what to send, which errors to retry, and how long to wait. This module does no I/O.

stream.py and async_stream.py open the connections and pass in the bytes that they receive.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from kafkasse_client.fallback import POLL_PARAMETERS, Fallback
from kafkasse_client.sse import Event, EventTooLarge, Parser

MAX_SILENCE_S = 60.0  # heartbeats are more frequent, so a connection that is silent for longer is dead
CONNECT_TIMEOUT_S = 10.0
DEFAULT_RETRY_S = 1.0  # between two connections, until the server sends `retry:`
MIN_BACKOFF_S = 0.1  # if the server sends `retry: 0`; not for the first wait
MAX_BACKOFF_S = 30.0
MAX_RETRY_S = 300.0  # a cap on `retry:` and Retry-After, because a wrong value could make us wait for days
MAX_DOUBLINGS = 10
MAX_PROBLEM_BYTES = 64 * 1024
MIN_POLL_S = (
    0.2  # between the starts of two long polls, so that they do not fetch each record of a busy stream separately
)
MIN_EMPTY_POLL_S = 1.0  # a poll that ends earlier without events is a failure, or the client could repeat it in a loop
GATEWAY_TIMEOUT = 504  # kafkasse does not send it: a proxy has waited for the end of the stream
MIN_GATEWAY_TIMEOUT_S = 5.0  # a proxy that responds earlier has not reached the server
EVENT_TYPES = ("position", "message", "delete", "base64", "gap")
RETRYABLE_STATUSES = (408, 425, 429)  # the only 4xx statuses after which the same request may succeed later


class StreamError(Exception):
    """The stream cannot continue, and a retry would not help.

    Attributes:
        status: the status of the response or of the `error` event; None if there was none.
        problem: the server's error object (RFC 9457); empty if there was none.
    """

    def __init__(self, reason: str, status: int | None = None, problem: dict[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.problem = problem or {}


class Retryable(Exception):
    """A failure that may be temporary. The server asks the client to wait at least `retry_after_s` seconds."""

    def __init__(self, reason: str, retry_after_s: float = 0, status: int | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s
        self.status = status


class Silence(Retryable):
    """Nothing has arrived for too long."""


class End(Retryable):
    """The response has ended as it should."""

    def __init__(self) -> None:
        super().__init__("the server ended the stream")


class State(NamedTuple):
    """The state of the connection.

    Attributes:
        name: "connecting", "open" or "retrying".
        reason: why the stream must retry.
        wait_s: for how many seconds the stream waits before it retries.
    """

    name: str
    reason: str = ""
    wait_s: float = 0.0


class Core:
    """The state of a stream across its connections.

    Args:
        position: the event ID to resume from; "" starts where the route says.
        can_refresh: whether the client can get a new token after a 401.
        retry_on: additional statuses to retry.

    Attributes:
        position: the ID of the last event that the caller has processed. The caller sets it.
        wants_new_token: whether the next token must be a new one, because the server rejected the last one.
        continues_polling: whether the next request follows a long poll that has succeeded. The stream stays open meanwhile.
    """

    def __init__(self, position: str, can_refresh: bool = False, retry_on: Collection[int] = ()) -> None:
        self.position = position
        self.wants_new_token = False
        self.continues_polling = False
        self._fallback = Fallback()
        self._can_refresh = can_refresh
        self._retry_on = retry_on
        self._parser = Parser()
        self._retry_s = DEFAULT_RETRY_S
        self._failures = 0
        self._was_open = False  # whether an earlier connection was open
        self._is_open = False
        self._has_received = False  # a part of the body of this connection
        self._has_started = False  # this connection has received an event
        self._has_events = False  # more than the position with which a stream starts, even if an error follows

    def request_parameters(self) -> dict[str, str]:
        """Return the parameters to add to the query of the next request."""
        return POLL_PARAMETERS if self._fallback.polls else {}

    def timeout_s(self, timeout_s: float) -> float:
        """Return how long the next connection may be silent. `timeout_s` is the client's setting."""
        return self._fallback.timeout_s(timeout_s)

    def request_headers(self, more: Mapping[str, str] | None = None, token: str | None = None) -> dict[str, str]:
        """Return the headers of the next request: `more`, and those that every request for the stream needs.

        Raises:
            StreamError: a value contains a line break, for example. requests would quote the value, which may be a secret.
        """
        self._is_open = self._has_received = self._has_started = self._has_events = False
        headers = {**(more or {}), "Accept": "text/event-stream", "Cache-Control": "no-store"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        for name, value in headers.items():
            if not value.isprintable() or value != value.strip():
                raise StreamError(
                    f"the header {name} contains a line break, or begins or ends with a space; use strip()"
                )
        return headers | {"Last-Event-ID": self.position} if self.position else headers

    def open(self, status: int, content_type: str) -> None:
        """Start to receive a successful response.

        Raises:
            StreamError: the response is not an event stream.
            Retryable: the response is not an event stream, but an earlier response from this URL was one.
        """
        if status != 200 or content_type.partition(";")[0].strip().lower() != "text/event-stream":
            reason = f"the server answered {status} with {content_type or 'no type'}, not with an event stream"
            raise Retryable(reason) if self._was_open else StreamError(f"{reason}; check the URL", status)
        self._was_open = self._is_open = True
        self.wants_new_token = False
        self._has_started = self._has_events = False
        self._parser = Parser(last_event_id=self.position)

    def receive(self, chunk: bytes) -> Iterator[Event]:
        """Yield the events that `chunk` completes. An ID without data is a `position` event.

        Raises:
            StreamError, Retryable: the server sent an `error` event.
        """
        self._has_received = True
        before = self._parser.last_event_id
        try:
            for event in self._parser.receive(chunk):
                before = event.id
                if event.type == "error":
                    yield Event("position", "{}", event.id)
                    raise self.stream_error(event)
                if self._has_started or event.type != "position":
                    self._has_events = True
                    self.succeeded()
                self._has_started = True
                yield event
        except EventTooLarge as error:
            raise StreamError(str(error)) from None
        finally:
            if self._parser.retry_ms is not None:
                self._retry_s = self._parser.retry_ms / 1000
        if self._parser.last_event_id != before:
            yield Event("position", "{}", self._parser.last_event_id)

    def response_error(self, status: int, body: bytes, retry_after: str | None) -> StreamError | Retryable:
        """Return the error for a response whose status is not 2xx."""
        return self._error(status, f"the server answered {status}", problem_in(body), retry_after)

    def stream_error(self, event: Event) -> StreamError | Retryable:
        """Return the error in an `error` event."""
        problem = problem_in(event.data)
        status = problem.get("status")
        return self._error(status if isinstance(status, int) else 503, "the server ended the stream", problem, None)

    def _error(
        self, status: int, what: str, problem: dict[str, Any], retry_after: str | None
    ) -> StreamError | Retryable:
        detail = problem.get("detail") or problem.get("title")
        reason = f"{what}: {detail}" if detail else what
        wait_s = retry_after_s(retry_after or "", datetime.now(UTC))
        if is_retryable(status, wait_s) or status in self._retry_on or (status == 401 and self._may_refresh):
            return Retryable(reason, wait_s or 0, status)
        return StreamError(reason, status, problem)

    @property
    def _may_refresh(self) -> bool:
        return self._can_refresh and not self.wants_new_token

    def wait_s(self, failure: Retryable, open_s: float) -> float:
        """Return how long to wait before the next connection. After a 401 response, the client tries a new token at once.

        Args:
            failure: why the last connection ended.
            open_s: for how long it had been open.
        """
        has_timed_out = failure.status == GATEWAY_TIMEOUT and open_s >= MIN_GATEWAY_TIMEOUT_S
        is_silent = isinstance(failure, Silence) or has_timed_out
        was_poll = self._fallback.polls
        self._fallback.ended(is_silent, self._has_received, max(open_s, MIN_POLL_S))
        has_polled = was_poll and self._has_polled(failure, open_s)
        self.continues_polling = has_polled and self._fallback.polls
        if has_polled:
            self.succeeded()
            return max(0, MIN_POLL_S - open_s) if self.continues_polling else 0
        if self._fallback.polls and not was_poll:
            failure.args = (f"{failure}; continuing with long polls",)
        if open_s > MAX_BACKOFF_S:
            self.succeeded()
        if failure.status == 401 and self._may_refresh:
            self.wants_new_token = True
            if not self._is_open:
                return 0
        self._failures += 1
        return wait_s(self._failures - 1, self._retry_s, failure.retry_after_s)

    def _has_polled(self, failure: Retryable, open_s: float) -> bool:
        is_empty = self._has_received and open_s >= MIN_EMPTY_POLL_S
        return isinstance(failure, End) and (self._has_events or is_empty)

    def succeeded(self) -> None:
        """Reset the backoff after a success."""
        self._failures = 0


def check_types(types: Iterable[str]) -> None:
    """Raise a TypeError for a type that no event has, because its handler would never be called."""
    for unknown in set(types).difference(EVENT_TYPES):
        raise TypeError(f"no event has the type {unknown!r}; the types are {', '.join(EVENT_TYPES)}")


def is_retryable(status: int, retry_after_s: float | None) -> bool:
    """Return whether a failure may be temporary.

    A 500 without Retry-After is permanent: kafkasse sends it if a setting is wrong or a filter fails.
    """
    return status > 500 or status in RETRYABLE_STATUSES or (status == 500 and retry_after_s is not None)


def problem_in(raw: str | bytes) -> dict[str, Any]:
    """Return the error object in a body or an event, or an empty dict if there is none."""
    try:
        problem = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return problem if isinstance(problem, dict) else {}


def retry_after_s(value: str, now: datetime) -> float | None:
    """Parse a Retry-After header, which is a number of seconds or a date. Returns None if it is neither."""
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        return (parsedate_to_datetime(value) - now).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return None


def wait_s(failures: int, retry_s: float, retry_after_s: float) -> float:
    """Return the seconds to wait before the next attempt: exponential backoff, plus up to 50 % of jitter.

    The result is at least the time that the server requested, up to MAX_RETRY_S.
    """
    base_s = max(retry_s, MIN_BACKOFF_S if failures else 0)
    backoff_s = min(MAX_BACKOFF_S, base_s * 2.0 ** min(failures, MAX_DOUBLINGS))
    requested_s = min(MAX_RETRY_S, max(retry_s, retry_after_s))
    return max(backoff_s, requested_s) * random.uniform(1, 1.5)  # noqa: S311 - spreads the clients, not a secret
