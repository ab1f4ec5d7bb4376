"""Filters of routes and queries in a whole app, without Kafka and without a server."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse as Response

from kafkasse.errors import InvalidParameter
from kafkasse.log.memory import MemoryLog, MemoryRecord
from kafkasse.records.absent_parts import CHECKED_RECORDS, AbsentParts, has_member
from kafkasse.records.encoder import Encoder
from kafkasse.records.filter import parse_query, query
from kafkasse.web.throttle import BURST
from tests.support.metric_values import value_of
from tests.support.sse import Event, read_events, read_until
from tests.web import clients

START = 'last_event_id=[{"topic":"orders","partition":0,"offset":0}]'
ORDERS = [
    (b"alice", [("type", b"created")], {"n": 0, "amount": 5, "customer": {"id": 7}}),
    (b"bob", [("type", b"created")], {"n": 1, "amount": 50, "customer": {"id": 8}}),
    (b"alice", [("type", b"paid")], {"n": 2, "amount": 500, "customer": {"id": 7}}),
    (b"carol", [("type", b"paid")], {"n": 3, "customer": {"id": "7"}}),
    (None, [], {"n": 4, "amount": 5000}),
]

END = b'"offset":%d' % len(ORDERS)  # in the event ID at the end of the log
ALLOWED = " The filters of this route are key, field.id."

Open = Callable[..., FlaskClient]


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    log.create("orders")
    for key, headers, value in ORDERS:
        log.append("orders", json.dumps(value).encode(), key=key, headers=headers)
    return log


@pytest.fixture
def client_of(log: MemoryLog) -> Open:
    """Return a function that returns a client of an app with a route /orders and other settings."""

    def client_of(path: str = "/orders", settings: dict[str, Any] | None = None, **route: Any) -> FlaskClient:
        routes = {"orders": {"path": path, "topics": ["orders"], "start": "earliest", **route}}
        return clients.client_of(log, None, routes=routes, **(settings or {}))

    return client_of


def numbers(client: FlaskClient, path: str) -> list[int]:
    """Return the member `n` of all records of a stream up to the end of the log."""
    return [json.loads(event.data)["n"] for event in to_the_end(client, path) if event.type == "message"]


def to_the_end(client: FlaskClient, path: str, end: bytes = END) -> list[Event]:
    """Return the events of a stream up to the ID of the end of the log."""
    with client.get(path, buffered=False) as response:
        assert 200 == response.status_code, response.get_data()
        return list(read_events(read_until(response.response, end)))


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"key": "alice"}, [0, 2]),
        ({"key": ["alice", "carol"]}, [0, 2, 3]),
        ({"headers": {"type": "paid"}}, [2, 3]),
        ({"headers": {"type": ["paid", "created"]}, "key": "bob"}, [1]),
        ({"fields": {"customer.id": 7}}, [0, 2, 3]),
        ({"expression": "value.amount > 10"}, [1, 2, 4]),
        ({"key": "alice", "expression": "value.amount > 10"}, [2]),
        ({"key": "nobody"}, []),
    ],
)
def test_a_route_contains_the_records_that_meet_its_conditions(client_of, where, expected):
    """The conditions of a route are literal values or an expression, and a record must meet all of them."""
    assert expected == numbers(client_of(where=where), "/orders")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("key=alice", [0, 2]),
        ("key=alice&key=carol", [0, 2, 3]),
        ("header.type=paid&key=alice", [2]),
        ("field.customer.id=7", [0, 2, 3]),
        ("filter=value.amount%20%3E%2010", [1, 2, 4]),
        ("filter=value.amount%20%3E%2010&key=alice", [2]),
        ("key=*", []),
        ("_=1790000000000&utm_source=x", [0, 1, 2, 3, 4]),
    ],
)
@pytest.mark.parametrize("path", ["/orders?", f"/orders?{START}&"])
def test_a_client_filters_with_its_query(client_of, path, query, expected):
    client = client_of(client_filters=["key", "header.type", "field.*", "filter"])

    assert expected == numbers(client, path + query)


def test_the_open_route_has_the_filters_of_the_whole_server(client_of):
    client = client_of("/other", {"client_filters": ["key"]})

    assert [0, 2] == numbers(client, f"/orders?{START}&key=alice")


def test_a_path_parameter_selects_records(client_of):
    client = client_of("/of/{customer}", where={"key": "{customer}", "headers": {"type": "paid"}})

    assert [[2], [3], []] == [numbers(client, f"/of/{name}") for name in ("alice", "carol", "nobody")]


@pytest.mark.parametrize(
    "value", ["*", "{customer}", "{{", "%00", "a" * 5000, "%EF%BD%81lice", "..", "alice%2Fbob", "' || true"]
)
def test_a_path_parameter_is_compared_literally(client_of, value):
    """No value has a special meaning: not patterns, templates, NUL, long texts, or other forms of the same character."""
    client = client_of("/of/{customer}", where={"key": "{customer}"})

    response = client.get(f"/of/{value}", buffered=False)

    assert 404 == response.status_code or b'data: {"n"' not in read_until(response.response, END)
    response.close()


def test_event_ids_advance_past_filtered_records(client_of):
    """A client whose filter rejects the last records receives their position, so that it does not read them again."""
    events = to_the_end(client_of(where={"key": "bob"}), "/orders")

    assert ["position", "message", "position"] == [event.type for event in events]
    assert [{"topic": "orders", "partition": 0, "offset": 5}] == [
        {name: entry[name] for name in ("topic", "partition", "offset")} for entry in json.loads(events[-1].id)
    ]


def test_an_invalid_expression_is_rejected_with_its_position(client_of):
    response = client_of(client_filters=["filter"]).get("/orders?filter=value.amount+%3E%3E+10")

    assert (400, "application/problem+json") == (response.status_code, response.content_type)
    problem = response.get_json(force=True)
    assert ("InvalidFilterError", 1, 15) == (problem["name"], problem["line"], problem["column"])
    assert "extraneous input '>'" == problem["reason"]
    assert "value.amount >> 10\n              ^" == problem["picture"]


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("header.type=a", "This route does not allow the filter header.type."),
        ("filter=true", "This route does not allow the filter filter."),
        ("keys=a", "There is no query parameter keys. Did you mean key?"),
        ("Key=a", "There is no query parameter Key. Did you mean key?"),
        ("fields.id=a", "There is no query parameter fields.id. Did you mean field.PATH?"),
        ("tiemstamp=0", "There is no query parameter tiemstamp. Did you mean timestamp?"),
        ("ofset=-1", "There is no query parameter ofset. Did you mean offset?"),
        ("header=a", "There is no query parameter header. Did you mean header.NAME?"),
        ("&".join(f"x{n}=" for n in range(21)), "The query has more than 20 parameters with unknown names."),
        ("key=" + "a" * 1001, "The value of key has more than 1000 characters."),
    ],
)  # fmt: skip
def test_a_filter_that_the_route_does_not_allow_is_rejected(client_of, query, detail):
    """A filter is never ignored, because the client would receive records that it does not expect."""
    response = client_of(client_filters=["key", "field.id"]).get(f"/orders?{query}")

    problem = response.get_json(force=True)
    assert (400, detail) == (response.status_code, problem["detail"].removesuffix(ALLOWED))
    assert problem.get("allowed", ["key", "field.id"]) == ["key", "field.id"]


def test_a_route_without_filters_suggests_none(client_of):
    response = client_of().get("/orders?fields=id")

    detail = response.get_json(force=True)["detail"]
    assert "There is no query parameter fields. This route has no client filters." == detail


@pytest.mark.parametrize(
    ("query", "route", "status"),
    [
        ("filter=value.customer.email=='x'", {"redact": ["customer.email"]}, 400),
        ("filter=value.customer['email']=='x'", {"redact": ["customer.email"]}, 400),
        ("filter=value.customer.email.domain=='x'", {"redact": ["customer.email"]}, 400),
        ("filter=value.customer==null", {"redact": ["customer.email"]}, 400),
        ("filter=value==null", {"redact": ["customer.email"]}, 400),
        ("filter=value.items.exists(i,i.price>1)", {"redact": ["items.price"]}, 400),
        ("filter=value.customer.emails=='x'", {"redact": ["customer.email"]}, 200),
        (
            "filter=value['customer.email']=='x'",
            {"fields": ["customer"]},
            400,
        ),  # a member of the value, not of customer
        ("filter=value.customer['email.domain']=='x'", {"fields": ["customer.email"]}, 400),
        ("filter=value['customer.email']=='x'", {"fields": ["customer.email"]}, 200),
        ("field.customer.email=x", {"redact": ["customer.email"]}, 400),
        ("field.customer.id=x", {"fields": ["amount"]}, 400),
        ("filter=value.customer.id==1", {"fields": ["amount"]}, 400),
        ("filter=value.customer.id==1", {"fields": ["customer"]}, 200),
        ("filter=value.customer==null", {"fields": ["customer.id"]}, 400),
        ("filter=key=='x'", {"fields": ["amount"]}, 200),
        ("field.n=1", {"client_filters": ["field.n"], "redact": ["n"]}, 200),
    ],
)
def test_a_client_cannot_find_out_the_values_of_redacted_fields(client_of, query, route, status):
    """A client can filter by the fields that it receives, and by those that the operator names one by one."""
    client = client_of(**{"client_filters": ["filter", "field.*"], **route})

    assert status == client.head(f"/orders?{query}").status_code


def test_a_piece_whose_filter_takes_long_ends_early(client_of, monkeypatch):
    """The server measures the time of filters, so that records that are expensive to filter do not delay other streams."""
    monkeypatch.setattr("kafkasse.records.encoder.MAX_PIECE_S", 1e-12)
    ends: list[int] = []
    encode_piece = Encoder.encode_piece

    def noted(*args: Any) -> Any:
        piece = encode_piece(*args)
        ends.append(piece.end)
        return piece

    monkeypatch.setattr(Encoder, "encode_piece", noted)

    sent = numbers(client_of(client_filters=["filter"]), "/orders?filter=value.n>=0")

    assert ([0, 1, 2, 3, 4], [1, 2, 3, 4, 5]) == (sent, ends)


def test_clients_with_the_same_filter_share_a_feed(log, client_of, monkeypatch):
    """Each record is evaluated once for all clients with the same filter, however they write it."""
    encoded: list[int] = []
    encode_piece = Encoder.encode_piece

    def counted(*args: Any) -> Any:
        piece = encode_piece(*args)
        encoded.extend(piece.offsets)
        return piece

    client = client_of(client_filters=["header.*", "filter"], start="latest")
    paths = ["/orders?filter=value.n>5&header.type=paid", "/orders?header.type=paid&filter=value.n+>+5"]
    responses = [client.get(path, buffered=False) for path in paths * 5]
    streams = [iter(response.response) for response in responses]
    for stream in streams:
        next(stream)
    monkeypatch.setattr(Encoder, "encode_piece", counted)

    log.append("orders", b'{"n":6}', headers=[("type", b"paid")])
    bodies = [next(chunk for chunk in stream if b'"n":6' in chunk) for stream in streams]

    assert 10 == len(bodies)
    assert [5] == encoded
    for response in responses:
        response.close()


@pytest.mark.parametrize("template", ["filter=offset>{}", "header.name{}=a"])
def test_the_number_of_different_filters_is_limited(client_of, template):
    """An address can have half of the places: a further filter gets 429, or 503 if others have the other places."""
    client = client_of(settings={"max_client_filters": 4, "trusted_proxies": 1}, client_filters=["filter", "header.*"])

    def opened(address: str, number: int) -> Response:
        headers = {"X-Forwarded-For": address}
        return client.get(f"/orders?{template.format(number)}", headers=headers, buffered=False)

    streams = [opened("10.0.0.1", 1), opened("10.0.0.1", 1), opened("10.0.0.1", 2), opened("10.0.0.1", 3)]
    streams += [opened("10.0.0.2", 4), opened("10.0.0.2", 5), opened("10.0.0.3", 6), opened("10.0.0.3", 2)]

    assert [200, 200, 200, 429, 200, 503, 200, 200] == [stream.status_code for stream in streams]
    names = [streams[number].get_json(force=True)["name"] for number in (3, 5)]
    assert ["TooManySelectionsError", "ServerFullError"] == names
    for stream in streams:
        stream.close()


def test_a_client_that_repeats_requests_above_its_share_is_slowed_down(client_of):
    """These rejections count towards max_rejections_per_s."""
    settings = {"max_client_filters": 2, "max_rejections_per_s": 0.1}
    client = client_of(settings=settings, client_filters=["filter"])

    with client.get("/orders?filter=offset>0", buffered=False):
        rejected = [client.get("/orders?filter=offset>1") for _ in range(BURST + 1)]

    names = [response.get_json(force=True)["name"] for response in rejected]
    assert ["TooManySelectionsError"] * BURST + ["TooManyRejectionsError"] == names


def test_a_filter_that_nobody_uses_anymore_gives_its_place_to_a_new_one(client_of):
    """Requests that are closed at once do not occupy the places until idle_feed_timeout_s."""
    client = client_of(settings={"max_client_filters": 2}, client_filters=["filter"])

    statuses = []
    for number in range(6):
        with client.get(f"/orders?filter=offset>{number}", buffered=False) as response:
            statuses.append(response.status_code)

    assert [200] * 6 == statuses


def test_an_expression_without_a_result_is_counted_and_logged(client_of, caplog):
    """A record without a field of the expression does not match. The log names the record but does not contain it."""
    client = client_of(where={"expression": "value.amount > 10"})

    with caplog.at_level(logging.WARNING):
        assert [1, 2, 4] == numbers(client, "/orders")

    assert ["A filter expression of the route orders has no result for orders/0 offset 3: a field is missing"] == [
        record.getMessage() for record in caplog.records
    ]
    service = client.application.extensions["kafkasse"]["kafkasse"]
    assert 1 == value_of(service.observer.metrics, "filter_failures", route="orders")


def test_a_query_of_many_unknown_names_is_cheap(monkeypatch):
    """Comparing a name with those of the filters takes about 20 µs, and a query may contain a thousand names."""
    compared: list[str] = []
    monkeypatch.setattr(query, "get_close_matches", lambda name, *_: compared.append(name) or [])

    with pytest.raises(InvalidParameter):
        parse_query([(f"x{number}", "") for number in range(2_000)], ["key"])
    parse_query([("x", "")] * 2_000, ["key"])

    assert len(compared) <= query.MAX_OTHER_NAMES + 1


@pytest.mark.parametrize(
    ("settings", "absent"),
    [
        ({"where": {"fields": {"amuont": 5}}}, "where.fields: amuont"),
        ({"where": {"headers": {"tpye": "paid"}}}, "where.headers: tpye"),
        ({"where": {"fields": {"customer.idd": "{id}"}}, "path": "/orders/{id}"}, "where.fields: customer.idd"),
        ({"fields": ["n", "customer"], "redact": ["customer.nmae"]}, "redact: customer.nmae"),
        ({"fields": ["n", "amuont", "customer.nmae"]}, "fields: amuont, fields: customer.nmae"),
        ({"where": {"fields": {"n": 1}, "headers": {"type": "paid"}}, "redact": ["customer.id"]}, None),
        ({"where": {"key": "alice", "expression": "key != 'erin'"}, "fields": ["amount"]}, None),
        ({"where": {"key": "dave"}, "fields": ["amuont"]}, None),  # no record is sent
    ],
)
def test_logs_once_what_the_first_records_of_a_route_lack(log, client_of, caplog, settings, absent):
    client, path = client_of(**settings), "/orders/7" if "path" in settings else "/orders"
    for _ in range(CHECKED_RECORDS // len(ORDERS) + 1):  # the same records count once
        to_the_end(client, path)
    assert [] == caplog.messages

    for n in range(len(ORDERS), CHECKED_RECORDS):
        log.append("orders", b'{"n":%d}' % n)
    for _ in range(2):
        to_the_end(client, path, b'"offset":%d' % CHECKED_RECORDS)

    warning = "The route orders names parts that none of its first 100 records has: {}. Check the spelling"
    assert ([warning.format(absent)] if absent else []) == [line.partition(", unless")[0] for line in caplog.messages]


def test_a_deeply_nested_value_is_not_checked():
    """It has no part that a route could name, and ends no stream."""
    absent: list[str] = []
    parts = AbsentParts({"redact: a.b": has_member("a.b")}, absent.extend)
    values = [b'{"a":%b%b}' % (b"[" * 900, b"]" * 900)] + [b'{"a":[]}'] * CHECKED_RECORDS

    parts.check("t", 0, [MemoryRecord(offset, 0, None, value, ()) for offset, value in enumerate(values)])

    assert ["redact: a.b"] == absent
