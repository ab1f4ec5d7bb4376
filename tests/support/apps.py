"""Apps for gunicorn with hooks or a log in memory, which can be set only in code."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import gevent
from flask import Flask, Response, request

from kafkasse.app import blueprint, create_app
from kafkasse.config import Config
from kafkasse.log.memory import MemoryLog
from kafkasse.records.frame.hooks import TopicRecord


def in_memory() -> Flask:
    """An app that serves the topic `t` from memory, for tests of the server that need no Kafka."""
    log = MemoryLog()
    log.create("t")
    return create_app(Config.load(), log)


def large() -> Flask:
    """An app whose topic `t` has a record that is larger than the buffers of a connection."""
    log = MemoryLog()
    log.create("t")
    log.append("t", b'{"text":"%s"}' % (b"x" * 14_000_000))
    return create_app(Config.load(), log)


def lazy(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
    """A WSGI app that is a generator. It therefore calls start_response() when the server asks for the first bytes."""
    start_response("200 OK", [("Content-Length", "2")])
    yield b"ok"


def ticking() -> Flask:
    """An app whose topic `t` receives a record with the next number every 10 ms."""
    log = MemoryLog()
    log.create("t")

    def write() -> None:
        for n in itertools.count():
            log.append("t", b'{"n":%d}' % n)
            gevent.sleep(0.01)

    gevent.spawn(write)
    return create_app(Config.load(), log)


def samples() -> Flask:
    """An app with the streams that the samples of the docs read. A topic has 20 records, and receives 10 per second."""
    log = MemoryLog()
    topics = "countries", "orders", "topn"
    for topic in topics:
        log.create(topic)

    def append() -> None:
        for topic in topics:
            value = b'{"name":"France","amount":200.0,"customer":{"id":7}}'
            log.append(topic, value, key=b"alice", headers=[("type", b"paid")])

    def write() -> None:
        while True:
            append()
            gevent.sleep(0.1)

    for _ in range(20):  # a sample starts at offset 12
        append()
    gevent.spawn(write)
    routes = {"topn": {"path": "/topn/updates", "topics": ["topn"], "access": "public"}}
    filters = ["key", "header.type", "field.customer.id", "filter"]
    return create_app(Config.load(routes=routes, client_filters=filters), log)


def with_login() -> Flask:
    """The app of ticking(), with a login that stores the token of a request in a cookie."""
    app = ticking()

    def login() -> Response:
        response = Response(status=204)
        token = request.headers["Authorization"].removeprefix("Bearer ")
        response.set_cookie("__Host-token", token, secure=True, httponly=True, samesite="Lax")
        return response

    app.add_url_rule("/login", view_func=login)
    return app


def event_streams() -> Flask:
    """An app with the URLs of Wikimedia's EventStreams, which adds each record's place in Kafka to the member `meta`."""

    def deserialize(record: TopicRecord) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(record.value or b"{}")
        place = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        return message | {"meta": message["meta"] | place}

    app = Flask("event_streams")
    app.register_blueprint(blueprint(Config.load(deserializer=deserialize)), url_prefix="/v2/stream")
    return app
