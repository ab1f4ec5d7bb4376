"""A record reaches the client unchanged, whatever it contains, and a producer cannot forge kafkasse's own events."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kafkasse.errors import FilterError, TopicGone
from kafkasse.log import Batch, Gap, Partition
from kafkasse.process.event_loop import take_turn
from kafkasse.records import frame
from kafkasse.records.encoder import MAX_PIECE_RECORDS, Encoder, Piece
from kafkasse.records.frame import FORMATS, JsonLines, ServerSentEvents, TopicRecord
from kafkasse.records.frame.formats import can_append_member
from kafkasse.records.frame.json_text import (
    dumps,
    dumps_decoded,
    is_json,
    may_have_long_number,
    without_lone_surrogates,
)
from kafkasse.records.position import IdType, IdWriter
from kafkasse_client.sse import Event, Parser
from tests.support.sse import read_events
from tests.support.turns import MAX_LINES, most_lines_in_a_piece

ID = '[{"topic":"t","partition":3,"offset":8}]'
GAP = Gap(Partition("t", 3), 5, 9, "removed by retention")
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
    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp: int | None = 1000
    offset: int = 7


def sent(encoder: Encoder, record: Record) -> bytes:
    """Return the frame of a record, or b"" if the record is not sent."""
    encoded = encoder.encode("t", 3, record)
    return encoder.wire.frame(encoded[0], ID, encoded[1]) if encoded else b""


def one_event(stream: bytes) -> Event:
    """Return the only event in these bytes. Both SSE parsers must return the same event."""
    events = list(Parser().receive(stream))

    assert 1 == len(events)
    assert events == read_events(stream)
    return events[0]


def event(record: Record, format: str = "kafkasse", **hooks: Any) -> Event:
    return one_event(sent(Encoder(format, **hooks), record))


def data(value: str | bytes, format: str = "kafkasse", **hooks: Any) -> Any:
    raw = value.encode() if isinstance(value, str) else value
    return json.loads(event(Record(raw), format, **hooks).data)


def line(record: Record, format: str = "kafkasse") -> Any:
    raw = sent(Encoder(format, JsonLines()), record)

    assert 1 == raw.count(b"\n") == raw.endswith(b"\n")
    assert b"\r" not in raw
    return json.loads(raw)


@st.composite
def json_text(draw: st.DrawFn, values: st.SearchStrategy[Any] = json_values) -> tuple[str, Any]:
    """Draw a value and its JSON text, with white space (including CR) in all places where JSON allows it."""
    value = draw(values)
    ascii_only = draw(st.booleans())

    def write(value: Any) -> str:
        before, after = draw(spaces), draw(spaces)
        if isinstance(value, dict):
            pairs = (f"{before}{write(name)}:{write(member)}" for name, member in value.items())
            return "{" + ",".join(pairs) + after + "}"
        if isinstance(value, list):
            return "[" + ",".join(before + write(item) + after for item in value) + "]"
        return before + json.dumps(value, ensure_ascii=ascii_only) + after

    return write(value), value


# Any value in any format arrives as it was written.


@given(json_text())
def test_json_keeps_its_meaning(written):
    """Any JSON text becomes one event with the same meaning. An object gains `_kafka` and loses nothing else."""
    text, value = written

    arrived = data(text)

    if isinstance(value, dict):
        assert WHERE | {"key": None} == arrived.pop("_kafka")
        value = {name: member for name, member in value.items() if name != "_kafka"}
    assert value == arrived


@given(json_text())
def test_json_lines_are_valid_json(written):
    """In JSON lines, any JSON value is one line with the same meaning, in every format."""
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
def test_text_arrives_unchanged(text):
    """Any text becomes one event with exactly that text, or with its base64 if it contains a CR, which SSE cannot carry."""
    arrived = event(Record(text.encode()), "value")

    if arrived.type == "base64":
        assert "\r" in text
        assert text == base64.b64decode(arrived.data).decode()
    else:
        assert ("message", text) == (arrived.type, arrived.data) or json.loads(text) == json.loads(arrived.data)


@given(st.binary())
@example(b"\xff")
@example(b"\xed\xa0\x80")
def test_bytes_arrive_unchanged(raw):
    arrived = json.loads(event(Record(raw, raw, [("h", raw)]), "envelope").data)

    assert raw == decoded(arrived, "key") == decoded(arrived["headers"][0], "value")
    if arrived.get("value_encoding"):
        assert raw == decoded(arrived, "value")
    else:
        assert json.loads(raw) == arrived["value"]


def decoded(members: dict[str, Any], name: str) -> bytes:
    text = str(members[name])
    return base64.b64decode(text) if members.get(f"{name}_encoding") == "base64" else text.encode()


@given(st.lists(st.binary() | json_text().map(lambda written: written[0].encode()), max_size=5))
def test_split_undoes_frame(values):
    for wire in (ServerSentEvents(), JsonLines()):
        encoder = Encoder("envelope", wire)
        bodies = [
            body for value in values if (encoded := encoder.encode("t", 3, Record(value))) for body in [encoded.body]
        ]

        joined = b"".join(wire.frame("message", ID, body) for body in bodies)

        assert [("message", body) for body in bodies] == wire.split(joined)


@pytest.mark.parametrize(
    "number",
    ["9007199254740993", "25.00", "1e400", "-0", "1E+2", "0.1e-10", "1" * 400, "123456789012345678901234567890"],
)
@pytest.mark.parametrize("shape", ["%s", "[%s]", '{"n":%s}', '{"_kafka":0,"n":%s}', '{"n":%s,"n":1}'])
def test_numbers_keep_every_digit(number, shape):
    """Numbers are sent as written. KafkaSSE turns the first into 9007199254740992 and the second into 25."""
    for format in FORMATS:
        assert number in event(Record((shape % number).encode()), format).data


# Producers cannot forge `_kafka`.


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
def test_a_producer_cannot_forge_the_position_of_its_record(value):
    """`_kafka` members of the value are removed, also escaped or repeated ones. The event has one, written by kafkasse."""
    text = event(Record(value.encode())).data

    pairs = json.loads(text, object_pairs_hook=list)

    assert [WHERE | {"key": None}] == [dict(member) for name, member in pairs if name == "_kafka"]
    assert [("a", 1)] in ([pair for pair in pairs if pair[0] == "a"], [("a", 1)])
    assert [pair for pair in json.loads(value, object_pairs_hook=list) if pair[0] not in ("_kafka",)] == [
        pair for pair in pairs if pair[0] != "_kafka"
    ]


def assert_sent_or_skipped(value: bytes) -> None:
    """A record is either sent or reported as skipped: in every format, with and without a filterer."""
    for format in FORMATS:
        for wire in (ServerSentEvents(), JsonLines()):
            for filterer in (None, lambda message: True):
                skipped: list[str] = []
                encoder = Encoder(format, wire, None, filterer, lambda *why, to=skipped: to.append(why[3]))

                assert (encoder.encode("t", 3, Record(value)) is None) == bool(skipped)


@pytest.mark.parametrize("shape", [b"%s", b'{"a":%s}', b'{"_kafka":1,"a":%s}'])
def test_deep_nesting_costs_at_most_the_record(shape):
    for depth in (*range(850, 1030, 15), 100_000):
        assert_sent_or_skipped(shape % (b"[" * depth + b"]" * depth))


@pytest.mark.parametrize(
    "shape", [b'{"a":%s}', b'{"_kafka":%s,"a":1}', b'{"_kafka":1,"a":0.%s}', b'{"_kafka":1,"a":1e-%s}']
)
def test_a_long_number_costs_at_most_the_record(shape):
    assert_sent_or_skipped(shape % (b"9" * 10_000))


# Keys, timestamps and tombstones.


@pytest.mark.parametrize(
    ("key", "members"),
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
def test_a_key_is_text_or_base64(key, members):
    """A key that is not UTF-8 is sent in base64 with its encoding. KafkaSSE sends {"type":"Buffer",…}."""
    for format, where in (("kafkasse", ["_kafka"]), ("envelope", [])):
        arrived = json.loads(event(Record(b"{}", key), format).data)
        for name in where:
            arrived = arrived[name]
        assert members.items() <= arrived.items()


@pytest.mark.parametrize("timestamp", [None, -1])
def test_an_unknown_timestamp_is_null(timestamp):
    record = Record(b"{}", timestamp=timestamp)

    assert json.loads(event(record).data)["_kafka"]["timestamp"] is None
    assert json.loads(event(record, "envelope").data)["timestamp"] is None
    assert "time" not in json.loads(event(record, "cloudevents").data)


@pytest.mark.parametrize("wire", [ServerSentEvents(), JsonLines()])
@pytest.mark.parametrize(("key", "shown"), [(b"FR", "FR"), (b"\xff\x00", "/wA="), (b"", ""), (None, None)])
@pytest.mark.parametrize("name", FORMATS)
def test_the_data_of_a_delete_event_contains_the_key(name, key, shown, wire):
    """The client needs no event ID to find the key, even if it is not text, or if a header sets the subject."""
    deleted = Record(None, key, headers=[("ce_subject", b"x"), ("ce_key", b"y"), ("ce_keyencoding", b"z")])

    body = wire.body(FORMATS[name]("t", 3, deleted, take_turn), take_turn)

    data = json.loads(body.removeprefix(b"data: "))
    metadata = data["_kafka"] if name == "kafkasse" else data
    encoding = metadata.get("keyencoding" if name == "cloudevents" else "key_encoding")
    assert (shown, "base64" if key == b"\xff\x00" else None) == (metadata["key"], encoding)


def test_a_tombstone_is_a_delete_event():
    """A record without a value becomes a `delete` event with its key. A record with the JSON value null does not."""
    deleted = {name: event(Record(None, b"FR"), name) for name in FORMATS}

    assert {"delete"} == {deletion.type for deletion in deleted.values()}
    assert {"_kafka": WHERE | {"key": "FR"}} == json.loads(deleted["kafkasse"].data)
    assert {"key": "FR"} == json.loads(deleted["value"].data)
    assert WHERE | {"key": "FR", "headers": [], "value": None} == json.loads(deleted["envelope"].data)
    assert ("kafka.tombstone", "FR") == tuple(
        json.loads(deleted["cloudevents"].data)[name] for name in ("type", "subject")
    )
    assert "message" == event(Record(b"null", b"FR")).type


# Values that are not JSON.


@pytest.mark.parametrize(
    "value", [b"", b"text", b"{", b"{'a':1}", b"NaN", b"[Infinity]", b"\xff", b'"\n"', b"\xef\xbb\xbf{}"]
)
def test_the_default_format_skips_values_that_are_not_json(value):
    """The record is not sent, and on_skipped receives its position and the reason."""
    skipped: list[tuple[str, int, int, str]] = []

    encoded = Encoder(on_skipped=lambda *why: skipped.append(why)).encode("t", 3, Record(value))

    assert encoded is None
    assert [("t", 3, 7)] == [arguments[:3] for arguments in skipped]
    assert "not JSON" in skipped[0][3]


def test_a_json_line_marks_base64():
    assert {"event": "base64", "data": "/w=="} == line(Record(b"\xff"), "value")
    assert "/w==" == line(Record(b"/w=="), "value")


LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"  # the characters at which str.splitlines() breaks lines


@pytest.mark.parametrize("format", ["kafkasse", "envelope", "cloudevents"])
@pytest.mark.parametrize("ascii", [False, True])
@pytest.mark.parametrize("wire", [ServerSentEvents(), JsonLines()])
def test_clients_that_use_splitlines_read_every_event(format, ascii, wire):
    key, headers = LINE_ENDS.encode(), [(LINE_ENDS, LINE_ENDS.encode())]
    for message in ({LINE_ENDS: LINE_ENDS}, LINE_ENDS):
        value = json.dumps(message, ensure_ascii=ascii)

        raw = sent(Encoder(format, wire), Record(value.encode(), key, headers))

        assert raw.decode().split("\n")[:-1] == raw.decode().splitlines()
        arrived = json.loads(raw.decode().split("data: ")[-1].splitlines()[0])
        if format != "kafkasse":
            arrived = arrived["value" if format == "envelope" else "data"]
        elif isinstance(arrived, dict):
            del arrived["_kafka"]
        assert message == arrived


def test_a_deserialized_message_has_no_raw_line_separators():
    frame = sent(Encoder(deserializer=lambda record: {LINE_ENDS: LINE_ENDS}), Record(b"x"))

    assert 4 == len(frame.decode().splitlines())


@pytest.mark.parametrize("text", [json.dumps("\x85\u2028\u2029", ensure_ascii=False), '{\n  "a": 1\n}'])
def test_the_format_value_keeps_line_separators_and_indentation(text):
    assert text == event(Record(text.encode()), "value").data


# CloudEvents.


def test_a_record_becomes_a_cloudevent():
    """Every record is a valid CloudEvent whose source and ID are unique."""
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


def test_a_cloudevent_keeps_the_attributes_in_the_headers():
    """Attributes in the headers, as in Kafka's binary binding, override the defaults. So does the content type."""
    headers = [("ce_type", b"size.changed"), ("ce_id", b"1"), ("ce_myext", b"x"), ("content-type", b"application/x; y")]

    arrived = json.loads(event(Record(b"{}", headers=headers), "cloudevents").data)

    assert ("size.changed", "1", "x") == (arrived["type"], arrived["id"], arrived["myext"])
    assert ("application/x; y", "{}") == (arrived["datacontenttype"], arrived["data"])


