"""Requests for guarded streams: which visitors get a stream, and what the others get."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from flask import Request, abort
from flask.testing import FlaskClient
from gevent import Timeout

from kafkasse import Visitor, end_streams, schemas
from kafkasse.access.api_keys import create_key
from kafkasse.access.tickets import LIFETIME_S
from kafkasse.log.memory import MemoryLog
from kafkasse.settings import JwtSettings
from tests.access.conftest import served
from tests.support.issuer import SETTINGS, key_set, token
from tests.web import clients

ClientOf = Callable[..., FlaskClient]
ORIGIN = "https://shop.example"
ROUTE = {"path": "/r", "topics": ["t"]}
COOKIE = "__Host-token"


@pytest.fixture
def guards(jwks_file: Path, tmp_path: Path) -> dict[str, Any]:
    """A guard for tokens, also in a cookie, and a guard for API keys."""
    (tmp_path / "keys").write_text("")
    return {
        "customers": {"jwt": {**SETTINGS, "jwks_file": str(jwks_file)}, "cookie": COOKIE},
        "partners": {"api_keys": {"file": str(tmp_path / "keys")}},
    }


@pytest.fixture
def client(client_of: ClientOf, guards: dict[str, Any]) -> FlaskClient:
    return client_of(
        guards=guards,
        allowed_topics=["*"],
        access=["customers"],
        tickets=True,
        routes={
            "open": {**ROUTE, "path": "/open", "access": "public"},
            "both": {**ROUTE, "path": "/both", "access": ["customers", "partners"]},
            "admins": {**ROUTE, "path": "/admins", "access": [{"guard": "customers", "claims": {"role": ["admin"]}}]},
            "cookies": {**ROUTE, "path": "/cookies", "cors_origins": [ORIGIN], "cors_credentials": True},
        },
    )


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


def status(client: FlaskClient, path: str, method: str = "HEAD", **headers: str) -> int:
    """The status of a request. Header names have underscores."""
    fields = {name.replace("_", "-"): text for name, text in headers.items()}
    with client.open(f"/streams{path}", method=method, headers=fields) as response:
        return response.status_code


# Tokens in a header.


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
@pytest.mark.parametrize("path", ["/t", "/missing", "/both", "/admins", "/t?timestamp=never"])
def test_a_visitor_without_a_token_gets_401(client, path, method):
    """The response is the same for every topic, method and parameter, so that it reveals nothing about them."""
    response = client.open(f"/streams{path}", method=method)

    assert 401 == response.status_code
    assert response.headers["WWW-Authenticate"].startswith('Bearer realm="customers"')
    assert "error=" not in response.headers["WWW-Authenticate"]
    assert "no-store" == response.headers["Cache-Control"]


def test_401_is_a_problem_object(client):
    """It says what is wrong with the token, and there is a challenge for each guard (RFC 6750)."""
    response = client.get("/streams/both", headers=bearer(token(exp=1)))

    problem = json.loads(response.text)
    assert "application/problem+json" == response.content_type
    assert schemas.first_error("problem", problem) is None
    assert (401, "UnauthorizedError") == (problem["status"], problem["name"])
    assert problem["detail"].startswith("The token has expired.")
    challenge = response.headers["WWW-Authenticate"]
    assert 'Bearer realm="customers", error="invalid_token", error_description="The token has expired.' in challenge
    assert 'Bearer realm="partners", error="invalid_token"' in challenge


def test_a_visitor_with_a_token_gets_the_stream(client):
    """The word Bearer may be written in lower case. Topics that do not exist get 404 as usual."""
    assert 200 == status(client, "/t", Authorization=f"Bearer {token()}")
    assert 200 == status(client, "/t", Authorization=f"bearer  {token()}")
    assert 404 == status(client, "/missing", Authorization=f"Bearer {token()}")


@pytest.mark.parametrize("path", ["/open", "/open?access_token=x", "/open?ticket=x"])
def test_a_public_route_needs_no_token(client, path):
    """It ignores tokens, valid or not."""
    assert [200, 200] == [status(client, path), status(client, path, Authorization="Bearer x")]


# Keys at a URL.


def test_keys_come_from_a_url(client_of):
    """The first token makes the server fetch them. Without the keys, a token gets 503 with Retry-After."""
    with served([key_set("rsa-1")]) as url:
        guards = {"customers": {"jwt": {**SETTINGS, "jwks_url": url}}}
        client, late = (client_of(guards=guards, allowed_topics=["t"], access=["customers"]) for _ in range(2))
        statuses = [status(client, "/t", **bearer(token(kid))) for kid in ("rsa-1", "rsa-2")]

    unavailable = late.get("/streams/t", headers=bearer(token()))

    assert [200, 401] == statuses
    assert (503, "AccessUnavailableError") == (unavailable.status_code, unavailable.json["name"])
    assert unavailable.headers["Retry-After"].isdigit()
    assert 401 == status(late, "/t")


# Claims.


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        *(({"role": role}, 200) for role in ("admin", ["user", "admin"])),
        *(({"role": role}, 403) for role in (None, "administrator", {"admin": 1})),  # None: without the claim
    ],
)
def test_claims_grant_access(client, claims, expected):
    """The visitor needs one of the values. A visitor that is known but lacks the claim gets 403."""
    response = client.get("/streams/admins", headers=bearer(token(**claims)))

    assert expected == response.status_code
    if expected == 403:
        assert "ForbiddenError" == json.loads(response.text)["name"]
        assert 'Bearer realm="customers", error="insufficient_scope"' == response.headers["WWW-Authenticate"]
    response.close()


# Cookies.


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, 200),  # not a browser
        ({"Sec_Fetch_Site": "same-origin"}, 200),
        ({"Sec_Fetch_Site": "same-origin", "Origin": "http://localhost"}, 200),
        ({"Sec_Fetch_Site": "none"}, 200),  # the user entered the URL
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
        ({"Sec_Fetch_Site": "cross-site", "Origin": ORIGIN}, 200),
        ({"Sec_Fetch_Site": "cross-site", "Origin": "https://evil.example"}, 403),
        ({"Origin": ORIGIN}, 200),
        ({"Origin": "http://localhost"}, 200),  # the host of the test client
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        *(({"Origin": malformed}, 403) for malformed in ("http://[", "http://[x]", "http://a]b")),
    ],
)
def test_only_pages_of_allowed_origins_may_use_the_cookie(client, headers, expected):
    """Browsers send the cookie with the requests of all pages, so the origin decides."""
    assert expected == status(client, "/cookies", Cookie=f"{COOKIE}={token()}", **headers)


def test_a_guard_reads_only_its_own_cookie(client):
    """Not if there is a header, either. The origins of one route may not use the cookie on another."""
    assert 403 == status(client, "/t", Cookie=f"{COOKIE}={token()}", Origin=ORIGIN)
    assert 401 == status(client, "/t", Cookie=f"token={token()}")
    assert 401 == status(client, "/t", Origin=ORIGIN)
    assert 401 == status(client, "/t", Cookie=f"{COOKIE}={token()}", Authorization="Bearer x")


# Tickets.


def ticket(client: FlaskClient, path: str = "/t", **headers: str) -> Any:
    return client.post(f"/streams/-/ticket?path={path}", headers=headers or bearer(token()))


def test_a_ticket_opens_one_stream(client):
    """A ticket stands for the token in the URL of one stream, once. It has the claims of the token."""
    response = ticket(client, "/admins", **bearer(token(role="admin")))
    issued = response.json["ticket"]

    statuses = [status(client, f"/{path}?ticket={issued}") for path in ("both", "admins", "admins")]

    assert (200, LIFETIME_S) == (response.status_code, response.json["expires_in"])
    assert "no-store" == response.headers["Cache-Control"]
    assert [401, 200, 401] == statuses


def test_a_blueprint_below_a_parameter_issues_tickets(client_of, guards):
    """A ticket is valid for the path that the client requested, which contains the value of the parameter."""
    client = client_of("/<tenant>/streams", guards=guards, allowed_topics=["t"], access=["customers"], tickets=True)

    issued = client.post("/acme/streams/-/ticket?path=/t", headers=bearer(token())).json["ticket"]

    statuses = [client.head(f"/{tenant}/streams/t?ticket={issued}").status_code for tenant in ("other", "acme")]
    assert [401, 200] == statuses


def test_a_ticket_does_not_outlive_its_token(client, monkeypatch):
    issued = ticket(client, **bearer(token(exp=int(time.time()) + 1))).json["ticket"]
    later = time.time() + 1 + JwtSettings.leeway_s
    monkeypatch.setattr("kafkasse.web.identify.time.time", lambda: later)

    response = client.get(f"/streams/t?ticket={issued}")

    assert (401, "Your access has expired.") == (response.status_code, response.json["detail"])


def test_a_ticket_does_not_outlive_its_key(client, guards, monkeypatch):
    monkeypatch.setattr("kafkasse.access.watched_file.CHECK_INTERVAL_S", 0)
    key, line = create_key("a")
    file = Path(guards["partners"]["api_keys"]["file"])
    file.write_text(line)
    issued = ticket(client, "/both", **bearer(key)).json["ticket"]

    file.write_text("")

    response = client.get(f"/streams/both?ticket={issued}")
    assert (401, "The API key of the ticket was revoked.") == (response.status_code, response.json["detail"])


@pytest.mark.parametrize(
    ("path", "headers", "expected"),
    [
        ("/t", {"X": "no token"}, 401),
        ("/admins", {}, 403),
        *((path, {}, 400) for path in ("/open", "/nowhere/at/all", "t", "", "//t", "/-/ticket")),
    ],
)
def test_rejects_a_request_for_a_ticket(client, path, headers, expected):
    """The visitor needs access to the stream, and the stream must exist and be guarded."""
    assert expected == ticket(client, path, **headers).status_code


def test_a_page_of_another_origin_may_request_a_ticket(client):
    """The CORS headers are those of the stream's route, and the preflight response allows POST. Other methods get 405."""
    url, headers = "/streams/-/ticket?path=/cookies", {"Origin": ORIGIN, **bearer(token())}
    preflight, response = client.options(url, headers={"Origin": ORIGIN}), client.post(url, headers=headers)
    of_other_route, get = (
        client.options("/streams/-/ticket?path=/t", headers={"Origin": ORIGIN}),
        client.get(url, headers=headers),
    )

    assert "POST, OPTIONS" == preflight.headers["Access-Control-Allow-Methods"]
    assert [ORIGIN] * 2 == [answer.headers["Access-Control-Allow-Origin"] for answer in (preflight, response)]
    assert "Access-Control-Allow-Origin" not in of_other_route.headers
    assert (405, "POST, OPTIONS") == (get.status_code, get.headers["Allow"])


