"""Apps for gunicorn that have hooks, which no file or variable can hold."""

from __future__ import annotations

from typing import Any

from flask import Flask

from kafkasse.app import create_app
from kafkasse.config import Config


def filtered() -> Flask:
    """Shows messages whose member `show` is true; one without the member makes the filter fail."""

    def show(message: dict[str, Any]) -> object:
        return message["show"]

    return create_app(Config.load(filterer=show))
