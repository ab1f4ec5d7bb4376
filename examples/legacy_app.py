"""An app that was there before kafkasse: pages, a login, error pages of its own. The last three lines mount the streams.

    gunicorn --worker-class kafkasse.server.worker.Worker legacy_app:app

Nothing else had to change. The login guards the streams too, because it guards every path; the error pages stay the app's
own everywhere else; the session is as it was.
"""

from __future__ import annotations

import os

from flask import Flask, redirect, request, session, url_for
from werkzeug.wrappers import Response

import kafkasse

app = Flask(__name__)
app.secret_key = os.environ.get("SECRET_KEY", "only for trying it out")


@app.before_request
def require_login() -> Response | None:
    """Everything but the login is for those who are logged in."""
    if "user" in session or request.endpoint == "login":
        return None
    return redirect(url_for("login"))


@app.route("/login", methods=["GET", "POST"])
def login() -> str | Response:
    """Logs in whoever gives a name."""
    if request.method == "POST":
        session["user"] = request.form["user"]
        return redirect(url_for("orders"))
    return '<form method="post"><label>Name <input name="user"></label> <button>Log in</button></form>'


@app.route("/")
def orders() -> str:
    """A page of the app, which now can listen to /streams/orders."""
    session["visits"] = session.get("visits", 0) + 1
    return f"<p>Visit {session['visits']}.</p>"


@app.errorhandler(404)
def not_found(_: Exception) -> tuple[str, int]:
    """The app's own page for what is not there."""
    return "<h1>We do not have this page</h1>", 404


@app.errorhandler(Exception)
def failed(error: Exception) -> tuple[str, int]:
    """The app's own page for what went wrong."""
    app.logger.exception("a request failed", exc_info=error)
    return "<h1>Something went wrong here</h1>", 500


config = kafkasse.Config.load(allowed_topics=["orders", "orders.*"], routes={})
streams = kafkasse.blueprint(config)
app.register_blueprint(streams, url_prefix="/streams")