def test_without_the_setting_there_are_no_tickets(client_of, guards):
    """The endpoint does not exist, and a stream says why it rejects a ticket."""
    client = client_of(guards=guards, allowed_topics=["t"], access=["customers"])

    assert 404 == client.post("/streams/-/ticket?path=/t").status_code
    assert "tickets: false" in client.get("/streams/t?ticket=x").json["detail"]
    assert "POST /-/ticket" not in client.get("/streams/t?token=x").json["detail"]


def test_a_token_in_a_url_is_rejected_with_advice(client):
    """The response says where the token belongs, and does not repeat it."""
    for name in ("access_token", "token", "ticket", "API_KEY"):
        response = client.get(f"/streams/t?{name}={token()}", headers=bearer(token()))

        assert 400 == response.status_code
        assert "Authorization header" in response.json["detail"]
        assert "POST /-/ticket" in response.json["detail"]
        assert "ey" not in response.text


# Guards of the application.


def test_a_function_of_the_app_can_be_a_guard(client_of):
    """It returns the visitor or None, or aborts, for example with a redirect to a login page."""

    def session(request: Request) -> Visitor | None:
        user = request.headers.get("X-User")
        if user == "bug":
            raise ValueError("no database")
        if user == "slow":
            raise Timeout(5)  # which is not an Exception
        if user == "unknown":
            abort(418)
        return Visitor(name=user, claims={"role": user}) if user else None

    client = client_of(
        guards={"ticket": session},
        allowed_topics=["t"],
        access=["ticket"],
        cors_origins=[ORIGIN],
        routes={"r": {**ROUTE, "access": [{"guard": "ticket", "claims": {"role": ["admin"]}}]}},
    )

    assert 401 == status(client, "/t")
    users = {"ada": 200, "unknown": 418, "bug": 500, "slow": 500}
    assert users == {user: status(client, "/t", X_User=user) for user in users}
    assert [403, 200] == [status(client, "/r", X_User=user) for user in ("ada", "admin")]
    failed = client.get("/streams/t", headers={"X-User": "bug"})
    assert "5" == failed.headers["Retry-After"]  # by then, the database may be available again
    aborted = client.get("/streams/t", headers={"X-User": "unknown", "Origin": ORIGIN})
    assert ORIGIN == aborted.headers["Access-Control-Allow-Origin"]