@pytest.mark.parametrize("value", [b"{}", None])
def test_a_cloudevent_has_no_empty_subject(value):
    """CloudEvents allows no empty subject. The key of a tombstone may be empty."""
    assert "subject" not in json.loads(event(Record(value, b""), "cloudevents").data)


@pytest.mark.parametrize(
    "content_type", ["application/json", "application/vnd.x+json; charset=utf-8", "text/json", "Application/JSON"]
)
def test_a_cloudevent_embeds_declared_json(content_type):
    record = Record(b'{"a":1}', headers=[("content-type", content_type.encode())])

    assert {"a": 1} == json.loads(event(record, "cloudevents").data)["data"]


@pytest.mark.parametrize(
    "name", ["ce_data", "ce_data_base64", "ce_datacontenttype", "ce_", "ce_A", "ce_a b", "ce_specversion"]
)
@pytest.mark.parametrize("value", [b'{"a":1}', b"\xff", None])
def test_headers_cannot_forge_members_of_a_cloudevent(name, value):
    text = event(Record(value, headers=[(name, b"forged")]), "cloudevents").data
    names = [pair[0] for pair in json.loads(text, object_pairs_hook=list)]

    assert sorted(set(names)) == sorted(names)
    assert "1.0" == json.loads(text)["specversion"]
    assert "forged" not in (json.loads(text).get("data"), json.loads(text).get("data_base64"))
    assert all(
        attribute.isalnum() and attribute == attribute.lower() for attribute in names if attribute != "data_base64"
    )


