"""A pipeline that fails is restarted, with backoff, until it cannot make progress. Its status and errors say why."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any
from unittest.mock import Mock
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from pyspark.errors import AnalysisException

from kafkasse.errors import CommandError
from kafkasse.pipelines import application, supervisor
from kafkasse.pipelines.definition.catalog import TOPN
from kafkasse.pipelines.execution import dead_letters
from kafkasse.pipelines.kafka.skipped_records import Skipped
from kafkasse.pipelines.observe import metrics
from kafkasse.pipelines.observe.status import Status, ended_at_ms
from kafkasse.pipelines.spark import failures
from kafkasse.pipelines.supervisor import (
    Crashed,
    DependencyUnavailable,
    PipelineState,
    Replaced,
    RunStopped,
    StopRequests,
    supervise,
)


class Waits(StopRequests):
    """Records the backoffs instead of waiting. The stop request arrives during the last of `backoffs`."""

    def __init__(self, backoffs: int = 1000) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._backoffs = backoffs

    def wait(self, timeout_s: float) -> bool:
        self.seconds.append(timeout_s)
        return len(self.seconds) == self._backoffs


class Supervised:
    """Supervises attempts: each raises the next error, and the last one returns.

    Attributes:
        stop: records the backoffs.
    """

    def __init__(self, *errors: Exception, backoffs: int = 1000) -> None:
        self._errors = iter(errors)
        self.states: list[PipelineState] = []
        self.reasons: list[str] = []
        self.stop = Waits(backoffs)

    def run(self, skip: Callable[[Crashed], str] = lambda _: "") -> Supervised:
        supervise(self._attempt, self.stop, self._report, lambda: "t, partition 0, offset 17", skip)
        assert PipelineState.STOPPED == self.states[-1]
        return self

    def _attempt(self) -> None:
        for error in self._errors:
            raise error

    def _report(self, state: PipelineState, reason: str) -> None:
        self.states.append(state)
        self.reasons.append(reason)


def test_restarts_after_a_crash():
    states = Supervised(Crashed("the JVM ended")).run().states

    assert [PipelineState.STARTING, PipelineState.RESTARTING, PipelineState.STARTING, PipelineState.STOPPED] == states


@pytest.mark.parametrize(
    ("errors", "seconds"),
    [
        ([Crashed("x")] * 4, [1, 2, 4, 8]),
        ([DependencyUnavailable("x")] * 7, [1, 2, 4, 8, 16, 30, 30]),
        ([Crashed("x", committed=True)] * 20, [1] * 20),  # a commit between two crashes is progress
    ],
)
def test_backs_off_exponentially(errors, seconds):
    """Each crash without progress doubles the backoff, and so does each wait, up to a limit."""
    assert seconds == Supervised(*errors).run().stop.seconds


def test_a_crash_loop_ends_with_the_position():
    """The error names the reason and the record that the pipeline cannot pass."""
    with pytest.raises(CommandError, match=r"failed 5 times in a row .* at t, partition 0, offset 17: divided by zero"):
        Supervised(*[Crashed("divided by zero")] * supervisor.MAX_CRASHES).run()


def test_a_crash_loop_continues_without_the_records_that_cause_it():
    """Each crash loop skips records, until there is nothing to skip."""
    crashes = [Crashed("divided by zero", data_error="DIVIDE_BY_ZERO") for _ in range(2 * supervisor.MAX_CRASHES)]
    skipped = iter(["1 records", ""])
    seen: list[Crashed] = []
    supervised = Supervised(*crashes)

    with pytest.raises(CommandError, match="failed 5 times in a row"):
        supervised.run(lambda crash: seen.append(crash) or next(skipped))  # type: ignore[func-returns-value]

    assert [crashes[4], crashes[9]] == seen
    assert "restarting without 1 records: divided by zero" in supervised.reasons


def test_a_signal_stops_the_search_for_the_records_that_cause_a_crash_loop():
    """The search needs Spark, which may be starting again."""

    def skip(_: Crashed) -> str:
        raise RunStopped(signal.SIGTERM)

    assert PipelineState.FAILED not in Supervised(*[Crashed("x")] * 5).run(skip).states


@pytest.mark.parametrize(("backoffs", "waits"), [(1000, 100), (3, 3)])
def test_waiting_is_not_a_crash(backoffs, waits):
    """Kafka may be unavailable for any time, even between crashes. SIGTERM during a backoff does not start an attempt."""
    supervised = Supervised(*[DependencyUnavailable("no broker")] * 100, backoffs=backoffs).run()

    assert waits == supervised.states.count(PipelineState.WAITING)


def test_a_command_error_is_final():
    """An error that only the user can fix is not tried again."""
    supervised = Supervised(CommandError("the topic nix does not exist"))

    with pytest.raises(CommandError, match="the topic nix does not exist"):
        supervised.run()

    assert [PipelineState.STARTING, PipelineState.FAILED] == supervised.states


def test_a_run_that_a_rebuild_replaces_has_not_failed():
    """systemd, for example, would restart it after a failure. The reason names what has replaced it."""
    supervised = Supervised(Replaced("/data/topn.rebuild-1")).run()

    assert [PipelineState.STARTING, PipelineState.STOPPED] == supervised.states
    assert "/data/topn.rebuild-1" in supervised.reasons[-1]


def test_a_signal_is_a_stop_request():
    """A stop request stays, and the next signal is a second one."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    stop = StopRequests()
    try:
        stop.install()
        signal.raise_signal(signal.SIGTERM)

        assert (True, True) == (stop.wait(10), stop.wait(10))
        assert not stop.wait_for_next(0)

        signal.raise_signal(signal.SIGINT)

        assert stop.wait_for_next(10)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.fixture
