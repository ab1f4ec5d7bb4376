"""An id comes back as the position it was, and whatever else a stranger sends is refused in words, quickly."""

from __future__ import annotations

import base64
import json
import string
import sys
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kafkasse import schemas
from kafkasse.config import Config
from kafkasse.errors import InvalidPosition
from kafkasse.log import Partition
from kafkasse.position import IdType, IdWriter, Limits, PartitionStart, Position, of_topics, parse

INT64_MAX = 2**63 - 1
LETTERS = string.ascii_letters + string.digits + "._-"

topics = st.text(LETTERS, min_size=1, max_size=249).filter(lambda name: name not in (".", ".."))
numbers = st.integers(0, INT64_MAX)
partitions = st.builds(Partition, topics, st.integers(0, 2**31 - 1))
topic_ids = st.text(string.ascii_letters + string.digits + "_-", max_size=22)


class Stream(NamedTuple):
    """What an id is written of."""

    offsets: dict[Partition, int]
    timestamps: dict[Partition, int]
    topic_ids: dict[str, str]
    only: frozenset[str]
    kind: IdType
    compact: bool

    def writer(self) -> IdWriter:
        return IdWriter(self.offsets, self.topic_ids, self.only, self.kind, self.timestamps, self.compact)

    def position(self) -> Position:
        """What a client that returns the id has asked for."""
        by_offset, by_time = self.kind is not IdType.TIMESTAMP, self.kind is not IdType.OFFSET
        starts = {
            each: PartitionStart(offset if by_offset else None, self.timestamps[each] if by_time else None)
            for each, offset in self.offsets.items()
        }
        return Position(starts, (), self.topic_ids, self.only)


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    offsets = draw(st.dictionaries(partitions, numbers, min_size=1, max_size=8))
    names = list(dict.fromkeys(each.topic for each in offsets))
    return Stream(
        offsets,
        {each: draw(numbers) for each in offsets},
        {name: draw(topic_ids) for name in names},
        frozenset(draw(st.sets(st.sampled_from(names)))),
        draw(st.sampled_from(IdType)),
        draw(st.booleans()),
    )


def entry(**members: object) -> str:
    return json.dumps([{"topic": "t", "partition": 0, "offset": 1} | members])


def compact(text: str) -> str:
    return "~" + base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def refusal(text: str, limits: Limits | None = None) -> InvalidPosition:
    with pytest.raises(InvalidPosition) as refused:
        parse(text, limits or Limits())
    return refused.value


# What was written is read back.


@given(streams())
def test_an_id_gives_back_its_position(stream: Stream) -> None:
    """parse(render(x)) is x, in the JSON form and in the compact one, for each kind of id."""
    assert stream.position() == parse(stream.writer().render())


@given(streams())
def test_both_forms_mean_the_same(stream: Stream) -> None:
    """A client that was given one form may as well have been given the other."""
    one, other = (stream._replace(compact=compact).writer().render() for compact in (False, True))

    assert parse(one) == parse(other)
    assert parse(one).topics == parse(other).topics


@given(streams())
def test_an_id_fits_in_its_field(stream: Stream) -> None:
    """An id is one line of ASCII without NUL, so that neither SSE nor HTTP can cut it."""
    rendered = stream.writer().render()

    assert rendered.isascii()
    assert rendered.isprintable()
    assert not stream.compact or set(rendered) <= set(string.ascii_letters + string.digits + "-_~")


@given(streams(), st.lists(st.tuples(partitions, numbers, st.none() | st.integers(-1, INT64_MAX)), max_size=8))
def test_an_id_that_moved_is_as_one_written_anew(
    stream: Stream, moves: list[tuple[Partition, int, int | None]]
) -> None:
    """Moving partitions on, one by one, known or new, comes to the same id as writing where they stand."""
    moved = stream.writer()
    for partition, next_offset, timestamp in moves:
        moved.set(partition, next_offset, timestamp)

    anew = IdWriter(moved.offsets, stream.topic_ids, stream.only, stream.kind, moved.timestamps, stream.compact)

    assert anew.render() == moved.render()
    assert moved.offsets == {each: start.offset for each, start in parse(moved.render()).starts.items()} or (
        stream.kind is IdType.TIMESTAMP
    )


@given(streams(), st.data(), numbers)
def test_around_agrees_with_render(stream: Stream, data: st.DataObject, next_offset: int) -> None:
    """What stands around one partition's offset, with an offset between, is the whole id."""
    writer = stream.writer()
    partition = data.draw(st.sampled_from(list(stream.offsets)))
    around = writer.split_at_offset(partition)

    writer.set(partition, next_offset)

    assert (stream.kind is not IdType.OFFSET) == (around is None)
    if around is not None:
        before, spell, after = around
        assert f"{before}{spell(next_offset)}{after}" == writer.render()


