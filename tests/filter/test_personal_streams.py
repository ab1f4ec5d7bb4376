"""Personal streams: a route with `where: {key: "{claims.sub}"}` behind a guard, without Kafka and without a server."""

from __future__ import annotations

from pathlib import Path

import pytest
from flask.testing import FlaskClient

from kafkasse.log.memory import MemoryLog
from tests.support.issuer import SETTINGS, key_set, token
from tests.support.sse import read_until
from tests.web.clients import client_of

OWNERS = [b"ada", b"bob", b"ada", b"{claims.sub}", b"*", b"news"]


@pytest.fixture
def client(tmp_path: Path) -> FlaskClient:
    """An app in which each visitor receives its own orders, and the news for everyone."""
    (tmp_path / "jwks.json").write_bytes(key_set("rsa-1"))
    log = MemoryLog()
    log.create("orders")
    for n, owner in enumerate(OWNERS):
        log.append("orders", b'{"n":%d}' % n, key=owner)
    route = {
        "path": "/me/orders",
        "topics": ["orders"],
        "access": ["customers"],
        "start": "earliest",
        "where": {"key": ["{claims.sub}", "news"]},
        "client_filters": ["key", "filter"],
    }
    guards = {"customers": {"jwt": {**SETTINGS, "jwks_file": str(tmp_path / "jwks.json")}}}
    return client_of(log, None, guards=guards, routes={"my_orders": route})


def received(client: FlaskClient, query: str = "", **claims: object) -> list[int]:
    """Return the numbers of the records that a visitor with these claims receives."""
    with client.get(f"/me/orders{query}", headers=_bearer(**claims), buffered=False) as response:
        assert 200 == response.status_code
        body = read_until(response.response, b'"offset":%d' % len(OWNERS))
    return [n for n in range(len(OWNERS)) if b'data: {"n":%d,' % n in body]


def _bearer(**claims: object) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(**claims)}"}


def test_each_visitor_receives_its_own_records(client):
    assert [[0, 2, 5], [1, 5], [5]] == [received(client, sub=name) for name in ("ada", "bob", "carol")]


@pytest.mark.parametrize(
    ("sub", "expected"), [("*", [4, 5]), ("{claims.sub}", [3, 5]), ("ada' || true", [5]), ("ad\u0430", [5])]
)
def test_a_claim_has_no_special_meaning(client, sub, expected):
    """A claim that looks like a pattern, a template or an expression is compared literally."""
    assert expected == received(client, sub=sub)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("?key=bob", []),
        ("?key=bob&key=ada", [0, 2]),
        ("?key=news", [5]),
        ("?filter=true", [0, 2, 5]),
        ("?filter=offset>1", [2, 5]),
    ],
)
def test_a_query_only_narrows_a_personal_stream(client, query, expected):
    """A visitor cannot receive the records of others by a filter."""
    assert expected == received(client, query, sub="ada")


def test_a_visitor_without_the_claim_is_forbidden(client):
    response = client.get("/me/orders", headers=_bearer(sub=None))

    problem = response.get_json(force=True)
    assert (403, "ForbiddenError") == (response.status_code, problem["name"])
    assert "This stream requires the claim sub, which your credentials do not contain." == problem["detail"]