@pytest.mark.parametrize("name", [0, "0", 7, "7"])
def test_the_name_of_a_visitor_may_be_a_number(client_of, name):
    """For example, the ID of a user in a database. At the logout, the app may pass it as text."""
    client = client_of(guards={"session": lambda _: Visitor(name=int(name))}, allowed_topics=["t"], access=["session"])

    with client.get("/streams/t", buffered=False) as response:
        assert (200, 1) == (response.status_code, end_streams(name))


def test_credentials_that_no_guard_of_the_stream_accepts(client_of, guards):
    """The 401 says so. It is the same for valid and invalid credentials, and does not repeat them."""
    key, line = create_key("a")
    Path(guards["partners"]["api_keys"]["file"]).write_text(line)
    client = client_of(
        guards={**guards, "session": lambda _: None},
        access=["session"],
        allowed_topics=["t"],
        routes={"keys": {**ROUTE, "path": "/keys", "access": ["partners"]}},
    )
    sent = [bearer(key), bearer("kafkasse_x"), {"Cookie": f"{COOKIE}={token()}"}, {"Cookie": f"{COOKIE}=x"}]

    responses = [client.get("/streams/t", headers=headers) for headers in sent]
    of_keys = client.get("/streams/keys", headers=sent[2])
    without = client.get("/streams/t", headers={"Cookie": "other=x", "Authorization": "Basic eDp5"})

    detail = "No guard of this stream accepts these credentials."
    assert {(401, detail)} == {(response.status_code, response.json["detail"]) for response in [*responses, of_keys]}
    assert 1 == len({response.headers["WWW-Authenticate"] for response in responses})
    assert 'Cookie realm="session"' == responses[0].headers["WWW-Authenticate"]  # a token would not help
    challenge = f'Bearer realm="partners", error="invalid_token", error_description="{detail}"'
    assert challenge == of_keys.headers["WWW-Authenticate"]
    assert "This stream needs a token or a login." == without.json["detail"]


