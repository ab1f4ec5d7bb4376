"""A stream that opens slowly does not undo a logout: it saves no session that it has not changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from cachelib import SimpleCache
from flask import Flask, session
from flask.sessions import SecureCookieSessionInterface
from flask_session import Session

from kafkasse import Config, MemoryLog, Visitor, blueprint
from kafkasse.errors import KafkaUnavailable
from kafkasse.log import Topic


class SavesAlways(SecureCookieSessionInterface):
    """Saves each session, as Flask-Session 0.5 does."""

    def save_session(self, app: Flask, session: Any, response: Any) -> None:
        session.modified = True
        super().save_session(app, session, response)


def in_a_permanent_cookie(app: Flask) -> None:
    app.before_request(lambda: setattr(session, "permanent", True) if "user" in session else None)


def in_a_cookie_that_is_always_saved(app: Flask) -> None:
    app.session_interface = SavesAlways()


def on_the_server(app: Flask) -> None:
    app.config |= {"SESSION_TYPE": "cachelib", "SESSION_CACHELIB": SimpleCache()}
    Session(app)


def member(request: Any) -> Visitor | None:
    """A guard that, as many apps do for each request, makes the session permanent."""
    session.permanent = True
    return Visitor(name=session["user"]) if "user" in session else None


PUBLIC = {"public": True}
GUARDED = {"guards": {"member": member}, "access": ["member"]}


class SlowLog(MemoryLog):
    """Calls a function while a stream opens."""

    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def describe(self, topics: Any) -> dict[str, Topic]:
        self.meanwhile()
        return super().describe(topics)


def app_with(keep: Callable[[Flask], None], log: MemoryLog, access: dict[str, Any] = PUBLIC) -> Flask:
    app = Flask("host")
    app.secret_key = "secret"  # noqa: S105
    keep(app)
    app.register_blueprint(blueprint(Config(allowed_topics=["t"], **access), log))
    app.add_url_rule("/login", "login", lambda: session.update(user="ada") or "in", methods=["POST"])
    app.add_url_rule("/logout", "logout", lambda: session.clear() or "out", methods=["POST"])
    app.add_url_rule("/user", "user", lambda: session.get("user", "nobody"))
    return app


@pytest.mark.parametrize("keep", [in_a_permanent_cookie, in_a_cookie_that_is_always_saved, on_the_server])
@pytest.mark.parametrize("access", [PUBLIC, GUARDED], ids=["public", "guarded"])
@pytest.mark.parametrize("error", [None, KafkaUnavailable("no answer")], ids=["opens", "is rejected"])
def test_a_stream_does_not_undo_a_logout(keep, access, error):
    log = SlowLog()
    log.create("t")
    app = app_with(keep, log, access)
    browser = app.test_client()
    browser.post("/login")
    assert "ada" == browser.get("/user").text

    def log_out() -> None:
        browser.post("/logout")
        if error:
            raise error

    log.meanwhile = log_out
    stream = app.test_client(use_cookies=False).get(
        "/t", headers={"Cookie": "; ".join(f"{cookie.key}={cookie.value}" for cookie in browser._cookies.values())}
    )

    assert (503 if error else 200) == stream.status_code
    assert "Set-Cookie" not in stream.headers
    assert "nobody" == browser.get("/user").text


def test_a_session_that_the_app_changes_is_saved():
    """Also if the app changes it after the stream has opened."""
    log = MemoryLog()
    log.create("t")
    app = app_with(lambda app: None, log)

    @app.after_request
    def count(response: Any) -> Any:
        session["visits"] = session.get("visits", 0) + 1
        return response

    browser = app.test_client()
    browser.get("/t").close()
    with browser.session_transaction() as stored:
        assert 1 == stored["visits"]
