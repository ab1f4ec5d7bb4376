"""The setting `where`: literal values, path parameters and claims, and what a query adds."""

from __future__ import annotations

from typing import Any

import pytest

from kafkasse.config import Config
from kafkasse.errors import ConfigurationError, Forbidden, InvalidParameter
from kafkasse.records.filter import Dimension, Dimensions, Filter, Query, Selection, Selector, Where, compile_expression
from kafkasse.records.filter import expression as expression_module
from kafkasse.records.filter.where import MAX_SELECTED_VALUES
from tests.filter.records import view_of

KEY = Dimension("key")
ROUTE = {"path": "/r", "topics": ["t"]}
NO_QUERY = Query({}, None)


def select(
    where: dict[str, Any],
    parameters: dict[str, str] | None = None,
    claims: dict[str, Any] | None = None,
    query: Query = NO_QUERY,
) -> Selection:
    return Where.parse(where).select(parameters or {}, claims or {}, query, lambda view, reason: None)


def values(selection: Selection) -> set[tuple[str, ...]]:
    return set(selection.selector.values) if selection.selector else set()


def test_literal_values_are_a_filter():
    """Conditions without a reference are the same for all clients. Doubled braces are literal."""
    headers = {"type": ["x", 1], "json": ["", '{{"id":1}}']}
    where = {"key": "a", "headers": headers, "fields": {"ok": True, "n": 7.0}, "expression": "offset>5"}

    headers = {"type": ["1", "x"], "json": ["", '{"id":1}']}
    expected = Filter.of(["a"], headers, {"n": ["7"], "ok": ["true"]}, [compile_expression("offset > 5")])
    assert Selection(expected) == select(where)


def test_a_path_parameter_is_a_dimension():
    """Clients with different values of a path parameter differ in their selector only."""
    where = {"key": "{currency}", "headers": {"type": "price"}}

    euro, dollar = (select(where, {"currency": currency}) for currency in ("EUR", "USD"))

    assert (Dimensions((KEY,)), Selector.of(["EUR"])) == (euro.dimensions, euro.selector)
    assert (euro.filter, euro.dimensions) == (dollar.filter, dollar.dimensions)
    assert Selector.of(["USD"]) == dollar.selector


@pytest.mark.parametrize(
    ("template", "claims", "expected"),
    [
        ("{claims.sub}", {"sub": "alice"}, ["alice"]),
        ("{claims.customer.id}", {"customer": {"id": 7}}, ["7"]),
        ("{claims.https://shop.example/id}", {"https://shop.example/id": "7"}, ["7"]),
        ("{claims.a.b}", {"a.b": "exact", "a": {"b": "path"}}, ["exact"]),
        ("{claims.groups}", {"groups": ["a", "b"]}, ["a", "b"]),
        (["{claims.sub}", "all"], {"sub": "alice"}, ["alice", "all"]),
        ("user-{claims.sub}-{{x}}", {"sub": "alice"}, ["user-alice-{x}"]),
        ("{claims.sub}", {"sub": "{claims.role}"}, ["{claims.role}"]),
        ("{claims.sub}", {"sub": "*"}, ["*"]),
        ("{claims.sub}", {"sub": ""}, [""]),
        ("{claims.admin}", {"admin": False}, ["false"]),
    ],
)
def test_a_claim_is_inserted_literally(template, claims, expected):
    """The value of a claim is not interpreted. The items of a list are several values."""
    assert {(value,) for value in expected} == values(select({"key": template}, claims=claims))


@pytest.mark.parametrize(
    "claims", [{}, {"sub": None}, {"sub": {"id": 1}}, {"sub": []}, {"sub": ["a", None]}, {"sub": [["a"]]}]
)
def test_a_missing_claim_is_forbidden(claims):
    """A visitor whose token lacks a claim, or has one that is not text, receives no records."""
    with pytest.raises(Forbidden, match=r"This stream requires the claim sub, which your credentials do not contain\."):
        select({"key": "{claims.sub}"}, claims=claims)


def test_several_references_select_all_combinations():
    """A client selects the product of its values, in the order of the dimensions."""
    where = {"key": ["{claims.sub}", "all"], "headers": {"shop": "{shop}"}}

    selection = select(where, {"shop": "s"}, {"sub": "alice"})

    assert (Dimension("header", "shop"), KEY) == selection.dimensions.parts
    assert {("s", "alice"), ("s", "all")} == values(selection)


def test_the_dimensions_do_not_depend_on_the_order_of_the_query():
    """Clients that name the same parts of a record in another order share a feed."""
    parts = {KEY: frozenset("a"), Dimension("field", "x"): frozenset("b"), Dimension("header", "h"): frozenset("c")}

    one, other = (select({}, query=Query(dict(pairs), None)) for pairs in (parts.items(), reversed(parts.items())))

    assert one == other