def test_the_hosts_error_handlers_do_not_see_401_and_403(client):
    """In a host app, these errors are problem objects too."""
    for code in (401, 403):
        client.application.register_error_handler(code, lambda error: ("the host's own page", 200))

    assert "UnauthorizedError" == client.get("/streams/t").json["name"]
    assert "ForbiddenError" == client.get("/streams/admins", headers=bearer(token())).json["name"]


def test_a_guard_that_returns_no_visitor_is_named_in_the_log(client_of, caplog):
    """The client gets a problem object that contains nothing of the returned value."""
    client = client_of(guards={"session": lambda _: "ada lovelace"}, allowed_topics=["t"], access=["session"])

    response = client.get("/streams/t")

    assert (500, "KafkaSSEError") == (response.status_code, response.json["name"])
    assert "The guard session must return a kafkasse.Visitor or None, not str" in caplog.text
    assert "lovelace" not in response.text + caplog.text


@pytest.mark.parametrize("expires_at", [datetime.now(UTC), None, "tomorrow"])
def test_expires_at_of_a_visitor_must_be_a_number(expires_at):
    """The error is raised in the code of the guard, so the traceback names its line."""
    with pytest.raises(TypeError, match="expires_at must be a number of seconds since the epoch, not a value of type"):
        Visitor(expires_at=expires_at)


# The end of access.


def test_a_slow_client_gets_no_records_after_its_visitor_has_expired(monkeypatch):
    """This server iterates over the response. A jump of the wall clock does not end the stream."""
    log = MemoryLog()
    log.create("t")
    for n in range(1000):
        log.append("t", b'{"n":%d,"text":"%b"}' % (n, b"x" * 1000))
    expires_at, now = time.time() + 3600, time.monotonic
    guards = {"session": lambda _: Visitor(expires_at=expires_at)}
    settings = {"guards": guards, "access": ["session"], "public": False}
    response = clients.client_of(log, None, **settings).get("/t?timestamp=0", buffered=False)
    chunks = iter(response.response)
    first = [next(chunks), next(chunks)]
    monkeypatch.setattr(time, "time", lambda: expires_at + 60)  # the clock of the machine is set
    after_a_jump = next(chunks)

    monkeypatch.setattr(time, "monotonic", lambda: now() + 3600)
    rest = list(chunks)

    assert b"data: {" in b"".join(first)
    assert b"data: {" in after_a_jump
    assert (1, True) == (len(rest), rest[0].startswith(b"retry: "))


# Secrets.


def test_tokens_are_not_logged(client, caplog):
    caplog.set_level(logging.DEBUG)
    given = [token(), token(exp=1), "kafkasse_" + "k" * 43, ticket(client).json["ticket"]]
    texts = []
    for credential in given:
        for path in ("/t", f"/t?ticket={credential}", f"/both?token={credential}"):
            with client.open(f"/streams{path}", method="HEAD", headers=bearer(credential)) as response:
                texts += [response.text, str(response.headers)]

    shown = caplog.text + "".join(texts)

    assert [] == [credential for credential in given if credential.rpartition(".")[2] in shown]


# CORS.


def test_cors_is_set_per_route(client):
    """The origins of one route may not read another. Browsers send OPTIONS without credentials."""
    paths, headers = ("cookies", "both", "t"), {"Origin": ORIGIN}
    allowed = [
        client.get(f"/streams/{path}", headers=headers).headers.get("Access-Control-Allow-Origin") for path in paths
    ]
    preflight = client.options("/streams/cookies", headers=headers)

    assert [ORIGIN, None, None] == allowed
    assert 204 == preflight.status_code
    assert "Authorization" in preflight.headers["Access-Control-Allow-Headers"]
