"""A record reaches the client as it was, whatever is in it, and nobody who writes to a topic can forge what we say."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kafkasse import frame
from kafkasse.errors import FilterError, TopicGone
from kafkasse.frame import FORMATS, Encoder, JsonLines, ServerSentEvents, TopicRecord, Wire
from kafkasse.frame.formats import can_append_member
from kafkasse.frame.json_text import is_json
from kafkasse.log import Partition
from kafkasse.position import IdType, IdWriter
from kafkasse.sse import Event, Parser
from tests.support.sse import read_events

ID = '[{"topic":"t","partition":3,"offset":8}]'
WHERE = {"topic": "t", "partition": 3, "offset": 7, "timestamp": 1000}

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6) | st.just("_kafka"), inner, max_size=4)
    ),
    max_leaves=12,
)
spaces = st.text(" \t\r\n", max_size=3)
line_breaks = st.lists(st.sampled_from(["\r", "\n", "\r\n", "a", ":", " ", "\0", "\u2028"]), max_size=12).map("".join)


class Record(NamedTuple):
    """A record, as small as it can be."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp: int | None = 1000
    offset: int = 7


def sent(encoder: Encoder, record: Record) -> bytes:
    """The frame of a record, b"" for one that is not sent."""
    encoded = encoder.encode("t", 3, record)
    return encoder.wire.frame(encoded[0], ID, encoded[1]) if encoded else b""


def one_event(stream: bytes) -> Event:
    """The one event that both parsers see in these bytes."""
    events = list(Parser().receive(stream))

    assert 1 == len(events)
    assert events == read_events(stream)
    return events[0]


def event(record: Record, format: str = "kafkasse", **hooks: Any) -> Event:
    return one_event(sent(Encoder(format, **hooks), record))


def data(value: str | bytes, format: str = "kafkasse", **hooks: Any) -> Any:
    """The data that a record of this value arrives with, as JSON."""
    raw = value.encode() if isinstance(value, str) else value
    return json.loads(event(Record(raw), format, **hooks).data)


def line(record: Record, format: str = "kafkasse") -> Any:
    """The same as a line of JSON."""
    raw = sent(Encoder(format, JsonLines()), record)

    assert 1 == raw.count(b"\n") == raw.endswith(b"\n")
    assert b"\r" not in raw
    return json.loads(raw)


@st.composite
def loosely_written(draw: st.DrawFn, values: st.SearchStrategy[Any] = json_values) -> tuple[str, Any]:
    """A JSON text with white space wherever it may stand, CR included, and what it means."""
    value = draw(values)
    ascii_only = draw(st.booleans())

    def write(value: Any) -> str:
        before, after = draw(spaces), draw(spaces)
        if isinstance(value, dict):
            pairs = (f"{before}{write(name)}:{write(each)}" for name, each in value.items())
            return "{" + ",".join(pairs) + after + "}"
        if isinstance(value, list):
            return "[" + ",".join(before + write(each) + after for each in value) + "]"
        return before + json.dumps(value, ensure_ascii=ascii_only) + after

    return write(value), value


# Any value, any format: what arrives is what was written.


@given(loosely_written())
def test_json_keeps_its_meaning(written: tuple[str, Any]) -> None:
    """Any JSON, however written, is one event with the same meaning; an object has gained `_kafka` and lost nothing."""
    text, value = written

    arrived = data(text)

    if isinstance(value, dict):
        assert WHERE | {"key": None} == arrived.pop("_kafka")
        value = {name: each for name, each in value.items() if name != "_kafka"}
    assert value == arrived


@given(loosely_written())
def test_json_lines_are_lines_of_json(written: tuple[str, Any]) -> None:
    """As newline-delimited JSON the same value is one line, in every format."""
    text, value = written
    raw = Record(text.encode())

    assert json.loads(event(raw).data) == line(raw)
    assert value == line(raw, "value") == line(raw, "envelope")["value"]
    assert value == line(raw, "cloudevents")["data"]


@given(st.text() | line_breaks)
@example("data: x\n\nid: 0\n\n")
@example("\ufeffid: 1")
@example("a\0b")
@example("\u2028\u2029\x85\x0b\x0c")
@example("a\n")
@example("")
@example(" a ")
def test_text_arrives_untouched(text: str) -> None:
    """Any text is one event with exactly that text, or says that it is base64 of it: SSE cannot carry a CR."""
    arrived = event(Record(text.encode()), "value")

    if arrived.type == "base64":
        assert "\r" in text
        assert text == base64.b64decode(arrived.data).decode()
    else:
        assert ("message", text) == (arrived.type, arrived.data) or json.loads(text) == json.loads(arrived.data)


