"""A limit, not a rival: a Flask view that only answers, under kafkasse's worker.

    gunicorn -c python:kafkasse.server.gunicorn_conf bench.rivals.flask_app:app

kafkasse cannot open a stream with less CPU time than Flask and gunicorn need for this response.
"""

from __future__ import annotations

from collections.abc import Iterator

from flask import Flask, Response

app = Flask(__name__)


@app.get("/<topic>")
def stream(topic: str) -> Response:
    """Return a stream that ends after its first bytes."""
    return Response(events(), content_type="text/event-stream")


def events() -> Iterator[bytes]:
    """Yield the first bytes of a stream."""
    yield b":ok\n\n"
