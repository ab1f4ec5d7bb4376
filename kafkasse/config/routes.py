"""Create the routes of a configuration."""

from __future__ import annotations

from kafkasse.config.check import OPEN_ROUTE
from kafkasse.config.settings import RouteSettings
from kafkasse.position import IdType
from kafkasse.route import Route, StartAt


def routes(settings: RouteSettings) -> tuple[Route, ...]:
    """Return the named routes and then the open route."""
    named = [
        Route(
            name,
            route_settings["path"],
            tuple(route_settings["topics"]),
            format=route_settings.get("format", "kafkasse"),
            start=StartAt(route_settings.get("start", "latest")),
            id_type=IdType(route_settings.get("id_type", settings.id_type)),
            compact_ids=route_settings.get("compact_ids", settings.compact_ids),
        )
        for name, route_settings in settings.routes.items()
    ]
    open_route = Route(
        OPEN_ROUTE,
        "/<topics>",
        None,
        settings.allowed_topics,
        settings.topic_prefix,
        id_type=IdType(settings.id_type),
        compact_ids=settings.compact_ids,
    )
    return (*named, open_route)
