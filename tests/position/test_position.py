"""A client that sends back its ID resumes at the same position. Any other text is rejected quickly, with a reason."""

from __future__ import annotations

import base64
import json
import string
import sys
from typing import NamedTuple
from urllib.parse import quote

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from kafkasse import schemas
from kafkasse.config import Config
from kafkasse.errors import InvalidPosition
from kafkasse.log import Partition
from kafkasse.records.position import LATEST, IdType, IdWriter, Limits, Place, Position, of_topics, parse

INT64_MAX = 2**63 - 1
LETTERS = string.ascii_letters + string.digits + "._-"

topics = st.text(LETTERS, min_size=1, max_size=249).filter(lambda name: name not in (".", ".."))
numbers = st.integers(0, INT64_MAX)
leader_epochs = st.integers(0, 2**31 - 1)
partitions = st.builds(Partition, topics, st.integers(0, 2**31 - 1))
topic_ids = st.text(string.ascii_letters + string.digits + "_-", max_size=22)


class Stream(NamedTuple):
    """The state of a stream that its ID describes."""

    offsets: dict[Partition, int]
    topic_ids: dict[str, str]
    partial_topics: frozenset[str]
    id_type: IdType
    timestamps: dict[Partition, int]
    compact: bool | None
    epochs: dict[Partition, int]
    pending: dict[Partition, int]

    def writer(self) -> IdWriter:
        return IdWriter(*self)

    def position(self) -> Position:
        """Return the position of a client that sends the ID."""
        starts = {partition: self.start(partition) for partition in self.offsets}
        starts |= {partition: Place(timestamp=timestamp) for partition, timestamp in self.pending.items()}
        return Position(starts, (), self.topic_ids, self.partial_topics)

    def start(self, partition: Partition) -> Place:
        offset, timestamp = self.offsets[partition], self.timestamps.get(partition)
        match self.id_type:
            case IdType.OFFSET:
                return Place(offset, None, self.epochs.get(partition))
            case IdType.TIMESTAMP:
                return Place(offset) if timestamp is None else Place(timestamp=timestamp)
            case IdType.BOTH:
                return Place(offset, timestamp, self.epochs.get(partition))


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    listed = draw(st.lists(partitions, min_size=1, max_size=8, unique=True))
    offsets = {partition: draw(numbers) for partition in draw(st.sets(st.sampled_from(listed)))}
    names = list(dict.fromkeys(partition.topic for partition in listed))
    known = st.sets(st.sampled_from(list(offsets))) if offsets else st.just(set[Partition]())
    return Stream(
        offsets,
        {name: draw(topic_ids) for name in names},
        frozenset(draw(st.sets(st.sampled_from(names)))),
        draw(st.sampled_from(IdType)),
        {partition: draw(numbers) for partition in draw(known)},
        draw(st.none() | st.booleans()),
        {partition: draw(leader_epochs) for partition in draw(known)},
        {partition: draw(numbers) for partition in listed if partition not in offsets},
    )


def entry(**members: object) -> str:
    return json.dumps([{"topic": "t", "partition": 0, "offset": 1} | members])


def repeated(member: str) -> str:
    """Return a position with an entry in which this member repeats another one."""
    return f'["u",{entry()[1:-2]},{member}}}]'


def compact(text: str) -> str:
    """Return a compact ID that contains this text."""
    return f"~~{base64.urlsafe_b64encode(text.encode() + b' ' * (-len(text.encode()) % 3)).decode()}~"


def rejection(text: str, limits: Limits | None = None) -> InvalidPosition:
    with pytest.raises(InvalidPosition) as caught:
        parse(text, limits or Limits())
    return caught.value


# parse() reads what IdWriter writes.


@given(streams())
def test_parse_undoes_render(stream):
    """In both forms and with each ID type, parsing an ID returns the position that was rendered."""
    parsed = [parse(stream._replace(compact=compact).writer().render()) for compact in (stream.compact, True, False)]

    assert [stream.position()] * 3 == parsed
    assert parsed[0].topics == parsed[1].topics == parsed[2].topics