# Hooks.


def test_a_deserializer_returns_the_message():
    """The deserializer's return value is sent instead of the record's value. If it is an object, `_kafka` is added."""
    seen: list[TopicRecord] = []

    def deserializer(record: TopicRecord) -> Any:
        seen.append(record)
        return {"hex": (record.value or b"").hex(), "_kafka": "forged"}

    arrived = json.loads(event(Record(b"\xff", b"k", [("h", b"v")]), deserializer=deserializer).data)

    assert {"hex": "ff", "_kafka": WHERE | {"key": "k"}} == arrived
    assert [TopicRecord("t", 3, 7, 1000, b"k", b"\xff", (("h", b"v"),))] == seen
    assert [1] == data("x", deserializer=lambda record: [1])


def test_text_of_a_deserializer_is_sent_as_text():
    """As in KafkaSSE, text is not encoded as JSON, so a deserializer can return JSON that it has encoded itself."""
    for text in ('{"a":1}', "two lines,\n of which one is indented", ""):
        assert text == event(Record(b"x"), deserializer=lambda record, text=text: text).data


@pytest.mark.parametrize("wire", [ServerSentEvents(), JsonLines()])
def test_text_of_a_deserializer_cannot_add_fields(wire):
    """Every client finds the same lines in text with any line separators, and every line of an event is data."""
    text = "".join(f"{line_end}id: forged" for line_end in [*LINE_ENDS, "\ud800"])

    raw = sent(Encoder(wire=wire, deserializer=lambda record: text), Record(b"x")).decode()

    assert raw.split("\n")[:-1] == raw.splitlines()
    assert not any(line.startswith("id: forged") for line in raw.splitlines())


