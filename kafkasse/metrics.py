"""Counters of one process, in Prometheus's text format."""

from __future__ import annotations

from collections import Counter

DESCRIPTIONS = {
    "streams_opened": "Streams that were opened.",
    "streams_closed": "Streams that have ended, for any reason.",
    "requests_refused": "Requests that were answered with an error, by status.",
    "records_skipped": "Records whose value could not be deserialized, by topic.",
    "filter_failures": "Records for which a filter expression had no result, by route.",
}
WITHOUT_LABELS = ("streams_opened", "streams_closed")


class Metrics:
    """The counters of one process. Their names are the keys of DESCRIPTIONS."""

    def __init__(self) -> None:
        # Counters without labels start at 0: Prometheus computes no rate for a counter that first appears with 1.
        self._counts = Counter[tuple[str, tuple[tuple[str, str], ...]]]({(name, ()): 0 for name in WITHOUT_LABELS})

    def count(self, name: str, **labels: str) -> None:
        """Add one to a counter."""
        self._counts[name, tuple(sorted(labels.items()))] += 1

    def value(self, name: str, **labels: str) -> int:
        """Return the value of a counter."""
        return self._counts[name, tuple(sorted(labels.items()))]

    def render(self) -> str:
        """Return all counters in Prometheus's text format, with a description and a type for each."""
        lines: list[str] = []
        for name, description in DESCRIPTIONS.items():
            lines += [f"# HELP kafkasse_{name}_total {description}", f"# TYPE kafkasse_{name}_total counter"]
            for (counted, labels), value in sorted(self._counts.items()):
                if counted == name:
                    shown = ",".join(f'{label}="{text}"' for label, text in labels)
                    braces = f"{{{shown}}}" if shown else ""
                    lines.append(f"kafkasse_{name}_total{braces} {value}")
        return "\n".join(lines) + "\n"