def status() -> Status:
    return Status("topn", 1, "realtime", ["countries"], ["topn"])


def progress(end: int, rows: int = 10, batch: int = 0) -> dict[str, Any]:
    """Spark's progress of a batch that ended at this offset of partition 0. The source is read for two sinks."""
    source = {"description": "KafkaV2[countries]", "numInputRows": rows, "endOffset": {"countries": {"0": end}}}
    return {
        "batchId": batch,
        "numInputRows": 2 * rows,
        "durationMs": {"triggerExecution": 4000, "walCommit": 100, "commitOffsets": 150, "addBatch": 3000},
        "stateOperators": [{"numRowsTotal": 5, "memoryUsedBytes": 100}, {"numRowsTotal": 2, "memoryUsedBytes": 30}],
        "sources": [source, source],
        "sink": {"numOutputRows": 3},
    }


def test_sums_the_batches(status):
    """Counters grow with each batch, and the other values are those of the last batch."""
    status.committed(progress(10, batch=0))
    status.committed(progress(12, rows=2, batch=1))

    assert (2, 12, 6) == (status.commits, status.input_records, status.output_records)
    assert (1, 0.5, 4.0, 0.25) == (status.batch, status.records_per_s, status.batch_s, status.commit_s)
    assert (7, 130) == (status.state_rows, status.state_bytes)


def test_counts_rows_that_are_later_than_the_watermark(status):
    """Not every operator has a watermark."""
    batch = progress(10)
    batch["stateOperators"][0]["numRowsDroppedByWatermark"] = 3

    assert [3, 0, 3] == [status.committed(report) for report in (batch, progress(11), batch)]
    assert 6 == status.late_rows


def test_the_lag_is_the_age_of_the_oldest_record(status):
    """A clock that differs does not make the lag negative."""
    lags = []
    for records, oldest_ms in ((8, 1_000), (15, 6_500), (2, 7_000), (0, None)):
        status.measured(records, oldest_ms, at_ms=6_600)
        lags.append((status.lag_records, status.lag_s))

    assert [(8, 5.6), (15, 0.1), (2, 0), (0, 0)] == lags


