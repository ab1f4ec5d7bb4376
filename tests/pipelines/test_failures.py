"""The error of a query that has ended says what the user can do."""

from __future__ import annotations

import pytest

from kafkasse.errors import CommandError
from kafkasse.pipelines import failures
from kafkasse.pipelines.supervisor import Unavailable

TOO_FEW_SLOTS = (
    "org.apache.spark.SparkRuntimeException: [CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT] Cannot run the pipelined stage group: "
    "it needs 5 concurrent task slots to run all its stages together, but only 4 are currently free."
)


def test_finds_how_many_slots_a_query_needs() -> None:
    """Spark's error contains the number."""
    assert 5 == failures.slots_needed(TOO_FEW_SLOTS)
    assert 0 == failures.slots_needed("java.lang.IllegalStateException: 5 slots")


def test_a_local_spark_cannot_get_more_slots() -> None:
    """Waiting would not help, so the error is permanent."""
    error = failures.too_few_slots(6, 4, local=True)

    assert isinstance(error, CommandError)
    assert "Spark has too few slots: 4, but the pipeline needs 6" in error.detail
    assert "use --master local[6] or more" in error.detail


def test_a_pipeline_waits_for_slots_of_a_cluster() -> None:
    """The reason says how many slots it needs and how to provide them."""
    error = failures.too_few_slots(6, 4, local=False)

    assert isinstance(error, Unavailable)
    assert "Spark has too few slots: 4, but the pipeline needs 6" in str(error)
    assert "waiting for more slots: add workers" in str(error)


@pytest.mark.parametrize("name", failures.CHANGED_STATE)
def test_a_changed_state_needs_a_rebuild(name: str) -> None:
    """Spark's errors name no solution."""
    error = failures.explain(f"org.apache.spark.SparkException: [STATE_STORE_{name}] ...", committed=False)

    assert isinstance(error, failures.ChangedState)
    assert "--rebuild" in error.detail