@given(streams())
def test_an_id_is_valid_in_sse_and_http(stream):
    """An ID is one line of printable ASCII. The compact form has only characters that need no CORS preflight."""
    rendered = stream.writer().render()

    assert rendered.isascii()
    assert rendered.isprintable()
    assert rendered[0] != "~" or set(rendered) <= set(string.ascii_letters + string.digits + "-_~")


moves = st.tuples(partitions, numbers, st.none() | st.integers(-1, INT64_MAX), st.none() | st.integers(-1, 2**31 - 1))


@given(streams(), st.data())
def test_a_part_of_an_id_is_rejected(stream, data):
    """Some clients store an incomplete ID if the connection breaks within it. The ID must not mean another position."""
    rendered = stream.writer().render()

    assert rejection(rendered[: data.draw(st.integers(0, len(rendered) - 1))]).detail


@given(streams(), st.lists(moves, max_size=8), st.data())
def test_a_moved_writer_equals_a_new_one(stream, moves, data):
    """After set(), for known, new and pending partitions, the ID equals that of a writer created at the same position."""
    moved = stream.writer()
    listed = st.sampled_from([*stream.offsets, *stream.pending])
    for partition, *move in moves:
        moved.set(data.draw(listed) if data.draw(st.booleans()) else partition, *move)

    created = moved.copy_at(moved.places())

    assert created.render() == moved.render()
    assert {*moved.offsets, *moved.pending} == parse(moved.render()).starts.keys()


@given(streams(), st.data(), numbers, st.integers(-1, 2**31 - 1), st.none() | numbers)
def test_a_template_agrees_with_render(stream, data, next_offset, leader_epoch, timestamp):
    """The ID of a template, for all types of IDs and new or pending partitions, is that of a writer that moved forward."""
    writer = stream.writer()
    partition = data.draw(st.sampled_from([*stream.offsets, *stream.pending]) | partitions)
    assume(next_offset > stream.offsets.get(partition, -1))
    template = writer.template(partition, leader_epoch)
    templated = f"{template.prefix}{template.part(next_offset, timestamp)}{template.suffix}"

    writer.set(partition, next_offset, timestamp if template.has_timestamp else None, leader_epoch)

    assert writer.render() == templated
    assert not template.is_decimal or template.part(next_offset, timestamp) == str(next_offset)


def test_the_json_form():
    """The ID has the next offset of every partition, its leader epoch if it is known, and the topic_id once per topic."""
    offsets = {Partition("t", 0): 12, Partition("t", 1): 7, Partition("u", 0): 0}

    rendered = IdWriter(offsets, {"t": "kQ3d8y1Z", "u": ""}, epochs={Partition("t", 0): 5}).render()

    assert (
        '[{"topic":"t","partition":0,"offset":12,"leader_epoch":5,"topic_id":"kQ3d8y1Z"},'
        '{"topic":"t","partition":1,"offset":7},{"topic":"u","partition":0,"offset":0,"topic_id":""}]'
    ) == rendered


def test_a_compact_id_may_omit_partitions_offsets_and_epochs():
    starts = [Place(5), Place(6, 7), Place(None, 8), Place(9, None, 2)]

    position = parse(compact("\nt ix :5 :6:7 3::8 :9e2"))

    assert dict(zip((Partition("t", index) for index in (0, 1, 3, 4)), starts, strict=True)) == position.starts


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("id_type", IdType)
def test_a_pending_partition(id_type, compact):
    """The ID contains the timestamp of a partition whose offset is unknown, until set() gives the offset."""
    known, unknown = Partition("t", 0), Partition("t", 1)
    writer = IdWriter({known: 7}, {"t": "x"}, id_type=id_type, compact=compact, pending={unknown: 1000})

    assert Place(timestamp=1000) == parse(writer.render()).starts[unknown]

    writer.set(unknown, 3)

    by_type = {
        IdType.OFFSET: Place(3),
        IdType.TIMESTAMP: Place(timestamp=1000),
        IdType.BOTH: Place(3, 1000),
    }
    assert by_type[id_type] == parse(writer.render()).starts[unknown]
    assert {} == writer.pending


