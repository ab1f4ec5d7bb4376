"""Finite reads of a route with the Durable Streams protocol: chunks, long polls, and chunks as Server-Sent Events.

    GET ?offset=…                 the chunk at an offset
    GET ?offset=…&live=long-poll  the same, but at the end of the log, wait for records
    GET ?offset=…&live=sse        chunks as events, for LIVE_S
    HEAD                          the offset at the end of the log

StreamService checks the request before. Equal reads of several clients share one read of the log.

Source: the Durable Streams protocol, https://github.com/durable-streams/durable-streams/blob/main/PROTOCOL.md
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from errno import ECONNRESET
from http import HTTPStatus

from flask import Response, current_app, request

from kafkasse.errors import KafkasseError, ServerStopping, TopicGone, TopicNotAvailable, Unavailable
from kafkasse.feed.core.chunk import Chunk, TopicsChanged
from kafkasse.feed.core.chunk_start import ChunkStart, offset_gone
from kafkasse.feed.core.reader_states import ReaderState
from kafkasse.feed.core.start import contradictions
from kafkasse.feed.feeds import Feeds, OpenRequest
from kafkasse.feed.reader import Reader
from kafkasse.feed.shared_chunks import SharedChunks, SharedRead
from kafkasse.log import Topics
from kafkasse.process.open_streams import streams
from kafkasse.records.encoder import Encoder
from kafkasse.records.filter import Selector
from kafkasse.records.position import Position, stream_offset
from kafkasse.route import Route, StartAt
from kafkasse.web.headers import DEFAULT_HEADERS, NOT_STORED
from kafkasse.web.long_poll import OK, Answer
from kafkasse.web.open_read import OpenRead
from kafkasse.web.request import BEGINNING, NOW, FiniteRead, LiveMode

JSON_TYPE = "application/json"
LONG_POLL_S = 8.0  # how long a read waits at the end of the log; some platforms end each response after 10 s
LIVE_S = 60.0  # how long a response with events takes, as the protocol recommends
MAX_READ_S = 60.0  # how long clients wait for a read that they share
CHECK_S = 1.0  # how often a waiting read checks whether the server is stopping
PIECE_BYTES = 131_072  # twice as many as those of a part with small records, which is not copied
# A cursor is the number of an interval. See the protocol, section 8.1.
CURSOR_EPOCH_S = 1_728_432_000  # 2024-10-09T00:00:00Z
CURSOR_INTERVAL_S = 0.01  # no client repeats its long polls faster, so all clients get the current number
MAX_CURSOR_DIGITS = 15
# How long a shared cache may keep a chunk that another one replaces soon. Then it can collapse requests.
LAST_CHUNK_AGE_S = 1
# How much longer a cache may answer with an old chunk while one request replaces it. A CDN under a flood cannot answer
# thousands of waiting requests within LAST_CHUNK_AGE_S. A client loses nothing. An old response to a long poll ends at most
# two waits at once: if it has no records, its cursor leads to the next response, which is LONG_POLL_S newer.
STALE_S = 10
_ONLY_WITH_CONTENT = frozenset({"content-type"})
HEADERS = DEFAULT_HEADERS | {"Cache-Control": NOT_STORED, "Cross-Origin-Resource-Policy": "same-origin"}


def next_cursor(read_at: float, sent: str) -> str:
    """Return the cursor of a response to a live read. It is always later than the one that the client sent.

    The clients behind a shared cache request equal URLs only if they have equal cursors. Therefore, a cursor depends on when
    the chunk was read: all clients that receive it get the same one, whatever they sent. With the protocol's intervals of
    20 s and its random jitter, clients that came at different times would request different URLs from then on.
    """
    current = int((read_at - CURSOR_EPOCH_S) / CURSOR_INTERVAL_S)
    is_valid = sent.isascii() and sent.isdigit() and len(sent) <= MAX_CURSOR_DIGITS
    return str(max(current, int(sent) + 1 if is_valid else 0))


@dataclass(frozen=True, slots=True)
class RecordSource:
    """The records that a client has selected on a route, and how to read them."""

    feeds: Feeds
    shared: SharedChunks
    route: Route
    encoder: Encoder
    selector: Selector | None
    key: Hashable  # equal for all clients that have selected the same records, and only for them
    address: str
    max_age_s: int  # how long a shared cache may keep a chunk that stays the same. 0: it must not keep any chunk.
    opened: OpenRead  # ends a read that waits when the access of the visitor ends
    describe: Callable[[Position], tuple[Position, Topics]]  # completes a position, and describes its topics
    may_park: bool = False  # the client of a long poll may wait without a greenlet

    def chunk(
        self, offset: str, position: Position, topics: Topics, since: int | None = None, must_wait: bool = False
    ) -> Chunk:
        """Return the chunk at an offset. Clients that request the same one share it.

        Args:
            offset: the offset as the client sent it.
            since: see Chunks.resolve().
            must_wait: at the end of the log, wait for records.

        Raises:
            KafkasseError: see Chunks.resolve() and Chunks.read(), or the access of the visitor has ended.
            ReadWaits: the read waits, and the client may park.
        """
        # Without a kept chunk of a topic that was recreated since.
        key = self.key, position.topics, offset, since, frozenset(contradictions(position, topics))

        def read(shared: SharedRead) -> Chunk:
            chunk = self._read(offset, position, topics, since, must_wait, shared)
            return chunk if position.starts else replace(chunk, is_full=False)

        return self.opened.wait_for(lambda: self.shared.get(key, read, self.address, must_wait, self.may_park))

    def first(
        self, finite: FiniteRead, position: Position, topics: Topics, since: int | None, is_head: bool
    ) -> tuple[Chunk, Iterable[bytes]]:
        """Return the first chunk of a request, and the parts of its body. See chunk().

        A snapshot has no body except the parts, because it may be too large for the memory. For HEAD, return an empty chunk
        whose next offset is the end of the log.
        """
        if is_head:
            next_offset = self.feeds.chunks.end_offset(self.start(position, topics, NOW, None))
            return Chunk((), next_offset, False, False, 0, time.time()), ()
        if finite.offset == BEGINNING and self.route.start is StartAt.SNAPSHOT and since is None:
            return self.opened.wait_for(lambda: self._snapshot(position, topics))
        chunk = self.chunk(finite.offset, position, topics, since, must_wait=finite.live is LiveMode.LONG_POLL)
        return chunk, _pieces(chunk.parts)

    def next(self, offset: str) -> Chunk:
        """Return the chunk at an offset of an earlier chunk. At the end of the log, wait for records."""
        return self.chunk(offset, *self.describe(stream_offset.parse(offset)), must_wait=True)

    def start(self, position: Position, topics: Topics, offset: str, since: int | None) -> ChunkStart:
        """Return where a read starts. See Chunks.resolve()."""
        start_at = StartAt.LATEST if offset == NOW else StartAt.EARLIEST
        return self.feeds.chunks.resolve(position, topics, start_at, since, offset)

    def _read(
        self, offset: str, position: Position, topics: Topics, since: int | None, must_wait: bool, shared: SharedRead
    ) -> Chunk:
        try:
            start = self.start(position, topics, offset, since)
        except (TopicNotAvailable, TopicGone):
            if (rest := self.feeds.without_deleted(self.route, position, topics)) is None:
                raise
            return self._read(offset, *rest, since, must_wait, shared)
        if not (position.starts or offset in (BEGINNING, NOW)):
            raise offset_gone("The stream has no topic of this offset.", [], start.offset_of(start.ids))
        if must_wait and not start.has_records:
            return self._wait(start, shared)
        try:
            stats = self.feeds.stats[self.route.name]
            return self.feeds.chunks.read(start, self.encoder, self.selector, shared, self.route.newest_by, stats)
        except TopicsChanged as change:
            return self._read(offset, position, {**topics, **change.topics}, since, must_wait, shared)

    def open(self, position: Position, topics: Topics, since: int | None = None) -> Reader:
        """Open a reader at a position. See Feeds.open()."""
        return self.feeds.open(
            OpenRequest(self.route, position, topics, self.encoder, since, self.address, self.selector)
        )

    def _snapshot(self, position: Position, topics: Topics) -> tuple[Chunk, Iterable[bytes]]:
        """Return the snapshot of a route, which is one chunk.

        Raises:
            Unavailable: the snapshot is not complete yet. The server continues to read it.
        """
        reader = self.open(position, topics)
        self.opened.call_on_close(reader.close)
        rows = wait_for_lines(reader)
        if (ids := reader.snapshot_ids or reader.ids) is None:
            raise Unavailable("The snapshot is not complete yet. Retry later.")
        return Chunk((), stream_offset.of(ids), False, reader.can_park, 0, time.time()), self._rows(reader, rows)

    def _rows(self, reader: Reader, rows: bytes) -> Iterator[bytes]:
        """Yield the parts of an array with the rows of a snapshot."""
        before = b"["
        while True:
            self.opened.count(rows.count(b"\n"), len(rows))
            yield before + _elements(rows)
            if reader.state is not ReaderState.SNAPSHOT:
                break
            try:
                rows = self.opened.run(lambda: self.opened.wait_for(lambda: reader.read(CHECK_S)))
            except KafkasseError as error:  # without the end of the array
                raise ConnectionResetError(ECONNRESET, error.detail) from error
            before = b",\n"
        yield b"]"

    def _wait(self, start: ChunkStart, shared: SharedRead) -> Chunk:
        """Return the records at the end of the log, as soon as there are some, or an empty chunk after LONG_POLL_S.

        Raises:
            KafkaUnavailable: see ChunkStart.check_marks().
            OffsetGone: the log was truncated before the position.
            ServerStopping: the process is stopping. An empty chunk would let the client send its next request at once.
        """
        if streams.stopping:
            raise ServerStopping("This server is stopping. Retry after 1 s.", retry_after_s=1)
        start.check_marks()
        position = Position(start.ids.places(), topic_ids=start.ids.topic_ids, partial_topics=start.ids.partial_topics)
        position, topics = self.describe(position)
        reader = self.open(position, topics)
        try:
            if not (lines := reader.begin()):
                shared.begin_to_wait()
                lines = wait_for_lines(reader)
            ids = reader.ids or start.ids
            if any(offset < start.ids.offsets.get(partition, 0) for partition, offset in ids.offsets.items()):
                self.feeds.chunks.resolve(position, topics, StartAt.EARLIEST)  # raises OffsetGone after a truncation
            is_up_to_date = start.is_at_end and (reader.can_park or (not lines and _has_waited_at_end(reader)))
            return Chunk((_array(lines),), start.offset_of(ids), False, is_up_to_date, lines.count(b"\n"), time.time())
        finally:
            reader.close()


def _has_waited_at_end(reader: Reader) -> bool:
    """Return whether a reader without lines has waited for new records, and not for a slot or a cursor."""
    return not reader.is_stopped and reader.state in (ReaderState.JOINING, ReaderState.LIVE) and not reader.lag()


def wait_for_lines(reader: Reader) -> bytes:
    """Return the next lines of a reader; none after LONG_POLL_S, or when the reader or the server stops."""
    deadline = time.monotonic() + LONG_POLL_S
    lines = b""
    while not (lines or reader.is_stopped) and not streams.stopping:
        if (left := deadline - time.monotonic()) <= 0:
            break
        lines = reader.read(min(left, CHECK_S))
    return lines


def _array(lines: bytes) -> bytes:
    """Return lines of JSON as an array."""
    return b"[%b]" % _elements(lines)


def _elements(lines: bytes) -> bytes:
    """Return lines of JSON as elements of an array. A line contains no other line break."""
    return lines.rstrip().replace(b"\n", b",\n")


def respond(source: RecordSource, finite: FiniteRead, chunk: Chunk, body: Iterable[bytes]) -> Response:
    """Return the response to a finite read, which starts with this chunk and its body."""
    if request.method == "HEAD":
        response = _response(chunk, body, None)
        response.automatically_set_content_length = False  # the length of a chunk is not known
        return response
    if finite.live is LiveMode.SSE:
        return _events(source, chunk, body, finite.cursor)
    cursor = next_cursor(chunk.read_at, finite.cursor) if finite.live else None
    response = _response(chunk, body, cursor)
    if finite.offset != NOW:
        response.headers["Cache-Control"] = _cache_control(source.max_age_s, chunk.is_full)
    if finite.offset != NOW and chunk.parts and not finite.live:
        response.set_etag(chunk.etag)
        # Without If-Match: its response, with status 412, could replace a chunk in a cache.
        response.make_conditional({name: text for name, text in request.environ.items() if name != "HTTP_IF_MATCH"})
    if response.status_code == HTTPStatus.OK:
        _count(source.opened, chunk)
    return response


def _count(opened: OpenRead, chunk: Chunk) -> None:
    """Count a chunk that is sent. The rows of a snapshot, which has no body, are counted one by one."""
    if chunk.elements:
        opened.count(chunk.elements, chunk.size)


def waiting_headers(max_age_s: int, offset: str) -> dict[str, str]:
    """Return the headers of a response to a long poll that waits, as far as they are known. Its chunk is not full."""
    age = {} if offset == NOW else {"Cache-Control": _cache_control(max_age_s, is_full=False)}
    return HEADERS | age


def poll_answer(opened: OpenRead, chunk: Chunk, cursor: str) -> Answer:
    """Return the rest of a response to a long poll that has waited, and count its records."""
    headers = _chunk_headers(chunk, next_cursor(chunk.read_at, cursor))
    if chunk.is_empty and chunk.is_up_to_date:
        return Answer("204 NO CONTENT", headers, _ONLY_WITH_CONTENT, ())
    _count(opened, chunk)
    return Answer(OK, headers | {"Content-Length": str(chunk.size)}, frozenset(), _pieces(chunk.parts))


def _cache_control(max_age_s: int, is_full: bool) -> str:
    if not max_age_s:
        return NOT_STORED
    age_s = max_age_s if is_full else min(max_age_s, LAST_CHUNK_AGE_S)
    return f"public, max-age={age_s}, stale-while-revalidate={min(max_age_s, STALE_S)}"


def _chunk_headers(chunk: Chunk, cursor: str | None) -> dict[str, str]:
    headers = {"Stream-Next-Offset": chunk.next_offset}
    if chunk.is_up_to_date:
        headers["Stream-Up-To-Date"] = "true"
    if cursor is not None:
        headers["Stream-Cursor"] = cursor
    return headers


def _response(chunk: Chunk, body: Iterable[bytes], cursor: str | None) -> Response:
    headers = HEADERS | _chunk_headers(chunk, cursor)
    if cursor is not None and chunk.is_empty and chunk.is_up_to_date:
        response = current_app.response_class(status=204, headers=headers)
        del response.headers["Content-Type"]
        return response
    return current_app.response_class(body, headers=headers, content_type=JSON_TYPE)


def _pieces(parts: Iterable[bytes]) -> list[bytes]:
    """Return the pieces of the parts of a body. The server sends each of them with a timeout of its own."""
    return [part[start : start + PIECE_BYTES] for part in parts for start in range(0, len(part), PIECE_BYTES)]


def _events(source: RecordSource, chunk: Chunk, body: Iterable[bytes], cursor: str) -> Response:
    events = _event_parts(source, chunk, body, cursor)
    headers = HEADERS | {"Cache-Control": f"{NOT_STORED}, no-cache", "X-Accel-Buffering": "no"}
    return current_app.response_class(events, headers=headers, content_type="text/event-stream")


def _event_parts(source: RecordSource, chunk: Chunk, body: Iterable[bytes], cursor: str) -> Iterator[bytes]:
    deadline = time.monotonic() + LIVE_S
    while True:
        unsent = b""
        if not chunk.is_empty:
            _count(source.opened, chunk)
            for piece in body:
                if unsent:
                    yield unsent
                if source.opened.has_ended:
                    return
                unsent = (b"" if unsent else b"event: data\ndata:") + piece.replace(b"\n", b"\ndata:")
            unsent += b"\n\n"
        cursor = next_cursor(chunk.read_at, cursor)
        control: dict[str, object] = {"streamNextOffset": chunk.next_offset, "streamCursor": cursor}
        if chunk.is_up_to_date:
            control["upToDate"] = True
        yield unsent + b"event: control\ndata:%b\n\n" % json.dumps(control, separators=(",", ":")).encode()
        if source.opened.has_ended or time.monotonic() >= deadline or streams.stopping:
            return
        try:
            chunk = source.next(chunk.next_offset)
        except KafkasseError:  # the client reconnects, and gets the error as an HTTP status
            return
        body = _pieces(chunk.parts)
