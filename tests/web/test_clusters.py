"""Routes whose topics are in different clusters. The clusters are logs in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import gevent
from flask import Flask
from flask.testing import FlaskClient
from gevent.event import Event as Flag

from kafkasse.config import Config
from kafkasse.log.memory import MemoryLog
from kafkasse.web.blueprint import streams_blueprint
from tests.support.sse import read_until

ROUTES = {
    "here": {"path": "/here", "topics": ["t"], "start": "earliest"},
    "eu": {"path": "/eu", "topics": ["t"], "start": "earliest", "cluster": "eu"},
}


def client_of(opening: Callable[[str], object]) -> FlaskClient:
    """Return a client of an app that calls a function before it opens a cluster. Each has a record with its name."""

    def open_log(name: str) -> MemoryLog:
        opening(name)
        log = MemoryLog()
        log.create("t")
        log.append("t", json.dumps({"cluster": name or "here"}).encode())
        return log

    eu = {"bootstrap_servers": "kafka-eu.example:9092"}
    config = Config(heartbeat_s=0.05, public=True, allowed_topics=["*"], clusters={"eu": eu}, routes=ROUTES)
    app = Flask("host")
    app.register_blueprint(streams_blueprint(config, open_log, "kafkasse", catalog=False, console=False))
    return app.test_client()


def first_record(client: FlaskClient, path: str) -> str:
    with client.get(path, buffered=False) as response:
        assert 200 == response.status_code
        return re.findall(r'"cluster": "(\w+)"', read_until(response.response, b"cluster").decode())[0]


def test_a_route_reads_from_its_own_cluster():
    """All other routes, and /{topics}, read from the cluster of the setting `kafka`. A request opens its cluster."""
    opened: list[str] = []
    client = client_of(opened.append)

    assert ["here", "here"] == [first_record(client, path) for path in ("/here", "/t?timestamp=0")]
    assert [""] == opened
    assert "eu" == first_record(client, "/eu")
    assert ["", "eu"] == opened


def test_a_cluster_that_is_slow_to_open_does_not_delay_the_other():
    reached, answers = Flag(), Flag()
    client = client_of(lambda name: reached.set() or answers.wait() if name else None)
    waiting = gevent.spawn(first_record, client.application.test_client(), "/eu")
    reached.wait()

    assert "here" == first_record(client, "/here")

    answers.set()
    assert "eu" == waiting.get(timeout=120)
