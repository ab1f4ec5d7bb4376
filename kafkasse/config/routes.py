"""Create the routes of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafkasse.access import grants
from kafkasse.config.check import OPEN_PATH, OPEN_ROUTE, STARTS
from kafkasse.config.times import parse_start_time
from kafkasse.records.filter import Where
from kafkasse.records.position import IdType
from kafkasse.route import NewestBy, Route, StartAt
from kafkasse.settings import RouteSettings

DEFAULT_LOOK_BACK = 1000


def routes(settings: RouteSettings) -> tuple[Route, ...]:
    """Return the named routes and then the open route."""
    open_route = Route(
        OPEN_ROUTE,
        OPEN_PATH,
        None,
        settings.allowed_topics,
        settings.topic_prefix,
        groups=tuple((name, tuple(topics)) for name, topics in settings.topic_groups.items()),
        decoder=settings.decoder,
        validate_values=settings.validate_values,
        id_type=IdType(settings.id_type),
        compact_ids=settings.compact_ids,
        access=grants(settings.access),
        cors_origins=settings.cors_origins,
        cors_credentials=settings.cors_credentials,
        client_filters=settings.client_filters,
    )
    return (*(_named(name, given, settings) for name, given in settings.routes.items()), open_route)


def _named(name: str, given: Mapping[str, Any], settings: RouteSettings) -> Route:
    start = given.get("start", "latest")
    is_time = start not in STARTS
    return Route(
        name,
        given["path"],
        tuple(given["topics"]),
        topic_prefix="" if "cluster" in given else settings.topic_prefix,
        format=given.get("format", "kafkasse"),
        start=StartAt.LATEST if is_time else StartAt(start),
        start_time_ms=parse_start_time(start) if is_time else None,
        decoder=given.get("decoder", settings.decoder),
        validate_values=given.get("validate_values", settings.validate_values),
        id_type=IdType(given.get("id_type", settings.id_type)),
        compact_ids=given.get("compact_ids", settings.compact_ids),
        fields=tuple(given.get("fields", ())),
        redact=tuple(given.get("redact", ())),
        cluster=given.get("cluster", ""),
        heartbeat_s=given.get("heartbeat_s"),
        access=grants(given.get("access", settings.access)),
        cors_origins=tuple(given.get("cors_origins", settings.cors_origins)),
        cors_credentials=given.get("cors_credentials", settings.cors_credentials),
        where=Where.parse(given.get("where", {})),
        client_filters=tuple(given.get("client_filters", settings.client_filters)),
        newest_by=_newest_by(given["newest_by"]) if "newest_by" in given else None,
        description=given.get("description", ""),
        listed=given.get("listed"),
    )


def _newest_by(given: Mapping[str, Any]) -> NewestBy:
    return NewestBy(given["header"], given.get("look_back", DEFAULT_LOOK_BACK))
