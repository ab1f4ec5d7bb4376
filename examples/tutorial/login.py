"""Let customers sign in with a name and a password, and sign out. users.json contains the hashes of the passwords."""

import json
import secrets
import time
from functools import wraps
from pathlib import Path

import click
from flask import Blueprint, abort, redirect, render_template, request, session, url_for
from werkzeug.security import check_password_hash, generate_password_hash

import kafkasse

USERS = Path(__file__).with_name("users.json")
LIFETIME_S = 8 * 60 * 60
UNKNOWN = generate_password_hash(secrets.token_hex())  # unknown names then take as long to check as known ones

pages = Blueprint("login", __name__, cli_group=None)


def customer(request):
    """Return the signed-in customer, or None. kafkasse calls this function whenever a client requests a stream."""
    if session.get("expires_at", 0) < time.time():
        return None
    name = session["customer"]
    return kafkasse.Visitor(name=name, claims={"sub": name}, expires_at=session["expires_at"])


def required(view):
    """Redirect to the login page unless a customer has signed in."""

    @wraps(view)
    def guarded(**arguments):
        return view(**arguments) if customer(request) else redirect(url_for("login.sign_in"))

    return guarded


@pages.app_template_global()
def form_token():
    """Return the token of this session. Every form contains the token; pages of other sites do not know it."""
    return session.setdefault("form_token", secrets.token_urlsafe())


@pages.before_request
def check_form():
    """Reject a form without the token of this session."""
    if request.method == "POST" and request.form.get("form_token", "") != session.get("form_token"):
        abort(400, "This form has expired. Reload the page and try again.")


@pages.route("/login", methods=["GET", "POST"])
def sign_in():
    """Show the login form, or check a submitted form and sign the customer in."""
    if request.method == "GET":
        return render_template("login.html")
    name = request.form["name"]
    if not check_password_hash(_read_users().get(name, UNKNOWN), request.form["password"]):
        return render_template("login.html", error="The name or the password is wrong."), 403
    before = session.get("customer")
    session.clear()
    session.update(customer=name, expires_at=time.time() + LIFETIME_S)
    return _ending_streams(before, redirect(url_for("orders")))


@pages.post("/logout")
def sign_out():
    """Sign the customer out."""
    before = session.get("customer")
    session.clear()
    return _ending_streams(before, redirect(url_for("login.sign_in")))


def _ending_streams(name, response):
    """Return the response. After the browser has received it with the new cookie, end the streams in all tabs."""
    if name:
        response.call_on_close(lambda: kafkasse.end_streams(name))
    return response


@pages.cli.command()
@click.argument("name")
@click.password_option()
def add_user(name, password):
    """Add a user, or change the password of an existing user."""
    USERS.write_text(json.dumps(_read_users() | {name: generate_password_hash(password)}, indent=2))


def _read_users():
    return json.loads(USERS.read_text()) if USERS.exists() else {}
