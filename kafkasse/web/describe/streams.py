"""A description of each stream for its clients. The catalog and the documents for tools contain it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from kafkasse.route import Route

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms"))


@dataclass(frozen=True, slots=True)
class StreamDescription:
    """A stream as its clients see it.

    Attributes:
        name: the name of the route.
        path: the path below the blueprint's prefix, such as "/prices/{currency}".
        description: the text of the operator, or "".
        topics: the topics; on the open route, the names and patterns of the topics that a client may choose.
        groups: on the open route, the names that stand for several topics, each with its topics.
        is_open: whether clients choose the topics, as on the route /{topics}.
        parameters: the names of the path parameters.
        format: the format of the data.
        start: where a client without an event ID starts.
        access: the names of the guards; () if the stream is public.
        filters: the query parameters that select records, with a description of each.
        fields: the members of the value that a client receives; () for all.
        events: the types of the Server-Sent Events.
        schemas: the JSON Schemas of the values, by topic, as far as they are known.
    """

    name: str
    path: str
    description: str
    topics: tuple[str, ...]
    groups: Mapping[str, Sequence[str]]
    is_open: bool
    parameters: tuple[str, ...]
    format: str
    start: str
    access: tuple[str, ...]
    filters: Mapping[str, str]
    fields: tuple[str, ...]
    events: tuple[str, ...]
    schemas: Mapping[str, Mapping[str, Any]]

    @property
    def is_public(self) -> bool:
        """Whether a client needs no credentials."""
        return not self.access

    @property
    def example_path(self) -> str:
        """The path with an example of each parameter: a group or topic, or the parameter's name in capitals."""
        topic = next((each for each in (*self.groups, *self.topics) if not is_pattern(each)), "TOPIC")
        return _PLACEHOLDER.sub(lambda found: topic if self.is_open else found[1].upper(), self.path)


def is_pattern(topic: str) -> bool:
    """Return whether an entry of `allowed_topics` is a pattern instead of a name."""
    return any(each in topic for each in "*?[")


def describe(
    route: Route, position_events: bool, schemas: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
) -> StreamDescription:
    """Describe a route.

    Args:
        route: the route.
        position_events: whether the server sends `position` events; the setting of the same name.
        schemas: the JSON Schemas of the values of its topics, as far as they are known.
    """
    return StreamDescription(
        name=route.name,
        path=route.path,
        description=route.description,
        topics=route.allowed if route.topics is None else route.topics,
        groups=dict(route.groups),
        is_open=route.topics is None,
        parameters=route.parameters,
        format=route.format,
        start=_start(route),
        access=tuple(dict.fromkeys(grant.guard for grant in route.access)),
        filters={name: _filter(name) for name in route.client_filters},
        fields=route.fields,
        events=tuple(_events(route, position_events)),
        schemas=schemas,
    )


def _events(route: Route, position_events: bool) -> Iterator[str]:
    if position_events:
        yield "position"
    yield from ("message", "delete", "gap", "error")
    if route.format == "value":
        yield "base64"


def _start(route: Route) -> str:
    time_ms = route.start_time_ms
    if time_ms is None:
        return route.start.value
    if time_ms >= 0:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat()
    unit_ms, unit = next((ms, unit) for ms, unit in _UNITS if time_ms % ms == 0)
    return f"{time_ms // unit_ms}{unit}"


def _filter(name: str) -> str:
    """Describe a query parameter: `key`, `header.NAME`, `field.PATH` or `filter`; NAME and PATH may be `*`."""
    source, _, part = name.partition(".")
    if source == "filter":
        return "A CEL expression. Only the records for which it is true."
    what = {"key": "key", "header": f"header {part}", "field": f"field {part}"}[source].replace(" *", " of this name")
    return f"Only the records whose {what} has this value. Repeat the parameter for more values."
