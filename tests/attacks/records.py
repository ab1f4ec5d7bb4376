"""Hostile records, and the outcome of each in every format. README.md is generated from this table.

event: one event named `message` that contains the record; base64, delete: one event of that name; skipped: no event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

FORGED = 'a\n\nevent: error\nid: [{"topic":"hidden","partition":0,"offset":9}]\ndata: forged\n\n'
CRLF_FORGED = FORGED.replace("\n", "\r\n")
SCRIPT = "<script>document.title='caught'</script><img src=x onerror=\"document.title='caught'\">"
FORMATS = ("kafkasse", "value", "envelope", "cloudevents")


class Outcome(NamedTuple):
    kafkasse: str
    value: str
    envelope: str
    cloudevents: str


JSON = Outcome("event", "event", "event", "event")
TEXT = Outcome("skipped", "event", "event", "event")
BINARY = Outcome("skipped", "base64", "event", "event")
DELETED = Outcome("delete", "delete", "delete", "delete")
OUTCOMES = {"JSON": JSON, "text": TEXT, "binary": BINARY, "tombstone": DELETED}


class Hostile(NamedTuple):
    """A record that tries to inject events, IDs, scripts or JSON."""

    name: str
    value: bytes | None
    outcome: Outcome
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()


def deep(depth: int) -> bytes:
    return b'{"a":' + b"[" * depth + b"]" * depth + b"}"


FORGED_LINE = Hostile(
    "JSON that looks like our line for a tombstone", b'{"event":"delete"}', JSON, None, [("ce_event", b"delete")]
)
RECORDS = [
    FORGED_LINE,
    Hostile("an event after two LF", FORGED.encode(), TEXT),
    Hostile("an event after two CRLF", CRLF_FORGED.encode(), BINARY),
    Hostile("an event after two CR", FORGED.replace("\n", "\r").encode(), BINARY),
    Hostile("alternating LF and CR", b"a\n\rid: 0\r\n\r\n", BINARY),
    Hostile("only an LF", b"\n", TEXT),
    Hostile("only a CR", b"\r", BINARY),
    Hostile("500,000 LF", b"\n" * 500_000, TEXT),
    Hostile("a CR at the end", b"a\r", BINARY),
    Hostile("an id field", b"id: 0", TEXT),
    Hostile("a retry field", b"retry: 1", TEXT),
    Hostile("a comment", b":ok", TEXT),
    Hostile("leading spaces, of which browsers drop one", b"  a", TEXT),
    Hostile("a NUL", b"a\0b", TEXT),
    Hostile("all other control characters", bytes([*range(1, 10), 11, 12, *range(14, 32), 127]), TEXT),
    Hostile("line ends of other languages and standards", "a\u2028\u2029\x85\x0b\x0cid: 0\u2028\u2028b".encode(), TEXT),
    Hostile("the same in JSON", '{"a":"\u2028\u2029\x85id: 0\u2028\u2028b"}'.encode(), JSON),
    Hostile("300,000 line separators", b'{"a":"' + "\u2028".encode() * 300_000 + b'"}', JSON),
    Hostile("a byte order mark", b"\xef\xbb\xbf{}", TEXT),
    Hostile("two byte order marks", b"\xef\xbb\xbf\xef\xbb\xbfid: 0", TEXT),
    Hostile("text that runs from right to left", "{\"a\":\"\u202e}'\"}".encode(), JSON),
    Hostile("a surrogate encoded in UTF-8", b"\xed\xa0\x80", BINARY),
    Hostile("an escaped lone surrogate", b'{"a":"\\ud800"}', JSON),
    Hostile("bytes that are not UTF-8", b"\xff\xfe\n\n", BINARY),
    Hostile("a line break in overlong UTF-8", b"\xc0\x8a\xc0\x8aid: 0", BINARY),
    Hostile("UTF-16", '{"a":1}'.encode("utf-16"), BINARY),
    Hostile("truncated UTF-8", "é".encode()[:1], BINARY),
    Hostile("an empty value", b"", TEXT),
    Hostile("a million letters", b'{"a":"' + b"x" * 1_000_000 + b'"}', JSON),
    Hostile("line breaks between JSON tokens", b'{\r\n"a"\r:\n1\r\n,\r\r"id":"0"}\r\n\r\n', JSON),
    Hostile("escaped line breaks in JSON", b'{"a":"\\n\\nid: 0\\r\\n\\r\\n\\u000a\\u000d"}', JSON),
    Hostile("a member _kafka", b'{"_kafka":{"topic":"hidden","offset":99}}', JSON),
    Hostile("two members _kafka between others", b'{"a":1,"_kafka":1,"b":2,"_kafka":{"offset":99}}', JSON),
    Hostile("an escaped member _kafka", b'{"\\u005f\\u006bafka":{"offset":99},"a":1}', JSON),
    Hostile("a member _kafka after a brace in a string", b'{"a":"}","_kafka":{"offset":99}}', JSON),
    Hostile("a last member _kafka, followed by white space", b'{"a":1,"_kafka":{"offset":99} } \n', JSON),
    Hostile("50,000 empty objects, and members _kafka and event",
        b'{"a":[' + b",".join([b"{}"] * 50_000) + b'],"_kafka":1,"event":"delete"}', JSON),
    Hostile("100,000 empty objects, a member _kafka, and a lone surrogate in a name",
        b'{"\\ud800":1,"_kafka":1,"a":[' + b",".join([b"{}"] * 100_000) + b"]}", JSON),
    Hostile("a member __proto__", b'{"__proto__":{"admin":true},"constructor":{"prototype":1}}', JSON),
    Hostile("a thousand members with the same name", b"{" + b",".join([b'"a":1'] * 1000) + b"}", JSON),
    Hostile("nesting 900 deep", deep(900), JSON),
    Hostile("nesting 100,000 deep", deep(100_000), TEXT),
    Hostile("100,000 unclosed brackets", b"[" * 100_000, TEXT),
    Hostile("numbers that do not fit a double", b'{"a":1e400,"b":-1e400,"c":9007199254740993}', JSON),
    Hostile("a number of 4,000 digits", b'{"a":' + b"9" * 4000 + b"}", JSON),
    Hostile("200 numbers of 4,300 digits", b"[" + b",".join([b"9" * 4300] * 200) + b"]", JSON),
    Hostile("a number of 100,000 digits", b'{"a":' + b"9" * 100_000 + b"}", TEXT),
    Hostile("NaN", b'{"a":NaN,"b":-Infinity}', TEXT),
    Hostile("JSON followed by a second value", b'{"a":1}{"b":2}', TEXT),
    Hostile("a script", SCRIPT.encode(), TEXT),
    Hostile("a script in JSON", b'{"name":"</script>' + SCRIPT.replace('"', '\\"').encode() + b'"}', JSON),
    Hostile("an object that looks like one of our errors", b'{"type":"urn:kafkasse:problem:topic-gone","status":410}', JSON),
    Hostile("a key that contains an event", b'{"a":1}', JSON, CRLF_FORGED.encode()),
    Hostile("a key that closes its JSON string", b'{"a":1}', JSON, b'","offset":99},"b":{"c":"'),
    Hostile("a key that is not UTF-8", b'{"a":1}', JSON, b"\xff\r\n\r\nid: 0"),
    Hostile("a key of a million letters", b'{"a":1}', JSON, b"k" * 1_000_000),
    Hostile("a tombstone whose key contains an event", None, DELETED, CRLF_FORGED.encode()),
    Hostile("a tombstone with an empty key", None, DELETED, b""),
    Hostile("a header name that contains an event", b'{"a":1}', JSON, None, [(CRLF_FORGED, b"x")]),
    Hostile("a header value that contains an event", b'{"a":1}', JSON, None, [("x", CRLF_FORGED.encode())]),
    Hostile("a header that is not UTF-8", b'{"a":1}', JSON, None, [("x", b"\xff\n\n")]),
    Hostile("a thousand headers", b'{"a":1}', JSON, None, [("x", b"y")] * 1000),
    Hostile("ce_ headers with line breaks", b'{"a":1}', JSON, None, [("ce_type", b"a\r\n\r\nid: 0"), ("ce_id", b"\n")]),
    Hostile("ce_ headers for reserved attributes", b'{"a":1}', JSON, None, [
        ("ce_specversion", b"9"), ("ce_data", b"forged"), ("ce_data_base64", b"Zm9yZ2Vk"), ("ce_a\n", b"b"),
        ("ce_datacontenttype", b"text/html"),
    ]),
    Hostile("a content type with line breaks", b'{"a":1}', JSON, None, [("content-type", b"a/b\r\n\r\nid: 0")]),
    Hostile("content type text/html", SCRIPT.encode(), TEXT, None, [("content-type", b"text/html")]),
]  # fmt: skip