@pytest.mark.parametrize(
    ("asked", "received"),
    [({"alice"}, {("alice",)}), ({"alice", "bob"}, {("alice",)}), ({"bob"}, set()), ({"all"}, {("all",)})],
)
def test_a_query_cannot_widen_what_the_route_selects(asked, received):
    query = Query({KEY: frozenset(asked)}, None)

    selection = select({"key": ["{claims.sub}", "all"]}, claims={"sub": "alice"}, query=query)

    assert (Dimensions((KEY,)), received) == (selection.dimensions, values(selection))
    assert selection.selector is not None


def test_the_expressions_of_the_route_and_the_query_must_both_be_true():
    query = Query({}, compile_expression("offset < 9"))

    selection = select({"expression": "offset > 5"}, query=query)

    assert Filter.of(expressions=map(compile_expression, ["offset > 5", "offset < 9"])) == selection.filter


def test_a_client_cannot_select_too_many_values():
    """The number of values of one client is limited, because each takes memory in the index of the feed."""
    side = int(MAX_SELECTED_VALUES**0.5)
    numbers = [str(number) for number in range(side + 1)]
    query = Query({KEY: frozenset(numbers[:side]), Dimension("header", "h"): frozenset(numbers[:side])}, None)
    assert MAX_SELECTED_VALUES == len(values(select({}, query=query)))

    query.values[KEY] = frozenset(numbers)

    with pytest.raises(InvalidParameter, match=f"The filters select {side * (side + 1)} values or combinations"):
        select({}, query=query)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("key: '{x}'", "key refers to {x}, which is not a parameter of the path. There are {currency}, {claims.NAME}."),
        ("key: '{claims.sub}'", "key refers to {claims.sub}, but the route has no guard that provides claims."),
        ("headers: {type: ['a', '{x}']}", "headers.type refers to {x}, which is not a parameter of the path."),
        ("fields: {a.b: '{a}{b}'}", "fields.a.b has two references in one value: use one."),
        ("key: '{'", "key has a brace without its counterpart: write {{ or }} for a literal brace."),
        ("key: '{}'", "key has an empty reference: write {{ and }} for literal braces."),
        ("expression: 'value.n >> 1'", "expression is invalid at line 1, column 10: extraneous input '>'."),
        (
            "expression: 'vale.n > 1'",
            "expression is invalid at line 1, column 1: there is no variable vale: did you mean value?",
        ),
        ("keys: a", "keys is not a setting of a route: did you mean key?"),
        ("key: []", "key must be a value or a list of values, not an empty list."),
    ],
)
def test_a_mistake_is_a_configuration_error_with_its_line(tmp_path, where, message):
    """The server does not start if `where` is invalid. The error names the file and the line."""
    file = tmp_path / "kafkasse.yaml"
    file.write_text(
        f"public: true\nroutes:\n  r:\n    path: /p/{{currency}}\n    topics: [t]\n    where:\n      {where}\n"
    )

    with pytest.raises(ConfigurationError) as raised:
        Config.load({}, file)

    (line,) = str(raised.value).splitlines()
    assert line.startswith(f"{file}, line 7: routes.r.where.{message}")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"client_filters": ["filter"]}, "client_filters contains filter"),
        ({"routes": {"r": {**ROUTE, "client_filters": ["filter"]}}}, "routes.r.client_filters contains filter"),
        (
            {"routes": {"r": {**ROUTE, "where": {"expression": "1 == 1"}}}},
            "routes.r.where.expression cannot be evaluated",
        ),
    ],
)
def test_a_missing_library_is_a_configuration_error(monkeypatch, settings, message):
    """A server without the extra does not start if its configuration allows expressions."""
    monkeypatch.setattr(expression_module, "find_spec", lambda name: None)

    with pytest.raises(ConfigurationError) as raised:
        Config(public=True, **settings)

    assert (
        f"The argument {message}. Filter expressions need the package common-expression-language: "
        'pip install "kafkasse[cel]"' in str(raised.value)
    )


@pytest.mark.parametrize("wrong", ["keys", "header", "header.", "field", "headers.a", "filter.x", "*"])
def test_client_filters_lists_query_parameters(wrong):
    with pytest.raises(ConfigurationError, match=r"must be key, header.NAME, field.PATH or filter"):
        Config(public=True, allowed_topics=["*"], client_filters=[wrong])


@pytest.mark.parametrize("number", ["7", "7.0", "12.5", "0.00001", "-0.0000012", "100000000000000000000000"])
def test_a_number_is_found_as_it_is_written(number):
    """Python would write 0.00001 as 1e-05. A whole number has no decimals."""
    where = Where.parse({"fields": {"n": number.removesuffix(".0")}})

    assert where.filter.matches(view_of(b'{"n":%b}' % number.encode()))
