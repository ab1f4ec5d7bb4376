"""Apps for gunicorn with hooks or a log in memory, which can be set only in code."""

from __future__ import annotations

import gc
import itertools
import json
import math
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent.monkey
from flask import Flask, Response, request

from kafkasse.access import Visitor
from kafkasse.app import blueprint, create_app
from kafkasse.config import Config
from kafkasse.log.memory import MemoryLog
from kafkasse.process.open_streams import streams
from kafkasse.records.encoder import Encoder
from kafkasse.records.frame.hooks import TopicRecord
from kafkasse.web import finite_reads
from kafkasse.web.finite_reads import RecordSource
from kafkasse.web.long_poll import LongPoll
from kafkasse.web.stream_response import PollResponse


def in_memory() -> Flask:
    """An app that serves the topic `t` from memory, for tests of the server that need no Kafka."""
    log = MemoryLog()
    log.create("t")
    return create_app(Config.load(), log)


def fragile() -> Flask:
    """The same app. If the file that FAILS names exists, loading the app fails; if the file is empty, the process dies."""
    file = Path(os.environ["FAILS"])
    if file.exists():
        if reason := file.read_text():
            raise RuntimeError(reason)
        os.kill(os.getpid(), signal.SIGKILL)
    return in_memory()


def failing() -> Flask:
    """An app that cannot be loaded. The first worker fails when there is a second, which fails when it receives SIGTERM."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    second = Path(os.environ["FAILS"]) / "second"
    try:
        second.parent.mkdir()
        while not second.exists():
            time.sleep(0.01)
    except FileExistsError:
        second.touch()
        signal.sigwait({signal.SIGTERM})
    raise RuntimeError("This app cannot be loaded.")


def stalling() -> Flask:
    """The same app. A request for /stall blocks the event loop for a second."""
    app = in_memory()

    def stall() -> str:
        gevent.monkey.get_original("time", "sleep")(1.0)
        return "done"

    app.add_url_rule("/stall", view_func=stall)
    return app


class _LateSignal:
    def __del__(self, kill: Any = os.kill, pid: Any = os.getpid, number: int = int(signal.SIGTERM)) -> None:
        kill(pid(), number)  # by then, the modules are empty


def signalled() -> Flask:
    """The app of in_memory(), in a process that receives SIGTERM again when Python ends."""
    sys.late_signal = _LateSignal()  # type: ignore[attr-defined]
    return in_memory()


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


def polled() -> Any:
    """An app for tests of long polls of the topic `t`, whose log is in memory unless KAFKASSE_CONFIG is set.

    The query of a request selects hooks and middleware. `/append?value=…&key=…&times=…` writes a record. `/counts` returns
    the numbers of greenlets, waiting polls, objects of polls, reads at the end of the log, and encoded batches. A poll waits
    for the variable LONG_POLL_S in seconds, by default longer than a test takes to see it wait.
    """
    finite_reads.LONG_POLL_S = float(os.environ.get("LONG_POLL_S", "600"))
    calls = Counter[str]()
    log = MemoryLog()
    log.create("t")

    def counted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            calls[name] += 1
            return method(*arguments)

        return call

    RecordSource._wait = counted("reads", RecordSource._wait)  # type: ignore[method-assign]
    Encoder.encode_piece = counted("encoded", Encoder.encode_piece)  # type: ignore[method-assign]

    def visitor(request: Any) -> Visitor | None:
        user = request.headers.get("X-User", "")
        expires_at = time.time() + 1 if "expires" in request.args else math.inf
        return Visitor(name=user, claims={"sub": user}, expires_at=expires_at) if user else None

    me = {"path": "/me", "topics": ["t"], "access": ["session"], "where": {"key": "{claims.sub}"}}
    in_kafka = "KAFKASSE_CONFIG" in os.environ
    app = create_app(Config.load(guards={"session": visitor}, routes={"me": me}), None if in_kafka else log)

    def append() -> Response:
        value = json.dumps(request.args["value"] * int(request.args.get("times", 1)))
        log.append("t", value.encode(), key=request.args.get("key", "").encode())
        return Response(status=204)

    def counts() -> dict[str, int]:
        gc.unfreeze()  # get_objects() omits frozen objects, and the worker has frozen those that live long
        things = gc.get_objects()
        greenlets = sum(isinstance(thing, gevent.Greenlet) and not thing.dead for thing in things)
        objects = sum(isinstance(thing, LongPoll | PollResponse) for thing in things)
        return {"greenlets": greenlets, "waiting": len(streams), "objects": objects, **calls}

    app.add_url_rule("/append", view_func=append)
    app.add_url_rule("/counts", view_func=counts)

    def hook(response: Response) -> Response:
        match request.args.get("hook"):
            case "status":
                response.headers["X-Seen"] = str(response.status_code)
            case "body":
                response.headers["X-Seen"] = str(len(response.get_data()))
            case "header":
                response.headers["X-Seen"] = "header"
                response.set_cookie("seen", "1")
            case "close":
                response.call_on_close(lambda: app.logger.error("The hook was called."))
            case "stuck":
                response.call_on_close(gevent.event.Event().wait)
            case "replace":
                response.data = b"replaced"
        return response

    app.after_request(hook)
    serve = app.wsgi_app

    def middleware(environ: dict[str, Any], start_response: Any) -> Any:
        if "middleware=body" in environ["QUERY_STRING"]:
            return (part for part in serve(environ, start_response))
        if "middleware=start" in environ["QUERY_STRING"]:
            return serve(environ, lambda status, headers, *_: start_response(status, [*headers, ("X-Seen", status)]))
        return serve(environ, start_response)

    app.wsgi_app = middleware  # type: ignore[method-assign]
    return app
