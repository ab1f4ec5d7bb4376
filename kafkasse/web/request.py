"""Parse the HTTP request for a stream: method, Accept, Last-Event-ID and query. This module opens nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache

from flask import Request, request
from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header

from kafkasse.config.times import parse_time
from kafkasse.errors import (
    ID_TOO_LONG_ADVICE,
    HeaderTooLarge,
    InvalidParameter,
    MethodNotAllowed,
    NotAcceptable,
    RequestTooLarge,
)
from kafkasse.records.frame import JsonLines, ServerSentEvents, Wire
from kafkasse.records.position import Limits, Position, of_topics, parse, stream_offset
from kafkasse.route import Route
from kafkasse.settings import WebSettings
from kafkasse.web.headers import MAX_ACCEPT_CHARS

STREAM_TYPE = "text/event-stream"
JSON_LINES_TYPES = ("application/x-ndjson", "application/json")
ID_PARAMETERS = ("last_event_id", "lastEventId")  # browsers cannot set the header when they connect for the first time
PARAMETERS = ("timestamp", "since", "offset", "live", "cursor", *ID_PARAMETERS)
MAX_SUGGESTED_CHARS = 8192  # of the URL and of the event ID of the request that a POST should have been
BEGINNING, NOW = "-1", "now"  # in place of an offset
MAX_TIMESTAMP = 2**63 - 1


def current_request() -> Request:
    """Return the current request. Each use of Flask's proxy would look it up again."""
    return request._get_current_object()  # type: ignore[attr-defined,no-any-return]


def endpoint_name() -> str:
    """Return the name of the current request's route, or "" if there is none, without the names of blueprints."""
    return (request.endpoint or "").rpartition(".")[2]


class LiveMode(StrEnum):
    """What a finite read does at the end of the log."""

    OFF = ""  # it returns an empty chunk
    LONG_POLL = "long-poll"  # it waits for records
    SSE = "sse"  # it sends chunks as events
    EVENTS = "events"  # a long poll of the stream itself: it has no offset and ends as soon as it has sent events


@dataclass(frozen=True, slots=True)
class FiniteRead:
    """The parameters of the Durable Streams protocol."""

    offset: str  # BEGINNING, NOW or the text of a position; "" with LiveMode.EVENTS
    live: LiveMode
    cursor: str  # what the client echoes of an earlier response to a live read
    other_bytes: int  # of the request line: all except the offset


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """A parsed request."""

    position: Position  # where the client wants to start. Route.adapt() completes it on a route with configured topics.
    since: int | None  # where other partitions start, in ms since the epoch; None: as the route's `start` says
    wire: Wire
    content_type: str  # of the response
    finite: FiniteRead | None = None  # None: a stream


