"""Waiting for what happens in another process and cannot be subscribed to."""

from __future__ import annotations

from collections.abc import Callable

import gevent

LOOK_AGAIN_S = 0.02
PATIENCE_S = 30.0


def eventually(happened: Callable[[], object]) -> None:
    """Return when it has happened. A hang becomes a failure."""
    with gevent.Timeout(PATIENCE_S):
        while not happened():
            gevent.sleep(LOOK_AGAIN_S)