def test_around_a_partition_that_is_not_there() -> None:
    """A partition that the id does not have yet changes more than a number."""
    assert IdWriter({Partition("t", 0): 1}, {"t": "x"}).split_at_offset(Partition("t", 1)) is None


def test_an_id_as_it_looks() -> None:
    """The next offset of every partition, and the topic_id once for each topic."""
    offsets = {Partition("t", 0): 12, Partition("t", 1): 7, Partition("u", 0): 0}

    rendered = IdWriter(offsets, {"t": "kQ3d8y1Z", "u": ""}).render()

    assert (
        '[{"topic":"t","partition":0,"offset":12,"topic_id":"kQ3d8y1Z"},{"topic":"t","partition":1,"offset":7},'
        '{"topic":"u","partition":0,"offset":0,"topic_id":""}]'
    ) == rendered


@pytest.mark.parametrize(
    ("kind", "start"),
    [
        (IdType.OFFSET, PartitionStart(8, None)),
        (IdType.TIMESTAMP, PartitionStart(None, 1001)),  # the next millisecond, as KafkaSSE: not the last record again
        (IdType.BOTH, PartitionStart(8, 1000)),  # that millisecond again: another cluster may hold more records of it
    ],
)
def test_each_kind_tells_its_own(kind: IdType, start: PartitionStart) -> None:
    """After a record of offset 7 and time 1000, each kind of id goes on where it promises to."""
    partition = Partition("t", 0)
    writer = IdWriter({partition: 7}, {"t": "x"}, id_type=kind, timestamps={partition: 5})

    writer.set(partition, 8, 1000)

    assert {partition: start} == parse(writer.render()).starts


def test_a_record_of_the_last_millisecond_there_is() -> None:
    """A producer that writes the largest timestamp does not make ids that nobody can send back."""
    partition = Partition("t", 0)
    writer = IdWriter({partition: 7}, {"t": "x"}, id_type=IdType.TIMESTAMP)

    writer.set(partition, 8, INT64_MAX)

    assert {partition: PartitionStart(None, INT64_MAX)} == parse(writer.render()).starts


@pytest.mark.parametrize("unknown", [None, -1])
def test_a_record_without_a_time_moves_no_time(unknown: int | None) -> None:
    """A record that has no timestamp leaves the id's as it was."""
    partition = Partition("t", 0)
    writer = IdWriter({partition: 7}, {"t": "x"}, id_type=IdType.BOTH, timestamps={partition: 5})

    writer.set(partition, 8, unknown)

    assert {partition: PartitionStart(8, 5)} == parse(writer.render()).starts


def test_a_compact_id_of_many_partitions_is_short() -> None:
    """The compact id of 1,000 partitions fits in a header of 16 KiB, which the JSON form does not."""
    offsets = {Partition("events", index): 1_000_000 + index for index in range(1000)}

    plain, short = (len(IdWriter(offsets, {"events": "kQ3d8y1Z"}, compact=each).render()) for each in (False, True))

    assert plain > 16_384 > short


# What KafkaSSE's clients and people with curl write.


def test_names_offsets_and_timestamps_together() -> None:
    """Names, offsets and timestamps may stand side by side; topics keep the order in which they were given."""
    position = parse('["b",{"topic":"a","partition":1,"timestamp":5},{"topic":"a","partition":0,"offset":3},"c"]')

    assert {Partition("a", 1): PartitionStart(None, 5), Partition("a", 0): PartitionStart(3, None)} == position.starts
    assert ("b", "c") == position.named_topics
    assert {"a", "b", "c"} == set(position.topics)


def test_an_offset_and_a_timestamp_in_one_entry() -> None:
    """Both are kept: which one counts is decided where the topic's topic_id is known."""
    assert {Partition("t", 0): PartitionStart(1, 5)} == parse(entry(timestamp=5)).starts


def test_only_what_is_listed() -> None:
    """An id without an topic_id means the partitions that it lists, unless its topic is named as well."""
    assert frozenset({"t"}) == parse(entry()).partial_topics
    assert frozenset() == parse('["t",' + entry()[1:]).partial_topics
    assert frozenset() == parse(entry(topic_id="x")).partial_topics
    assert frozenset({"t"}) == parse(entry(topic_id="x", only=True)).partial_topics


def test_a_name_twice_is_one_name() -> None:
    """Naming a topic twice asks for nothing else than naming it once."""
    assert ("t", "u") == parse('["t","u","t"]').topics == of_topics(["t", "u", "t"]).topics


def test_the_largest_offset() -> None:
    """2**63 - 1 is an offset of Kafka's."""
    assert {Partition("t", 0): PartitionStart(INT64_MAX, None)} == parse(entry(offset=INT64_MAX)).starts


# What is refused, and how.


