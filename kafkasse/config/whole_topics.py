"""Finds routes that send each visitor only their own records of a topic that the same visitors can read as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kafkasse.access import Grant
from kafkasse.config.rules import OPEN_ROUTE
from kafkasse.records.filter.where import CLAIMS, EVERY_RECORD
from kafkasse.route import Route


def warnings(routes: Sequence[Route]) -> Iterator[str]:
    """Yield a sentence for each topic of a personal route that another route sends as a whole to the same visitors."""
    for personal in routes:
        grants = _personal_grants(personal)
        for other in routes:
            sends_all = other.where == EVERY_RECORD and not other.fields and not other.redact
            # Whether it admits all visitors of at least one of the grants.
            admits = any(not other.access or any(wide.includes(grant) for wide in other.access) for grant in grants)
            if sends_all and admits:
                for topic in _common_topics(personal, other):
                    yield _warning(personal, other, topic)


def _personal_grants(route: Route) -> list[Grant]:
    """Return the grants of a route whose visitors receive only the records that their claims or own paths select."""
    references = route.where.references
    is_by_claim = any(reference.startswith(CLAIMS) for reference in references)
    return [grant for grant in route.access if is_by_claim or not references.isdisjoint(grant.parameters)]


def _common_topics(personal: Route, other: Route) -> Iterator[str]:
    """Yield the topics and patterns of a personal route that match those of another route."""
    if personal.cluster == other.cluster:
        patterns = other.allowed if other.topics is None else other.topics
        for topic in personal.topics or ():
            if other.allows(topic) or any(map(replace(personal, topics=(topic,)).allows, patterns)):
                yield topic


def _warning(personal: Route, other: Route, topic: str) -> str:
    setting = "allowed_topics" if other.name == OPEN_ROUTE else f"routes.{other.name}.topics"
    return (
        f"The route {personal.name} ({personal.path}) sends each visitor only their own records of the topic {topic}, but"
        f" the same visitors can read the whole topic at {other.path}. Remove {topic} from {setting}, or give {other.path} a"
        " stricter guard (access)."
    )
