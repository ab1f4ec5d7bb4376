"""Logs the requests that get no stream. A client that repeats its request in a loop cannot fill the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from kafkasse.process.log_line import Fields

INTERVAL_S = 10.0
MAX_LINES = 100  # of all clients, in each interval


class RejectionLog:
    """Logs the first request in each interval for each client and error at the level info, and all others at debug.

    Args:
        logger: receives the lines.
        clock: the time in seconds.
    """

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._logged_at: dict[str | tuple[str, str], float] = {}  # the oldest is first

    def add(self, request_id: str, route: str, client: str, status: int, error: str, reason: str = "") -> None:
        """Log a request, without its URL and without the error's text, which may contain anything."""
        level = logging.INFO if self._is_due((client, error)) else logging.DEBUG
        fields = Fields(request_id=request_id, route=route, client=client, status=status, error=error, reason=reason)
        self._logger.log(level, "A request was rejected: %s", fields)

    def add_failure(self, subject: str, message: str, fields: object, error: BaseException | None = None) -> None:
        """Log a fault of the server, with the traceback of `error`: the first one of a subject in each interval.

        The others have a line without a traceback at the level debug.
        """
        if self._is_due(subject):
            self._logger.error(message, fields, exc_info=error)
        else:
            self._logger.debug(message, fields)

    def _is_due(self, subject: str | tuple[str, str]) -> bool:
        now = self._clock()
        for oldest, logged_at in list(self._logged_at.items()):
            if now < logged_at + INTERVAL_S:
                break
            del self._logged_at[oldest]
        if subject in self._logged_at or len(self._logged_at) >= MAX_LINES:
            return False
        self._logged_at[subject] = now
        return True
