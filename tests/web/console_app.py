"""An app with a console whose topics are in memory. A test writes to them with POST /test."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from math import inf
from typing import Any

import gevent
from flask import Flask, Response, request

from kafkasse import Visitor
from kafkasse.app import create_app
from kafkasse.config import Config
from kafkasse.log.memory import MemoryLog

TOKEN = "let-me-in"  # noqa: S105 - of a test
SHORT_TOKEN = "let-me-in-once"  # noqa: S105 - expires LIFETIME_S after it has opened a stream
LIFETIME_S = 1.0
TIMESTAMP_MS = 1_790_000_000_000
KEPT = 20_000  # records during a long test
MARKUP = "<img src=x onerror=\"document.title='caught'\">"
ROUTES: dict[str, Any] = {
    "values": {"path": "/values", "topics": ["orders"], "access": "public", "format": "value", "start": "earliest"},
    "orders": {
        "path": "/orders",
        "topics": ["orders"],
        "access": "public",
        "description": f"All orders. {MARKUP}",
        "client_filters": ["key", "header.*", "field.n", "filter"],
    },
    "envelopes": {"path": "/envelopes", "topics": ["orders"], "access": "public", "format": "envelope"},
    "cloudevents": {"path": "/cloudevents", "topics": ["orders"], "access": "public", "format": "cloudevents"},
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


_expires_at: dict[str, float] = {}


def _staff(request: Any) -> Visitor | None:
    token = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if token == SHORT_TOKEN and request.path.startswith("/mine/"):
        _expires_at.setdefault(token, time.time() + LIFETIME_S)
    is_known = token in (TOKEN, SHORT_TOKEN)
    return Visitor("staff", "ann", {"sub": "ann"}, _expires_at.get(token, inf)) if is_known else None


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
            elif name == "record":
                value, key, header = (None if text is None else b64decode(text) for text in argument)
                log.append("orders", value, key=key, timestamp=TIMESTAMP_MS, headers=[("<i>", header)])
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
                app.extensions["kafkasse"]["kafkasse"].clusters._feeds.clear()  # they know the old topic
                _expires_at.clear()
        return Response(status=204)

    app.add_url_rule("/test", view_func=change, methods=["POST"])
    return app
