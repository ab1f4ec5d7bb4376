"""The encoder: deserializes, filters, formats and frames the records of one selection.

A feed calls it once for each record, however many clients read the feed. No I/O; the caller passes in the clock, the hooks
of the app, which may do I/O, and a function that lets other greenlets run while a large value is encoded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kafkasse.errors import FilterError, RegistryUnavailable
from kafkasse.log import Batch, Partition, Record
from kafkasse.records.absent_parts import AbsentParts
from kafkasse.records.filter.dimensions import Dimensions, Selector, Values
from kafkasse.records.filter.selection import Filter
from kafkasse.records.frame import hooks
from kafkasse.records.frame.formats import FORMATS, Payload, as_kafkasse, can_append_member, kafka_member
from kafkasse.records.frame.hooks import Deserializer, Filterer
from kafkasse.records.frame.json_text import DeserializationError, TakeTurn, dumps_decoded
from kafkasse.records.frame.projection import Projection
from kafkasse.records.frame.record_view import DecoderPending, RecordView
from kafkasse.records.frame.wire import JsonLines, ServerSentEvents, Wire
from kafkasse.records.position import IdTemplate, IdWriter

MAX_PIECE_RECORDS = 64
MAX_PIECE_S = 0.005  # with a filter or a projection, whose cost depends on the record; a piece exceeds it by one record
MAX_PIECE_BYTES = 65_536  # of frames and of values that are not sent; a piece exceeds it by at most one record

_STOPS = (FilterError, RegistryUnavailable, DecoderPending)  # end a piece before the record that causes them


class Piece(NamedTuple):
    """Encoded records of one partition.

    Attributes:
        frames: the frames. Records that are not sent have no frame.
        offsets: for each frame, the offset of its record.
        timestamps: for each frame, the timestamp of its record; may be empty if the event IDs contain no timestamps.
        end: the index in the batch of the first record after the piece.
        next_offset: the offset after the piece.
        values: for each frame, the dispatch values of its record; empty if the encoder has no dimensions.
    """

    frames: list[bytes]
    offsets: list[int]
    timestamps: list[int | None]
    end: int
    next_offset: int
    values: Sequence[Values] = ()

    @property
    def ends_at_position(self) -> bool:
        """Whether the ID of the last frame is the position after the piece. False if records without a frame follow."""
        return bool(self.offsets) and self.offsets[-1] + 1 == self.next_offset


class Encoded(NamedTuple):
    """An encoded record: its event name, its body, and its dispatch values, which are () without dimensions."""

    event: str
    body: bytes
    values: Values


class Encoder:
    """Encodes the records of one selection (topics, filter, format).

    A record passes these stages, each of which is optional:

        decoder ─▶ dimensions ─▶ filter ─▶ deserializer and filterer (hooks) ─▶ projection ─▶ format ─▶ wire

    Args:
        format: a name from FORMATS.
        wire: the wire format; Server-Sent Events by default.
        decoder: returns a record's value in JSON types, for values that are not JSON. The format then contains JSON. If it
            raises DeserializationError, the record is skipped. If it has a method `prepare`, that method first receives the
            records of each piece.
        filter: decides which records are sent.
        dimensions: decides which clients receive a record. A record without a value in a dimension is not sent.
        projection: removes members from the value.
        deserializer: returns the message for a record, instead of reading the record's value as JSON. If it raises an
            exception or returns None, the record is skipped.
        filterer: receives the message; the record is sent if it returns a true value. If it raises an exception, the
            stream ends, because the server cannot know whether the client may see the record.
        on_skipped: called with the topic, partition, offset, reason and kind of reason of each record that cannot be
            deserialized.
        id_frequency: "event": each frame has an ID. "run": only the last frame of a piece has one, which saves bytes. A
            client whose connection breaks within a piece receives the piece again. With dimensions, each frame has an ID,
            because a client may not receive the last frame.
        clock: returns the time in seconds. A piece whose filter or projection takes long ends early. By default, none does.
        absent_in_topic, absent_in_stream: receive the records of each piece, and those that are sent, until they have
            checked enough.
        take_turn: called after each piece of a value that takes longer to encode than a turn of the event loop.
    """

    def __init__(
        self,
        format: str = "kafkasse",
        wire: Wire | None = None,
        deserializer: Deserializer | None = None,
        filterer: Filterer | None = None,
        on_skipped: Callable[[str, int, int, str, str], None] = lambda *skipped: None,
        id_frequency: str = "event",
        decoder: Callable[[RecordView], Any] | None = None,
        filter: Filter | None = None,
        projection: Projection | None = None,
        dimensions: Dimensions | None = None,
        clock: Callable[[], float] = lambda: 0.0,
        take_turn: TakeTurn = lambda: None,
        absent_in_topic: AbsentParts | None = None,
        absent_in_stream: AbsentParts | None = None,
    ) -> None:
        self.wire = wire or ServerSentEvents()
        self._decoder = decoder
        self._prepare: Callable[[Sequence[Record]], None] | None = getattr(decoder, "prepare", None)
        self._filter = filter
        self.dimensions = dimensions or None
        self._projection = projection
        self._format = FORMATS[format]
        self._deserializer = deserializer
        self._filterer = filterer
        self._on_skipped = on_skipped
        self.id_frequency = "event" if dimensions else id_frequency
        # Hooks and decoders may wait for I/O.
        self.has_hooks = deserializer is not None or filterer is not None or decoder is not None
        self._is_lines = type(self.wire) is JsonLines
        is_default = self._format is as_kafkasse and (type(self.wire) is ServerSentEvents or self._is_lines)
        has_stages = self.has_hooks or projection is not None
        self._is_timed = filter is not None or projection is not None
        self._clock = clock
        self._take_turn = take_turn
        self._absent_in_topic, self._absent_in_stream = absent_in_topic, absent_in_stream
        self._can_use_templates = is_default and not has_stages

    def encode(self, topic: str, partition: int, record: Record) -> Encoded | None:
        """Encode one record. Return None if it is not sent.

        Raises:
            FilterError: the filterer raised an exception.
            RegistryUnavailable: the decoder cannot look up the schema of the record.
            DecoderPending: the decoder waits for I/O. Call again.
        """
        view = RecordView(topic, partition, record, self._decoder)
        values = self._values(view, None)
        encoded = self._encode(view) if values is not None else None
        return Encoded(*encoded, values) if values is not None and encoded is not None else None

    def _passes(self, view: RecordView) -> bool:
        """Return whether a record passes the filter. A record that the filter cannot decode is skipped."""
        try:
            return self._filter is None or self._filter.matches(view)
        except DeserializationError as error:
            self._skip(view, error)
            return False

    def _skip(self, view: RecordView, error: DeserializationError) -> None:
        self._on_skipped(view.topic, view.partition, view.record.offset, str(error), error.kind)

    def _encode(self, view: RecordView) -> tuple[str, bytes] | None:
        try:
            payload = self._payload(view)
        except DeserializationError as error:
            self._skip(view, error)
            return None
        if payload is None:
            return None
        return payload.event, self.wire.body(payload, self._take_turn)

    def encode_piece(self, batch: Batch, start: int, ids: IdWriter, selector: Selector | None = None) -> Piece:
        """Encode the next piece of a batch. A piece is so small that this takes about a millisecond.

        Args:
            batch: the batch.
            start: the index of the first record of the piece.
            ids: the stream's IDs at the position before the piece. This method moves them to the position after the piece.
            selector: with dimensions, encode only the records that it selects. None: encode the records of all clients.

        Raises:
            FilterError, RegistryUnavailable, DecoderPending: see encode(). The error concerns the first record of the
                piece, and `ids` is unchanged. If it concerns a later record, the piece ends before that record.
        """
        if self._prepare is not None:
            self._prepare(batch.records[start : start + MAX_PIECE_RECORDS])
        template = ids.template(batch.partition, batch.leader_epoch)
        piece = self._encode_piece(batch, start, template, selector)
        if self._absent_in_topic:
            self._absent_in_topic.check(*batch.partition, batch.records[start : piece.end])
        if self._absent_in_stream:
            sent = set(piece.offsets)
            records = (record for record in batch.records[start : piece.end] if record.offset in sent)
            self._absent_in_stream.check(*batch.partition, records)
        # Hooks are users' code, which may let others run. `ids` changes only now, so that nobody sees a position whose
        # records have not been returned.
        timestamp = _latest_timestamp(batch.records[start : piece.end]) if template.has_timestamp else None
        ids.set(batch.partition, piece.next_offset, timestamp, batch.leader_epoch)
        return piece

    def _values(self, view: RecordView, selector: Selector | None) -> Values | None:
        """Return the dispatch values of a record, or None if no client of this piece receives the record."""
        values = () if self.dimensions is None else self.dimensions.values(view)
        if values is None or not (self.dimensions is None or selector is None or selector.selects(values)):
            return None
        return values if self._passes(view) else None

    def _encode_piece(self, batch: Batch, start: int, ids: IdTemplate, selector: Selector | None) -> Piece:
        partition = batch.partition
        is_timed, clock = self._is_timed, self._clock
        deadline = clock() + MAX_PIECE_S if is_timed else 0.0
        id_prefix, id_part, id_suffix, is_decimal, has_timestamp_in_id = ids
        can_use_templates = self._can_use_templates and not has_timestamp_in_id
        is_lines = self._is_lines
        opening, template, template_with_id = _templates(partition, ids, is_lines)
        every_frame_has_id = self.id_frequency == "event" and not is_lines  # lines have no IDs
        has_dimensions = self.dimensions is not None
        is_selective = has_dimensions or self._filter is not None
        frames: list[bytes] = []
        offsets: list[int] = []
        timestamps: list[int | None] = []
        piece_values: list[Values] = []
        values: Values = ()
        end, size = start, 0
        for record in batch.records[start : start + MAX_PIECE_RECORDS]:
            if size >= MAX_PIECE_BYTES or (is_timed and end > start and clock() > deadline):
                break
            if is_selective:
                view = RecordView(*partition, record, self._decoder)
                try:
                    selected = self._values(view, selector)
                except _STOPS:
                    if end == start:
                        raise
                    break
                if selected is None:
                    end, size = end + 1, size + len(record.value or b"")
                    continue
                values = selected
            offset, value, key, timestamp = record.offset, record.value, record.key, record.timestamp
            has_timestamp = timestamp is not None and timestamp >= 0
            if (
                can_use_templates
                and has_timestamp
                and value
                and can_append_member(value, is_lines)
                and (key is None or key.isalnum())
            ):
                # The common case. The templates produce the same bytes as encode() and frame(), in less time.
                key_json = b"null" if key is None else b'"%b"' % key
                if every_frame_has_id:
                    next_offset = offset + 1 if is_decimal else id_part(offset + 1, None).encode()
                    frame = opening + value[:-1] + template_with_id % (offset, timestamp, key_json, next_offset)
                else:
                    frame = opening + value[:-1] + template % (offset, timestamp, key_json)
            else:
                try:
                    if not is_selective:
                        view = RecordView(*partition, record, self._decoder)
                    encoded = self._encode(view)
                except _STOPS:
                    if end == start:
                        raise
                    break
                if encoded is None:
                    end, size = end + 1, size + len(value or b"")
                    continue
                event, body = encoded
                if has_timestamp_in_id:
                    timestamps.append(timestamp)
                    if not has_timestamp:
                        timestamp = _latest_timestamp(batch.records[start:end])
                position_id = ""
                if every_frame_has_id:
                    part = offset + 1 if is_decimal else id_part(offset + 1, timestamp)
                    position_id = f"{id_prefix}{part}{id_suffix}"
                frame = self.wire.frame(event, position_id, body)
            end, size = end + 1, size + len(frame)
            frames.append(frame)
            offsets.append(offset)
            if has_dimensions:
                piece_values.append(values)
        if frames and not every_frame_has_id:
            timestamp = None
            if has_timestamp_in_id:
                sent = [record for record in batch.records[start:end] if record.offset <= offsets[-1]]
                timestamp = _latest_timestamp(sent)
            position_id = f"{id_prefix}{id_part(offsets[-1] + 1, timestamp)}{id_suffix}"
            frames[-1] = self.wire.with_id(frames[-1], position_id)
        return Piece(frames, offsets, timestamps, end, _next_offset(batch, end), piece_values)

    def _payload(self, view: RecordView) -> Payload | None:
        """Return the payload of a record, or None if the filterer rejects it."""
        topic, partition, record = view.topic, view.partition, view.record
        if self._deserializer is None and self._filterer is None:
            return self._format(topic, partition, self._projected(view), self._take_turn)
        message = self._message(view)
        where = f"{topic}/{partition} offset {record.offset}"
        if self._filterer is not None and not hooks.accepts(self._filterer, message, where):
            return None
        if self._deserializer is None or record.value is None:
            return self._format(topic, partition, self._projected(view), self._take_turn)
        data = hooks.encode(message)
        if self._projection is None:
            return Payload("message", data)
        projected = _with_value(view, self._projection.of_json(data, self._take_turn))
        return as_kafkasse(topic, partition, projected, self._take_turn)  # adds _kafka again

    def _projected(self, view: RecordView) -> Record:
        """Return the record with the value that the format receives."""
        record = view.record
        if record.value is None or (self._decoder is None and self._projection is None):
            return record
        try:
            value = record.value if self._decoder is None else dumps_decoded(view.value)
        except (TypeError, ValueError, RecursionError) as error:
            raise DeserializationError(f"the decoded value is not JSON: {error}") from error
        if self._projection is not None:
            value = self._projection.of_json(value, self._take_turn)
        return _with_value(view, value, is_decoded=self._decoder is not None)

    def _message(self, view: RecordView) -> Any:
        """Return the message that the filterer receives."""
        topic, partition, record = view.topic, view.partition, view.record
        if record.value is None:
            message: Any = {}
        elif self._deserializer is None:
            message = view.value
        else:
            message = hooks.deserialize(self._deserializer, topic, partition, record)
        if isinstance(message, dict):
            message = {**message, "_kafka": json.loads(kafka_member(topic, partition, record))}
        return message


def _with_value(view: RecordView, value: bytes, is_decoded: bool = False) -> Record:
    """Return the record with another value. If a decoder has decoded it, the header content-type says that it is JSON."""
    record, headers = view.record, view.record.headers
    if is_decoded:
        headers = [(name, b"application/json" if name == "content-type" else value) for name, value in headers]
    return hooks.TopicRecord(view.topic, view.partition, record.offset, record.timestamp, record.key, value, headers)


def _next_offset(batch: Batch, end: int) -> int:
    """Return the offset after the records of `batch` before the index `end`."""
    return batch.next_offset if end == len(batch.records) else batch.records[end - 1].offset + 1


def _latest_timestamp(records: Sequence[Record]) -> int | None:
    """Return the last known timestamp of these records."""
    known = (record.timestamp for record in reversed(records) if record.timestamp is not None and record.timestamp >= 0)
    return next(known, None)


def _templates(partition: Partition, ids: IdTemplate, is_lines: bool) -> tuple[bytes, bytes, bytes]:
    """Return what precedes the value, and the templates (for the % operator) of the rest: without an ID, and with an ID.

    The value precedes the rest without its closing brace. It is not an argument, because % copies long arguments twice. The
    arguments are the offset, the timestamp and the key as JSON, and with an ID also the next offset. Lines have no IDs.
    """
    member = ',"_kafka":{{"topic":"{}","partition":{},"offset":%d,"timestamp":%d,"key":%b}}}}\n'.format(*partition)
    if is_lines:
        return b"", member.encode(), b""
    next_offset = "%d" if ids.is_decimal else "%b"
    with_id = f"{member}id: {ids.prefix}{next_offset}{ids.suffix}\n\n"
    return b"event: message\ndata: ", f"{member}\n".encode(), with_id.encode()
