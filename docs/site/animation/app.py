"""The app that the animation shows: a page, and the stream that it reads."""

from __future__ import annotations

import os
from pathlib import Path

from flask import Flask

import kafkasse

HERE = Path(__file__).parent
SCRIPT = Path(kafkasse.__file__).parent / "assets/javascript/kafkasse.js"

app = Flask(__name__)
orders = {"path": "/orders", "topics": ["orders"], "start": "earliest", "access": "public"}
app.register_blueprint(kafkasse.blueprint(kafkasse.Config.load(routes={"orders": orders})), url_prefix="/streams")


@app.get("/")
def page() -> str:
    """Show the page. The recording tells it which orders it has written, and what it does to the server."""
    return (HERE / "page.html").read_text()


@app.get("/kafkasse.js")
def script() -> tuple[str, dict[str, str]]:
    """Serve the JavaScript client."""
    return SCRIPT.read_text(), {"Content-Type": "text/javascript"}


@app.get("/pid")
def pid() -> str:
    """Return the process ID of the worker."""
    return str(os.getpid())
