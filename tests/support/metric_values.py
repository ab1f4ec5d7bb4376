"""The value of a metric in this process."""

from __future__ import annotations

from kafkasse.process.telemetry.metrics import Metrics


def value_of(metrics: Metrics, name: str, **labels: str) -> float:
    """Return the value of a counter or gauge: the sum over the labels that are not given."""
    values: list[float] = [
        sample.value
        for family in metrics._metrics[name].collect()
        for sample in family.samples
        if not sample.name.endswith("_created") and labels.items() <= sample.labels.items()
    ]
    return sum(values)
