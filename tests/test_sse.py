"""The parser reads a stream as browsers do, however the bytes are cut, and never holds more than its bound."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkasse.sse import Event, EventTooLarge, Parser

LIMIT_BYTES = 64

# Fields, ends of lines and what is easily taken for one: most of what goes wrong is in how these meet.
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


def by_the_book(stream: bytes) -> tuple[list[Event], str, int | None]:
    """The specification's algorithm, word by word, over a whole stream: slow and without cleverness."""
    text = stream.decode("utf-8", errors="replace").removeprefix("\ufeff")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")[:-1]
    events: list[Event] = []
    data, kind, identity, last_event_id, retry_ms = "", "", "", "", None
    for line in lines:
        name, _, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if line == "":
            last_event_id = identity
            if data != "":
                events.append(Event(kind or "message", data[:-1], last_event_id))
            data, kind = "", ""
        elif name == "data":
            data += value + "\n"
        elif name == "event":
            kind = value
        elif name == "id" and "\0" not in value:
            identity = value
        elif name == "retry" and value != "" and all(letter in "0123456789" for letter in value):
            retry_ms = int(value)
    return events, last_event_id, retry_ms


@given(STREAMS)
def test_reads_as_the_specification_says(stream: bytes) -> None:
    """Any stream gives the events, the id and the waiting time of the specification's own algorithm."""
    parser = Parser()

    events = read([stream], parser)

    assert by_the_book(stream) == (events, parser.last_event_id, parser.retry_ms)


@given(STREAMS, st.data())
def test_a_cut_changes_nothing(stream: bytes, data: st.DataObject) -> None:
    """Bytes that arrive in pieces, however cut, give the events of the bytes in one piece."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    chunks = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    whole, parts = Parser(), Parser()

    assert read([stream], whole) == read(chunks, parts)
    assert (whole.last_event_id, whole.retry_ms) == (parts.last_event_id, parts.retry_ms)


@given(STREAMS, st.data())
def test_a_cut_does_not_move_the_bound(stream: bytes, data: st.DataObject) -> None:
    """Whether a stream is too large, and what is read before, does not depend on how its bytes arrive."""
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
def test_any_end_of_line(end: bytes) -> None:
    """LF, CR and CRLF each end a line."""
    assert ["a\nb", "c"] == data_of(end.join([b"data: a", b"data: b", b"", b"data: c", b"", b""]))


def test_a_cr_does_not_wait_for_a_following_lf() -> None:
    """With CR alone, an event is given out as soon as its blank line is there, not with the next byte."""
    assert [Event("message", "now", "")] == read([b"data: now\r\r"])


def test_crlf_cut_in_two_is_one_end() -> None:
    """A CRLF whose halves come in two reads, with an empty one between, does not make a blank line."""
    assert ["a\nb"] == [event.data for event in read([b"data: a\r", b"", b"\ndata: b\r", b"\n\r", b"\n"])]


def test_only_one_byte_order_mark_is_dropped() -> None:
    """The mark at the very start is dropped, even when cut; a second one makes an unknown field of its line."""
    mark = b"\xef\xbb\xbf"

    assert ["a"] == [event.data for event in read([mark[:1], mark[1:] + b"data: a\n", b"\n"])]
    assert [] == data_of(mark + mark + b"data: a\n\n")
    assert [] == data_of(b"\n" + mark + b"data: a\n\n")


def test_one_space_after_the_colon_is_dropped() -> None:
    """Only the first space goes; a tab stays; a field without a colon is empty."""
    assert ["a", " a", "\ta", ""] == data_of(b"data:a\n\ndata:  a\n\ndata:\ta\n\ndata\n\n")


def test_an_event_without_data_moves_the_id_only() -> None:
    """A block of an id (and a type) dispatches nothing, its id is kept, and its type does not leak."""
    parser = Parser()

    events = read([b"event: x\nid: 7\n\n", b"data: a\n\n"], parser)

    assert [Event("message", "a", "7")] == events
    assert "7" == parser.last_event_id


def test_an_id_counts_from_its_blank_line() -> None:
    """A connection that breaks inside an event does not move the id: the event comes again."""
    parser = Parser()

    events = read([b"id: 1\ndata: a\n\nid: 2\ndata: b\n"], parser)

    assert (["a"], "1") == ([event.data for event in events], parser.last_event_id)


def test_an_id_with_nul_is_ignored_and_an_empty_one_is_not() -> None:
    """An id that holds NUL leaves the one before; an empty one takes it away."""
    assert ["1", "1", ""] == [e.id for e in read([b"id: 1\ndata: a\n\nid: 2\0\ndata: b\n\nid\ndata: c\n\n"])]


def test_a_new_connection_keeps_the_id() -> None:
    """A parser that is told where the request went on from keeps that id until the stream gives one."""
    parser = Parser(last_event_id="5")

    assert [Event("message", "a", "5")] == read([b"data: a\n\n"], parser)
    assert "5" == parser.last_event_id


@pytest.mark.parametrize(
    ("value", "retry_ms"),
    [
        *[(b"2317", 2317), (b"0", 0), (b"007", 7)],
        *[(b"", None), (b"-1", None), (b"+1", None), (b"1.5", None), (b"1s", None), (b" 1", None)],
        *[("\u0663".encode(), None), ("\u00b2".encode(), None)],  # digits elsewhere, not here
    ],
)
def test_retry_takes_ascii_digits_only(value: bytes, retry_ms: int | None) -> None:
    """Anything but ASCII digits leaves the waiting time as it was."""
    parser = Parser()

    read([b"retry: " + value + b"\n"], parser)

    assert retry_ms == parser.retry_ms


def test_a_retry_of_any_length_is_harmless() -> None:
    """A million digits are a very long time, not an error and not a minute of arithmetic."""
    parser = Parser()

    read([b"retry:" + b"9" * 1_000_000 + b"\n"], parser)

    assert 999_999_999_999_999 == parser.retry_ms


def test_names_are_literal() -> None:
    """Field names are not folded or trimmed, and unknown fields say nothing."""
    assert [] == data_of(b"Data: a\n\n data: b\n\ndata : c\n\nfoo: d\n\n")


def test_comments_and_other_separators_are_not_ends() -> None:
    """Comments yield nothing, and only CR and LF break lines: vertical tab, NEL and U+2028 are data."""
    assert ["a\x0b\x85\u2028b"] == data_of(":ok\n\n:\ndata: a\x0b\x85\u2028b\n\n".encode())


@pytest.mark.parametrize(
    "stream",
    [b"data:" + b"x" * LIMIT_BYTES, b":" + b"x" * LIMIT_BYTES + b"\n", b"data:\n" * (LIMIT_BYTES + 1)],
    ids=["unfinished line", "line", "sum of the lines"],
)
def test_an_event_that_is_too_large(stream: bytes) -> None:
    """A line or an event over the bound is an error, also when its end has not come yet."""
    with pytest.raises(EventTooLarge, match="larger than 64 bytes"):
        read([stream], Parser(max_event_bytes=LIMIT_BYTES))


def test_any_number_of_events_within_the_bound() -> None:
    """The bound is for one event, not for the stream."""
    event = b"data:" + b"x" * (LIMIT_BYTES - 5) + b"\n\n"

    assert 100 == len(read([event * 100], Parser(max_event_bytes=LIMIT_BYTES)))
