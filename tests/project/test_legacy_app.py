"""The blueprint in an existing app: examples/legacy_app.py under gunicorn, reading from a real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from kafkasse.broker import EmbeddedBroker
from tests.support.client import Client
from tests.support.kafka import Cluster

COMMAND = "gunicorn --bind 127.0.0.1:0 --worker-class kafkasse.server.worker.Worker legacy_app:app"


@pytest.fixture(scope="module")
def server(tree: Path, web_venv: Path, start: Callable[..., Any], broker: EmbeddedBroker) -> Any:
    """The example, started by the command that it shows, in a folder without kafkasse's gunicorn.conf.py."""
    variables = {"PYTHONPATH": str(tree), "KAFKASSE_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
    return start(COMMAND, tree / "examples", web_venv, **variables)


@pytest.fixture
def site(server: Any) -> str:
    return f"http://127.0.0.1:{server.port}"


@pytest.fixture
def visitor(site: str) -> Iterator[requests.Session]:
    """The session of a user who has logged in."""
    with requests.Session() as session:
        session.post(f"{site}/login", data={"user": "ada"})
        yield session


def test_a_user_who_is_logged_in_reads_a_stream(
    server: Any, visitor: requests.Session, cluster: Cluster, fresh_name: str
) -> None:
    """The blueprint's streams are below /streams of the app."""
    cluster.send(cluster.create(f"orders.{fresh_name}"), b"1", b"2")

    with Client(server.port, f"/streams/orders.{fresh_name}?timestamp=0", Cookie=_cookie(visitor)) as stream:
        events = stream.events(2)

    assert ["1", "2"] == [event.data for event in events]


def test_the_apps_login_protects_the_streams(site: str) -> None:
    answers = [requests.get(f"{site}{path}", allow_redirects=False, timeout=30) for path in ("/", "/streams/orders")]

    assert [(302, "/login"), (302, "/login")] == [(each.status_code, each.headers["Location"]) for each in answers]


def test_a_rejected_stream_does_not_change_the_session(site: str, visitor: requests.Session) -> None:
    """The app's visit counter continues after a stream was rejected."""
    visitor.get(f"{site}/streams/secrets")

    assert ["<p>Visit 2.</p>", "<p>Visit 3.</p>"] == [visitor.get(f"{site}/").text for _ in range(2)]


def test_the_app_keeps_its_error_pages(site: str, visitor: requests.Session) -> None:
    """An unknown path gets the app's own page. An unknown topic gets a problem object in JSON."""
    page, problem = (visitor.get(f"{site}{path}") for path in ("/nothing", "/streams/secrets"))

    assert (404, "<h1>We do not have this page</h1>") == (page.status_code, page.text)
    assert (404, ["secrets"]) == (problem.status_code, problem.json()["topics"])


def _cookie(visitor: requests.Session) -> str:
    return f"session={visitor.cookies['session']}"
