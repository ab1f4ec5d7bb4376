"""A description of each stream for its clients. The catalog and the documents for tools contain it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kafkasse.route import Route, is_pattern
from kafkasse.web.describe.security import Scheme

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms"))


@dataclass(frozen=True, slots=True)
class StreamDescription:
    """A stream as its clients see it."""

    name: str
    path: str  # below the blueprint's prefix, such as "/prices/{currency}"
    description: str  # the text of the operator, or ""
    topics: tuple[str, ...]  # on the open route, the names and patterns of the topics that a client may choose
    groups: Mapping[str, Sequence[str]]  # on the open route, the names that stand for several topics
    is_open: bool  # whether clients choose the topics, as on the route /{topics}
    parameters: tuple[str, ...]  # the names of the path parameters
    format: str
    start: str  # where a client without an event ID starts
    access: tuple[str, ...]  # the names of the guards; () if the stream is public
    filters: Mapping[str, str]  # the query parameters that select records, with a description of each
    fields: tuple[str, ...]  # the members of the value that a client receives; () for all
    events: tuple[str, ...]  # the types of the Server-Sent Events
    schemes: Mapping[str, Scheme]  # the security schemes of the guards by name; a client needs one of them
    schemas: Mapping[str, Mapping[str, Any]]  # the JSON Schemas of the values, by topic, as far as they are known

    @property
    def is_public(self) -> bool:
        """Whether a client needs no credentials."""
        return not self.access

    @property
    def credentials(self) -> str:
        """What a client sends: "token", "cookie" if only a login of the app gives access, or "" if the stream is public."""
        if self.is_public:
            return ""
        return "token" if any(scheme["type"] == "http" for scheme in self.schemes.values()) else "cookie"

    @property
    def accepts_cookies(self) -> bool:
        """Whether a browser can send the credentials without a script."""
        return any(scheme.get("in") == "cookie" for scheme in self.schemes.values())

    @property
    def example_path(self) -> str:
        """The path with an example of each parameter: a group or topic, or the parameter's name in capitals."""
        topic = next((topic for topic in (*self.groups, *self.topics) if not is_pattern(topic)), "TOPIC")
        return _PLACEHOLDER.sub(lambda match: topic if self.is_open else match[1].upper(), self.path)


def describe(
    route: Route, position_events: bool, schemes: Mapping[str, Scheme], schemas: Mapping[str, Mapping[str, Any]]
) -> StreamDescription:
    """Describe a route. `position_events` is its setting of the same name."""
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
        schemes=schemes,
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
