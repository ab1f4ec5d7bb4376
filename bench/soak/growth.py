"""Decide whether the resources of a worker have grown.

The first quarter of a run is the warm-up: rings fill, consumers connect, and the allocator reserves memory. After that the
load is constant. So the median of the last quarter must not exceed that of the second quarter by more than a tolerance.
This module does not depend on how the samples were taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

MIN_SAMPLES = 8
WARM_UP_S = 120.0  # memory is checked only after this time, when the rings are full
KAFKA_WARM_UP_S = 30.0  # connections to Kafka are checked only after this time


@dataclass(frozen=True, slots=True)
class Sample:
    """The resources that the worker held `at_s` seconds after the start.

    Attributes:
        at_s: seconds since the start.
        memory_mib: resident memory.
        descriptors: open files, pipes and sockets.
        kafka_sockets: open sockets to the broker.
        streams: open streams.
        greenlets: live greenlets.
        objects: objects that the garbage collector tracks, without those from before the first request.
        cpu_s: CPU time so far.
        types: the number of objects of each of the most common types.
    """

    at_s: float
    memory_mib: float
    descriptors: int
    kafka_sockets: int
    streams: int
    greenlets: int
    objects: int
    cpu_s: float
    types: Counter[str] = field(repr=False, default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Figure:
    """A resource that must not grow by more than `share` of its value plus `more`.

    Attributes:
        name: the field of Sample.
        what: the name in the report.
        share: the relative tolerance.
        more: the absolute tolerance.
        min_quarter_s: the resource is checked only if a quarter of the run is at least this long.
    """

    name: str
    what: str
    share: float
    more: float
    min_quarter_s: float = 0.0


FIGURES = (
    Figure("memory_mib", "memory, MiB", 0.05, 2, WARM_UP_S),
    Figure("descriptors", "file descriptors", 0.05, 10),
    Figure("kafka_sockets", "connections to Kafka", 0.10, 8, KAFKA_WARM_UP_S),
    Figure("streams", "streams", 0.05, 10),
    Figure("greenlets", "greenlets", 0.05, 10),
    Figure("objects", "Python objects", 0.05, 2_000, WARM_UP_S),
)


@dataclass(frozen=True, slots=True)
class GrowthCheck:
    """The check of one resource.

    Attributes:
        figure: the resource.
        second, last: its medians in the second and the last quarter.
        most: its maximum.
        allowed: the largest value that the last median may have.
        checked: whether the run was long enough for the check.
    """

    figure: Figure
    second: float
    last: float
    most: float
    allowed: float
    checked: bool

    @property
    def grew(self) -> bool:
        """Whether the resource has grown."""
        return self.checked and self.last > self.allowed


def check_growth(samples: Sequence[Sample]) -> list[GrowthCheck]:
    """Check each resource.

    Raises:
        ValueError: there are too few samples.
    """
    if len(samples) < MIN_SAMPLES:
        raise ValueError(f"{len(samples)} samples are too few; at least {MIN_SAMPLES} are required")
    begin, end = samples[0].at_s, samples[-1].at_s
    quarter_s = (end - begin) / 4
    second = [each for each in samples if begin + quarter_s <= each.at_s < begin + 2 * quarter_s]
    last = [each for each in samples if each.at_s >= end - quarter_s]
    return [_check(figure, second, last, samples, quarter_s) for figure in FIGURES]


def _check(
    figure: Figure, second: Sequence[Sample], last: Sequence[Sample], samples: Sequence[Sample], quarter_s: float
) -> GrowthCheck:
    before = median(getattr(each, figure.name) for each in second)
    after = median(getattr(each, figure.name) for each in last)
    allowed = before * (1 + figure.share) + figure.more
    most = max(getattr(each, figure.name) for each in samples)
    return GrowthCheck(figure, before, after, most, allowed, quarter_s >= figure.min_quarter_s)


def types_that_grew(first: Sample, last: Sample, most: int = 10) -> list[str]:
    """Return the types whose number of objects grew most, to help find the reason."""
    return [f"{name} +{more:,}" for name, more in (last.types - first.types).most_common(most)]