@given(st.binary())
@example(b"\xff")
@example(b"\xed\xa0\x80")
def test_bytes_arrive_untouched(raw: bytes) -> None:
    """Any bytes can be had back from an envelope, which says how they are written."""
    arrived = json.loads(event(Record(raw, raw, [("h", raw)]), "envelope").data)

    assert raw == unpacked(arrived, "key") == unpacked(arrived["headers"][0], "value")
    if arrived.get("value_encoding"):
        assert raw == unpacked(arrived, "value")
    else:
        assert json.loads(raw) == arrived["value"]


def unpacked(members: dict[str, Any], name: str) -> bytes:
    text = str(members[name])
    return base64.b64decode(text) if members.get(f"{name}_encoding") == "base64" else text.encode()


@given(st.binary(), st.sampled_from(list(FORMATS)))
def test_one_record_is_one_event(raw: bytes, format: str) -> None:
    """No bytes make a second event, an id or a retry of their own, or end the event that they are in."""
    frame = sent(Encoder(format), Record(raw, raw, [("ce_type", raw)]))

    if frame:
        assert ID == one_event(frame).id
    else:
        assert "kafkasse" == format


@given(st.lists(st.binary() | loosely_written().map(lambda written: written[0].encode()), max_size=5))
def test_frames_come_apart_again(values: list[bytes]) -> None:
    """Joined frames are split into the events and bodies that they were made of, by both wires."""
    for wire in (ServerSentEvents(), JsonLines()):
        encoder = Encoder("envelope", wire)
        bodies = [body for each in values if (encoded := encoder.encode("t", 3, Record(each))) for body in encoded[1:]]

        joined = b"".join(wire.frame("message", ID, body) for body in bodies)

        assert [("message", body) for body in bodies] == wire.split(joined)


@pytest.mark.parametrize(
    "number",
    ["9007199254740993", "25.00", "1e400", "-0", "1E+2", "0.1e-10", "1" * 400, "123456789012345678901234567890"],
)
@pytest.mark.parametrize("shape", ["%s", "[%s]", '{"n":%s}', '{"_kafka":0,"n":%s}', '{"n":%s,"n":1}'])
def test_numbers_are_not_rewritten(number: str, shape: str) -> None:
    """Numbers keep every digit and their form: KafkaSSE makes 9007199254740992 of the first and 25 of the second."""
    for format in FORMATS:
        assert number in event(Record((shape % number).encode()), format).data


def test_an_object_is_extended_and_not_written_anew() -> None:
    """The value's own text stays as it is, white space, escapes and order included."""
    value = '{ "b" : "\\u0065" ,\n "a":1.0 }'

    assert '{ "b" : "\\u0065" ,\n "a":1.0 ,"_kafka":' in event(Record(value.encode())).data


@pytest.mark.parametrize("value", ["[]", "[1]", '"text"', "1", "null", "true", '"}"', '[{"a":1}]'])
def test_values_that_are_no_objects(value: str) -> None:
    """JSON that is no object has no place for `_kafka` and arrives as it is."""
    assert value == event(Record(value.encode())).data


@pytest.mark.parametrize("value", ["{}", "{ }", "{\r\n}", "{}\n"])
def test_an_empty_object(value: str) -> None:
    """An empty object holds nothing but `_kafka`."""
    assert {"_kafka": WHERE | {"key": None}} == data(value)


# `_kafka` is ours.


@pytest.mark.parametrize(
    "value",
    [
        '{"_kafka":{"offset":99}}',
        '{"a":1,"_kafka":{"offset":99},"b":2}',
        '{"_kafka":1,"_kafka":2}',
        '{"\\u005fkafka":{"offset":99}}',
        '{"_\\u006bafka" : [ 1 ] , "a":1}',
        '{"_kafka":"}{\\"_kafka\\":1","a":"\\\\"}',
        '{"_kafka":{"_kafka":{"_kafka":1}}}',
        '{\r"_kafka"\r:\r1\r,\r"a"\r:\r2\r}',
        '{"_kafka":1e400,"a":1}',
    ],
)
def test_a_producer_cannot_forge_where_its_record_is(value: str) -> None:
    """A value's own `_kafka`, plain, escaped or twice, is dropped: there is one in what arrives, and it is ours."""
    text = event(Record(value.encode())).data

    pairs = json.loads(text, object_pairs_hook=list)

    assert [WHERE | {"key": None}] == [dict(each) for name, each in pairs if name == "_kafka"]
    assert [("a", 1)] in ([pair for pair in pairs if pair[0] == "a"], [("a", 1)])
    assert [pair for pair in json.loads(value, object_pairs_hook=list) if pair[0] not in ("_kafka",)] == [
        pair for pair in pairs if pair[0] != "_kafka"
    ]


