"""The limits of expressions: whatever an expression and a record contain, one record does not block the event loop."""

from __future__ import annotations

import contextlib
import random
import time
from typing import Any

import gevent
import pytest

from kafkasse.log import Batch, Partition
from kafkasse.log.memory import MemoryRecord
from kafkasse.records.encoder import Encoder
from kafkasse.records.filter import ExpressionError, Filter, compile_expression
from kafkasse.records.filter.expression import MAX_ITEMS, MAX_MATCHED_CHARS, MAX_TEXT_CHARS, ExpressionFailure
from kafkasse.records.filter.language import MAX_ADDITIONS, MAX_CHARS, MAX_DEPTH
from kafkasse.records.frame import DecoderPending
from kafkasse.records.frame.json_text import loads
from kafkasse.records.position import IdType, IdWriter
from tests.attacks.meter import MAX_TURN_S
from tests.filter.records import view_of
from tests.support import cpu_time

NUMBERS = list(range(MAX_ITEMS - 1))
TEXTS = ["a" * (MAX_TEXT_CHARS // MAX_ITEMS)] * (MAX_ITEMS - 1)
LONG = "a" * MAX_TEXT_CHARS
MATCHED = (
    "a" * MAX_MATCHED_CHARS,
    "é" * MAX_MATCHED_CHARS,
    "".join(random.Random(1).choices("ab", k=MAX_MATCHED_CHARS)),  # noqa: S311 - many states of the automaton
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("true || " * 62 + "true || true", f"it has more than {MAX_CHARS} characters"),
        ("(" * 33 + "1" + ")" * 33 + " == 1", f"brackets are nested more than {MAX_DEPTH} levels deep"),
        ("[" * 33 + "]" * 33 + " == []", f"brackets are nested more than {MAX_DEPTH} levels deep"),
        ("{1:" * 33 + "1" + "}" * 33 + " == 1", f"brackets are nested more than {MAX_DEPTH} levels deep"),
        ("+".join(["value.i"] * 18) + " == []", f"it contains more than {MAX_ADDITIONS} additions"),
        ("value.i.all(x, value.i.all(y, true))", "all() and exists() cannot read value: use the variable x"),
        ("value.i.all(x, x.all(y, true))", "all() cannot be used inside all() or exists()"),
        ("value.i.exists(x, x.y.all(z, true))", "all() cannot be used inside all() or exists()"),
        ("[1, 2].all(x, true)", "all() can only be used on a field, such as value.items.all(item, …)"),
        ("(value.i).exists(x, true)", "exists() can only be used on a field, such as value.items.exists(item, …)"),
        ("value.i[0].all(x, true)", "all() can only be used on a field, such as value.items.all(item, …)"),
        ("value.i.all(x, x in value.i)", "all() and exists() cannot read value: use the variable x"),
        ("value.i.all(x, headers.h.contains(x))", "all() and exists() cannot read headers: use the variable x"),
        ("value.i.all(x, key.contains(x))", "all() and exists() cannot read key: use the variable x"),
        ("value.i.all(value, true)", "all() needs a variable of its own, such as all(item, …)"),
        ("value.i.all(in, true)", "all() needs a variable of its own, such as all(item, …)"),
        ("value.i.map(x, x * 2) == []", "there is no function map(). There are size, startsWith, endsWith"),
        ("value.i.filter(x, x > 2) == []", "there is no function filter(). There are"),
        ("value.i.exists_one(x, x > 2)", "there is no function exists_one(): did you mean exists?"),
        ("value.i . // comment\n map(x, x) == []", "there is no function map(). There are"),
        ("(value.s + value.s).matches('a')", "it contains an addition and matches()"),
        ("value.s.matches(value.r)", "the pattern of matches() must be a text"),
        ("value.s.matches('a' + 'b')", "the pattern of matches() must be a text"),
        ("value.i.all(x, x.matches('a'))", "matches() cannot be used inside all() or exists()"),
        ("value.s.matches('(a{50}){50}')", "a pattern cannot contain {n}"),
        (r"value.s.matches(r'\w+')", "a pattern cannot contain {n}"),
        (r"value.s.matches('\\w+')", "a pattern cannot contain {n}"),
        (r"value.s.matches('\x5cw+')", "a pattern cannot contain {n}"),
        (r"value.s.matches('\134w+')", "a pattern cannot contain {n}"),
        (r"value.s.matches(r'\pL')", "a pattern cannot contain {n}"),
        ("value.s.matches('(?i)a')", "a pattern cannot contain {n}"),
        ("value.s.matches('" + "a*" * 50 + "')", "its patterns have more than 100 characters"),
        ("||".join(["value.s.matches('" + "a*" * 20 + "')"] * 3), "its patterns have more than 100 characters"),
        ('value.s == """a"""', "texts with three quotes are not supported"),
        ("value.s == r'''a'''", "texts with three quotes are not supported"),
    ],
)  # fmt: skip
def test_an_expression_whose_cost_is_not_bounded_is_rejected(text, reason):
    """Nested loops, repeated copies and expensive patterns could block the event loop for seconds."""
    with pytest.raises(ExpressionError) as raised:
        compile_expression(text)

    assert raised.value.reason.startswith(reason)


def repeated(prefix: str, part: str, operator: str, suffix: str = "") -> str:
    """Return an expression that contains `part` as often as possible."""
    count = (MAX_CHARS - len(prefix) - len(suffix)) // (len(part) + len(operator))
    return prefix + operator.join([part] * count) + suffix


ON_EACH_NUMBER = {
    "all": ("x>=0", "x==x", "-x!=1", "x!='b'"),
    "exists": ("x.a==1", "[x,x,x]==[x]", "1/0==1", "{x:1}=={}"),
}
ON_EACH_TEXT = {
    "all": ("x==x", "!x.contains('ab')", "size(x)>0"),
    "exists": ("int(x)>0", "timestamp(x)==x", "x in [1,2]", "duration(x)==x"),
}
PATTERNS = (
    ".*" * 44 + "b",
    "(.*)*" * 18,
    "(a|b|ab)*" * 9 + "c",
    "(((a*)*)*)*b",
    "a?" * 40 + "!",
    "[^b]*" * 18 + "b",
    "a" + "." * 93 + "c",
)
ADDITIONS = "+".join(["value"] * (MAX_ADDITIONS + 1))


def on_each(macro: str, part: str) -> str:
    return repeated(f"value.{macro}(x,", part, "&&" if macro == "all" else "||", ")")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((on_each(macro, part), NUMBERS) for macro, parts in ON_EACH_NUMBER.items() for part in parts),
        *((on_each(macro, part), TEXTS) for macro, parts in ON_EACH_TEXT.items() for part in parts),
        *((repeated("", part, "&&"), NUMBERS) for part in ("value==value", "!(-1 in value)", "[value,value]!=[]")),
        *(
            (repeated("", part, "&&"), LONG)
            for part in ("value==value", "!value.contains('aaab')", "value.endsWith(value)")
        ),
        *((f"value.matches('{pattern}')", text) for pattern in PATTERNS for text in MATCHED),
        (f"{ADDITIONS}==[]", NUMBERS),
        (f"{ADDITIONS}==''", LONG),
        (repeated("[", "value", ",", "]"), NUMBERS),
        ("!" * 492 + "value", True),
        ("-" * 492 + "value==1", 1),
    ],
)
def test_one_record_does_not_block_the_event_loop(text, value):
    """The most expensive expressions and records that the limits allow take less time than a turn of the event loop may."""
    expression = compile_expression(text)
    view = view_of(value)
    _ = view.value

    def match() -> None:
        with contextlib.suppress(ExpressionFailure):
            expression.matches(view)

    assert MAX_TURN_S > min(cpu_time.of_call(match) for _ in range(3))


