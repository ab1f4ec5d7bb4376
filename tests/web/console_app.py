"""An app with a console whose topics are in memory. A test writes to them with POST /test."""

from __future__ import annotations

import json
import time
from typing import Any

import gevent
from flask import Flask, Response, request

from kafkasse import Visitor
from kafkasse.app import create_app
from kafkasse.config import Config
from kafkasse.memory_log import MemoryLog

TOKEN = "let-me-in"  # noqa: S105 - of a test
SHORT_TOKEN = "let-me-in-once"  # noqa: S105 - a test lets it expire
KEPT = 20_000  # records during a long test
MARKUP = "<img src=x onerror=\"document.title='caught'\">"
ROUTES: dict[str, Any] = {
    "orders": {
        "path": "/orders",
        "topics": ["orders"],
        "access": "public",
        "description": f"All orders. {MARKUP}",
        "client_filters": ["key", "header.*", "field.n", "filter"],
    },
    "values": {"path": "/values", "topics": ["orders"], "access": "public", "format": "value", "start": "earliest"},
    "pipelines": {"path": "/pipelines", "topics": ["_pipelines"], "access": ["staff"], "start": "snapshot"},
    "mine": {
        "path": "/mine/{customer}",
        "topics": ["orders"],
        "access": ["staff"],
        "where": {"key": "{customer}"},
        "start": "earliest",
        "client_filters": ["filter"],
    },
}


_accepted = {TOKEN, SHORT_TOKEN}


def _staff(request: Any) -> Visitor | None:
    token = request.headers.get("Authorization", "").removeprefix("Bearer ")
    return Visitor("ann", {"sub": "ann"}) if token in _accepted else None


def create() -> Flask:
    """Create the app. A guard accepts TOKEN, also for the endpoints for operators."""
    log = MemoryLog()
    log.create("orders")
    log.create("_pipelines")
    app = create_app(
        Config(
            routes=ROUTES,
            guards={"staff": _staff},
            operations_access=["staff"],
            tickets=True,
            heartbeat_s=0.2,
            retry_ms=50,
            metadata_refresh_s=0.2,
        ),
        log,
    )

    def write(first: int, count: int, per_s: float) -> None:
        began_at = time.monotonic()
        for n in range(first, first + count):
            log.append("orders", json.dumps({"n": n, "text": "x" * 900}).encode(), key=b"k%d" % (n % 3))
            if per_s and n % 10 == 0:
                gevent.sleep(max(0.0, began_at + (n - first) / per_s - time.monotonic()))
                if n % KEPT == 0:
                    log.drop_before("orders", max(0, n - KEPT))

    def change() -> Response:
        for name, argument in request.get_json().items():
            if name == "append":
                write(*argument, per_s=0)
            elif name == "append_slowly":
                gevent.spawn(write, *argument)
            elif name == "value":
                log.append("orders", argument.encode(), key=b"k", headers=[("type", b"paid")])
            elif name == "keyed":
                log.append("orders", argument[1].encode(), key=argument[0].encode())
            elif name == "expire":
                _accepted.discard(argument)
            elif name == "append_to":
                partition, numbers = argument
                for n in numbers:
                    log.append("orders", json.dumps({"n": n}).encode(), partition)
            elif name == "tombstone":
                log.append("orders", None, key=argument.encode())
            elif name == "pipeline":
                log.append("_pipelines", json.dumps(argument).encode(), key=argument["pipeline"].encode())
            elif name == "drop_before":
                log.drop_before("orders", argument)
            elif name == "delete":
                log.delete("orders")
            elif name == "recreate":
                if log.describe(["orders"]):
                    log.delete("orders")
                log.create("orders", int(argument))
                app.extensions["kafkasse"]["kafkasse"]._feeds.clear()  # they know the old topic
        return Response(status=204)

    app.add_url_rule("/test", view_func=change, methods=["POST"])
    return app