def test_a_batch_ends_after_its_duration():
    """Spark reports when a batch began and how long it took."""
    batch = progress(10) | {"timestamp": "2026-11-22T22:00:00.500Z"}

    assert datetime(2026, 11, 22, 22, 0, 4, 500_000, UTC).timestamp() * 1000 == ended_at_ms(batch)


def test_counts_restarts(status):
    """Waiting for Kafka is not a restart. `since` changes with the state only."""
    for state in map(PipelineState, ("starting", "waiting", "starting", "running", "restarting", "starting")):
        status.enter(state, "")
    since = status.since
    status.enter(PipelineState.STARTING, "")

    assert 1 == status.restarts
    assert since == status.since
    assert since <= status.record()["updated"]


def test_the_record_is_plain_data(status):
    record = status.record()

    assert ("topn", "starting") == (record["pipeline"], record["state"])
    assert not [name for name in record if name.startswith("_")]


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_serves_metrics_and_readiness(status, host):
    """Prometheus reads all metrics, but no lag before it is measured; a probe gets 503 until records are processed."""
    with metrics.serving(f"{host}:0", status) as port:
        with pytest.raises(HTTPError, match="503"):
            urlopen(f"http://{host}:{port}/-/ready")
        assert "lag_records{" not in urlopen(f"http://{host}:{port}/-/metrics").read().decode()
        status.enter(PipelineState.RUNNING, "")
        status.measured(0, None, at_ms=0)
        ready = urlopen(f"http://{host}:{port}/-/ready").read()
        text = urlopen(f"http://{host}:{port}/-/metrics").read().decode()

    assert b"running\n" == ready
    assert 'kafkasse_pipeline_state{pipeline="topn",state="running"} 1.0' in text
    for name in metrics.METRICS:
        assert f'kafkasse_pipeline_{name}{{pipeline="topn"}} 0.0' in text


def test_a_rebuild_needs_another_address(status):
    """The old version runs until the new one has caught up."""
    with (
        metrics.serving("127.0.0.1:0", status) as port,
        pytest.raises(CommandError, match="the old version during a rebuild; use another --metrics-bind"),
        metrics.serving(f"127.0.0.1:{port}", status),
    ):
        pass


@pytest.mark.parametrize("address", ["9400", "127.0.0.1:x", "127.0.0.1:99999"])
def test_rejects_an_invalid_address(status, address):
    with pytest.raises(CommandError, match="--metrics-bind is HOST:PORT"), metrics.serving(address, status):
        pass


TOO_FEW_SLOTS = (
    "org.apache.spark.SparkRuntimeException: [CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT] Cannot run the pipelined stage group: "
    "it needs 5 concurrent task slots to run all its stages together, but only 4 are currently free."
)


def test_finds_how_many_slots_a_query_needs():
    assert 5 == failures.slots_needed(TOO_FEW_SLOTS)
    assert 0 == failures.slots_needed("java.lang.IllegalStateException: 5 slots")


@pytest.mark.parametrize(
    ("local", "kind", "advice"),
    [
        (True, CommandError, "use --master local[6] or more"),  # waiting would not help
        (False, DependencyUnavailable, "waiting for more slots: add workers"),
    ],
)
def test_only_a_cluster_can_get_more_slots(local, kind, advice):
    error = failures.too_few_slots(6, 4, local=local)

    assert isinstance(error, kind)
    assert "Spark has too few slots: 4, but the pipeline needs 6" in str(error)
    assert advice in str(error)


@pytest.mark.parametrize("name", [*failures.CHANGED_STATE, "VALUE_SCHEMA_NOT_COMPATIBLE"])
def test_a_changed_state_needs_a_rebuild(name):
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
def test_an_error_that_the_query_raises_may_be_caused_by_a_record(reason, kind):
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
def test_an_error_with_another_cause_is_not_caused_by_a_record(reason):
    """A lack of memory, a lost executor, Kafka or a service may cause the error, so no record may become a dead letter."""
    assert "" == failures.data_error(reason)