def test_a_nested_kafka_is_the_producers_own() -> None:
    """Deeper down `_kafka` is a name like any other."""
    assert {"_kafka": 1} == data('{"a":{"_kafka":1}}')["a"]


def is_sent_or_skipped(value: bytes) -> None:
    """In every format, with hooks or without."""
    for format in FORMATS:
        for wire in (ServerSentEvents(), JsonLines()):
            for filterer in (None, lambda message: True):
                skipped: list[str] = []
                encoder = Encoder(format, wire, None, filterer, lambda *why, to=skipped: to.append(why[3]))

                assert (encoder.encode("t", 3, Record(value)) is None) == bool(skipped)


@pytest.mark.parametrize("shape", [b"%s", b'{"a":%s}', b'{"_kafka":1,"a":%s}'])
def test_deep_values(shape: bytes) -> None:
    """Nesting may cost a record, counted as skipped, but never the stream."""
    for depth in (*range(850, 1030, 15), 100_000):
        is_sent_or_skipped(shape % (b"[" * depth + b"]" * depth))


@pytest.mark.parametrize(
    "shape", [b'{"a":%s}', b'{"_kafka":%s,"a":1}', b'{"_kafka":1,"a":0.%s}', b'{"_kafka":1,"a":1e-%s}']
)
def test_long_numbers(shape: bytes) -> None:
    """Ten thousand digits may cost a record, but never the stream."""
    is_sent_or_skipped(shape % (b"9" * 10_000))


# Keys, times, tombstones.


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        (None, {"key": None}),
        (b"", {"key": ""}),
        (b"FR", {"key": "FR"}),
        (b'"\\\n\0', {"key": '"\\\n\0'}),
        ("clé \u2028 🌍".encode(), {"key": "clé \u2028 🌍"}),
        (b'","offset":0,"x":"', {"key": '","offset":0,"x":"'}),
        (b"\xff\x00", {"key": "/wA=", "key_encoding": "base64"}),
        (b"x" * 100_000, {"key": "x" * 100_000}),
    ],
)
def test_keys(key: bytes | None, shown: dict[str, str | None]) -> None:
    """A key is text where it is text, else base64 and says so; KafkaSSE sends {"type":"Buffer",…}."""
    for format, where in (("kafkasse", ["_kafka"]), ("envelope", [])):
        arrived = json.loads(event(Record(b"{}", key), format).data)
        for name in where:
            arrived = arrived[name]
        assert shown.items() <= arrived.items()


@pytest.mark.parametrize("timestamp", [None, -1])
def test_a_record_without_a_time(timestamp: int | None) -> None:
    """A record that has no timestamp has none, not 1969."""
    record = Record(b"{}", timestamp=timestamp)

    assert json.loads(event(record).data)["_kafka"]["timestamp"] is None
    assert json.loads(event(record, "envelope").data)["timestamp"] is None
    assert "time" not in json.loads(event(record, "cloudevents").data)


def test_a_tombstone_is_a_delete_event() -> None:
    """A record without a value says which key is gone; one whose value is JSON's null does not."""
    gone = {name: event(Record(None, b"FR"), name) for name in FORMATS}

    assert {"delete"} == {each.type for each in gone.values()}
    assert {"_kafka": WHERE | {"key": "FR"}} == json.loads(gone["kafkasse"].data)
    assert {"key": "FR"} == json.loads(gone["value"].data)
    assert WHERE | {"key": "FR", "headers": [], "value": None} == json.loads(gone["envelope"].data)
    assert ("kafka.tombstone", "FR") == tuple(
        json.loads(gone["cloudevents"].data)[name] for name in ("type", "subject")
    )
    assert "message" == event(Record(b"null", b"FR")).type


# Values that are no JSON.


