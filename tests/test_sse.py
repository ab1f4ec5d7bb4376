"""The parser reads a stream as browsers do, however it is cut into chunks, and never buffers more than its limit."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkasse.sse import Event, EventTooLarge, Parser

MAX_BYTES = 64

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


def data_of(stream: bytes) -> list[str]:
    return [event.data for event in read([stream])]


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
def test_agrees_with_the_specification(stream: bytes) -> None:
    parser = Parser()

    events = read([stream], parser)

    assert reference_parser(stream) == (events, parser.last_event_id, parser.retry_ms)


@given(STREAMS, st.data())
def test_chunks_do_not_change_the_events(stream: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    chunks = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    whole, parts = Parser(), Parser()

    assert read([stream], whole) == read(chunks, parts)
    assert (whole.last_event_id, whole.retry_ms) == (parts.last_event_id, parts.retry_ms)


@given(STREAMS, st.data())
def test_chunks_do_not_change_the_limit(stream: bytes, data: st.DataObject) -> None:
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


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_any_line_break_ends_a_line(end: bytes) -> None:
    assert ["a\nb", "c"] == data_of(end.join([b"data: a", b"data: b", b"", b"data: c", b"", b""]))


def test_a_cr_does_not_wait_for_an_lf() -> None:
    """In a stream that uses CR alone, an event is dispatched at its blank line, not when the next byte arrives."""
    assert [Event("message", "now", "")] == read([b"data: now\r\r"])


def test_a_crlf_cut_in_two_is_one_line_break() -> None:
    """A CRLF whose halves arrive in two chunks, with an empty chunk in between, is not a blank line."""
    assert ["a\nb"] == [event.data for event in read([b"data: a\r", b"", b"\ndata: b\r", b"\n\r", b"\n"])]


def test_only_one_byte_order_mark_is_dropped() -> None:
    """A byte order mark at the start is dropped, even if it is cut. A second one becomes part of a field name."""
    mark = b"\xef\xbb\xbf"

    assert ["a"] == [event.data for event in read([mark[:1], mark[1:] + b"data: a\n", b"\n"])]
    assert [] == data_of(mark + mark + b"data: a\n\n")
    assert [] == data_of(b"\n" + mark + b"data: a\n\n")


def test_one_space_after_the_colon_is_dropped() -> None:
    """Only the first space is dropped, a tab is kept, and a field without a colon is empty."""
    assert ["a", " a", "\ta", ""] == data_of(b"data:a\n\ndata:  a\n\ndata:\ta\n\ndata\n\n")


def test_an_event_without_data_sets_only_the_id() -> None:
    """It is not dispatched. Its ID is stored, and its type does not apply to the next event."""
    parser = Parser()

    events = read([b"event: x\nid: 7\n\n", b"data: a\n\n"], parser)

    assert [Event("message", "a", "7")] == events
    assert "7" == parser.last_event_id


def test_an_id_takes_effect_at_the_blank_line() -> None:
    """If the connection breaks within an event, the ID does not change, so the client receives the event again."""
    parser = Parser()

    events = read([b"id: 1\ndata: a\n\nid: 2\ndata: b\n"], parser)

    assert (["a"], "1") == ([event.data for event in events], parser.last_event_id)


def test_an_id_with_nul_is_ignored() -> None:
    assert ["1", "1", ""] == [e.id for e in read([b"id: 1\ndata: a\n\nid: 2\0\ndata: b\n\nid\ndata: c\n\n"])]


def test_a_new_connection_keeps_the_id() -> None:
    """The Last-Event-ID of the request stays in effect until the stream sets an ID."""
    parser = Parser(last_event_id="5")

    assert [Event("message", "a", "5")] == read([b"data: a\n\n"], parser)
    assert "5" == parser.last_event_id


@pytest.mark.parametrize(
    ("value", "retry_ms"),
    [
        *[(b"2317", 2317), (b"0", 0), (b"007", 7)],
        *[(b"", None), (b"-1", None), (b"+1", None), (b"1.5", None), (b"1s", None), (b" 1", None)],
        *[("\u0663".encode(), None), ("\u00b2".encode(), None)],  # Unicode digits, but not ASCII digits
    ],
)
def test_retry_accepts_only_ascii_digits(value: bytes, retry_ms: int | None) -> None:
    parser = Parser()

    read([b"retry: " + value + b"\n"], parser)

    assert retry_ms == parser.retry_ms


def test_a_long_retry_is_harmless() -> None:
    """A million digits are a very long time. They are not an error and do not take a minute to convert."""
    parser = Parser()

    read([b"retry:" + b"9" * 1_000_000 + b"\n"], parser)

    assert 999_999_999_999_999 == parser.retry_ms


def test_field_names_are_literal() -> None:
    assert [] == data_of(b"Data: a\n\n data: b\n\ndata : c\n\nfoo: d\n\n")


def test_only_cr_and_lf_end_lines() -> None:
    assert ["a\x0b\x85\u2028b"] == data_of(":ok\n\n:\ndata: a\x0b\x85\u2028b\n\n".encode())


@pytest.mark.parametrize(
    "stream",
    [b"data:" + b"x" * MAX_BYTES, b":" + b"x" * MAX_BYTES + b"\n", b"data:\n" * (MAX_BYTES + 1)],
    ids=["unfinished line", "line", "sum of the lines"],
)
def test_an_event_over_the_limit_is_an_error(stream: bytes) -> None:
    with pytest.raises(EventTooLarge, match="larger than 64 bytes"):
        read([stream], Parser(max_event_bytes=MAX_BYTES))


def test_the_limit_applies_to_one_event() -> None:
    """A stream may contain any number of events within the limit."""
    event = b"data:" + b"x" * (MAX_BYTES - 5) + b"\n\n"

    assert 100 == len(read([event * 100], Parser(max_event_bytes=MAX_BYTES)))
