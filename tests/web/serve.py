"""Serves an app to a browser from a thread of the test, without a log."""

from __future__ import annotations

import threading
from typing import Any

from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

SHUTDOWN_POLL_S = 0.05  # how often the server checks whether it must stop


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        pass


def serve(app: Any, port: int = 0) -> BaseWSGIServer:
    """Start a server on a port of 127.0.0.1. Call its shutdown() and server_close() at the end."""
    server = make_server("127.0.0.1", port, app, threaded=True, request_handler=_Quiet)
    threading.Thread(target=server.serve_forever, args=(SHUTDOWN_POLL_S,), daemon=True).start()
    return server