@pytest.mark.parametrize(
    ("text", "where", "why"),
    [
        ("[]", "", "non-empty"),
        ("{}", "", "array"),
        ('"t"', "", "array"),
        ("null", "", "array"),
        ("[5]", "[0]", "5 is not of type"),
        ("[[]]", "[0]", "is not of type"),
        ("[null]", "[0]", "is not of type"),
        ('["a b"]', "[0]", "does not match"),
        ('["a\\n"]', "[0]", "does not match"),
        ('["\\u0000"]', "[0]", "does not match"),
        ('["\u0219"]', "[0]", "does not match"),  # KafkaSSE sends no response at all to a name above U+00FF
        ('["\\ud800"]', "[0]", "does not match"),
        (f'["{"a" * 250}"]', "[0]", "does not match"),
        ('[".."]', "[0]", "should not be valid"),
        ('["t",{"topic":"t","offset":1}]', "[1]", "'partition' is a required property"),
        ('["t",{"partition":0,"offset":1}]', "[1]", "'topic' is a required property"),
        ('["t",{"topic":"t","partition":0}]', "[1]", "it needs offset or timestamp"),
        (entry(topic=5), "[0].topic", "not of type 'string'"),
        (entry(partition=-1), "[0].partition", "less than the minimum"),
        (entry(partition=2**32), "[0].partition", "greater than the maximum"),  # KafkaSSE serves partition 0
        (entry(partition="0"), "[0].partition", "not of type 'integer'"),
        (entry(partition=True), "[0].partition", "not of type 'integer'"),
        (entry(offset=None), "[0].offset", "not of type 'integer'"),
        (entry(offset=-1), "[0].offset", "less than the minimum"),
        (entry(offset=2**63), "[0].offset", "greater than the maximum"),
        (entry(timestamp=-1), "[0].timestamp", "less than the minimum"),
        (entry(timestamp=2**63), "[0].timestamp", "greater than the maximum"),
        (entry(topic_id="é"), "[0].topic_id", "does not match"),
        (entry(topic_id="a" * 23), "[0].topic_id", "does not match"),
        (entry(only=False), "[0].only", "True was expected"),
        (entry(leader=1), "[0]", "'leader' was unexpected"),
        ('["' + "a" * 60_000 + '"]', "[0]", "does not match"),  # the reason must outlive the shortening
        ('["t",' + ",".join(["5"] * 1000) + "]", "[1]", "5 is not of type"),  # the first of many
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)
def test_a_refusal_says_where_and_why(text: str, where: str, why: str) -> None:
    """Whatever does not fit the schema is refused with the entry and the reason, in a few words."""
    refused = refusal(text)

    assert where == refused.extra["at"]
    assert why in refused.detail
    assert len(refused.detail) < 400


@pytest.mark.parametrize("number", ["1.0", "1e3", "1E400", "-0.0", "NaN", "Infinity", "-Infinity"])
def test_only_whole_numbers(number: str) -> None:
    """Floats, NaN and infinities are no offsets, not even those that happen to be whole."""
    assert number in refusal(f'[{{"topic":"t","partition":0,"offset":{number}}}]').detail


@pytest.mark.parametrize("text", ["", " ", "[", "0;1", "t", '["t"', '["t"]x', "\0", "['t']", '["t",]', "\ufeff[]"])
def test_not_json(text: str) -> None:
    """An id that is no JSON, or cut off, or empty is refused; Zilla starts from the beginning."""
    assert "is not JSON" in refusal(text).detail


def test_a_partition_twice() -> None:
    """Two entries for one partition, or two values for one member, leave open which is meant."""
    entries = '[{"topic":"t","partition":0,"offset":1},{"topic":"t","partition":0,"timestamp":5}]'

    assert "two entries for t/0" in refusal(entries).detail
    assert "same member twice" in refusal('[{"topic":"t","partition":0,"offset":1,"offset":2}]').detail
    assert "two entries for t/0" in refusal(compact("t 0:1 0:1")).detail


def test_two_incarnations_of_one_topic() -> None:
    """Offsets cannot speak of two creations of a topic at once."""
    entries = [
        {"topic": "t", "partition": 0, "offset": 1, "topic_id": "x"},
        {"topic": "t", "partition": 1, "offset": 1, "topic_id": "y"},
    ]

    assert "two topic_ids for t" in refusal(json.dumps(entries)).detail


@pytest.mark.parametrize(
    "text",
    [
        *("~", "~~", "~é", "~%%%", compact(""), compact("\n"), compact("t"), compact("t ix"), compact("t o")),
        *(compact("t x:1"), compact("t -1:1"), compact("t 0"), compact("t :1:2:3"), compact("t :+1")),
        *(compact("t :\u0663"), compact("t " + ":1" * 100), compact("t :" + "9" * 5000)),
    ],
)
def test_not_a_compact_id(text: str) -> None:
    """What starts like a compact event ID and is none is refused as such."""
    assert "starts like a compact event ID" in refusal(text).detail


@pytest.mark.parametrize("text", [compact("a b :1"), compact("t :"), compact("t :" + "9" * 20), compact(" :1")])
def test_a_compact_id_is_held_to_the_schema(text: str) -> None:
    """The compact form can say no more than the JSON form."""
    assert refusal(text).detail


def test_too_long() -> None:
    """The bounds are on bytes and on entries, and their number is in the sentence."""
    limits = Limits(max_bytes=64, max_entries=2)

    assert "longer than 64 bytes" in refusal('["' + "é" * 31 + '"]', limits).detail
    assert "more than 2 entries" in refusal('["a","b","c"]', limits).detail
    assert "more than 2 entries" in refusal(compact("t :1 :1 :1"), limits).detail
    assert ("a", "b") == parse('["a","b"]', limits).topics


def test_the_bounds_are_those_of_the_configuration() -> None:
    """Parsing without bounds of one's own uses the documented defaults."""
    web = Config().web
    assert Limits(web.max_last_event_id_bytes, web.max_last_event_id_entries) == Limits()


# Anything at all.


def json_of(numbers: st.SearchStrategy[float]) -> st.SearchStrategy[object]:
    """JSON values that look a little like positions."""
    names = st.text() | st.sampled_from(["t", "topic", "partition", "offset"])
    leaves = st.none() | st.booleans() | numbers | names
    return st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(names, inner))


