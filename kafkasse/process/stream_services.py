"""The stream services of this process. The worker and the capacity check need all of them.

The worker counts and logs the requests that it rejects before an app receives them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol
from weakref import WeakSet

from kafkasse.errors import KafkasseError
from kafkasse.process.limits import StreamLimits


class RegisteredService(Protocol):
    """The part of a StreamService that this package uses; see kafkasse/web/service.py."""

    limits: StreamLimits

    def reach_kafka(self) -> None: ...
    def cors_headers(self, origin: str | None) -> Mapping[str, str]: ...
    def rejected_by_worker(self, request_id: str, client: str, error: KafkasseError, reason: str) -> None: ...


stream_services: WeakSet[RegisteredService] = WeakSet()


def reject_without_app(
    request_id: str, client: str, origin: str | None, error: KafkasseError, reason: str
) -> Mapping[str, str]:
    """Count and log a request that the worker rejects, in one service of the process. `reason` is the name of a class.

    Returns:
        The CORS headers of the response: those of a service that allows the origin. Without them, a page would see a
        network error and retry forever.
    """
    for service in list(stream_services)[:1]:
        service.rejected_by_worker(request_id, client, error, reason)
    return max((service.cors_headers(origin) for service in stream_services), key=len, default={})
