"""Long polls of a stream: its events after a Last-Event-ID, in a response that ends.

    GET ?live=events

Our clients send such requests while a proxy holds back the bytes of an endless response. The events have the bytes and the
IDs that they have in the stream. Like a chunk of finite_reads.py, a response works under every WSGI server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from flask import Response, current_app

from kafkasse.errors import KafkasseError, ServerStopping, Unavailable
from kafkasse.feed.core.reader_states import ReaderState
from kafkasse.feed.reader import Reader
from kafkasse.log import Topics
from kafkasse.process.open_streams import streams
from kafkasse.records.position import Position
from kafkasse.web import finite_reads
from kafkasse.web.finite_reads import CHECK_S, RecordSource
from kafkasse.web.headers import STREAM_HEADERS

MAX_BYTES = 2 * 1024 * 1024  # after which a response ends, except in a snapshot, which cannot be resumed
MAX_PAUSE_S = 0.05  # how long a response that has events waits for more of them while its reader catches up


def read(source: RecordSource, position: Position, topics: Topics, since: int | None) -> Iterator[bytes]:
    """Return the parts of a body: the events after a position. At the end of the log, wait for the first ones.

    Raises:
        KafkasseError: the stream could not be opened, or the first records cannot be read.
    """
    if streams.stopping:  # an empty response would let the client send its next request at once
        raise ServerStopping("This server is stopping. Retry after 1 s.", retry_after_s=1)
    reader = source.open(position, topics, since)
    source.opened.call_on_close(reader.close)
    first = reader.begin() + source.opened.wait_for(lambda: finite_reads.wait_for_lines(reader))
    if reader.snapshot_ids is None and reader.ids is None:
        raise Unavailable("The snapshot is not complete yet. Retry later.")
    return _parts(source, reader, first)


def respond(body: Iterable[bytes], content_type: str) -> Response:
    """Return the response with the parts of a body."""
    return current_app.response_class(body, headers=STREAM_HEADERS, content_type=content_type)


def _parts(source: RecordSource, reader: Reader, events: bytes) -> Iterator[bytes]:
    size = len(events)
    yield events
    while True:
        try:
            events = source.opened.run(partial(source.opened.wait_for, partial(_more, reader, size)))
        except KafkasseError:  # the next request gets the error as an HTTP status
            return
        if not events:
            return
        size += len(events)
        yield events


def _more(reader: Reader, size: int) -> bytes:
    """Return the events that follow without a pause, and the ID after them. None if the response must end."""
    if reader.state is ReaderState.SNAPSHOT:
        return reader.read(CHECK_S)
    if not (reader.can_park or streams.stopping or size >= MAX_BYTES) and (events := reader.read(MAX_PAUSE_S)):
        return events
    return reader.id_if_moved()