def test_the_epoch_belongs_to_the_record_before_the_offset():
    """A move without a known leader epoch removes the epoch from the ID. A move to the same offset keeps it."""
    partition = Partition("t", 0)
    writer = IdWriter({partition: 7}, {"t": "x"}, epochs={partition: 1})
    seen = []
    for move in [(8, None, 2), (8, None, -1), (8, None, None), (9, None, -1), (9, None, 3), (4,)]:
        writer.set(partition, *move)
        seen.append(parse(writer.render()).starts[partition].epoch)

    assert [2, 2, 2, None, 3, None] == seen


OFFSET, TIMESTAMP, BOTH = IdType.OFFSET, IdType.TIMESTAMP, IdType.BOTH


@pytest.mark.parametrize(
    ("id_type", "move", "start"),
    [
        (OFFSET, (8, 1000), Place(8)),
        (TIMESTAMP, (8, 1000), Place(None, 1001)),  # the next one, as in KafkaSSE: no record is repeated
        (BOTH, (8, 1000), Place(8, 1000)),  # the same one: another cluster may hold more records of it
        (TIMESTAMP, (8, INT64_MAX), Place(None, INT64_MAX)),  # the server would reject the next millisecond
        (BOTH, (8, None), Place(8, 5)),
        (BOTH, (8, -1), Place(8, 5)),
        # After a truncation, the log may contain records that are older than the timestamp.
        (TIMESTAMP, (6,), Place(6)),
        (BOTH, (6,), Place(6)),
    ],
)
def test_where_a_client_resumes_after_a_move(id_type, move, start):
    """A record moves the ID from offset 7 and timestamp 5 to another offset, and to its timestamp if it has one."""
    partition = Partition("t", 0)
    writer = IdWriter({partition: 7}, {"t": "x"}, id_type=id_type, timestamps={partition: 5})

    writer.set(partition, *move)

    assert {partition: start} == parse(writer.render()).starts


def test_a_compact_id_of_many_partitions_is_short():
    """The compact ID of 1,000 partitions fits into a header of 16 KiB. The JSON form does not."""
    offsets = {Partition("events", index): 1_000_000 + index for index in range(1000)}

    json_length, compact_length = (
        len(IdWriter(offsets, {"events": "kQ3d8y1Z"}, compact=compact).render()) for compact in (False, True)
    )

    assert json_length > 16_384 > compact_length


def names(count: int, length: int) -> list[str]:
    return [f"{index:02}".ljust(length, "n") for index in range(count)]


@pytest.mark.parametrize("id_type", IdType)
@pytest.mark.parametrize("length", [2, 20, 249])
@pytest.mark.parametrize("topic_count", [1, 2, 50])
def test_an_id_in_the_json_form_fits_into_a_request_line(topic_count, length, id_type):
    """Without a setting, an ID is compact as soon as its JSON form would be too long for a URL or a header of 4 KiB."""
    listed = [Partition(name, index) for index in range(70) for name in names(topic_count, length)]
    lengths = []
    for count in range(1, len(listed)):
        offsets = dict.fromkeys(sorted(listed[:count]), 10**9)
        rendered = IdWriter(
            offsets,
            dict.fromkeys(names(topic_count, length), "kQ3d8y1Z"),
            id_type=id_type,
            timestamps=dict.fromkeys(offsets, 1_790_000_000_000),
            epochs=dict.fromkeys(offsets, 100),
        ).render()
        if rendered.startswith("~"):
            break
        lengths.append((len(rendered), len(quote(rendered, safe=""))))

    assert rendered.startswith("~")
    assert 4_096 > max(length for length, _ in lengths)
    assert 7_000 > max(length for _, length in lengths)


def test_the_form_of_an_id_does_not_depend_on_its_offsets():
    """The form does not change while a stream continues, so that the IDs of one stream do not alternate."""
    for count in range(30, 80):
        listed = [Partition("t", index) for index in range(count)]
        first = IdWriter(dict.fromkeys(listed, 0), {"t": "kQ3d8y1Z"})
        last = first.copy_at(dict.fromkeys(listed, Place(INT64_MAX, None, 2**31 - 1)))

        assert first.render()[0] == last.render()[0]


# IDs from KafkaSSE's clients and from people with curl.