@pytest.mark.parametrize(
    "value", [b"", b"text", b"{", b"{'a':1}", b"NaN", b"[Infinity]", b"\xff", b'"\n"', b"\xef\xbb\xbf{}"]
)
def test_what_is_no_json_is_skipped_in_the_default_format(value: bytes) -> None:
    """A value that does not deserialize is not sent, and whoever counts is told which and why."""
    skipped: list[tuple[str, int, int, str]] = []

    encoded = Encoder(on_skipped=lambda *why: skipped.append(why)).encode("t", 3, Record(value))

    assert encoded is None
    assert [("t", 3, 7)] == [each[:3] for each in skipped]
    assert "not JSON" in skipped[0][3]


def test_a_value_with_a_cr() -> None:
    """A CR within JSON is white space and arrives as a line break; within anything else it makes the value base64."""
    assert ("message", '{"a":\n1}') == event(Record(b'{"a":\r1}'), "value")[:2]
    assert ("base64", base64.b64encode(b"a\rdata: b").decode()) == event(Record(b"a\rdata: b"), "value")[:2]
    assert ("text", "a\rb") == tuple(
        json.loads(event(Record(b"a\rb"), "envelope").data)[n] for n in ("value_encoding", "value")
    )


def test_base64_says_so_in_lines_too() -> None:
    """A line of JSON that is base64 cannot be taken for a text."""
    assert {"event": "base64", "data": "/w=="} == line(Record(b"\xff"), "value")
    assert "/w==" == line(Record(b"/w=="), "value")


# CloudEvents.


def test_a_cloud_event() -> None:
    """Any record is a CloudEvent with an id and a source that are unique to it."""
    assert {
        "specversion": "1.0",
        "id": "t/3/7",
        "source": "/kafka/t/3",
        "type": "kafka.record",
        "time": "1970-01-01T00:00:01.000Z",
        "subject": "FR",
        "datacontenttype": "application/json",
        "data": {"a": 1},
    } == json.loads(event(Record(b'{"a":1}', b"FR"), "cloudevents").data)


def test_a_cloud_event_keeps_the_producers_attributes() -> None:
    """Attributes in headers win, as Kafka's binary binding has them, the content type among them."""
    headers = [("ce_type", b"size.changed"), ("ce_id", b"1"), ("ce_myext", b"x"), ("content-type", b"application/x; y")]

    arrived = json.loads(event(Record(b"{}", headers=headers), "cloudevents").data)

    assert ("size.changed", "1", "x") == (arrived["type"], arrived["id"], arrived["myext"])
    assert ("application/x; y", "{}") == (arrived["datacontenttype"], arrived["data"])


@pytest.mark.parametrize("kind", ["application/json", "application/vnd.x+json; charset=utf-8", "text/json"])
def test_declared_json_is_json(kind: str) -> None:
    """Content whose declared type is JSON is a JSON value in the event."""
    record = Record(b'{"a":1}', headers=[("content-type", kind.encode())])

    assert {"a": 1} == json.loads(event(record, "cloudevents").data)["data"]


@pytest.mark.parametrize(
    "name", ["ce_data", "ce_data_base64", "ce_datacontenttype", "ce_", "ce_A", "ce_a b", "ce_specversion"]
)
@pytest.mark.parametrize("value", [b'{"a":1}', b"\xff", None])
def test_a_cloud_event_says_nothing_twice(name: str, value: bytes | None) -> None:
    """No header gives an event a second content, or a member that CloudEvents does not allow."""
    text = event(Record(value, headers=[(name, b"forged")]), "cloudevents").data
    names = [pair[0] for pair in json.loads(text, object_pairs_hook=list)]

    assert sorted(set(names)) == sorted(names)
    assert "1.0" == json.loads(text)["specversion"]
    assert "forged" not in (json.loads(text).get("data"), json.loads(text).get("data_base64"))
    assert all(each.isalnum() and each == each.lower() for each in names if each != "data_base64")


def test_bytes_in_a_cloud_event() -> None:
    """Bytes that are no text travel in the member that CloudEvents has for them."""
    assert "/w==" == data(b"\xff", "cloudevents")["data_base64"]
    assert ("text/plain", "a") == tuple(data(b"a", "cloudevents")[each] for each in ("datacontenttype", "data"))


# Hooks.


