"""A server whose streams are quiet."""

from __future__ import annotations

from typing import Any

from werkzeug.serving import WSGIRequestHandler

SHUTDOWN_POLL_S = 0.05  # how often the server checks whether it must stop


class Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        pass
