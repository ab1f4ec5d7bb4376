"""Filters against a model in plain Python, for arbitrary records, conditions and expressions."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kafkasse.errors import InvalidParameter
from kafkasse.records.filter import Dimension, ExpressionError, Filter, Query, Where, compile_expression, parse_query
from kafkasse.records.filter.expression import library
from kafkasse.records.filter.language import FUNCTIONS, METHODS, VARIABLES, check
from kafkasse.records.frame.json_text import DeserializationError
from kafkasse.records.frame.record_view import RecordView
from tests.filter.records import view_of

NAMES = ("a", "b")
WORDS = ("", "a", "7", "true", "*", "ä")
ALL_FILTERS = ("key", "header.*", "field.*", "filter")

words = st.sampled_from(WORDS)
texts = words.map(str.encode) | st.just(b"\xff")
scalars = words | st.booleans() | st.sampled_from((7, 7.0, -0.5)) | st.none()
objects = st.dictionaries(st.sampled_from(NAMES), scalars | st.dictionaries(st.sampled_from(NAMES), scalars))
records = st.builds(
    view_of,
    value=objects | scalars | st.lists(scalars, max_size=2) | st.just(b"not JSON"),
    key=st.none() | texts,
    headers=st.lists(st.tuples(st.sampled_from(NAMES), st.none() | texts), max_size=3),
)
paths = st.sampled_from(("a", "b", "a.b", "b.a"))
one_of = st.sets(words, min_size=1, max_size=3).map(sorted)
conditions = st.fixed_dictionaries(
    {},
    optional={
        "key": one_of,
        "headers": st.dictionaries(st.sampled_from(NAMES), one_of, min_size=1),
        "fields": st.dictionaries(paths, one_of, min_size=1),
    },
)
queries = st.lists(
    st.tuples(st.just("key") | st.sampled_from(NAMES).map("header.{}".format) | paths.map("field.{}".format), words),
    max_size=5,
)


def text_of(value: Any) -> str | None:
    """Return a scalar as JSON text, without quotes and without the `.0` of whole numbers."""
    if value is None or isinstance(value, dict | list):
        return None
    return value if isinstance(value, str) else json.dumps(value).removesuffix(".0")


def field_of(view: RecordView, path: str) -> str | None:
    try:
        value = view.value
    except DeserializationError:
        return None
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return text_of(value)


def meets(view: RecordView, where: dict[str, Any]) -> bool:
    """The model: whether a record meets literal conditions."""
    return (
        ("key" not in where or view.record.key in [text.encode() for text in where["key"]])
        and all(
            any(
                header == name and value in [text.encode() for text in allowed] for header, value in view.record.headers
            )
            for name, allowed in where.get("headers", {}).items()
        )
        and all(field_of(view, path) in allowed for path, allowed in where.get("fields", {}).items())
    )


def is_selected(view: RecordView, query: list[tuple[str, str]]) -> bool:
    """The model: whether a query selects a record. Of repeated headers, the last counts."""

    def value(name: str) -> bytes | None:
        source, _, rest = name.partition(".")
        if source == "key":
            return view.record.key
        if source == "field":
            text = field_of(view, rest)
            return None if text is None else text.encode()
        return next((value for header, value in reversed(view.record.headers) if header == rest), None)

    return all(value(name) in [text.encode() for other, text in query if other == name] for name, _ in query)


@given(records, conditions)
def test_a_filter_equals_its_model(view, where):
    assert meets(view, where) == Filter.of(**where).matches(view)


@given(records, conditions, queries)
def test_a_selection_equals_its_model(view, where, query):
    """A client receives a record if and only if it meets the conditions of the route and of the query."""
    selection = Where.parse(where).select({}, {}, parse_query(query, ALL_FILTERS), lambda view, reason: None)

    expected = meets(view, where) and is_selected(view, query)

    assert expected == (
        (selection.filter is None or selection.filter.matches(view))
        and (selection.selector is None or selection.selector.selects(selection.dimensions.values(view)))
    )


@given(queries, st.randoms())
def test_equivalent_queries_are_equal(query, random):
    """The order and the repetition of parameters do not matter: their clients share a feed and a place in its index."""
    other = [*query, *query[:2]]
    random.shuffle(other)

    selections = [
        Where.parse({}).select({}, {}, parse_query(selected, ALL_FILTERS), lambda view, reason: None)
        for selected in (query, other)
    ]

    assert selections[0] == selections[1]
    assert hash(selections[0]) == hash(selections[1])


@given(conditions, st.randoms())
def test_equivalent_conditions_are_equal(where, random):
    def shuffled(value: Any) -> Any:
        if isinstance(value, dict):
            return dict(random.sample([(name, shuffled(member)) for name, member in value.items()], len(value)))
        return random.sample([*value, value[0]], len(value) + 1)

    one, other = Filter.of(**where), Filter.of(**shuffled(where))

    assert (one, hash(one)) == (other, hash(other))


@given(st.lists(st.tuples(st.text(max_size=12), st.text(max_size=12)), max_size=4))
def test_any_query_is_parsed_or_rejected(query):
    try:
        found = parse_query(query, ALL_FILTERS)
    except InvalidParameter:
        return

    assert isinstance(found, Query)
    assert all(isinstance(dimension, Dimension) for dimension in found.values)


PARTS = """
    value value.a value["b"].c value.items[0] value.s.size() headers.h key topic timestamp timestamp("x") 1 2u 2.5 true
    null "x" 'y' r"\\d" "\\\\" has(value.a) size(key) value.s.matches("a+") value.items.exists(x,x.a==1)
    value.items.all(x,x>topic) value.all(x,true) [1,value.a] {"a":key}
"""
STRANGE = r"""
    ' \ r' b'x' `a` // .map(x,x) .filter(x,true) .exists_one(x,true) .all(x,true) .exists(value,true) + . , ( ) [ ] { }
    .size() optional é :: ?. [? 0x 1e5 .5 x value.x .all .exists '''
"""
parts = st.sampled_from(PARTS.split())
strange = st.sampled_from([*STRANGE.split(), '"', "\n", "\r", "\f", "\0", "// c\n", '"' * 3])
expressions = st.recursive(
    parts,
    lambda inner: (
        st.builds("{} {} {}".format, inner, st.sampled_from(["+", "-", "==", "<", "&&", "||", "in", "%"]), inner)
        | st.builds("({})".format, inner)
        | st.builds("!{}".format, inner)
        | st.builds("{}?{}:{}".format, inner, inner, inner)
    ),
    max_leaves=6,
)


@given(expressions, st.lists(st.tuples(st.integers(0, 80), strange), max_size=2))
def test_the_library_sees_what_was_checked(text, additions):
    """The check and the library read an expression in the same way, so that no spelling evades the limits."""
    for at, addition in additions:
        text = text[:at] + addition + text[at:]
    try:
        compile_expression(text)
    except ExpressionError:
        return

    checked = check(text)
    program = library().compile(text)
    used = set(program.functions())
    assert {path[0] for path in checked.paths} == set(program.variables()) - {"x"}
    assert {word for word in used if word.isidentifier()} <= {*FUNCTIONS, *METHODS}
    assert ("@not_strictly_false" in used) == any(f". {macro} (" in checked.canonical for macro in ("all", "exists"))
    assert ("_+_" in used) == (" + " in f" {checked.canonical} ")
    assert {path[0] for path in checked.paths} <= set(VARIABLES)