def test_names_offsets_and_timestamps_together():
    position = parse('["b",{"topic":"a","partition":1,"timestamp":5},{"topic":"a","partition":0,"offset":3},"c"]')

    assert {Partition("a", 1): Place(None, 5), Partition("a", 0): Place(3, None)} == position.starts
    assert ("b", "c") == position.named_topics
    assert {"a", "b", "c"} == set(position.topics)


@pytest.mark.parametrize(
    ("members", "start"),
    [
        ({"timestamp": 5}, Place(1, 5)),  # the feed chooses between them when it knows the topic ID
        ({"offset": INT64_MAX}, Place(INT64_MAX)),
        ({"offset": -1, "timestamp": 5, "leader_epoch": 3}, Place(LATEST)),  # not a time before the end
    ],
)
def test_where_an_entry_starts(members, start):
    assert {Partition("t", 0): start} == parse(entry(**members)).starts


def test_partial_topics():
    """Without topic_id, an ID selects only the partitions that it lists, unless it also names the topic."""
    assert frozenset({"t"}) == parse(entry()).partial_topics
    assert frozenset() == parse('["t",' + entry()[1:]).partial_topics
    assert frozenset() == parse(entry(topic_id="x")).partial_topics
    assert frozenset({"t"}) == parse(entry(topic_id="x", only=True)).partial_topics


def test_a_repeated_name_is_ignored():
    assert ("t", "u") == parse('["t","u","t"]').topics == of_topics(["t", "u", "t"]).topics


# Rejected texts, and the reasons.


@pytest.mark.parametrize(
    ("text", "path", "reason"),
    [
        ("[]", "", "[] "),  # the rest depends on the version of jsonschema
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
        (entry(offset=-2), "[0].offset", "less than the minimum"),
        (entry(offset=2**63), "[0].offset", "greater than the maximum"),
        (entry(timestamp=-1), "[0].timestamp", "less than the minimum"),
        (entry(timestamp=2**63), "[0].timestamp", "greater than the maximum"),
        (entry(leader_epoch=-1), "[0].leader_epoch", "less than the minimum"),
        (entry(leader_epoch=2**31), "[0].leader_epoch", "greater than the maximum"),
        (
            '[{"topic":"t","partition":0,"timestamp":1,"leader_epoch":1}]',
            "[0]",
            "'offset' is a dependency of 'leader_epoch'",
        ),
        (entry(topic_id="é"), "[0].topic_id", "does not match"),
        (entry(topic_id="a" * 23), "[0].topic_id", "does not match"),
        (entry(only=False), "[0].only", "True was expected"),
        (entry(leader=1), "[0]", "'leader' was unexpected"),
        ('["' + "a" * 60_000 + '"]', "[0]", "does not match"),  # the value is shortened, the reason is not
        ('["t",' + ",".join(["5"] * 1000) + "]", "[1]", "5 is not of type"),  # the first invalid entry of many
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)
def test_a_rejection_gives_the_path_and_the_reason(text, path, reason):
    """The error names the entry and the rule of the schema that it breaks, in a short text."""
    error = rejection(text)

    assert path == error.extra["at"]
    assert reason in error.detail
    assert len(error.detail) < 400


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *((entry(offset=5).replace("5", number), number) for number in ("1.0", "1e3", "1E400", "-0.0")),
        *((entry(offset=5).replace("5", number), number) for number in ("NaN", "Infinity", "-Infinity")),
        *((text, "is not JSON") for text in ("", " ", "[", "0;1", "t", '["t"', '["t"]x', "\0", "['t']", '["t",]')),
        ("\ufeff[]", "is not JSON"),
        (f"{entry()[:-1]},{entry()[1:]}", "two entries for t/0"),
        (compact("t 0:1 0:1"), "two entries for t/0"),
        # JSON parsers disagree about which of two members with the same name counts.
        *((repeated(member), "same member twice") for member in ('"offset":2', '"offset" : 1', '"\\u006fffset":1')),
        *((repeated(member), "same member twice") for member in ('"topic":"t"', '"timestamp":1,"timestamp":1')),
        # Offsets cannot refer to a topic both before and after it was recreated.
        (f"{entry(topic_id='x')[:-1]},{entry(partition=1, topic_id='y')[1:]}", "two topic_ids for t"),
    ],
)
def test_ambiguous_or_damaged_text_is_rejected(text, reason):
    """Floats are not offsets, not even with an integer value. Zilla starts from the beginning if an ID is damaged."""
    assert reason in rejection(text).detail