@pytest.mark.parametrize("number", [b"1.7976931348623157e308", b"4.9406564584124654e-324"])
def test_numbers_that_are_expensive_to_read_do_not_block_the_event_loop(number):
    """msgspec takes 0.4 s for 1 MB of them."""
    value = b"[" + b",".join([number] * 43_000) + b"]"

    assert {float(number)} == set(loads(value))
    assert MAX_TURN_S > min(cpu_time.of_call(lambda: loads(value)) for _ in range(3))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([1] * MAX_ITEMS, f"the fields that it reads contain more than {MAX_ITEMS} values"),
        ({f"m{n}": 1 for n in range(MAX_ITEMS // 2)}, f"the fields that it reads contain more than {MAX_ITEMS} values"),
        ([[[1] * 400] * 3], f"the fields that it reads contain more than {MAX_ITEMS} values"),
        (["a" * MAX_TEXT_CHARS, "b"], f"the texts that it reads have more than {MAX_TEXT_CHARS} characters"),
    ],
)
def test_a_record_that_is_too_large_does_not_match(value, reason):
    """What an expression reads of one record is limited. The rest of the record does not count."""
    with pytest.raises(ExpressionFailure, match=reason):
        compile_expression("value.a != null").matches(view_of({"a": value}))

    assert compile_expression("value.b == 1").matches(view_of({"a": value, "b": 1}))


def test_a_long_key_or_header_counts():
    long = b"a" * (MAX_TEXT_CHARS + 1)

    for text in ("key != 'a'", "headers.a != 'a'", "headers != {}"):
        with pytest.raises(ExpressionFailure, match="texts"):
            compile_expression(text).matches(view_of(key=long, headers=[("a", long)]))


def test_a_value_that_is_nested_deeply_does_not_crash_the_process():
    """The library converts values recursively and would overflow the stack. A decoder can return such a value."""
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    view = view_of()
    view._decoded = value

    with pytest.raises(ExpressionFailure):
        compile_expression("value != null").matches(view)


def test_a_filter_ends_a_piece_early():
    """A piece of records that are expensive to filter takes less time than a turn of the event loop may."""
    partition = Partition("t", 0)
    value = b"[" + b"1," * (MAX_ITEMS - 2) + b"1]"
    records = [MemoryRecord(offset, 1, None, value) for offset in range(64)]
    batch = Batch(partition, records, 64)
    expressions = [compile_expression(on_each("exists", "[x,x,x]==[x]"))]
    encoder = Encoder(filter=Filter.of(expressions=expressions), clock=time.monotonic)
    ids = IdWriter({partition: 0}, {"t": ""}, id_type=IdType.OFFSET, compact=False)

    def encode_all() -> None:
        end = 0
        while end < len(records):
            end = encoder.encode_piece(batch, end, ids).end
            gevent.sleep(0)

    assert MAX_TURN_S > cpu_time.of_longest_turn(encode_all)


def test_a_decoder_that_waits_ends_the_piece_before_its_record():
    """If a filter needs a value whose schema is being looked up, the records before it are sent."""

    def decode(view: Any) -> Any:
        if view.record.offset == 2:
            raise DecoderPending
        return {"n": view.record.offset}

    partition = Partition("t", 0)
    records = [MemoryRecord(offset, 1, None, b"x") for offset in range(4)]
    ids = IdWriter({partition: 0}, {"t": ""}, id_type=IdType.OFFSET, compact=False)
    encoder = Encoder(decoder=decode, filter=Filter.of(expressions=[compile_expression("value.n >= 0")]))

    piece = encoder.encode_piece(Batch(partition, records, 4), 0, ids)

    assert ([0, 1], 2) == (piece.offsets, piece.next_offset)
