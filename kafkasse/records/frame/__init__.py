"""Frames: turn a Kafka record into the bytes of one event.

    record ─▶ format (what the client reads) ─▶ wire format (how it is framed) ─▶ frame

This package does no I/O and imports neither Flask nor a Kafka client. A producer cannot forge an event: the wire format
starts a new `data:` line at each line break of a payload, and a payload that SSE cannot carry (a CR outside of JSON, or
bytes that are not UTF-8) is sent as base64 in an event named `base64`.
"""

from kafkasse.records.frame.formats import FORMATS, Format, Payload
from kafkasse.records.frame.hooks import Deserializer, Filterer, TopicRecord
from kafkasse.records.frame.json_text import DeserializationError
from kafkasse.records.frame.projection import Projection
from kafkasse.records.frame.record_view import DecoderPending
from kafkasse.records.frame.wire import JsonLines, ServerSentEvents, Wire, error, gap, gap_members

__all__ = [
    "FORMATS", "DecoderPending", "DeserializationError", "Deserializer", "Filterer", "Format", "JsonLines",
    "Payload", "Projection", "ServerSentEvents", "TopicRecord", "Wire", "error", "gap", "gap_members",
]  # fmt: skip
