"""Clients that read a stream and resume exactly: `Stream` uses requests, and `AsyncStream` uses aiohttp.

`Parser` parses the bytes of any other HTTP client. Importing this package imports neither requests nor aiohttp.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kafkasse_client.core import State, StreamError
from kafkasse_client.sse import Event, EventTooLarge, Parser
from kafkasse_client.stores import FileStore, PositionStore

if TYPE_CHECKING:
    from kafkasse_client.async_stream import AsyncStream
    from kafkasse_client.stream import Stream

__version__ = "0.1.0"
__all__ = [
    "AsyncStream",
    "Event",
    "EventTooLarge",
    "FileStore",
    "Parser",
    "PositionStore",
    "State",
    "Stream",
    "StreamError",
    "__version__",
]

_MODULES = {"AsyncStream": "kafkasse_client.async_stream", "Stream": "kafkasse_client.stream"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'kafkasse_client' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
