"""Flask's test client of an app with the blueprint."""

from __future__ import annotations

from typing import Any

from flask import Flask
from flask.testing import FlaskClient

from kafkasse.app import blueprint
from kafkasse.config import Config
from kafkasse.memory_log import MemoryLog

VALIDATORS = {"If-None-Match": "ETag", "If-Modified-Since": "Last-Modified"}  # Flask 2.0 sends no ETag
HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}  # as a browser sends it


def client_of(log: MemoryLog, prefix: str | None = "/streams", **settings: Any) -> FlaskClient:
    app = Flask("host")
    config = Config(**{"heartbeat_s": 0.05, "allowed_topics": ["*"], "public": True, **settings})
    app.register_blueprint(blueprint(config, log), url_prefix=prefix)
    return app.test_client()


def check_headers(client: FlaskClient, path: str, **headers: str) -> None:
    """Check that a file forbids inline scripts, inline styles and sniffing, and that its revalidation gets a 304."""
    response = client.get(path, headers=headers)

    assert 200 == response.status_code
    policy = response.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert ("nosniff", "no-cache") == (response.headers["X-Content-Type-Options"], response.headers["Cache-Control"])
    known = {name: response.headers[each] for name, each in VALIDATORS.items() if each in response.headers}
    revalidated = client.get(path, headers=headers | known)
    assert (304, b"") == (revalidated.status_code, revalidated.data)
