"""The status of a pipeline, for metrics, readiness, the log and the status topic. No I/O.

The caller passes in the changes of the state and Spark's progress of each committed batch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from kafkasse.pipelines.pipeline import Pipeline
from kafkasse.pipelines.supervisor import PipelineState

COMMIT_STEPS = ("walCommit", "commitOffsets")


@dataclass
class Status:
    """The status of a pipeline since this process started. The names are those of the JSON record."""

    pipeline: str
    version: int
    mode: str
    sources: list[str]
    sinks: list[str]
    state: PipelineState = PipelineState.STARTING
    reason: str = ""  # why it waits, restarts or has failed, or that it reads a backlog
    since: str = ""  # when the pipeline entered its state
    restarts: int = 0  # how often it was restarted after a crash
    commits: int = 0  # how many batches were committed
    batch: int = -1
    input_records: int = 0
    output_records: int = 0
    dead_letters: int = 0  # how many records became dead letters in this process
    lag_records: int = 0  # records of the sources that were not processed when the lag was measured
    lag_s: float = 0.0  # how old the oldest of them was, according to its timestamp in Kafka
    records_per_s: float = 0.0  # records read per second in the last batch
    batch_s: float = 0.0  # how long the last batch took
    commit_s: float = 0.0  # how long its commit took
    state_rows: int = 0
    state_bytes: int = 0  # the memory that the state uses
    # Rows that the state dropped because they were later than the watermark. Spark first aggregates the records of a batch,
    # so a row may stand for several records.
    late_rows: int = 0
    dead_letter_topic: str = ""  # with the dead letters of this and of earlier processes

    is_lag_known = False  # not a field, so not in the record. Before it is true, the lag is 0

    @classmethod
    def of(cls, pipeline: Pipeline) -> Status:
        """Return the status of a pipeline that has not started."""
        return cls(
            pipeline.name,
            pipeline.version,
            pipeline.mode,
            pipeline.source_topics,
            pipeline.sink_topics,
            dead_letter_topic=pipeline.dead_letter_topic,
        )

    def enter(self, state: PipelineState, reason: str) -> None:
        """Enter a state."""
        if state is not self.state or not self.since:
            self.since = _now()
        self.restarts += state is PipelineState.RESTARTING
        self.state, self.reason = state, reason

    def committed(self, progress: Mapping[str, Any]) -> int:
        """Apply the progress of a batch, as Spark's JSON. Return how many rows of it were later than the watermark."""
        durations = progress["durationMs"]
        operators = progress["stateOperators"]
        self.commits += 1
        self.batch = progress["batchId"]
        # Spark reads a topic for each sink that uses it, and numInputRows of the whole batch counts each time.
        records = sum({source["description"]: source["numInputRows"] for source in progress["sources"]}.values())
        self.input_records += records
        self.output_records += max(0, progress["sink"]["numOutputRows"])  # -1: the sink does not count
        self.batch_s = durations.get("triggerExecution", 0) / 1000
        self.commit_s = sum(durations.get(step, 0) for step in COMMIT_STEPS) / 1000
        self.records_per_s = round(records / self.batch_s, 3) if self.batch_s else 0.0
        self.state_rows = sum(operator["numRowsTotal"] for operator in operators)
        self.state_bytes = sum(operator["memoryUsedBytes"] for operator in operators)
        late_rows: int = sum(operator.get("numRowsDroppedByWatermark", 0) for operator in operators)
        self.late_rows += late_rows
        return late_rows

    def measured(self, records: int, oldest_ms: int | None, at_ms: int) -> None:
        """Set the lag.

        Args:
            records: how many records were not processed.
            oldest_ms: the timestamp of the oldest of them, in milliseconds since the epoch; None: unknown.
            at_ms: the time for which this applies.
        """
        self.is_lag_known = True
        self.lag_records = records
        self.lag_s = max(0, at_ms - oldest_ms) / 1000 if oldest_ms is not None else 0.0

    def rejected(self, records: int) -> None:
        """Count dead letters."""
        self.dead_letters += records

    def record(self) -> dict[str, Any]:
        """Return the record of the status topic as plain data. `updated` is the time of this call."""
        return asdict(self) | {"updated": _now()}


def ended_at_ms(progress: Mapping[str, Any]) -> int:
    """Return when a batch ended, in milliseconds since the epoch."""
    began_at = datetime.fromisoformat(progress["timestamp"])
    return int(began_at.timestamp() * 1000) + int(progress["durationMs"].get("triggerExecution", 0))


def now_ms() -> int:
    """Return the time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
