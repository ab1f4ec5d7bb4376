"""The status of a pipeline, for metrics, readiness, the log and the status topic. No I/O.

The caller passes in the changes of the state and Spark's progress of each committed batch.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from kafkasse.pipelines.pipeline import Pipeline
from kafkasse.pipelines.supervisor import State

MAX_HISTORY = 1000  # of end offsets; with a commit every 10 s, almost 3 hours
COMMIT_STEPS = ("walCommit", "commitOffsets")

Position = Mapping[tuple[str, int], int]
"""(topic, partition) -> the next offset."""


@dataclass
class Status:
    """The status of a pipeline since this process started. The names are those of the JSON record.

    Attributes:
        since: when the pipeline entered its state.
        reason: why it waits, restarts or has failed.
        restarts: how often it was restarted after a crash.
        commits: how many batches were committed.
        lag_records: records of the sources that were not committed at the last commit.
        lag_s: how long the oldest of them has been waiting.
        records_per_s: records read per second in the last batch.
        batch_s, commit_s: how long the last batch and its commit took.
        state_rows, state_bytes: the size of the state, and the memory that it uses.
    """

    pipeline: str
    version: int
    mode: str
    sources: list[str]
    sinks: list[str]
    state: State = State.STARTING
    reason: str = ""
    since: str = ""
    updated: str = ""
    restarts: int = 0
    commits: int = 0
    batch: int = -1
    input_records: int = 0
    output_records: int = 0
    dead_letters: int = 0
    lag_records: int = 0
    lag_s: float = 0.0
    records_per_s: float = 0.0
    batch_s: float = 0.0
    commit_s: float = 0.0
    state_rows: int = 0
    state_bytes: int = 0
    _ends: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=MAX_HISTORY), repr=False)

    @classmethod
    def of(cls, pipeline: Pipeline) -> Status:
        """Return the status of a pipeline that has not started."""
        return cls(pipeline.name, pipeline.version, pipeline.mode, pipeline.source_topics, pipeline.sink_topics)

    def enter(self, state: State, reason: str) -> None:
        """Enter a state."""
        if state is not self.state or not self.since:
            self.since = _now()
        self.restarts += state is State.RESTARTING
        self.state, self.reason, self.updated = state, reason, _now()

    def committed(self, progress: Mapping[str, Any], end: Position | None, now_s: float | None = None) -> None:
        """Apply the progress of a batch.

        Args:
            progress: Spark's JSON.
            end: the end of the sources after the batch; None: unknown.
            now_s: the time of a monotonic clock.
        """
        durations = progress["durationMs"]
        operators = progress["stateOperators"]
        self.commits += 1
        self.batch = progress["batchId"]
        self.input_records += progress["numInputRows"]
        self.output_records += max(0, progress["sink"]["numOutputRows"])  # -1: the sink does not count
        self.batch_s = durations.get("triggerExecution", 0) / 1000
        self.commit_s = sum(durations.get(step, 0) for step in COMMIT_STEPS) / 1000
        self.records_per_s = round(progress["numInputRows"] / self.batch_s, 3) if self.batch_s else 0.0
        self.state_rows = sum(each["numRowsTotal"] for each in operators)
        self.state_bytes = sum(each["memoryUsedBytes"] for each in operators)
        if end is not None:
            self._measure_lag(next_offsets(progress), end, time.monotonic() if now_s is None else now_s)
        self.updated = _now()

    def _measure_lag(self, position: Position, end: Position, now_s: float) -> None:
        """Set the lag. `lag_s`: the time since the sources ended at the current position, as measured at earlier commits."""
        read = sum(position.values())
        available = sum(max(offset, position.get(partition, 0)) for partition, offset in end.items())
        self.lag_records = max(0, available - read)
        self._ends.append((now_s, available))
        while len(self._ends) > 1 and self._ends[1][1] <= read:
            self._ends.popleft()
        self.lag_s = round(now_s - self._ends[0][0], 3) if self.lag_records else 0.0

    def rejected(self, records: int) -> None:
        """Count dead letters."""
        self.dead_letters += records

    def record(self) -> dict[str, Any]:
        """Return the record of the status topic as plain data."""
        return {name: value for name, value in asdict(self).items() if not name.startswith("_")}


def next_offsets(progress: Mapping[str, Any]) -> dict[tuple[str, int], int]:
    """Return the next offset of each partition after a batch."""
    return {
        (topic, int(partition)): offset
        for source in progress["sources"]
        for topic, partitions in (source["endOffset"] or {}).items()
        for partition, offset in partitions.items()
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
