"""An app for gunicorn behind a shared cache: a public topic, and a route in which each visitor has its own records."""

from __future__ import annotations

from flask import Flask, Request

import kafkasse
from kafkasse.app import create_app
from kafkasse.config import Config
from kafkasse.log.memory import MemoryLog

PARTITIONS, RECORDS = 3, 4_500  # in each partition: two full chunks and half a block
VISITORS = ("ada", "bob")


def visitor(request: Request) -> kafkasse.Visitor | None:
    """The visitor whom a header names, as an app's session would."""
    name = request.headers.get("X-Visitor")
    return kafkasse.Visitor(name, claims={"sub": name}) if name else None


def app() -> Flask:
    log = MemoryLog()
    log.create("t", PARTITIONS)
    for n in range(PARTITIONS * RECORDS):
        log.append("t", b'{"n":%d}' % n, n % PARTITIONS, key=VISITORS[n % 2].encode())
    config = Config.load(
        guards={"visitors": visitor},
        routes={"me": {"path": "/me", "topics": ["t"], "access": ["visitors"], "where": {"key": "{claims.sub}"}}},
        shared_cache_s=3600,
    )
    app = create_app(config, log)

    @app.post("/-/append")
    def append() -> str:
        log.append("t", b'{"n":-1}')
        return ""

    return app