def parse_request(request: Request, route: Route, topics: str, settings: WebSettings, is_finite: bool) -> StreamRequest:
    """Parse a request for a stream, or for a finite read.

    Args:
        topics: the names of topics and groups in the path, separated by commas; "" if the route configures its topics.
        is_finite: what is_finite_read() returns.

    Raises:
        BadRequest, MethodNotAllowed, NotAcceptable, RequestTooLarge: the message names the invalid part.
    """
    if request.method not in ("GET", "HEAD"):
        raise _method_not_allowed(request)
    finite = _finite_read(request) if is_finite else None
    if finite is not None and finite.live is not LiveMode.EVENTS:
        return _parse_finite(request, finite, route, topics, settings)
    content_type, wire = _negotiate(request, settings.position_events)
    since = _since(request) if request.query_string else None
    last_event_id = _last_event_id(request, settings)
    if last_event_id is None:
        position = _position_of_topics(route, topics)
    else:
        limits = Limits(settings.max_last_event_id_bytes)
        position = parse(last_event_id, limits)
        since = since if position.named_topics else None
    if since is None:
        since = route.resolve_start_time(time.time_ns() // 1_000_000)
    _check_number_of_topics(position, route, settings)
    return StreamRequest(position, since, wire, content_type, finite)


def _position_of_topics(route: Route, topics: str) -> Position:
    return Position() if route.topics is not None else of_topics(route.expand(_topic_names(topics)))


def _check_number_of_topics(position: Position, route: Route, settings: WebSettings) -> None:
    count, maximum = len(position.topics), settings.max_topics_per_stream
    if route.topics is None and count > maximum:
        raise InvalidParameter(f"You requested {count} topics; a stream can have {maximum} (max_topics_per_stream).")


def is_finite_read(request: Request) -> bool:
    """Return whether the client requests a response that ends."""
    # Parsing an empty query would take 4 µs.
    return bool(request.query_string) and ("offset" in request.args or "live" in request.args)


def _finite_read(request: Request) -> FiniteRead:
    """Return the parameters of a finite read."""
    arguments = request.args
    offsets, live = arguments.getlist("offset"), arguments.get("live", "")
    if live == LiveMode.EVENTS:
        if offsets:
            raise InvalidParameter("Do not send offset with live=events. Send Last-Event-ID as a header instead.")
        return FiniteRead("", LiveMode.EVENTS, "", 0)
    if len(offsets) != 1:
        raise InvalidParameter("Send one offset: -1, now, or the Stream-Next-Offset of a response.")
    if live not in set(LiveMode):
        raise InvalidParameter("live must be long-poll, sse or events.")
    environ = request.environ
    uri = environ.get("RAW_URI") or environ.get("REQUEST_URI") or request.full_path  # the last one may be shorter
    line = f"{request.method} {uri} {environ.get('SERVER_PROTOCOL', '')}"
    return FiniteRead(offsets[0], LiveMode(live), arguments.get("cursor", ""), len(line) - len(offsets[0]))


def _parse_finite(
    request: Request, finite: FiniteRead, route: Route, topics: str, settings: WebSettings
) -> StreamRequest:
    since = _since(request)
    if finite.offset in (BEGINNING, NOW):
        position, since = _position_of_topics(route, topics), since if finite.offset == BEGINNING else None
    else:
        limits = Limits(settings.max_last_event_id_bytes)
        position, since = stream_offset.parse(finite.offset, limits), None
    _check_number_of_topics(position, route, settings)
    return StreamRequest(position, since, JsonLines(), "application/json", finite)


def _method_not_allowed(request: Request) -> MethodNotAllowed:
    """Return an error that contains the GET request to send instead. Libraries for fetch() can send POST with a body."""
    if request.method != "POST":
        return MethodNotAllowed(f"{request.method} is not supported. Use GET to read a stream.")
    headers = {"Accept": STREAM_TYPE}
    if last_event_id := request.headers.get("Last-Event-ID"):
        headers["Last-Event-ID"] = last_event_id[:MAX_SUGGESTED_CHARS]
    url = "/" + request.url.removeprefix(request.host_url)
    return MethodNotAllowed(
        "POST is not supported. Use GET without a body: send the request in `instead`, put the parameters of your body into "
        "the query (such as ?since=), and send the last event ID in the Last-Event-ID header.",
        instead={"method": "GET", "url": url[:MAX_SUGGESTED_CHARS], "headers": headers},
    )


def _topic_names(topics: str) -> list[str]:
    names = [name.strip() for name in topics.split(",")]
    if not all(names):
        raise InvalidParameter("The path contains an empty topic name. Use /topic or /topic,topic.")
    return names


def _negotiate(request: Request, position_events: bool) -> tuple[str, Wire]:
    accept = request.headers.get("Accept", "")
    content_type = _best_type(accept) if len(accept) <= MAX_ACCEPT_CHARS else None
    if content_type is None:
        raise NotAcceptable(
            f"Accept must allow {STREAM_TYPE} or {' or '.join(JSON_LINES_TYPES)}, in at most {MAX_ACCEPT_CHARS} characters.",
            offered=[STREAM_TYPE, *JSON_LINES_TYPES],
        )
    if content_type == STREAM_TYPE:
        return ServerSentEvents.content_type, _server_sent_events(position_events)
    return f"{content_type}; charset=utf-8", JsonLines()


_server_sent_events = cache(ServerSentEvents)  # creating one takes as long as the rest of _negotiate()


@lru_cache(maxsize=256)
def _best_type(accept: str) -> str | None:
    """Return the offered type that an Accept header prefers. Cached, because most clients send one of a few headers."""
    if not accept.strip():
        return STREAM_TYPE
    # Ignore parameters: "text/event-stream; charset=utf-8" asks for text/event-stream.
    accepted = [
        (media_type.partition(";")[0].strip(), quality)
        for media_type, quality in parse_accept_header(accept, MIMEAccept)
    ]
    return MIMEAccept(accepted).best_match([STREAM_TYPE, *JSON_LINES_TYPES])


def _last_event_id(request: Request, settings: WebSettings) -> str | None:
    """Return the event ID that the client sent. An empty one counts as absent: some clients send it when they have no ID."""
    max_bytes = settings.max_last_event_id_bytes
    header = request.headers.get("Last-Event-ID", "")
    if len(header) > max_bytes:
        raise HeaderTooLarge(f"Last-Event-ID is longer than {max_bytes} bytes. {ID_TOO_LONG_ADVICE}")
    if header:
        return header.encode("latin-1", "replace").decode("utf-8", "replace")  # WSGI decodes headers as Latin-1
    parameter = next(filter(None, map(request.args.get, ID_PARAMETERS)), None) if request.query_string else None
    if parameter is not None and len(parameter.encode("utf-8", "replace")) > max_bytes:
        raise RequestTooLarge(f"The event ID is longer than {max_bytes} bytes. {ID_TOO_LONG_ADVICE}")
    return parameter


def _since(request: Request) -> int | None:
    if "timestamp" in request.args and "since" in request.args:
        raise InvalidParameter("Use either timestamp or since, not both.")
    if "timestamp" in request.args:
        return _parse_timestamp(request.args["timestamp"])
    if "since" in request.args:
        return _parse_time(request.args["since"])
    return None


def _parse_timestamp(text: str, name: str = "timestamp") -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_TIMESTAMP)) and int(text) <= MAX_TIMESTAMP):
        raise InvalidParameter(f"{name} must be a whole number of milliseconds since 1970, such as 1790000000000.")
    return int(text)


def _parse_time(text: str) -> int:
    if text.isdigit() and len(text) != len("20261121"):  # EventStreams accepts milliseconds here, too
        return _parse_timestamp(text, "since")
    try:
        time_ms = parse_time(text.replace(" ", "+"))  # an unescaped "+" arrives as a space
    except ValueError:
        raise InvalidParameter(
            "since must be an ISO 8601 time, such as 2026-11-21T10:00:00Z, or milliseconds since 1970."
        ) from None
    if time_ms < 0:
        raise InvalidParameter("since must not be before 1970.")
    return time_ms
