"""An app for gunicorn that serves the streams, and /-/echo, which returns the request as it arrived."""

from __future__ import annotations

from typing import Any

from flask import Flask, request

from kafkasse.app import create_app


def app() -> Flask:
    """The app of `kafkasse serve` with one more page."""
    app = create_app()

    @app.get("/-/echo")
    def echo() -> dict[str, Any]:
        return {"target": request.environ["RAW_URI"], "headers": dict(request.headers)}

    return app
