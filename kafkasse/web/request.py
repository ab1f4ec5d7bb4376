"""What a client asked for, from its HTTP request. Knows Flask's request, and nothing of Kafka."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from flask import Request
from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header

from kafkasse.config.settings import WebSettings
from kafkasse.errors import HeaderTooLarge, InvalidParameter, MethodNotAllowed, NotAcceptable, RequestTooLarge
from kafkasse.frame import JsonLines, ServerSentEvents, Wire
from kafkasse.position import Limits, Position, of_topics, parse
from kafkasse.route import Route

STREAM_TYPE = "text/event-stream"
LINES_TYPES = ("application/x-ndjson", "application/json")
ID_PARAMETERS = ("last_event_id", "lastEventId")  # for browsers, which cannot set the header on a first connect
ACCEPT_KEPT_CHARS_MAX = 512  # of a header whose meaning is remembered
TIMESTAMP_MAX = 2**63 - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ADVICE = "Name fewer topics, or have ids written in the compact form (the setting compact_ids)."


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """A request, read: where to begin, how to write, and the content type that was asked for."""

    position: Position
    since: int | None
    wire: Wire
    content_type: str


def read(request: Request, route: Route, topics: str, settings: WebSettings) -> StreamRequest:
    """Read a request for a stream.

    Args:
        request: the request.
        route: the route that it came to.
        topics: comma-separated names from the path, "" on a named route.
        settings: limits.

    Raises:
        BadRequest, MethodNotAllowed, NotAcceptable, RequestTooLarge: saying where and why.
    """
    if request.method not in ("GET", "HEAD"):
        raise MethodNotAllowed(f"{request.method} does nothing here: streams are read with GET.")
    content_type, wire = _negotiate(request)
    since = _since(request)
    last_id = _last_event_id(request, settings)
    position = (
        of_topics(route.topics or _names(topics))
        if last_id is None
        else parse(last_id, Limits(settings.max_last_event_id_bytes, settings.max_last_event_id_entries))
    )
    if len(position.topics) > settings.max_topics_per_stream:
        raise InvalidParameter(
            f"A stream holds at most {settings.max_topics_per_stream} topics; you asked for {len(position.topics)}."
        )
    return StreamRequest(position, None if last_id is not None else since, wire, content_type)


def _names(topics: str) -> list[str]:
    names = [name.strip() for name in topics.split(",")]
    if not all(names):
        raise InvalidParameter("The path holds an empty topic name: write /topic or /topic,topic.")
    return names


def _negotiate(request: Request) -> tuple[str, Wire]:
    accept = request.headers.get("Accept", "")
    content_type = _best_type(accept) if len(accept) <= ACCEPT_KEPT_CHARS_MAX else _best_type.__wrapped__(accept)
    if content_type is None:
        raise NotAcceptable(
            f"Accept must allow {STREAM_TYPE} or {' or '.join(LINES_TYPES)}.", offered=[STREAM_TYPE, *LINES_TYPES]
        )
    if content_type == STREAM_TYPE:
        return ServerSentEvents.content_type, ServerSentEvents()
    return f"{content_type}; charset=utf-8", JsonLines()


@lru_cache(maxsize=256)
def _best_type(accept: str) -> str | None:
    """The type of ours that an Accept header likes best. Browsers of one kind all send the same."""
    if not accept.strip():
        return STREAM_TYPE
    # Without parameters: somebody who adds "; charset=utf-8" wants the same as anybody else.
    accepted = [(each.partition(";")[0].strip(), quality) for each, quality in parse_accept_header(accept, MIMEAccept)]
    return MIMEAccept(accepted).best_match([STREAM_TYPE, *LINES_TYPES])


def _last_event_id(request: Request, settings: WebSettings) -> str | None:
    header: str | None = request.headers.get("Last-Event-ID")
    if header is not None:
        if len(header) > settings.max_last_event_id_bytes:
            raise HeaderTooLarge(f"Last-Event-ID is longer than {settings.max_last_event_id_bytes} bytes. {_ADVICE}")
        return _as_utf8(header)
    given = [request.args[name] for name in ID_PARAMETERS if name in request.args]
    if not given:
        return None
    if len(given[0].encode("utf-8", "replace")) > settings.max_last_event_id_bytes:
        raise RequestTooLarge(f"The position is longer than {settings.max_last_event_id_bytes} bytes. {_ADVICE}")
    return given[0]


def _as_utf8(header: str) -> str:
    """WSGI hands header bytes over as Latin-1."""
    return header.encode("latin-1", "replace").decode("utf-8", "replace")


def _since(request: Request) -> int | None:
    if "timestamp" in request.args and "since" in request.args:
        raise InvalidParameter("Give timestamp or since, not both.")
    if "timestamp" in request.args:
        return _milliseconds(request.args["timestamp"])
    if "since" in request.args:
        return _moment(request.args["since"])
    return None


def _milliseconds(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(TIMESTAMP_MAX)) and int(text) <= TIMESTAMP_MAX):
        raise InvalidParameter("timestamp must be whole milliseconds since 1970, such as 1790000000000.")
    return int(text)


def _moment(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text.replace(" ", "+"))  # a "+" that was not escaped arrives as a space
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
    except ValueError:
        raise InvalidParameter("since must be a time of ISO 8601, such as 2026-11-21T10:00:00Z.") from None
    if moment < EPOCH:
        raise InvalidParameter("since must not lie before 1970.")
    return (moment - EPOCH) // timedelta(milliseconds=1)