def test_text_of_a_deserializer_is_a_json_line():
    """In JSON lines, text that is JSON is sent unchanged, and other text as a JSON string."""
    for text, line in (('{"a":1}', b'{"a":1}\n'), ("a\nb", b'"a\\nb"\n')):
        assert line == sent(Encoder(wire=JsonLines(), deserializer=lambda record, text=text: text), Record(b"x"))


def failing(_: object) -> Any:
    raise RuntimeError("boom")


def contains_itself(_: object) -> Any:
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
        (contains_itself, "not JSON"),
    ],
)
def test_a_failing_deserializer_skips_the_record(deserializer, reason):
    skipped: list[str] = []

    encoded = Encoder(deserializer=deserializer, on_skipped=lambda *why: skipped.append(why[3])).encode(
        "t", 3, Record(b"x")
    )

    assert encoded is None
    assert reason in skipped[0]


def test_a_filterer_receives_the_message_with_kafka():
    """Any true result accepts the record. Changes that the filterer makes to the message are not sent."""
    seen: list[Any] = []

    def filterer(message: Any) -> object:
        seen.append(dict(message))
        message["a"] = "changed"
        return [1]

    assert 1 == data('{"a":1}', filterer=filterer)["a"]
    assert [{"a": 1, "_kafka": WHERE | {"key": None}}] == seen


