"""Kafka topics as Server-Sent Events, from ordinary Python web apps.

Importing the package does nothing: no patching, no sockets, no reading of configuration. The names below are loaded
when they are first used, so that `kafkasse broker` never imports Flask and a web process never imports Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafkasse.access import Visitor
    from kafkasse.app import blueprint
    from kafkasse.config import Config
    from kafkasse.log.memory import MemoryLog
    from kafkasse.process.open_streams import drain
    from kafkasse.tools.broker import EmbeddedBroker
    from kafkasse.web.revocations import end_streams

__version__ = "0.1.0"
__all__ = ["Config", "EmbeddedBroker", "MemoryLog", "Visitor", "__version__", "blueprint", "drain", "end_streams"]

_MODULES = {
    "Config": "kafkasse.config",
    "EmbeddedBroker": "kafkasse.tools.broker",
    "MemoryLog": "kafkasse.log.memory",
    "Visitor": "kafkasse.access",
    "blueprint": "kafkasse.app",
    "drain": "kafkasse.process.open_streams",
    "end_streams": "kafkasse.web.revocations",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'kafkasse' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
