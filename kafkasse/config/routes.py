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
            own["path"],
            tuple(own["topics"]),
            format=own.get("format", "kafkasse"),
            start=StartAt(own.get("start", "latest")),
            id_type=IdType(own.get("id_type", settings.id_type)),
            compact_ids=own.get("compact_ids", settings.compact_ids),
        )
        for name, own in settings.routes.items()
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