PY4J = """An error occurred while calling z:org.apache.kafka.clients.admin.AdminClient.create.
: org.apache.kafka.common.KafkaException: Failed to create new KafkaAdminClient
\tat org.apache.kafka.clients.admin.KafkaAdminClient.createInternal
Caused by: {cause}
"""
TIMEOUT = "org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment. Call: listTopics"


def test_an_error_of_a_kafka_client_names_its_cause():
    """The first line of Py4J's exception only names the call."""
    cause = "org.apache.kafka.common.config.ConfigException: Invalid value SASL_SLL"

    assert f"Spark failed: {cause}" == str(failures.unexpected(Exception(PY4J.format(cause=cause))))
    without_cause = "An error occurred while calling o1.x.\n: java.lang.IllegalArgumentException: y\n\tat z"
    assert "java.lang.IllegalArgumentException: y" == failures.first_line_of(Exception(without_cause))


def test_a_kafka_client_that_times_out_is_not_a_crash():
    """Kafka accepts connections, but does not respond."""
    assert isinstance(failures.unexpected(Exception(PY4J.format(cause=TIMEOUT))), DependencyUnavailable)


def test_records_that_kafka_deleted_are_a_final_error():
    """This exception is not in the package of Kafka's other errors."""
    reason = "x\nCaused by: org.apache.kafka.clients.consumer.OffsetOutOfRangeException: Fetch position is out of range"

    error = failures.explain(reason, committed=True)

    assert isinstance(error, CommandError)
    assert "use a new --checkpoint" in error.detail


def test_a_pipeline_runs_without_a_reader_of_its_output(monkeypatch):
    """Its stdout may be a pipe that nobody reads any more, or a file on a full disk."""
    ready = Mock(side_effect=BrokenPipeError)

    application.StatusObserver(TOPN, None, ready).report(PipelineState.RUNNING, "")

    ready.assert_called_once()


@pytest.mark.parametrize(
    ("error", "advice"), [("X", ""), ("STREAMING_REAL_TIME_MODE.OPERATOR_NOT_SUPPORTED", "; use the mode microbatch")]
)
def test_a_rejected_query_is_an_error_in_one_line(monkeypatch, error, advice):
    """Spark's text continues with its plan, and names no mode that accepts the query."""
    monkeypatch.setattr(application.topics, "check_reachable", Mock())
    sessions: Any = Mock(
        **{"use.side_effect": AnalysisException(f"[{error}] nix cannot be resolved;\n'Project ['nix]\n+- Plan")}
    )
    options = application.PipelineOptions("localhost:1")
    attempted = application._PipelineApplication(TOPN, options, sessions, ExitStack(), StopRequests(), Mock())

    with pytest.raises(CommandError, match=rf"the pipeline topn: \[{error}\] nix cannot be resolved{advice}$"):
        attempted.attempt()


def test_a_stop_request_ends_the_wait_for_dead_letters(monkeypatch):
    """Mode `once` waits until they are written. The next run writes those that cannot be written now."""
    for name in ("bad_records", "letters", "topics"):
        monkeypatch.setattr(dead_letters, name, Mock(**{"connector.return_value": {}}))
    written = Mock(side_effect=RuntimeError("TopicAuthorizationException"))
    monkeypatch.setattr(dead_letters._Writer, "_run_once", written)
    run: Any = Mock(**{"pipeline.mode": "once"})
    stop = StopRequests()

    with dead_letters.running(run, "/checkpoint", "t", 1, Skipped(), stop):
        stop.signals.put(signal.SIGTERM)

    written.assert_called()


def test_a_reason_names_the_exception_of_python():
    """The first line of Spark's own exception only says that there is a traceback."""
    assert "ValueError: not a number" == failures.first_line(PYTHON.format(error="ValueError: not a number"))
