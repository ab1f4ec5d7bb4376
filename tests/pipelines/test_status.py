"""The status of a pipeline, and its metrics."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from kafkasse.errors import CommandError
from kafkasse.pipelines import metrics
from kafkasse.pipelines.status import Status, ended_at_ms
from kafkasse.pipelines.supervisor import State


@pytest.fixture
def status() -> Status:
    """The status of a pipeline that has not started."""
    return Status("topn", 1, "realtime", ["countries"], ["topn"])


def progress(end: int, rows: int = 10, batch: int = 0) -> dict[str, Any]:
    """Spark's progress of a batch that ended at this offset of partition 0."""
    return {
        "batchId": batch,
        "numInputRows": rows,
        "durationMs": {"triggerExecution": 4000, "walCommit": 100, "commitOffsets": 150, "addBatch": 3000},
        "stateOperators": [{"numRowsTotal": 5, "memoryUsedBytes": 100}, {"numRowsTotal": 2, "memoryUsedBytes": 30}],
        "sources": [{"endOffset": {"countries": {"0": end}}}],
        "sink": {"numOutputRows": 3},
    }


def test_sums_the_batches(status: Status) -> None:
    """Counters grow with each batch, and the other values are those of the last batch."""
    status.committed(progress(10, batch=0))
    status.committed(progress(12, rows=2, batch=1))

    assert (2, 12, 6) == (status.commits, status.input_records, status.output_records)
    assert (1, 0.5, 4.0, 0.25) == (status.batch, status.records_per_s, status.batch_s, status.commit_s)
    assert (7, 130) == (status.state_rows, status.state_bytes)


def test_counts_rows_that_are_later_than_the_watermark(status: Status) -> None:
    """Not every operator has a watermark."""
    batch = progress(10)
    batch["stateOperators"][0]["numRowsDroppedByWatermark"] = 3

    assert [3, 0, 3] == [status.committed(each) for each in (batch, progress(11), batch)]
    assert 6 == status.late_rows


def test_the_lag_is_the_age_of_the_oldest_record(status: Status) -> None:
    """A clock that differs does not make the lag negative."""
    lags = []
    for records, oldest_ms in ((8, 1_000), (15, 6_500), (2, 7_000), (0, None)):
        status.measured(records, oldest_ms, at_ms=6_600)
        lags.append((status.lag_records, status.lag_s))

    assert [(8, 5.6), (15, 0.1), (2, 0), (0, 0)] == lags


def test_a_batch_ends_after_its_duration() -> None:
    """Spark reports when a batch began and how long it took."""
    batch = progress(10) | {"timestamp": "2026-11-22T22:00:00.500Z"}

    assert datetime(2026, 11, 22, 22, 0, 4, 500_000, UTC).timestamp() * 1000 == ended_at_ms(batch)


def test_counts_restarts(status: Status) -> None:
    """Waiting for Kafka is not a restart. `since` changes with the state only."""
    for state in (State.STARTING, State.WAITING, State.STARTING, State.RUNNING, State.RESTARTING, State.STARTING):
        status.enter(state, "")
    since = status.since
    status.enter(State.STARTING, "")

    assert 1 == status.restarts
    assert since == status.since
    assert since <= status.updated


def test_the_record_is_plain_data(status: Status) -> None:
    """The record contains no internal fields."""
    record = status.record()

    assert ("topn", "starting") == (record["pipeline"], record["state"])
    assert not [name for name in record if name.startswith("_")]


def test_serves_metrics_and_readiness(status: Status) -> None:
    """Prometheus reads all metrics; a probe gets 503 until the pipeline processes records."""
    with metrics.serving("127.0.0.1:0", status) as port:
        with pytest.raises(HTTPError, match="503"):
            urlopen(f"http://127.0.0.1:{port}/-/ready")
        status.enter(State.RUNNING, "")
        ready = urlopen(f"http://127.0.0.1:{port}/-/ready").read()
        text = urlopen(f"http://127.0.0.1:{port}/-/metrics").read().decode()

    assert b"running\n" == ready
    assert 'kafkasse_pipeline_state{pipeline="topn",state="running"} 1.0' in text
    for name, metric in metrics.METRICS.items():
        assert f'kafkasse_pipeline_{name}{"_total" if metric.is_counter else ""}{{pipeline="topn"}} 0.0' in text


@pytest.mark.parametrize("address", ["9400", "127.0.0.1:x", "127.0.0.1:99999"])
def test_rejects_an_invalid_address(status: Status, address: str) -> None:
    """The error names the option."""
    with pytest.raises(CommandError, match="--metrics-bind is HOST:PORT"), metrics.serving(address, status):
        pass