def test_a_deserializer_makes_the_message() -> None:
    """What it returns is sent in place of the value, with `_kafka` where that is an object."""
    seen: list[TopicRecord] = []

    def deserializer(record: TopicRecord) -> Any:
        seen.append(record)
        return {"hex": (record.value or b"").hex(), "_kafka": "forged"}

    arrived = json.loads(event(Record(b"\xff", b"k", [("h", b"v")]), deserializer=deserializer).data)

    assert {"hex": "ff", "_kafka": WHERE | {"key": "k"}} == arrived
    assert [TopicRecord("t", 3, 7, 1000, b"k", b"\xff", (("h", b"v"),))] == seen
    assert [1] == data("x", deserializer=lambda record: [1])


def failing(_: object) -> Any:
    raise RuntimeError("boom")


def around_itself(_: object) -> Any:
    message: list[Any] = []
    message.append(message)
    return message


@pytest.mark.parametrize(
    ("deserializer", "reason"),
    [
        (failing, "RuntimeError: boom"),
        (lambda record: None, "None"),
        (lambda record: {1, 2}, "not JSON"),
        (lambda record: float("nan"), "not JSON"),
        (lambda record: {"a": b"bytes"}, "not JSON"),
        (around_itself, "not JSON"),
    ],
)
def test_a_deserializer_that_fails_skips_its_record(deserializer: Callable[[TopicRecord], Any], reason: str) -> None:
    """A record that cannot be read costs that record, and the count says why."""
    skipped: list[str] = []

    encoded = Encoder(deserializer=deserializer, on_skipped=lambda *why: skipped.append(why[3])).encode(
        "t", 3, Record(b"x")
    )

    assert encoded is None
    assert reason in skipped[0]


def test_a_filterer_sees_the_message_with_where_it_is() -> None:
    """It is given the message with `_kafka` and its answer may be anything true; what it changes nobody sees."""
    seen: list[Any] = []

    def filterer(message: Any) -> object:
        seen.append(dict(message))
        message["a"] = "changed"
        return [1]

    assert 1 == data('{"a":1}', filterer=filterer)["a"]
    assert [{"a": 1, "_kafka": WHERE | {"key": None}}] == seen


def test_what_a_filterer_does_not_want_is_not_sent() -> None:
    """Tombstones come to it as well: as a message that holds nothing but `_kafka`."""
    encoder = Encoder(filterer=lambda message: message["_kafka"]["key"] == "FR")

    assert sent(encoder, Record(b'{"a":1}', b"DE")) == sent(encoder, Record(None, b"DE")) == b""
    assert "delete" == one_event(sent(encoder, Record(None, b"FR"))).type


def test_a_filterer_that_fails_is_an_error_of_the_stream() -> None:
    """It cannot be known what it would have let through; and what it said stays with us."""
    with pytest.raises(FilterError) as failed:
        event(Record(b"{}"), filterer=failing)

    assert "boom" not in json.dumps(failed.value.problem())


def test_what_is_skipped_never_reaches_the_filterer() -> None:
    """A value that does not deserialize is no error of the filter's."""
    assert b"" == sent(Encoder(filterer=failing), Record(b"{"))


# Runs of records, as a feed encodes them.

kinds = st.sampled_from([(kind, compact) for kind in IdType for compact in (False, True)])
runs = st.lists(
    st.builds(
        Record,
        st.none() | st.binary() | loosely_written().map(lambda written: written[0].encode()),
        st.none() | st.binary(max_size=4) | st.just(b"FR"),
        st.just(()),
        st.none() | st.integers(-1, 2**40),
    ),
    max_size=6,
).map(lambda records: [record._replace(offset=7 + 2 * at) for at, record in enumerate(records)])


def writer(kind: IdType = IdType.OFFSET, compact: bool = False) -> IdWriter:
    offsets = {Partition("t", 2): 5, Partition("t", 3): 7, Partition("u", 0): 1}
    return IdWriter(offsets, {"t": "x", "u": ""}, id_type=kind, compact=compact)


