"""How many streams a worker, and one client, may have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from kafkasse.app import blueprint
from kafkasse.config import Config
from kafkasse.memory_log import MemoryLog


def client_of(**settings: object) -> FlaskClient:
    log = MemoryLog()
    log.create("t")
    app = Flask(__name__)
    app.register_blueprint(blueprint(Config(allowed_topics=["*"], **settings), log))
    return app.test_client()


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def open_stream(client: FlaskClient, opened: ExitStack, forwarded: str = "", peer: str = "10.0.0.1") -> TestResponse:
    headers = {"X-Forwarded-For": forwarded} if forwarded else {}
    response = client.get("/t", headers=headers, environ_base={"REMOTE_ADDR": peer}, buffered=False)
    opened.callback(response.close)
    return response


def test_a_worker_that_is_full_says_when_to_come_back(opened: ExitStack) -> None:
    """The stream after the last that a worker may have is answered 503, with Retry-After."""
    client = client_of(max_streams=2)
    open_stream(client, opened)
    open_stream(client, opened)

    refused = open_stream(client, opened)

    assert (503, "ServerFullError", True) == (
        refused.status_code,
        refused.json["name"],
        "Retry-After" in refused.headers,
    )


def test_a_place_is_free_again_when_a_stream_has_ended(opened: ExitStack) -> None:
    """A stream that is closed, iterated or not, gives its place back."""
    client = client_of(max_streams=1)
    open_stream(client, opened).close()

    assert 200 == open_stream(client, opened).status_code


def test_a_request_that_fails_takes_no_place(opened: ExitStack) -> None:
    """What is refused after it was counted is counted out again."""
    client = client_of(max_streams=1)
    for _ in range(3):
        assert (
            400 == client.get("/t", headers={"Last-Event-ID": '[{"topic":"t","partition":9,"offset":0}]'}).status_code
        )

    assert 200 == open_stream(client, opened).status_code


def test_one_client_has_its_share(opened: ExitStack) -> None:
    """The stream after the last that one address may have is answered 429; others are served."""
    client = client_of(max_streams_per_client=1)
    open_stream(client, opened)

    assert [429, 200] == [
        open_stream(client, opened).status_code,
        open_stream(client, opened, peer="10.0.0.2").status_code,
    ]


def test_a_forwarded_address_counts_only_by_trusted_hops(opened: ExitStack) -> None:
    """With one proxy of ours the last address counts, which it wrote; those before it anybody could have written."""
    client = client_of(max_streams_per_client=1, trusted_proxies=1)
    open_stream(client, opened, forwarded="1.1.1.1, 2.2.2.2")

    spoofed = open_stream(client, opened, forwarded="9.9.9.9, 2.2.2.2")
    other = open_stream(client, opened, forwarded="1.1.1.1, 3.3.3.3")

    assert [429, 200] == [spoofed.status_code, other.status_code]


def test_without_trusted_hops_the_header_is_not_read(opened: ExitStack) -> None:
    """A client cannot make itself many by writing addresses into a header."""
    client = client_of(max_streams_per_client=1)
    open_stream(client, opened, forwarded="1.1.1.1")

    assert 429 == open_stream(client, opened, forwarded="2.2.2.2").status_code
