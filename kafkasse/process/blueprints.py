"""The blueprints of this process, for what concerns all of them: the capacity of the server, and requests that the worker
rejects before an app receives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol
from weakref import WeakSet

from kafkasse.errors import KafkasseError
from kafkasse.process.limits import StreamLimits


class StreamBlueprint(Protocol):
    """A blueprint with streams; see kafkasse/web/service.py."""

    limits: StreamLimits

    def cors_headers(self, origin: str | None) -> Mapping[str, str]: ...
    def rejected_by_worker(self, request_id: str, client: str, error: KafkasseError, reason: str) -> None: ...


blueprints: WeakSet[StreamBlueprint] = WeakSet()


def reject_without_app(
    request_id: str, client: str, origin: str | None, error: KafkasseError, reason: str
) -> Mapping[str, str]:
    """Count and log a request that the worker rejects, in one blueprint of the process. `reason` is the name of a class.

    Returns:
        The CORS headers of the response: those of a blueprint that allows the origin. Without them, a page would see a
        network error and retry forever.
    """
    for blueprint in list(blueprints)[:1]:
        blueprint.rejected_by_worker(request_id, client, error, reason)
    return max((blueprint.cors_headers(origin) for blueprint in blueprints), key=len, default={})