@given(runs, kinds, st.sampled_from(list(FORMATS)), st.sampled_from([ServerSentEvents, JsonLines]), st.booleans())
def test_a_run_is_its_records(
    records: list[Record], kind: tuple[IdType, bool], format: str, wire: type[Wire], filtered: bool
) -> None:
    """The frames of a run are those of its records one by one, each under the id after it; and the ids have moved."""
    encoder = Encoder(format, wire(), filterer=(lambda message: "a" not in str(message)) if filtered else None)
    one, expected = writer(*kind), []
    for record in records:
        one.set(Partition("t", 3), record.offset + 1, record.timestamp)
        if (encoded := encoder.encode("t", 3, record)) is not None:
            expected.append((record.offset, encoder.wire.frame(encoded[0], one.render(), encoded[1])))

    ids = writer(*kind)
    frames, offsets = encoder.encode_run(Partition("t", 3), records, ids)

    assert expected == list(zip(offsets, frames, strict=True))
    assert one.render() == ids.render()


@given(kinds)
def test_a_run_that_fails_moves_nothing(kind: tuple[IdType, bool]) -> None:
    """When the filter fails in the middle of a run, the id is still that of before it: nothing of the run was sent."""
    ids = writer(*kind)
    before = ids.render()

    with pytest.raises(FilterError):
        Encoder(filterer=lambda message: message["a"]).encode_run(
            Partition("t", 3), [Record(b'{"a":1}'), Record(b"{}", offset=8)], ids
        )

    assert before == ids.render()


# What we say ourselves.


def test_frames_of_our_own() -> None:
    """ResolvedPosition, heartbeat, retry and an id alone dispatch nothing; the id and the waiting time are kept."""
    wire, parser = ServerSentEvents(), Parser()

    ours = wire.opening + wire.heartbeat + wire.retry(2317) + wire.id_alone(ID)

    assert [] == list(parser.receive(ours)) == read_events(ours)
    assert (ID, 2317) == (parser.last_event_id, parser.retry_ms)
    assert b":ok\n\n" == wire.opening


def test_a_gap_and_an_error_name_what_is_lost_and_why() -> None:
    """Both are events with a name, an id to go on from and one object of JSON."""
    gap = one_event(frame.gap(ServerSentEvents(), Partition("t", 3), 5, 9, "removed by retention", ID))
    error = one_event(frame.error(ServerSentEvents(), TopicGone("Deleted\nwhile it was read: t."), ID))

    assert ("gap", ID) == (gap.type, gap.id)
    assert {"topic": "t", "partition": 3, "from": 5, "to": 9, "reason": "removed by retention"} == json.loads(gap.data)
    assert ("error", ID, 410) == (error.type, error.id, json.loads(error.data)["status"])


def test_an_error_where_there_is_no_id() -> None:
    """A client that has no id to go on from yet keeps none; one that has keeps its own."""
    error = frame.error(ServerSentEvents(), TopicGone("Gone."), "")

    assert "5" == read_events(b"id: 5\n\n" + error)[0].id


def test_our_own_words_as_lines() -> None:
    """In newline-delimited JSON our own words are lines of JSON as well, and ids and retries do not exist."""
    wire = JsonLines()

    assert b"" == wire.retry(1) == wire.id_alone(ID)
    assert b"\n" == wire.heartbeat == wire.opening
    assert ("gap", 5) == tuple(
        json.loads(frame.gap(wire, Partition("t", 3), 5, 9, "r", ID))[each] for each in ("event", "from")
    )
    assert 410 == json.loads(frame.error(wire, TopicGone("Gone."), ID))["status"]
    assert {"event": "delete", "key": "FR"} == line(Record(None, b"FR"), "value")


@given(data=st.data())
def test_only_what_is_json_is_taken_for_it(data):
    """What goes out as it came, with `_kafka` in it, is an object by another reader's judgement, with no such member."""
    value = bytearray(
        json.dumps(data.draw(st.dictionaries(st.sampled_from(["a", "_kafka", "ü"]), json_values, max_size=2))).encode()
    )
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(value)))
        value[at : at + data.draw(st.integers(0, 1))] = data.draw(st.sampled_from(DAMAGE))

    room = can_append_member(bytes(value)) if value else False

    assert not room or (json.loads(value.decode()) and "_kafka" not in json.loads(value.decode()))
    assert is_json(bytes(value)) == reads_as_json(value)


DAMAGE = [
    b"",
    b"\xff",
    b"\xc3",
    b"\\",
    b"\\u005fkafka",
    b'"',
    b"{",
    b"}",
    b",",
    b" ",
    b"\n",
    b"\r",
    b"\0",
    b"e999",
    b"01",
    b"-",
]


def reads_as_json(value):
    def refuse(constant):
        raise ValueError(constant)

    try:
        json.loads(value.decode(), parse_constant=refuse)
    except ValueError:
        return False
    return True
