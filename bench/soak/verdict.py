"""Whether what a worker holds has grown. Knows numbers, and nothing of how they were taken.

The first quarter of a run is for warming up: rings fill, consumers are made, the allocator takes its pools. Then the
load is the same until the end, so the median of the last quarter has to be that of the second one, within a tolerance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

FEW_SAMPLES = 8
WARM_S = 120.0  # what a run must have had behind it before memory is judged: rings are full by then
MANY_LIVES_S = 30.0  # and connections to Kafka: few, and not long-lived


@dataclass(frozen=True, slots=True)
class Sample:
    """What the worker held at one moment, `at_s` seconds after the start.

    Attributes:
        memory_mib: resident.
        descriptors: open files, pipes and sockets.
        kafka_sockets: of them, those to the broker.
        streams: open ones.
        greenlets: that live.
        objects: that the garbage collector knows, those from before the first request left out.
        cpu_s: CPU time so far.
        types: how many of the objects are of each of the commonest types.
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
    """Something that must not grow by more than `share` of itself and `more` on top.

    Attributes:
        name: of the sample's field.
        what: for people.
        judged_from_s: how old a run must be when its second quarter begins for the figure to mean something.
    """

    name: str
    what: str
    share: float
    more: float
    judged_from_s: float = 0.0


FIGURES = (
    Figure("memory_mib", "memory, MiB", 0.05, 2, WARM_S),
    Figure("descriptors", "file descriptors", 0.05, 10),
    Figure("kafka_sockets", "connections to Kafka", 0.10, 8, MANY_LIVES_S),
    Figure("streams", "streams", 0.05, 10),
    Figure("greenlets", "greenlets", 0.05, 10),
    Figure("objects", "objects of Python", 0.05, 2_000, WARM_S),
)


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of one figure.

    Attributes:
        second, last: its medians in these quarters.
        allowed: the most that the last may be.
        judged: whether the run was long enough to say.
    """

    figure: Figure
    second: float
    last: float
    most: float
    allowed: float
    judged: bool

    @property
    def grew(self) -> bool:
        return self.judged and self.last > self.allowed


def judge(samples: Sequence[Sample]) -> list[Judged]:
    """Each figure, whether it has grown or not.

    Raises:
        ValueError: there are too few samples to say anything.
    """
    if len(samples) < FEW_SAMPLES:
        raise ValueError(f"{len(samples)} samples are too few to judge by")
    begin, end = samples[0].at_s, samples[-1].at_s
    quarter_s = (end - begin) / 4
    second = [each for each in samples if begin + quarter_s <= each.at_s < begin + 2 * quarter_s]
    last = [each for each in samples if each.at_s >= end - quarter_s]
    return [_judge(figure, second, last, samples, quarter_s) for figure in FIGURES]


def _judge(
    figure: Figure, second: Sequence[Sample], last: Sequence[Sample], samples: Sequence[Sample], quarter_s: float
) -> Judged:
    of = [getattr(each, figure.name) for each in second]
    before, after = median(of), median(getattr(each, figure.name) for each in last)
    allowed = before * (1 + figure.share) + figure.more
    most = max(getattr(each, figure.name) for each in samples)
    return Judged(figure, before, after, most, allowed, quarter_s >= figure.judged_from_s)


def types_that_grew(first: Sample, last: Sample, most: int = 10) -> list[str]:
    """Of which types there are more now, for whoever looks for the reason."""
    return [f"{name} +{more:,}" for name, more in (last.types - first.types).most_common(most)]
