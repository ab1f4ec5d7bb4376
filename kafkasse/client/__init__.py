"""Clients that read a stream and resume exactly: `Stream` uses requests, and `AsyncStream` uses aiohttp.

`pip install "kafkasse[client]"` installs both libraries. Importing this package imports neither of them, and nothing of the
server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kafkasse.client.core import State, StreamError
from kafkasse.client.sse import Event
from kafkasse.client.stores import FileStore, PositionStore

if TYPE_CHECKING:
    from kafkasse.client.aiohttp import AsyncStream
    from kafkasse.client.requests import Stream

__all__ = ["AsyncStream", "Event", "FileStore", "PositionStore", "State", "Stream", "StreamError"]

_MODULES = {"AsyncStream": "kafkasse.client.aiohttp", "Stream": "kafkasse.client.requests"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'kafkasse.client' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
