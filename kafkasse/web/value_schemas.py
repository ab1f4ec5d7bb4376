"""The newest schemas of the topics' values, which the documents of the catalog contain.

A stream needs none of them: each record names its own schema. If the registry does not answer, the documents lack them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any

from kafkasse.errors import RegistryUnavailable
from kafkasse.route import Route, is_pattern

if TYPE_CHECKING:  # its packages are optional
    from kafkasse.records.registry.lookup import SchemaRegistry

REFRESH_S = 60.0
RETRY_S = 10.0


class ValueSchemas:
    """The schemas of the topics of all routes. `version` changes when a schema changes."""

    def __init__(self, registries: Mapping[str, SchemaRegistry]) -> None:
        self.version = 0
        self._registries = registries
        # By registry and subject, with the time of the next refresh.
        self._found: dict[tuple[SchemaRegistry, str], tuple[float, dict[str, Any] | None]] = {}
        self._retry_at: dict[SchemaRegistry, float] = {}
        self._lock = Lock()  # one request looks up the schemas for all that wait

    def of(self, route: Route) -> dict[str, dict[str, Any]]:
        """Return the JSON Schemas of a route's values, by topic, as far as they are known. Waits for the registry."""
        registry = self._registries.get(route.cluster)
        if registry is None or route.decoder != "registry" or route.fields or route.redact:
            return {}
        with self._lock:
            names = [name for name in route.topics or route.allowed if not is_pattern(name)]
            schemas = {name: self._latest(registry, f"{route.topic_prefix}{name}-value") for name in names}
        return {topic: schema for topic, schema in schemas.items() if schema is not None}

    def _latest(self, registry: SchemaRegistry, subject: str) -> dict[str, Any] | None:
        refresh_at, schema = self._found.get((registry, subject), (0.0, None))
        now = time.monotonic()
        if now < max(refresh_at, self._retry_at.get(registry, 0.0)):
            return schema
        try:
            latest = registry.latest(subject)
        except RegistryUnavailable:
            self._retry_at[registry] = now + RETRY_S
            return schema
        described = None if latest is None else latest.json_schema()
        self.version += described != schema
        self._found[registry, subject] = now + REFRESH_S, described
        return described
