"""An existing app with pages, a login and its own error pages. The lines after the last comment add the streams.

    gunicorn --worker-class kafkasse.server.worker.Worker legacy_app:app

Each customer receives only their own orders. Two lines above have changed: the login does not redirect requests for streams,
because a client cannot show a login page, and a logout ends the open streams. Requests outside /streams still use the app's
error pages, and the streams do not change the session.
"""

from __future__ import annotations

import os

from flask import Flask, Request, redirect, request, session, url_for
from werkzeug.wrappers import Response

import kafkasse

app = Flask(__name__)
app.secret_key = os.environ.get("SECRET_KEY", "for development only")


@app.before_request
def require_login() -> Response | None:
    """Redirect to the login page unless the user is logged in. The guard of the streams answers 401 instead."""
    if "user" in session or request.endpoint == "login" or request.path.startswith("/streams/"):
        return None
    return redirect(url_for("login"))


@app.route("/login", methods=["GET", "POST"])
def login() -> str | Response:
    """Log in anyone who enters a name."""
    if request.method == "POST":
        session["user"] = request.form["user"]
        return redirect(url_for("orders"))
    return '<form method="post"><label>Name <input name="user"></label> <button>Log in</button></form>'


@app.post("/logout")
def logout() -> Response:
    """Log out, and end the streams in the user's other tabs."""
    if user := session.pop("user", None):
        kafkasse.end_streams(user)
    return redirect(url_for("login"))


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


# The streams.


def customer(_: Request) -> kafkasse.Visitor | None:
    """Return the user who is logged in, or None: the client then gets status 401."""
    user = session.get("user")
    return kafkasse.Visitor(name=user, claims={"sub": user}) if user else None


my_orders = {
    "path": "/orders",
    "topics": ["orders.*"],
    "access": ["customers"],
    "where": {"fields": {"customer": "{claims.sub}"}},
}
config = kafkasse.Config.load(guards={"customers": customer}, routes={"orders": my_orders})
app.register_blueprint(kafkasse.blueprint(config), url_prefix="/streams")
