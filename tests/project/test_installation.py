"""kafkasse's wheel in an existing virtual environment. `make compat` runs these tests for many versions of the packages."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafkasse.broker import EmbeddedBroker
from tests.support.client import Client, fetch
from tests.support.kafka import Cluster

APP = """
from flask import Flask
import kafkasse

app = Flask(__name__)
app.register_blueprint(kafkasse.blueprint(kafkasse.Config.load(allowed_topics=["t-*"])), url_prefix="/streams")
"""
COMMAND = (
    "python -m gunicorn -c python:settings --bind 127.0.0.1:0 --worker-class kafkasse.server.worker.Worker shop:app"
)
SETTINGS = "limit_request_field_size = 66560\n"

pytestmark = pytest.mark.skipif("COMPAT_HOME" not in os.environ, reason="run by make compat")


@pytest.fixture
def server(start: Callable[..., Any], broker: EmbeddedBroker, tmp_path: Path) -> Any:
    """A small app in a folder of its own, so that it imports the installed kafkasse."""
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "settings.py").write_text(SETTINGS)
    home = Path(os.environ["COMPAT_HOME"])
    return start(COMMAND, tmp_path, home, KAFKASSE_BOOTSTRAP_SERVERS=broker.bootstrap_servers)


def test_a_client_resumes_after_its_last_event(server: Any, cluster: Cluster, fresh_name: str) -> None:
    cluster.send(cluster.create(fresh_name), b"1", b"2", b"3")

    with Client(server.port, f"/streams/{fresh_name}?timestamp=0") as stream:
        seen = stream.events(2)
    with Client(server.port, f"/streams/{fresh_name}", Last_Event_ID=seen[1].id) as resumed:
        events = resumed.events(1)

    assert ["3"] == [event.data for event in events]


def test_errors_are_problem_objects(server: Any) -> None:
    """The blueprint rejects a topic, and the worker rejects a header that is too large. Both respond with JSON."""
    forbidden = fetch(server.port, "/streams/secrets")
    too_large = fetch(server.port, "/streams/t-1", X_Large="x" * 70_000, Origin="https://a.example")

    answers = [(each.status, each.headers["content-type"], each.json["status"]) for each in (forbidden, too_large)]

    assert [(status, "application/problem+json", status) for status in (404, 431)] == answers


def test_sigterm_ends_streams_with_their_last_event_id(server: Any, cluster: Cluster, fresh_name: str) -> None:
    """The stream ends with a reconnection time and an ID, and gunicorn exits without an error."""
    cluster.send(cluster.create(fresh_name), b"1")

    with Client(server.port, f"/streams/{fresh_name}?timestamp=0") as stream:
        (event,) = stream.events(1)
        server.terminate()
        stream.rest()

    assert event.id == stream.last_id
    assert stream.body.rpartition(b"retry: ")[2].split()[0].isdigit()
    assert 0 == server.wait()