json_values = json_of(st.integers() | st.floats())


@given(st.text() | json_values.map(json.dumps) | st.binary().map(lambda raw: "~" + base64.b64encode(raw).decode()))
@example('["\ud800"]')
@example('[{"\ud800":1}]')
@example("\ud800")
@example('{"a":1,"a":1}')
@example('[{"a":1e5}]')
def test_any_text_is_a_position_or_refused(text: str) -> None:
    """Whatever text arrives, it is a position or InvalidPosition, which can be sent as JSON in UTF-8."""
    try:
        position = parse(text)
    except InvalidPosition as refused:
        json.dumps(refused.problem(), ensure_ascii=False).encode()
    else:
        assert position.topics


odd_numbers = st.integers() | st.sampled_from([-1, 0, 2**31 - 1, 2**31, INT64_MAX, 2**63])
odd_texts = topics | st.text() | st.sampled_from(["", ".", "..", "a\n", "a" * 249, "a" * 250, "a" * 22, "a" * 23])
members = {
    "topic": odd_texts,
    "partition": odd_numbers,
    "offset": odd_numbers,
    "timestamp": odd_numbers,
    "topic_id": odd_texts,
    "only": st.booleans(),
}
near_entries = st.fixed_dictionaries(
    {name: values | st.sampled_from([True, None, [], "0", 0]) for name, values in list(members.items())[:2]},
    optional={name: values | st.sampled_from([True, None, {}, "0", 0]) for name, values in list(members.items())[2:]},
)


@given(odd_texts | near_entries | json_of(st.integers()))
@example(True)
@example({"topic": "t", "partition": 0, "offset": 1, "only": 1})
def test_parse_and_schema_agree(value: object) -> None:
    """An entry passes exactly if it fits the schema that clients are shown."""
    text = json.dumps([value])

    if schemas.first_error("last-event-id", [value]) is None:
        assert parse(text).topics
    else:
        assert "at" in refusal(text).extra


@pytest.mark.parametrize("shape", ["%s", '[{"topic":%s}]'])
def test_deep_nesting(shape: str) -> None:
    """Nesting is refused at any depth, also where the JSON can just be read but no longer be spoken of."""
    for depth in (*range(850, 1050), 32_000):
        assert refusal(shape % ("[" * depth + "]" * depth)).detail


HOSTILE = {
    "numbers": ",".join(["1"] * 2000),
    "wrong objects": ",".join(["{}"] * 2000),
    "wrong names": ",".join(['"é"'] * 2000),
    "digits": "9" * 60_000,
    "a name": '"' + "a" * 60_000 + '"',
    "a member": '{"' + "a" * 60_000 + '":1}',
    "members": "{" + ",".join(f'"{index}":1' for index in range(6000)) + "}",
    "backslashes": '"' + "\\\\" * 30_000 + '"',
    "spaces": " " * 60_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_64_kib_of_hostile_text(text: str) -> None:
    """No text within the bounds costs more than looking at each of its entries once."""
    looks = 0

    def count(*_: object) -> None:
        nonlocal looks
        looks += 1

    sys.setprofile(count)
    try:
        refusal(f"[{text}]")
    finally:
        sys.setprofile(None)

    assert looks < 100_000