@pytest.mark.parametrize(
    "text",
    [
        *("~", "~~", "~é", "~%%%", compact(""), compact("\n"), compact("t"), compact("t ix"), compact("t o")),
        *(compact("t :1e"), compact("t :1e1e1"), compact("t :1:2e1"), compact("t :1e-1")),
        *("~~~", compact("t :1")[:-1], compact("t :1")[1:]),
        *(compact("t x:1"), compact("t -1:1"), compact("t 0"), compact("t :1:2:3"), compact("t :+1")),
        *(compact("t :\u0663"), compact("t " + ":1" * 100), compact("t :" + "9" * 5000)),
    ],
)
def test_a_damaged_compact_id_is_rejected(text):
    assert "starts like a compact event ID" in rejection(text).detail


@pytest.mark.parametrize(
    "text", [compact("a b :1"), compact("t :"), compact("t :" + "9" * 20), compact("t :e1"), compact(" :1")]
)
def test_a_compact_id_must_match_the_schema(text):
    """The compact form cannot express anything that the JSON form cannot."""
    assert rejection(text).detail


def test_too_long():
    """The limits count bytes and entries, and the error contains the limit."""
    limits = Limits(max_bytes=64, max_entries=2)

    assert "longer than 64 bytes" in rejection('["' + "é" * 31 + '"]', limits).detail
    assert "more than 2 entries" in rejection('["a","b","c"]', limits).detail
    assert "more than 2 entries" in rejection(compact("t :1 :1 :1"), limits).detail
    assert ("a", "b") == parse('["a","b"]', limits).topics


def test_the_default_limit_equals_the_default_setting():
    assert Limits(Config().web.max_last_event_id_bytes) == Limits()


# Arbitrary input.


def json_of(numbers: st.SearchStrategy[float]) -> st.SearchStrategy[object]:
    """JSON values that resemble positions."""
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
def test_any_text_is_a_position_or_rejected(text):
    """Any text is either a position or raises InvalidPosition, whose body can be sent as JSON in UTF-8."""
    try:
        position = parse(text)
    except InvalidPosition as error:
        json.dumps(error.problem(), ensure_ascii=False).encode()
    else:
        assert position.topics


odd_numbers = st.integers() | st.sampled_from([-1, 0, 2**31 - 1, 2**31, INT64_MAX, 2**63])
odd_texts = topics | st.text() | st.sampled_from(["", ".", "..", "a\n", "a" * 249, "a" * 250, "a" * 22, "a" * 23])
required = {"topic": odd_texts, "partition": odd_numbers}
optional = dict.fromkeys(("offset", "timestamp", "leader_epoch"), odd_numbers)
optional |= {"topic_id": odd_texts, "only": st.booleans()}
near_entries = st.fixed_dictionaries(
    {name: values | st.sampled_from([True, None, [], "0", 0]) for name, values in required.items()},
    optional={name: values | st.sampled_from([True, None, {}, "0", 0]) for name, values in optional.items()},
)


@given(odd_texts | near_entries | json_of(st.integers()))
@example(True)
@example({"topic": "t", "partition": 0, "offset": 1, "only": 1})
def test_parse_and_schema_agree(value):
    text = json.dumps([value])

    if schemas.first_error("last-event-id", [value]) is None:
        assert parse(text).topics
    else:
        assert "at" in rejection(text).extra


@pytest.mark.parametrize("shape", ["%s", '[{"topic":%s}]'])
def test_deep_nesting_is_rejected(shape):
    """Nesting is rejected at any depth, also where Python can decode the JSON but cannot print it."""
    for depth in (*range(850, 1050), 32_000):
        assert rejection(shape % ("[" * depth + "]" * depth)).detail


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
def test_64_kib_of_hostile_text(text):
    """Rejecting a text within the limits costs no more than one check of each entry."""
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        rejection(f"[{text}]")
    finally:
        sys.setprofile(None)

    assert calls < 100_000