def test_a_rejected_record_is_not_sent():
    """The filterer also receives tombstones, as a message with the single member `_kafka`."""
    encoder = Encoder(filterer=lambda message: message["_kafka"]["key"] == "FR")

    assert sent(encoder, Record(b'{"a":1}', b"DE")) == sent(encoder, Record(None, b"DE")) == b""
    assert "delete" == one_event(sent(encoder, Record(None, b"FR"))).type


def test_a_failing_filterer_raises_filter_error():
    """The error does not reveal the text of the exception."""
    with pytest.raises(FilterError) as failed:
        event(Record(b"{}"), filterer=failing)

    assert "boom" not in json.dumps(failed.value.problem())


def test_a_skipped_record_does_not_reach_the_filterer():
    assert b"" == sent(Encoder(filterer=failing), Record(b"{"))


# Batches, which a feed encodes in pieces.

id_forms = st.sampled_from([(id_type, compact) for id_type in IdType for compact in (False, True)])
batches = st.lists(
    st.builds(
        Record,
        st.none() | st.binary() | json_text().map(lambda written: written[0].encode()),
        st.none() | st.binary(max_size=4) | st.just(b"FR"),
        st.just(()),
        st.none() | st.integers(-1, 2**40),
    ),
    max_size=6,
).map(lambda records: [record._replace(offset=7 + 2 * at) for at, record in enumerate(records)])


def writer(id_type: IdType = IdType.OFFSET, compact: bool = False) -> IdWriter:
    offsets = {Partition("t", 2): 5, Partition("t", 3): 7, Partition("u", 0): 1}
    return IdWriter(offsets, {"t": "x", "u": ""}, id_type=id_type, compact=compact)


@given(batches, id_forms, st.sampled_from(list(FORMATS)), st.sampled_from([ServerSentEvents, JsonLines]), st.booleans())
@example([Record(b'{"event":"gap"}', b"FR", (), 1, 7)], (IdType.OFFSET, False), "kafkasse", JsonLines, False)
@example([Record(b'{"\\u0065vent":"gap"}', b"FR", (), 1, 7)], (IdType.OFFSET, False), "kafkasse", JsonLines, False)
@example([Record(b'{"a":1}', b"FR", (), 1, 7)], (IdType.OFFSET, False), "kafkasse", JsonLines, False)
def test_pieces_contain_the_same_frames_as_single_records(records, id_form, format, wire, filtered):
    encoder = Encoder(format, wire(), filterer=(lambda message: "a" not in str(message)) if filtered else None)
    one, expected = writer(*id_form), []
    for record in records:
        one.set(Partition("t", 3), record.offset + 1, record.timestamp)
        if (encoded := encoder.encode("t", 3, record)) is not None:
            expected.append((record.offset, encoder.wire.frame(encoded[0], one.render(), encoded[1])))

    ids = writer(*id_form)
    pieces = encode(encoder, Batch(Partition("t", 3), records, records[-1].offset + 1 if records else 7), ids)

    assert expected == [pair for piece in pieces for pair in zip(piece.offsets, piece.frames, strict=True)]
    assert one.render() == ids.render()


@given(id_forms)
def test_a_piece_ends_before_a_record_for_which_the_filterer_fails(id_form):
    """The next piece raises the error, and the IDs stay at the position before that record."""
    ids = writer(*id_form)
    batch = Batch(Partition("t", 3), [Record(b'{"a":1}', offset=7), Record(b"{}", offset=8)], 9)
    encoder = Encoder(filterer=lambda message: message["a"])

    piece = encoder.encode_piece(batch, 0, ids)
    before = ids.render()
    with pytest.raises(FilterError):
        encoder.encode_piece(batch, piece.end, ids)

    assert ([7], 1, 8) == (piece.offsets, piece.end, piece.next_offset)
    assert before == ids.render()


