"""The error of a query that has ended says what the user can do."""

from __future__ import annotations

import pytest

from kafkasse.errors import CommandError
from kafkasse.pipelines import failures
from kafkasse.pipelines.supervisor import Crashed, Unavailable

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


PYTHON = """org.apache.spark.SparkException: [STREAM_FAILED] Query terminated with exception
Caused by: org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown from the Python worker: \
Traceback (most recent call last):
  File "orders.py", line 12, in parsed
    raise error
{error}
second line
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner
"""
ARITHMETIC = """org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012
== DataFrame ==
"""
MALFORMED = """org.apache.spark.SparkException: [MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION] Malformed records: [null].
Parse Mode: FAILFAST. SQLSTATE: 22023
\tat org.apache.spark.sql
Caused by: com.fasterxml.jackson.core.JsonParseException: Unexpected character
"""


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (PYTHON.format(error="ValueError: not a number"), "ValueError"),
        (PYTHON.format(error="shop.errors.UnknownCurrency: XXX"), "shop.errors.UnknownCurrency"),
        (PYTHON.format(error="KeyError"), "KeyError"),
        (ARITHMETIC, "DIVIDE_BY_ZERO"),
        (MALFORMED, "MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION"),
        (
            "org.apache.spark.SparkRuntimeException: [USER_RAISED_EXCEPTION] bad SQLSTATE: P0001",
            "USER_RAISED_EXCEPTION",
        ),
    ],
)
def test_an_error_that_the_query_raises_may_be_caused_by_a_record(reason: str, kind: str) -> None:
    """The crash has the kind of the error."""
    crash = failures.explain(reason, committed=False)

    assert isinstance(crash, Crashed)
    assert kind == crash.data_error


@pytest.mark.parametrize(
    "reason",
    [
        PYTHON.format(error="MemoryError"),
        PYTHON.format(error="numpy._core._exceptions._ArrayMemoryError: Unable to allocate"),
        PYTHON.format(error="ConnectionRefusedError: [Errno 111] Connection refused"),
        PYTHON.format(error="requests.exceptions.ConnectionError: Max retries exceeded"),
        PYTHON.format(error="OSError: [Errno 28] No space left on device"),
        PYTHON.format(error="ModuleNotFoundError: No module named 'shop'"),
        PYTHON.format(error="EOFError"),
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).\nCaused by: java.io.EOFException",
        "java.lang.OutOfMemoryError: Java heap space",
        f"{ARITHMETIC}Caused by: java.lang.OutOfMemoryError: Java heap space",
        "org.apache.spark.SparkException: Job aborted due to stage failure: ExecutorLostFailure (executor 1 exited)",
        "org.apache.spark.SparkException: [KAFKA_DATA_LOSS.X] Some data may have been lost. SQLSTATE: 22000",
        f"{ARITHMETIC}Caused by: org.apache.kafka.common.errors.InvalidTopicException: t",
        "java.lang.IllegalStateException: SQLSTATE: 22012",
        "org.apache.spark.SparkException: [INTERNAL_ERROR] x SQLSTATE: XX000\nCaused by: java.lang.Error: SQLSTATE: 22012",
    ],
)
def test_an_error_with_another_cause_is_not_caused_by_a_record(reason: str) -> None:
    """A lack of memory, a lost executor, Kafka or a service may cause the error, so no record may become a dead letter."""
    assert "" == failures.data_error(reason)


def test_a_reason_names_the_exception_of_python() -> None:
    """The first line of Spark's own exception only says that there is a traceback."""
    assert "ValueError: not a number" == failures.first_line(PYTHON.format(error="ValueError: not a number"))
