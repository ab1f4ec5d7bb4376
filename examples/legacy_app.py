"""An existing app with pages, a login, a logout and its own error pages, and the streams of its customers' orders.

    SECRET_KEY=… gunicorn --worker-class kafkasse.server.worker.Worker legacy_app:app

Each customer reads only the records whose key is the customer's name. The path contains this name, so that a page that is
still open when someone else logs in gets a 403. Without a login, a stream gets a 401 instead of a
redirect, because a script cannot follow one to a page. The streams end at the logout, at the login of another customer in
the same browser, and when the login expires. What was added to the app is marked with `kafkasse`. All other requests still
use its error pages, and the streams do not change the session.
"""

from __future__ import annotations

import os
import time

from flask import Flask, Request, redirect, request, session, url_for
from werkzeug.wrappers import Response

import kafkasse

LIFETIME_S = 8 * 60 * 60

app = Flask(__name__)
app.config["SESSION_COOKIE_SAMESITE"] = "Lax"  # pages of other origins cannot use the session
app.secret_key = os.environ["SECRET_KEY"]  # create one with: python -c 'import secrets; print(secrets.token_hex())'


@app.before_request
def require_login() -> Response | None:
    """Redirect to the login page unless the user is logged in. The streams have a guard instead (kafkasse)."""
    if user() or request.endpoint == "login" or request.blueprint == "kafkasse":
        return None
    return redirect(url_for("login"))


def user() -> str:
    """Return the name of the user, or "" without a login."""
    return str(session["user"]) if session.get("expires_at", 0) > time.time() else ""


@app.route("/login", methods=["GET", "POST"])
def login() -> str | Response:
    """Log in anyone who enters a name, and end the previous user's streams (kafkasse)."""
    if request.method == "POST":
        before = user()
        session["user"], session["expires_at"] = request.form["user"], time.time() + LIFETIME_S
        return ending_streams(before, redirect(url_for("orders")))
    return '<form method="post"><label>Name <input name="user"></label> <button>Log in</button></form>'


@app.route("/logout", methods=["POST"])
def logout() -> Response:
    """Log out, and end the user's streams (kafkasse)."""
    before = user()
    session.clear()
    return ending_streams(before, redirect(url_for("login")))


@app.route("/")
def orders() -> str:
    """Show a page. Its scripts could read the stream at /streams/orders/{name}."""
    session["visits"] = session.get("visits", 0) + 1
    return f"<p>Visit {session['visits']}.</p>"


@app.errorhandler(404)
def not_found(_: Exception) -> tuple[str, int]:
    """Show the app's own page for missing pages."""
    return "<h1>We do not have this page</h1>", 404


@app.errorhandler(Exception)
def failed(error: Exception) -> tuple[str, int]:
    """Show the app's own page for unexpected errors."""
    app.logger.exception("request failed", exc_info=error)
    return "<h1>Something went wrong here</h1>", 500


# kafkasse


def ending_streams(name: str, response: Response) -> Response:
    """Return the response. After the browser has received it with the new cookie, end the user's streams in all tabs."""
    if name:
        response.call_on_close(lambda: kafkasse.end_streams(name))
    return response


def customer(_: Request) -> kafkasse.Visitor | None:
    """Return the visitor of a stream, or None without a login."""
    name = user()
    return kafkasse.Visitor(name=name, claims={"sub": name}, expires_at=session["expires_at"]) if name else None


config = kafkasse.Config.load(
    guards={"session": customer},
    routes={
        "my_orders": {
            "path": "/orders/{customer}",
            "topics": ["orders"],
            "access": [{"guard": "session", "claims": {"sub": ["{customer}"]}}],
            "where": {"key": "{customer}"},
        }
    },
)
app.register_blueprint(kafkasse.blueprint(config), url_prefix="/streams")
