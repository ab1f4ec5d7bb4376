"""The parser reads a stream as browsers do, however it is cut into chunks, and never buffers more than its limit."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkasse_client.sse import Event, EventTooLarge, Parser

MAX_BYTES = 64
LINE_ENDS = b"\n", b"\r", b"\r\n"

# Fields, line breaks and characters that resemble them. Most bugs of SSE parsers are in combinations of these.
PIECES = st.sampled_from(
    [
        *(b"data", b"data:", b"data: ", b"id", b"id:", b"id: ", b"event:", b"event: ", b"retry:", b"retry: ", b":"),
        *(b"\r", b"\n", b"\r\n", b"\n\n", b"\r\r", b"\r\n\r\n", b" ", b"\0", b"\xef\xbb\xbf", b"\xef", b"\xbb\xbf"),
        *(b"a", b"0", b"12", "é".encode(), "🌍".encode(), b"\xf0\x9f", b"\xff", "\u2028".encode(), b"\x0b", b"\x85"),
    ]
)
STREAMS = st.lists(PIECES, max_size=60).map(b"".join)


def read(chunks: Iterable[bytes], parser: Parser | None = None) -> list[Event]:
    parser = parser or Parser()
    return [event for chunk in chunks for event in parser.receive(chunk)]


def reference_parser(stream: bytes) -> tuple[list[Event], str, int | None]:
    """The algorithm of the specification, applied to a whole stream: slow, but easy to compare with the specification."""
    text = stream.decode("utf-8", errors="replace").removeprefix("\ufeff")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")[:-1]
    events: list[Event] = []
    data, event_type, event_id, last_event_id, retry_ms = "", "", "", "", None
    for line in lines:
        name, _, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if line == "":
            last_event_id = event_id
            if data != "":
                events.append(Event(event_type or "message", data[:-1], last_event_id))
            data, event_type = "", ""
        elif name == "data":
            data += value + "\n"
        elif name == "event":
            event_type = value
        elif name == "id" and "\0" not in value:
            event_id = value
        elif name == "retry" and value != "" and all(digit in "0123456789" for digit in value):
            retry_ms = int(value)
    return events, last_event_id, retry_ms


@given(STREAMS)
def test_agrees_with_the_specification(stream):
    parser = Parser()

    events = read([stream], parser)

    assert reference_parser(stream) == (events, parser.last_event_id, parser.retry_ms)


@given(STREAMS, st.data())
def test_chunks_do_not_change_the_events(stream, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    chunks = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    whole, parts = Parser(), Parser()

    assert read([stream], whole) == read(chunks, parts)
    assert (whole.last_event_id, whole.retry_ms) == (parts.last_event_id, parts.retry_ms)


@given(STREAMS, st.data())
def test_chunks_do_not_change_the_limit(stream, data):
    """Whether a stream is too large, and which events precede the error, does not depend on the chunks."""
    cut = data.draw(st.integers(0, len(stream)))

    def outcome(chunks: list[bytes]) -> tuple[list[Event], bool]:
        parser, events = Parser(max_event_bytes=12), []
        try:
            for chunk in chunks:
                for event in parser.receive(chunk):
                    events.append(event)
        except EventTooLarge:
            return events, True
        return events, False

    assert outcome([stream]) == outcome([stream[:cut], stream[cut:]])


BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        *[([end.join([b"data: a", b"data: b", b"", b"data: c", b"", b""])], ["a\nb", "c"]) for end in LINE_ENDS],
        ([b"data: now\r\r"], ["now"]),  # a CR does not wait for an LF
        ([b"data: a\r", b"", b"\ndata: b\r", b"\n\r", b"\n"], ["a\nb"]),  # a CRLF that is cut in two is one line break
        ([BOM[:1], BOM[1:] + b"data: a\n", b"\n"], ["a"]),
        ([BOM + BOM + b"data: a\n\n"], []),  # a second byte order mark becomes part of a field name
        ([b"\n" + BOM + b"data: a\n\n"], []),
        ([b"data:a\n\ndata:  a\n\ndata:\ta\n\ndata\n\n"], ["a", " a", "\ta", ""]),  # one space is dropped
        ([b"Data: a\n\n data: b\n\ndata : c\n\nfoo: d\n\n"], []),  # field names are literal
        ([":ok\n\n:\ndata: a\x0b\x85\u2028b\n\n".encode()], ["a\x0b\x85\u2028b"]),  # only CR and LF end lines
    ],
)
def test_reads_lines_as_browsers_do(chunks, expected):
    assert expected == [event.data for event in read(chunks)]


@pytest.mark.parametrize(
    ("chunks", "events", "last_event_id"),
    [
        # An event without data is not dispatched. Its ID is stored, and its type does not apply to the next event.
        ([b"event: x\nid: 7\n\n", b"data: a\n\n"], [Event("message", "a", "7")], "7"),
        # If the connection breaks within an event, the ID does not change, so the client receives the event again.
        ([b"id: 1\ndata: a\n\nid: 2\ndata: b\n"], [Event("message", "a", "1")], "1"),
        # An ID that contains NUL leaves the last event ID unchanged. An empty ID resets it.
        ([b"id: 2\0\ndata: b\n\n"], [Event("message", "b", "5")], "5"),
        ([b"id\ndata: c\n\n"], [Event("message", "c", "")], ""),
    ],
)
def test_an_id_takes_effect_at_the_blank_line(chunks, events, last_event_id):
    """Until then, that of the last connection is in effect."""
    parser = Parser(last_event_id="5")

    assert (events, last_event_id) == (read(chunks, parser), parser.last_event_id)


@pytest.mark.parametrize(
    ("value", "retry_ms"),
    [
        *[(b"2317", 2317), (b"0", 0), (b"007", 7)],
        *[(b"", None), (b"-1", None), (b"+1", None), (b"1.5", None), (b"1s", None), (b" 1", None)],
        *[("\u0663".encode(), None), ("\u00b2".encode(), None)],  # Unicode digits, but not ASCII digits
        (b"9" * 1_000_000, 999_999_999_999_999),  # not an error, and does not take a minute to convert
    ],
    ids=lambda value: str(value)[:20],
)
def test_retry_accepts_only_ascii_digits(value, retry_ms):
    parser = Parser()

    read([b"retry: " + value + b"\n"], parser)

    assert retry_ms == parser.retry_ms


@pytest.mark.parametrize(
    "stream",
    [b"data:" + b"x" * MAX_BYTES, b":" + b"x" * MAX_BYTES + b"\n", b"data:\n" * (MAX_BYTES + 1)],
    ids=["unfinished line", "line", "sum of the lines"],
)
def test_an_event_over_the_limit_is_an_error(stream):
    with pytest.raises(EventTooLarge, match="larger than 64 bytes"):
        read([stream], Parser(max_event_bytes=MAX_BYTES))


def test_the_limit_applies_to_one_event():
    """A stream may contain any number of events within the limit."""
    event = b"data:" + b"x" * (MAX_BYTES - 5) + b"\n\n"

    assert 100 == len(read([event * 100], Parser(max_event_bytes=MAX_BYTES)))
