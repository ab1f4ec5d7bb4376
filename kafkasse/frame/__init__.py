"""Frames: turn a Kafka record into the bytes of one event.

    record ─▶ format (what the client reads) ─▶ wire format (how it is framed) ─▶ frame

This package does no I/O and imports neither Flask nor a Kafka client. A producer cannot forge an event: the wire format
starts a new `data:` line at each line break of a payload, and a payload that SSE cannot carry (a CR outside of JSON, or
bytes that are not UTF-8) is sent as base64 in an event named `base64`.
"""

from kafkasse.frame.encoder import Encoder
from kafkasse.frame.formats import FORMATS, Format, Payload
from kafkasse.frame.hooks import Deserializer, Filterer, TopicRecord
from kafkasse.frame.json_text import DeserializationError
from kafkasse.frame.projection import Projection
from kafkasse.frame.record_view import DecoderPending
from kafkasse.frame.wire import JsonLines, ServerSentEvents, Wire, error, gap

__all__ = [
    "FORMATS",
    "DecoderPending",
    "DeserializationError",
    "Deserializer",
    "Encoder",
    "Filterer",
    "Format",
    "JsonLines",
    "Payload",
    "Projection",
    "ServerSentEvents",
    "TopicRecord",
    "Wire",
    "error",
    "gap",
]
