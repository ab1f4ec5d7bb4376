"""Create the routes of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafkasse.access import grants
from kafkasse.config.rules import OPEN_PATH, OPEN_ROUTE, STARTS
from kafkasse.config.times import parse_start_time
from kafkasse.records.filter import Where
from kafkasse.records.position import IdType
from kafkasse.route import NewestBy, Route, StartAt
from kafkasse.settings import NewestBySettings, RouteSettings

NEWEST_BY_DEFAULTS = {"look_back": NewestBySettings.look_back}


def routes(settings: RouteSettings) -> tuple[Route, ...]:
    """Return the named routes and then the open route."""
    groups = tuple((name, tuple(topics)) for name, topics in settings.topic_groups.items())
    named = (
        _route(name, given["path"], tuple(given["topics"]), given, settings) for name, given in settings.routes.items()
    )
    return (*named, _route(OPEN_ROUTE, OPEN_PATH, None, {}, settings, allowed=settings.allowed_topics, groups=groups))


def _route(
    name: str,
    path: str,
    topics: tuple[str, ...] | None,
    given: Mapping[str, Any],
    general: RouteSettings,
    **of_open_route: Any,
) -> Route:
    """Return the route with the settings `given`, and the general settings in place of those that are missing."""

    def setting(name: str) -> Any:
        return given.get(name, getattr(general, name))

    start = given.get("start", "latest")
    is_time = start not in STARTS
    return Route(
        name,
        path,
        topics,
        topic_prefix="" if "cluster" in given else general.topic_prefix,
        format=given.get("format", "kafkasse"),
        start=StartAt.LATEST if is_time else StartAt(start),
        start_time_ms=parse_start_time(start) if is_time else None,
        decoder=setting("decoder"),
        validate_values=setting("validate_values"),
        id_type=IdType(setting("id_type")),
        compact_ids=setting("compact_ids"),
        fields=tuple(given.get("fields", ())),
        redact=tuple(given.get("redact", ())),
        cluster=given.get("cluster", ""),
        heartbeat_s=given.get("heartbeat_s"),
        access=grants(setting("access")),
        cors_origins=tuple(setting("cors_origins")),
        cors_credentials=setting("cors_credentials"),
        where=Where.parse(given.get("where", {})),
        client_filters=tuple(setting("client_filters")),
        newest_by=NewestBy(**NEWEST_BY_DEFAULTS | given["newest_by"]) if "newest_by" in given else None,
        description=given.get("description", ""),
        listed=given.get("listed"),
        **of_open_route,
    )
