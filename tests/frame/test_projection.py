"""Projections: only the members that a route sends reach its clients, however a producer writes the value."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkasse.log import Batch, Partition
from kafkasse.log.memory import MemoryRecord
from kafkasse.process.event_loop import take_turn
from kafkasse.records.encoder import MAX_PIECE_RECORDS, Encoder
from kafkasse.records.frame import FORMATS, DeserializationError, JsonLines, ServerSentEvents, TopicRecord
from kafkasse.records.frame.projection import Projection
from kafkasse.records.position import IdType, IdWriter
from tests.support.turns import MAX_LINES, most_lines_in_a_piece

SECRET, PUBLIC = "5ecret", "public"
ORDER = {
    "id": 1,
    "customer": {"name": "Ann", "email": "ann@example.com"},
    "items": [{"sku": "a", "price": 1}, {"sku": "b"}],
}


def encode(encoder: Encoder, value: bytes | None, key: bytes | None = None) -> tuple[str, bytes] | None:
    return encoder.encode("t", 0, TopicRecord("t", 0, 0, 0, key, value, ()))


def projected(value: object, fields: list[str] = [], redact: list[str] = []) -> Any:  # noqa: B006 - it does not change
    return json.loads(Projection(fields, redact).of_json(json.dumps(value).encode(), take_turn))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (["id"], {"id": 1}),
        (["customer"], {"customer": ORDER["customer"]}),
        (["customer.name", "id"], {"customer": {"name": "Ann"}, "id": 1}),
        (["customer.name", "customer"], {"customer": ORDER["customer"]}),
        (["customer", "customer.name"], {"customer": ORDER["customer"]}),
        (["items.price"], {"items": [{"price": 1}, {}]}),
        (["missing", "customer.missing"], {"customer": {}}),
    ],
)
def test_fields_are_the_only_members_that_are_sent(fields, expected):
    """A path selects a member with everything below it, or a member of each element of an array."""
    assert expected == projected(ORDER, fields)


@pytest.mark.parametrize(
    ("redact", "expected"),
    [
        (["customer"], {"id": 1, "items": ORDER["items"]}),
        (["customer.email"], {**ORDER, "customer": {"name": "Ann"}}),
        (["customer.email", "customer"], {"id": 1, "items": ORDER["items"]}),
        (["customer", "customer.email"], {"id": 1, "items": ORDER["items"]}),
        (["items.price"], {**ORDER, "items": [{"sku": "a"}, {"sku": "b"}]}),
        (["missing", "customer.missing"], ORDER),
    ],
)
def test_redacted_members_are_not_sent(redact, expected):
    """A path removes a member with everything below it. All other members are sent."""
    assert expected == projected(ORDER, redact=redact)


def test_redacts_members_of_selected_fields():
    assert {"id": 1, "customer": {"name": "Ann"}} == projected(ORDER, ["id", "customer"], ["customer.email"])


def test_a_path_applies_to_the_elements_of_an_array():
    """This includes arrays of arrays, and a value that is an array."""
    value = [{"a": [[{"b": 1, "c": 2}], {"b": 3}]}, {"a": None}]

    assert [{"a": [[{"c": 2}], {}]}, {"a": None}] == projected(value, redact=["a.b"])
    assert [{"a": [[{"b": 1}], {"b": 3}]}, {"a": None}] == projected(value, ["a.b"])


def test_a_path_matches_names_that_contain_dots():
    """Some producers write {"customer.email": …} instead of an object in an object."""
    value = {"a.b.c": 1, "a.b": {"c": 2, "d": 3}, "a": {"b.c": 4, "b": {"c": 5}, "e": 6}}

    assert {"a.b": {"d": 3}, "a": {"b": {}, "e": 6}} == projected(value, redact=["a.b.c"])
    assert {"a.b.c": 1, "a.b": {"c": 2}, "a": {"b.c": 4, "b": {"c": 5}}} == projected(value, ["a.b.c"])


@pytest.mark.parametrize(("fields", "redact"), [([], ["a.b"]), (["a.b"], [])])
def test_a_scalar_in_the_place_of_an_object_is_not_sent(fields, redact):
    """The scalar may contain the redacted member in another form, such as JSON in a string."""
    assert {} == projected({"a": '{"b":1}'}, fields, redact)
    assert {"a": [{}]} == projected({"a": [5, {}, "text"]}, fields, redact)
    for value in ("text", 5, True):
        with pytest.raises(DeserializationError):
            projected(value, fields, redact)


def test_the_numbers_that_are_sent_keep_their_digits():
    """They are not decoded, because a double cannot represent all of them."""
    text = b'{"a":25.00,"b":9007199254740993,"c":0.12345678901234567890,"d":1e400}'

    assert text == Projection(redact=["x"]).of_json(text, take_turn)


def test_valid_json_that_only_one_parser_accepts_is_redacted():
    """msgspec rejects a lone surrogate in the name of a member."""
    assert b'{"?":1}' == Projection(redact=["a"]).of_json(b'{"\\ud800":1,"a":2}', take_turn)


@pytest.mark.parametrize(
    "value",
    [b"", b"text", b"{", b'{"a":1}x', b'{"a":1}{"b":2}', b'{"a":NaN}', b"\xff", b'{"b":"\xff"}', b'{"a":' * 5000],
)
@pytest.mark.parametrize("format", FORMATS)
def test_a_value_that_is_not_json_is_skipped(format, value):
    """The server cannot know what such a value contains, so it does not send it in any format."""
    reasons: list[str] = []
    encoder = Encoder(
        format, projection=Projection(redact=["a"]), on_skipped=lambda *skipped: reasons.append(skipped[-1])
    )

    assert encode(encoder, value) is None
    assert 1 == len(reasons)


@pytest.mark.parametrize("format", FORMATS)
def test_a_tombstone_is_sent(format):
    encoder = Encoder(format, projection=Projection(["a"]))

    encoded = encode(encoder, None, b"k")

    assert encoded is not None
    assert "delete" == encoded[0]


@pytest.mark.parametrize("projection", [Projection(["b"]), Projection(redact=["a", "5"])])
def test_the_hooks_see_the_whole_record(projection):
    """A filterer may use a member that clients do not receive, and the message of a deserializer is redacted too."""
    encoder = Encoder(
        deserializer=lambda record: {"a": SECRET, 5: SECRET, "b": PUBLIC},
        filterer=lambda message: message["a"] == SECRET,
        projection=projection,
    )

    encoded = encode(encoder, b"{}")

    assert encoded is not None
    assert {
        "b": PUBLIC,
        "_kafka": {"topic": "t", "partition": 0, "offset": 0, "timestamp": 0, "key": None},
    } == json.loads(encoded[1].removeprefix(b"data: "))


def test_the_text_of_a_deserializer_is_redacted():
    """Text that is JSON is redacted like an object. Text that is not JSON is not sent."""
    for text in (f'{{"a":"{SECRET}","b":"{PUBLIC}"}}', f'"{SECRET}"', SECRET):
        encoder = Encoder(deserializer=lambda record, text=text: text, projection=Projection(redact=["a"]))

        encoded = encode(encoder, b"{}")

        assert encoded is None or (SECRET.encode() not in encoded[1] and PUBLIC.encode() in encoded[1])


@pytest.mark.parametrize("id_type", IdType)
def test_a_piece_of_large_values_ends_early(id_type):
    """The frames are small, so that their size does not limit how many large values a piece contains."""
    value = b'{"a":1,"b":[' + b",".join([b"0"] * 50_000) + b"]}"
    partition = Partition("t", 0)
    records = [MemoryRecord(offset, 0, None, value) for offset in range(MAX_PIECE_RECORDS)]
    ids = IdWriter({partition: 0}, {"t": "abcdefgh"}, id_type=id_type)

    encoder = Encoder(projection=Projection(["a", "b.c"]), clock=time.monotonic)
    piece = encoder.encode_piece(Batch(partition, records, MAX_PIECE_RECORDS), 0, ids)

    assert 0 < piece.end < MAX_PIECE_RECORDS / 2


# A secret never leaves the server.

REDACTED = ("a.b", "b.a.b", "c")
NAMES = st.sampled_from(["a", "b", "c", "a.b", "b.a", "d"])
Tree = list[Any]  # ["object", (name, value), …], ["array", value, …] or ["scalar"]
TREES = st.recursive(
    st.just(["scalar"]),
    lambda trees: st.one_of(
        st.lists(st.tuples(NAMES, trees), max_size=5).map(lambda members: ["object", *members]),
        st.lists(trees, max_size=3).map(lambda elements: ["array", *elements]),
    ),
    max_leaves=25,
)


def is_secret(names: tuple[str, ...]) -> bool:
    """Return whether a scalar at a path is in a redacted member, or in the place of an object that may contain one."""
    parents = {".".join(names[:count]) for count in range(1, len(names) + 1)}
    return any(path in parents or f"{path}.".startswith(f"{'.'.join(names)}.".lstrip(".")) for path in REDACTED)


def written(tree: Tree, names: tuple[str, ...], draw: st.DrawFn) -> str:
    """Write JSON with duplicate members and escaped names. A scalar is a secret or public text."""
    kind, *parts = tree
    if kind == "object":
        members = (f"{escaped(name, draw)}:{written(value, (*names, name), draw)}" for name, value in parts)
        return "{" + ", ".join(members) + "}"
    if kind == "array":
        return "[" + ",".join(written(part, names, draw) for part in parts) + "]"
    return json.dumps(SECRET if is_secret(names) else PUBLIC)


def escaped(name: str, draw: st.DrawFn) -> str:
    return '"' + "".join(f"\\u{ord(char):04x}" if draw(st.booleans()) else char for char in name) + '"'


@st.composite
def json_texts(draw: st.DrawFn) -> str:
    tree = draw(TREES)
    return written(tree, (), draw)


def public_texts(value: object, path: str = "") -> Iterator[str]:
    """Yield the path of each public scalar of a decoded value."""
    if isinstance(value, dict):
        for name, member in value.items():
            yield from public_texts(member, f"{path}.{name}")
    elif isinstance(value, list):
        for item in value:
            yield from public_texts(item, path)
    elif value == PUBLIC:
        yield path


@given(json_texts(), st.sampled_from(list(FORMATS)), st.sampled_from([ServerSentEvents(), JsonLines()]))
def test_a_redacted_member_never_leaves_the_server(text, format, wire):
    """Whatever the value looks like, no frame contains the secret, and every public member is sent."""
    encoder = Encoder(format, wire, projection=Projection(redact=list(REDACTED)))

    encoded = encode(encoder, text.encode())

    if encoded is not None:
        assert SECRET.encode() not in encoded[1]
        assert base64.b64encode(SECRET.encode())[:6] not in encoded[1]
        value = json.loads(Projection(redact=list(REDACTED)).of_json(text.encode(), take_turn))
        assert sorted(public_texts(json.loads(text))) == sorted(public_texts(value))


@given(json_texts())
def test_no_member_that_fields_omit_leaves_the_server(text):
    """With the same paths as `fields`, the rest is sent: all members below the paths, and nothing else."""
    value = text.replace(PUBLIC, "-").encode()

    for path in REDACTED:
        encoded = encode(Encoder("value", projection=Projection([path])), value)
        assert encoded is None or b'"-"' not in encoded[1]


OBJECTS = [b"{}", b'{"b":1}', b"[{}]", b'{"b":{"c":1}}']


@pytest.mark.parametrize("settings", [{"fields": ["a.b.c"]}, {"redact": ["a.b.c"]}], ids=["fields", "redact"])
@pytest.mark.parametrize("element", OBJECTS)
@pytest.mark.parametrize("name", [b"x", b"\\ud800"], ids=["plain", "surrogate"])
def test_a_large_array_is_projected_in_pieces(name, element, settings):
    """A value of 1 MB may contain 330,000 objects, which would block the event loop for 0.1 to 0.4 s."""
    value = b'{"%b":1,"a":[' % name + b",".join([element] * 6000) + b"]}"

    assert most_lines_in_a_piece(lambda: Projection(**settings).of_json(value, take_turn)) < MAX_LINES
