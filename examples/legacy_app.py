"""An existing app with pages, a login and its own error pages. The last three lines add the streams.

    gunicorn --worker-class kafkasse.server.worker.Worker legacy_app:app

The rest of the app is unchanged. Its login also guards the streams, because it guards every path. Requests outside /streams
still use the app's error pages, and the streams do not change the session.
"""

from __future__ import annotations

import os

from flask import Flask, redirect, request, session, url_for
from werkzeug.wrappers import Response

import kafkasse

app = Flask(__name__)
app.secret_key = os.environ.get("SECRET_KEY", "for development only")


@app.before_request
def require_login() -> Response | None:
    """Redirect to the login page unless the user is logged in."""
    if "user" in session or request.endpoint == "login":
        return None
    return redirect(url_for("login"))


@app.route("/login", methods=["GET", "POST"])
def login() -> str | Response:
    """Log in anyone who enters a name."""
    if request.method == "POST":
        session["user"] = request.form["user"]
        return redirect(url_for("orders"))
    return '<form method="post"><label>Name <input name="user"></label> <button>Log in</button></form>'


@app.route("/")
def orders() -> str:
    """Show a page. Its scripts could read the stream at /streams/orders."""
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


config = kafkasse.Config.load(allowed_topics=["orders", "orders.*"], public=True)  # the app's login guards them
streams = kafkasse.blueprint(config)
app.register_blueprint(streams, url_prefix="/streams")
