"""Counters of one process, in the text format that Prometheus reads."""

from __future__ import annotations

from collections import Counter

DESCRIPTIONS = {
    "streams_opened": "Streams that were opened.",
    "streams_closed": "Streams that have ended, in whatever way.",
    "requests_refused": "Requests that were answered with an error, by status.",
    "records_skipped": "Records whose value could not be deserialized, by topic.",
}


WITHOUT_LABELS = ("streams_opened", "streams_closed")


class Metrics:
    """Counts. Names are those in DESCRIPTIONS."""

    def __init__(self) -> None:
        # Those without labels stand there from the start: Prometheus sees no rate in a counter that begins at 1.
        self._counts = Counter[tuple[str, tuple[tuple[str, str], ...]]]({(name, ()): 0 for name in WITHOUT_LABELS})

    def count(self, name: str, **labels: str) -> None:
        """Add one."""
        self._counts[name, tuple(sorted(labels.items()))] += 1

    def value(self, name: str, **labels: str) -> int:
        """What has been counted so far."""
        return self._counts[name, tuple(sorted(labels.items()))]

    def render(self) -> str:
        """All counters, a line each."""
        lines: list[str] = []
        for name, description in DESCRIPTIONS.items():
            lines += [f"# HELP kafkasse_{name}_total {description}", f"# TYPE kafkasse_{name}_total counter"]
            for (counted, labels), value in sorted(self._counts.items()):
                if counted == name:
                    shown = ",".join(f'{label}="{text}"' for label, text in labels)
                    lines.append(
                        f"kafkasse_{name}_total{{{shown}}} {value}" if shown else f"kafkasse_{name}_total {value}"
                    )
        return "\n".join(lines) + "\n"
