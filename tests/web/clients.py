"""Flask's test client of an app with the blueprint."""

from __future__ import annotations

from typing import Any

from flask import Flask
from flask.testing import FlaskClient

from kafkasse.app import blueprint
from kafkasse.config import Config
from kafkasse.log.memory import MemoryLog

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}  # as a browser sends it


def client_of(log: MemoryLog, prefix: str | None = "/streams", **settings: Any) -> FlaskClient:
    app = Flask("host")
    config = Config(**{"heartbeat_s": 0.05, "allowed_topics": ["*"], "public": True, **settings})
    app.register_blueprint(blueprint(config, log), url_prefix=prefix)
    return app.test_client()