@pytest.mark.parametrize("id_type", IdType)
def test_a_piece_has_few_records(id_type):
    """Many tiny records are encoded in many pieces, whether they are sent or not."""
    records = [Record(b"{}", offset=offset) for offset in range(1000)]
    batch = Batch(Partition("t", 3), records, 1000)

    for encoder in (Encoder(), Encoder(filterer=lambda message: False)):
        pieces = encode(encoder, batch, writer(id_type))

        assert 1000 // MAX_PIECE_RECORDS < len(pieces)


@pytest.mark.parametrize("id_type", IdType)
@pytest.mark.parametrize("value", [b'{"a":"%b"}', b'["%b"]'])
def test_a_piece_has_few_bytes(id_type, value):
    ids = IdWriter({Partition("t", number): 0 for number in range(1000)}, {"t": "x"}, id_type=id_type, compact=False)
    large = Batch(Partition("t", 3), [Record(value % (b"x" * 50_000), offset=offset) for offset in range(10)], 10)
    small = Batch(Partition("t", 3), [Record(value % b"", offset=offset) for offset in range(10)], 10)

    assert 5 <= len(encode(Encoder(), large, writer(id_type)))
    assert 3 <= len(encode(Encoder(), small, ids))


@pytest.mark.parametrize("id_type", IdType)
def test_a_piece_has_few_bytes_of_keys_and_headers(id_type):
    """A format may send keys and headers, so a producer could make a piece large although its values are small."""
    headers = [("h", b"x" * 50_000)]
    records = [Record(b"{}", key=b"k" * 50_000, headers=headers, offset=offset) for offset in range(10)]

    pieces = encode(Encoder("envelope"), Batch(Partition("t", 3), records, 10), writer(id_type))

    assert [1] * 10 == [len(piece.frames) for piece in pieces]


def encode(encoder: Encoder, batch: Batch, ids: IdWriter) -> list[Piece]:
    pieces = [encoder.encode_piece(batch, 0, ids)]
    while pieces[-1].end < len(batch.records):
        pieces.append(encoder.encode_piece(batch, pieces[-1].end, ids))
    return pieces


# Events of kafkasse itself.


def test_a_position_is_an_event():
    """Many clients ignore an ID without data, so the position is an event with data. Its ID is the last field."""
    wire = ServerSentEvents()

    assert Event("position", "{}", ID) == one_event(wire.position(ID))
    assert wire.position(ID).endswith(f"\nid: {ID}\n\n".encode())


def test_control_fields_dispatch_no_event():
    """The client stores the ID and the retry time."""
    wire, parser = ServerSentEvents(position_events=False), Parser()

    stream = wire.opening + wire.heartbeat + wire.retry(2317) + wire.position(ID)

    assert [] == list(parser.receive(stream)) == read_events(stream)
    assert (ID, 2317) == (parser.last_event_id, parser.retry_ms)
    assert b":ok\n\n" == wire.opening


def test_gap_and_error_events_state_the_reason():
    """Each event has a name, an ID to resume from, and one JSON object with the reason."""
    gap = one_event(frame.gap(ServerSentEvents(), GAP, ID))
    error = one_event(frame.error(ServerSentEvents(), TopicGone("Deleted\nwhile it was read: t."), ID))

    assert ("gap", ID) == (gap.type, gap.id)
    assert {"topic": "t", "partition": 3, "from": 5, "to": 9, "reason": "removed by retention"} == json.loads(gap.data)
    assert ("error", ID, 410) == (error.type, error.id, json.loads(error.data)["status"])


def test_an_error_without_an_id_keeps_the_last_id():
    error = frame.error(ServerSentEvents(), TopicGone("Gone."), "")

    assert "5" == read_events(b"id: 5\n\n" + error)[0].id


def test_events_of_the_server_as_json_lines():
    """Gaps and errors are JSON lines too. IDs and retry do not exist."""
    wire = JsonLines()

    assert b"" == wire.retry(1) == wire.position(ID)
    assert b"\n" == wire.heartbeat == wire.opening
    gap = json.loads(frame.gap(wire, GAP, ID))
    assert ("gap", 5) == (gap["event"], gap["from"])
    assert 410 == json.loads(frame.error(wire, TopicGone("Gone."), ID))["status"]
    assert {"event": "delete", "key": "FR"} == line(Record(None, b"FR"), "value")


