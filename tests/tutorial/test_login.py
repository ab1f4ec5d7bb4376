"""The login of examples/tutorial, without Kafka: pages redirect, streams answer 401, and other sites cannot submit forms."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from tests.support.server import ROOT

ADA = {"name": "ada", "password": "analytical"}


@pytest.fixture(scope="module")
def login(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The module of the example, with users in an empty folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "examples/tutorial")
        patch.setenv("FLASK_SECRET_KEY", "a secret of the test")
        login = importlib.import_module("login")
        patch.setattr(login, "USERS", tmp_path_factory.mktemp("users") / "users.json")
        yield login
    for name in ("app", "login"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def app(login: ModuleType) -> Flask:
    app: Flask = importlib.import_module("app").app
    app.test_cli_runner().invoke(args=["add-user", ADA["name"], "--password", ADA["password"]])
    return app


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()


def sign_in(client: FlaskClient, **form: str) -> TestResponse:
    return client.post("/login", data={**ADA, "form_token": _token(client), **form})


def test_a_customer_signs_in_and_out(client):
    """Without a login, a page redirects to the login page, and a stream gets a problem object, not a page."""
    page, stream = client.get("/"), client.get("/streams/orders/ada")
    signed_in = sign_in(client)
    shown = client.get("/")
    signed_out = client.post("/logout", data={"form_token": _token(client)})

    assert (302, "/login") == (page.status_code, page.headers["Location"])
    assert (401, "application/problem+json") == (stream.status_code, stream.mimetype)
    assert "This stream needs a token or a login." == json.loads(stream.data)["detail"]
    assert (302, 200, 302) == (signed_in.status_code, shown.status_code, signed_out.status_code)
    assert 302 == client.get("/").status_code


@pytest.mark.parametrize(("name", "password"), [("ada", "wrong"), ("ada", ""), ("nobody", "analytical")])
def test_a_wrong_name_and_a_wrong_password_get_the_same_answer(client, name, password):
    """Nobody can find out which names exist."""
    response = sign_in(client, name=name, password=password)

    assert (403, True) == (response.status_code, b"The name or the password is wrong." in response.data)
    assert 401 == client.get("/streams/orders/ada").status_code


@pytest.mark.parametrize("token", [None, "", "guessed"])
@pytest.mark.parametrize("path", ["/login", "/logout"])
@pytest.mark.parametrize("has_session", [True, False])
def test_a_form_of_another_site_is_rejected(client, path, token, has_session):
    """Without the token of the session, a form does nothing, also if there is no session."""
    if has_session:
        client.get("/login")
    form = ADA if token is None else ADA | {"form_token": token}

    response = client.post(path, data=form)

    assert 400 == response.status_code
    assert 302 == client.get("/").status_code


def test_the_session_has_a_new_token_after_the_login(client):
    """A token from before the login is not valid after it, so nobody can prepare a session for a customer."""
    before = _token(client)
    sign_in(client)

    assert 400 == client.post("/logout", data={"form_token": before}).status_code


def test_a_login_expires(client, login, monkeypatch):
    """After that, pages redirect and streams answer 401."""
    monkeypatch.setattr(login, "LIFETIME_S", -1)
    sign_in(client)

    assert (302, 401) == (client.get("/").status_code, client.get("/streams/orders/ada").status_code)


def test_scripts_and_other_sites_cannot_use_the_cookie(client):
    """Scripts cannot read it, and browsers do not send it with requests of other sites."""
    cookie = sign_in(client).headers["Set-Cookie"]

    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie


def test_the_file_of_users_contains_no_passwords(app, login):
    """It contains salted hashes."""
    (value,) = json.loads(login.USERS.read_text()).values()

    assert value.startswith("scrypt:")


def _token(client: FlaskClient) -> str:
    """Return the token in the form of the page that the client sees."""
    match = re.search(r'name="form_token" value="([^"]+)"', client.get("/", follow_redirects=True).text)
    assert match
    return match[1]
