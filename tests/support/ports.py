"""Ports that stay reserved until a server listens on them, and while it restarts."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

HOST = "127.0.0.1"


def reserve_port() -> socket.socket:
    """Return a socket that is bound to a free port but does not listen. A server can use the port; others do not get it."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((HOST, 0))
    return reserved


@contextmanager
def reserved_ports(*names: str) -> Iterator[dict[str, int]]:
    """Reserve a port for each name while a `with` block runs."""
    with ExitStack() as sockets:
        yield {name: sockets.enter_context(reserve_port()).getsockname()[1] for name in names}