# Pieces that are inserted into valid JSON.
DAMAGE = [
    *(b"", b"\xff", b"\xc3", b"\\", b"\\u005fkafka", b'"', b"{", b"}", b",", b" "),
    *(b"\n", b"\r", b"\0", b"e999", b"01", b"-"),
]


def python_reads(value: bytes | bytearray) -> bool:
    def reject(constant: str) -> None:
        raise ValueError(constant)

    try:
        json.loads(value.decode(), parse_constant=reject)
    except ValueError:
        return False
    return True


@given(data=st.data())
def test_the_fast_json_checks_agree_with_python(data):
    value = bytearray(
        json.dumps(data.draw(st.dictionaries(st.sampled_from(["a", "_kafka", "ü"]), json_values, max_size=2))).encode()
    )
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(value)))
        value[at : at + data.draw(st.integers(0, 1))] = data.draw(st.sampled_from(DAMAGE))

    can_append = can_append_member(bytes(value)) if value else False

    assert not can_append or (json.loads(value.decode()) and "_kafka" not in json.loads(value.decode()))
    assert is_json(bytes(value), take_turn) == python_reads(value)


@pytest.mark.parametrize(
    "value",
    [{"a": [1, 2.5, None, True, "ä\u2028"]}, 2**70, 1e300, 5e-324, "\ud800", {}, {"": {"b": []}}, "\x7f\x00\\/"],
)
def test_a_decoded_value_is_encoded_as_json(value):
    """The text has the same meaning as that of dumps(), and escapes the same line separators."""
    assert json.loads(dumps(value)) == json.loads(dumps_decoded(value))
    assert b"\xe2\x80\xa8" not in dumps_decoded(value)


@pytest.mark.parametrize(("others", "element"), [(b'"n":[%b]', b"{}"), (b"%b", b'"a":1')], ids=["objects", "members"])
def test_a_member_is_removed_in_pieces(others, element):
    """If msgspec rejects 1 MB because of a lone surrogate, removing a member takes 0.3 to 0.5 s."""
    rest = others % b",".join([element] * (24_000 // (len(element) + 1)))
    record = TopicRecord("t", 0, 0, 1, None, b'{"\\ud800":1,"_kafka":1,' + rest + b"}", ())

    assert most_lines_in_a_piece(lambda: FORMATS["kafkasse"]("t", 0, record, take_turn)) < MAX_LINES


def test_many_line_separators_are_escaped_at_once():
    separators = "\x85\u2028\u2029" * 20_000

    assert most_lines_in_a_piece(lambda: dumps(separators)) < MAX_LINES


@pytest.mark.parametrize(("digits", "is_long"), [(4_300, False), (4_301, True)])
@pytest.mark.parametrize("before", [0, 1, 4_299, 4_300, 4_301, 8_600])
def test_a_long_number_is_found_wherever_it_is(digits, is_long, before):
    assert is_long is may_have_long_number(b"a" * before + b"9" * digits + b"," + b"9" * 4_300 + b"]")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (rb'"\ud800"', b'"?"'),
        (rb'"\uDC00x\ud800\ud800\udc00"', rb'"?x?\ud800\udc00"'),
        (rb'"\\ud800"', rb'"\\ud800"'),
        (rb'"\\\ud800"', rb'"\\?"'),
        (rb'"\n\"\ud7ff"', rb'"\n\"\ud7ff"'),
    ],
)
def test_only_lone_surrogates_are_replaced(text, expected):
    """Pairs of surrogates, and backslashes before the letter u, are part of the text."""
    assert expected == without_lone_surrogates(text, take_turn)


@pytest.mark.parametrize("surrogate", [b"", rb"\ud800"])
@pytest.mark.parametrize(
    ("end", "valid"), [(b"}", True), (b',"a":1}', True), (b"", False), (b"}}", False), (b',"a":NaN}', False)]
)
def test_a_large_value_is_json_in_spite_of_a_lone_surrogate(surrogate, end, valid):
    """msgspec rejects the surrogate, but the server still checks the rest of the value."""
    value = b'{"x":"%b","n":[' % surrogate + b",".join([b"{}"] * 30_000) + b"]"

    assert valid is is_json(value + end, take_turn)
