"""A stream offset has one text for each position. Texts sort in the order of the stream, and any other text is rejected."""

from __future__ import annotations

import string
from typing import NamedTuple
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kafkasse.errors import InvalidParameter
from kafkasse.log import Partition
from kafkasse.records.position import IdWriter, Limits, Place, Position, parse, stream_offset
from tests.position.test_position import leader_epochs, numbers, partitions, topic_ids


class Stream(NamedTuple):
    """What an offset describes."""

    offsets: dict[Partition, int]
    topic_ids: dict[str, str]
    epochs: dict[Partition, int]
    partial_topics: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        return stream_offset.render(*self)

    def position(self) -> Position:
        starts = {
            partition: Place(offset, None, self.epochs.get(partition)) for partition, offset in self.offsets.items()
        }
        return Position(starts, (), self.topic_ids, self.partial_topics)


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    offsets = draw(st.dictionaries(partitions, numbers, min_size=1, max_size=8))
    topics = sorted({partition.topic for partition in offsets})
    return Stream(
        offsets,
        {topic: draw(topic_ids) for topic in topics},
        draw(st.dictionaries(st.sampled_from(sorted(offsets)), leader_epochs)),
        frozenset(draw(st.sets(st.sampled_from(topics)))),
    )


@given(streams())
def test_parse_undoes_render(stream):
    assert stream.position() == stream_offset.parse(stream.text)


@given(streams())
def test_an_offset_converts_to_an_event_id_and_back(stream):
    """The body is a compact event ID without its marks. An event ID in either form has the same position."""
    event_id = f"~~{stream.text.partition('.')[2]}~"

    assert stream.position() == parse(event_id)
    assert parse(event_id) == parse(
        IdWriter(stream.offsets, stream.topic_ids, stream.partial_topics, epochs=stream.epochs).render()
    )


@given(streams())
def test_the_text_does_not_depend_on_the_order_of_the_partitions(stream):
    """There is one URL for each position."""
    reversed_offsets = dict(reversed(stream.offsets.items()))

    assert stream.text == stream._replace(offsets=reversed_offsets).text


@given(streams())
def test_an_offset_needs_no_escaping_in_a_url(stream):
    """JavaScript's URLSearchParams escapes `~`, which quote() does not."""
    assert quote(stream.text, safe="") == stream.text
    assert "~" not in stream.text


@given(streams(), st.data())
def test_offsets_sort_in_the_order_of_the_stream(stream, data):
    """A position that is ahead in some partitions, or has more of them, and is behind in none has the larger text.

    Its leader epochs do not matter.
    """
    joined = {
        partition: offset
        for partition, offset in data.draw(streams()).offsets.items()
        if partition not in stream.offsets
    }
    steps = {partition: data.draw(st.integers(0, 2**63 - 1 - offset)) for partition, offset in stream.offsets.items()}
    assume(any(steps.values()) or joined)
    later = stream._replace(
        offsets={partition: offset + steps[partition] for partition, offset in stream.offsets.items()} | joined,
        epochs=data.draw(st.dictionaries(st.sampled_from(sorted(steps)), leader_epochs)),
    )

    assert stream.text < later.text


@given(streams(), st.data())
def test_a_damaged_offset_is_rejected(stream, data):
    """An offset with one other, missing or additional character is rejected, or is the text of another position."""
    text = stream.text
    at = data.draw(st.integers(0, len(text) - 1))
    damaged = text[:at] + data.draw(st.text(string.printable, max_size=1)) + text[at + data.draw(st.booleans()) :]
    assume(damaged != text)
    try:
        position = stream_offset.parse(damaged)
    except InvalidParameter:
        return

    assert stream.position() != position


@given(st.text() | st.text(string.ascii_letters + string.digits + "._-~"))
def test_garbage_is_rejected(text):
    with pytest.raises(InvalidParameter, match="offset must be -1, now, or the Stream-Next-Offset of a response"):
        stream_offset.parse(text)


@pytest.mark.parametrize(
    "line",
    [
        "t :12",  # no topic ID: a position that was written by hand
        "t i ::1790000000000",  # no offset
        "t i :12:1790000000000",  # a timestamp
        "t i 0:12",  # the partition is 0 anyway
        "t i :012",
        " t i :12",
        "u i :12\nt i :0",  # not in order
        "t i :12\nt i 1:0",
    ],
)
def test_another_text_of_a_position_is_rejected(line):
    """A cache would store a response under each of them."""
    body = stream_offset.compact.encode(line)
    with pytest.raises(InvalidParameter):
        stream_offset.parse(f"b{13 + line.count(chr(10))}.{body}")


def test_a_wrong_sum_is_rejected():
    text = Stream({Partition("t", 0): 12}, {"t": "kQ3d8y1Z"}, {}).text
    assert text.startswith("b13.")
    for wrong in (text.replace("b13", "b12"), text.replace("b13", "c13"), text.replace("b13", "c013")):
        with pytest.raises(InvalidParameter):
            stream_offset.parse(wrong)


def test_an_offset_is_short():
    """An offset of a topic with twelve partitions has less than 256 characters, as the protocol recommends."""
    offsets = {Partition("orders", number): 1_234_567 for number in range(12)}

    assert len(Stream(offsets, {"orders": "kQ3d8y1Z"}, dict.fromkeys(offsets, 12)).text) < 256


def test_an_offset_longer_than_the_limit_is_rejected():
    text = Stream({Partition("t", 0): 12}, {"t": "kQ3d8y1Z"}, {}).text

    assert stream_offset.parse(text, Limits(max_bytes=len(text)))
    with pytest.raises(InvalidParameter, match=f"longer than {len(text) - 1} bytes"):
        stream_offset.parse(text, Limits(max_bytes=len(text) - 1))
    with pytest.raises(InvalidParameter):
        stream_offset.parse(Stream({Partition("t", n): 1 for n in range(3)}, {}, {}).text, Limits(max_entries=2))
