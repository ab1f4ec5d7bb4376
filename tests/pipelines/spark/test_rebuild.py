"""A rebuild computes all results with the new version beside the old one, and then switches over."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafkasse.errors import CommandError
from kafkasse.pipelines import Pipeline, Source, application
from kafkasse.pipelines.application import StatusObserver
from kafkasse.pipelines.checkpoints.lease import MARKER
from kafkasse.pipelines.execution import rebuild
from kafkasse.pipelines.kafka.admin import Admin
from kafkasse.pipelines.kafka.contract import GENERATION
from kafkasse.pipelines.next_offsets import NextOffsets
from kafkasse.pipelines.operators import latest_per_key
from kafkasse.pipelines.spark.files import Files
from kafkasse.pipelines.supervisor import Crashed, Replaced, StopRequests
from tests.pipelines.spark.runs import Runs
from tests.support.waiting import wait_until


def named(records: DataFrame, name: str, without: str = "") -> DataFrame:
    """A query that adds a name to each value, and leaves out a key."""
    value = F.concat("value", F.lit(f" {name}"))
    return records.where(F.col("key") != without).select(
        "key", value.alias("value"), (F.col("offset") + 1).alias("version")
    )


def version(runs: Runs, name: str, without: str = "") -> Pipeline:
    return runs.pipeline(partial(named, name=name, without=without), name="named", mode="microbatch")


@pytest.fixture
def new(runs: Runs) -> Pipeline:
    """The new version. The old one has written the result of a record, and has ended."""
    run_old(runs, version(runs, "old"))
    return version(runs, "new")


def run_old(runs: Runs, old: Pipeline) -> None:
    runs.topics.send((b"a", b"1"))
    with runs.running(old):
        runs.results(1)


def interrupt(runs: Runs, new: Pipeline, step: str = "_copy") -> None:
    """Rebuild until this step, which fails."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rebuild._Rebuild, step, lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            runs.rebuild(new)


def values(runs: Runs, count: int) -> list[bytes]:
    return [record.value for record in runs.results(count)]


def staging_topics(runs: Runs) -> list[str]:
    """The topics of rebuilds that are not complete."""
    with Admin(runs.spark, runs.topics.kafka) as admin:
        return [name for name in admin.names() if name.startswith(f"{runs.topics.sink}.rebuild-")]


@pytest.mark.long
def test_switches_over_while_the_old_version_runs(runs):
    """The old version ends, the sink contains the results of the new one, and all of them have higher versions."""
    new = version(runs, "new", without="b")
    runs.topics.send((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"))
    replaced = pytest.raises(Replaced, match=r"\.rebuild-1$")
    with replaced, runs.running(version(runs, "old")) as query:
        runs.results(4)
        assert runs.rebuild(new)
        wait_until(lambda: not query.isActive)
        raise Crashed("the query has ended")  # as the runner does
    runs.topics.send((b"a", b"3"))
    with runs.running(new):
        records = runs.results(8)

    assert {b"a": b"3 new", b"b": None, b"c": b"1 new"} == {record.key: record.value for record in records}
    versions = [int(dict(record.headers)["kafkasse-version"]) for record in records]
    assert [False] * 4 + [True] * 4 == [version >= GENERATION for version in versions]
    assert [] == staging_topics(runs)


@pytest.mark.long
def test_shows_the_progress_of_the_new_version(runs, new):
    """The lag starts with all records of the sources. The topic keeps the status of the old version."""
    runs.topics.send((b"a", b"2"), (b"b", b"1"))
    observer = StatusObserver(new, topic := f"{runs.topics.sink}-status", Mock())
    observer.is_rebuilding = True
    lags = []
    measured = observer.status.measured
    observer.status.measured = lambda records, *rest: (lags.append(records), measured(records, *rest))
    observer.use(runs.of(new))

    runs.rebuild(new, observer=observer)

    assert 3 == lags[0]
    assert 3 == observer.status.input_records
    assert [] == runs.topics.cluster.records(topic)


@pytest.mark.long
def test_waits_while_kafka_does_not_answer(runs, new, broker, monkeypatch, caplog):
    """The log says that Kafka does not respond, and later that the rebuild continues."""
    monkeypatch.setattr(application, "STATUS_INTERVAL_S", 1.0)
    caplog.set_level("INFO", "kafkasse.pipeline")

    class Observer(StatusObserver):
        def started(self, committed: NextOffsets) -> None:
            super().started(committed)
            monkeypatch.setattr(rebuild, "_has_reached", lambda *_: "state=starting" in caplog.text)

        def polled(self) -> None:
            if "state=" not in caplog.text:
                os.kill(broker.pid, signal.SIGSTOP)
            super().polled()
            if "state=" in caplog.text:
                os.kill(broker.pid, signal.SIGCONT)

    observer = Observer(new, None, Mock())
    observer.is_rebuilding = True
    observer.use(runs.of(new))
    try:
        assert runs.rebuild(new, observer=observer)
    finally:
        os.kill(broker.pid, signal.SIGCONT)

    states = [record.getMessage() for record in caplog.records if "state=" in record.getMessage()]
    assert [
        'pipeline name=named state=waiting reason="Kafka does not respond"',
        "pipeline name=named state=starting",
    ] == states


@pytest.mark.long
def test_continues_an_interrupted_rebuild(runs, new):
    """Until then, the pipeline does not start, because the sink does not contain its results yet."""
    interrupt(runs, new)
    with pytest.raises(CommandError, match="was interrupted; continue it with --rebuild"), runs.running(new):
        pass

    runs.rebuild(new)

    assert [b"1 old", b"1 new"] == values(runs, 2)


@pytest.mark.long
def test_a_second_rebuild_cannot_copy_at_the_same_time(runs, new, monkeypatch):
    """The first one holds the lease, also on a file system that has no locks: its marker exists."""
    copy = rebuild._Rebuild._copy

    def copy_beside_another(*arguments: Any) -> None:
        monkeypatch.undo()
        with pytest.raises(CommandError, match=r"another run of the pipeline uses the checkpoint .+rebuild-1"):
            runs.rebuild(new)
        wait_until(lambda: list(runs.directory.glob(f"*.rebuild-1/{MARKER}")))
        copy(*arguments)

    monkeypatch.setattr(rebuild._Rebuild, "_copy", copy_beside_another)
    assert runs.rebuild(new)

    assert [b"1 old", b"1 new"] == values(runs, 2)
    assert [] == list(runs.directory.glob(f"*/{MARKER}"))


@pytest.mark.long
@pytest.mark.parametrize("owner", [Admin, Files])
def test_an_interrupted_cleanup_is_completed(runs, new, owner):
    """It deletes the topics of the rebuild, and then the marker in its checkpoint. The results are not written again."""
    copy = rebuild._Rebuild._copy
    with pytest.MonkeyPatch.context() as patched:

        def copy_and_break(*arguments: Any) -> None:
            copy(*arguments)
            patched.setattr(owner, "delete", lambda *_: 1 / 0)

        patched.setattr(rebuild._Rebuild, "_copy", copy_and_break)
        with pytest.raises(ZeroDivisionError):
            runs.rebuild(new)

    assert runs.rebuild(new)

    assert [] == staging_topics(runs)
    runs.topics.send((b"a", b"2"))
    with runs.running(new):
        assert [b"1 old", b"1 new", b"2 new"] == values(runs, 3)


@pytest.mark.long
def test_starts_again_without_its_topics(runs, new):
    """A discarded rebuild may have a checkpoint but no topics. To continue it would write tombstones for all keys."""
    interrupt(runs, new)
    [staging] = staging_topics(runs)
    runs.topics.cluster.delete(staging)

    assert runs.rebuild(new)

    assert [b"1 old", b"1 new"] == values(runs, 2)


def largest(type_: str) -> Any:
    """A query whose state has a column of this type. Its settings do not depend on the type."""

    def query(records: DataFrame) -> DataFrame:
        value = F.max(F.col("value").cast("string").cast(type_))
        return records.groupBy("key").agg(value.cast("string").alias("value"))

    return query


def latest(type_: str) -> Any:
    """The same with an operator of kafkasse, whose state has this type in the manifest."""

    def query(records: DataFrame) -> DataFrame:
        value = F.col("value").cast("string").cast(type_)
        rows = latest_per_key(records.withColumns({"key": F.col("key").cast("string"), "value": value}).drop("headers"))
        return rows.withColumn("value", F.col("value").cast("string"))

    return query


@pytest.mark.long
@pytest.mark.parametrize("change", ["settings", "state", "state of an operator"])
@pytest.mark.parametrize("interrupted", ["_wait_for_end_of_others", "_copy"])
def test_a_changed_pipeline_starts_an_interrupted_rebuild_again(runs, change, interrupted, caplog):
    """The unfinished rebuild cannot be continued, so it is discarded. `interrupted` is the step that failed."""
    if change == "settings":
        old, new, newer = (version(runs, name) for name in ("old", "new", "newer"))
        expected = b"2 newer"
    else:
        query = largest if change == "state" else latest
        old, new, newer = (runs.pipeline(query(type_), mode="microbatch") for type_ in ("int", "int", "double"))
        expected = b"2.0"
    run_old(runs, old)
    interrupt(runs, new, interrupted)
    runs.topics.send((b"a", b"2"))

    assert runs.rebuild(newer)

    assert expected == values(runs, 2)[-1]
    assert "rebuild: restarting from the beginning, because the " in caplog.text
    [current] = [path for path in runs.directory.iterdir() if "rebuild" in path.name]
    assert not (current / "kafkasse-rebuild").exists()
    assert [] == staging_topics(runs)


@pytest.mark.long
def test_a_stop_request_ends_a_rebuild(runs, new):
    """The old version is still the current one."""
    stop = StopRequests()
    stop.signals.put(15)

    is_complete = runs.rebuild(new, stop)

    assert not is_complete
    runs.topics.send((b"a", b"2"))
    with runs.running(version(runs, "old")):
        assert b"2 old" == values(runs, 2)[-1]


@pytest.mark.long
def test_writes_no_tombstones_for_keys_of_others(runs, new):
    """Another pipeline or producer may write to the same sink."""
    for headers in ([("kafkasse-pipeline", b"named-too/1")], []):
        runs.topics.cluster.send(runs.topics.sink, b"x", key=b"%d" % len(headers), headers=headers)

    assert runs.rebuild(new)

    runs.topics.send((b"a", b"2"))
    with runs.running(new):
        assert [b"1 old", b"x", b"x", b"1 new", b"2 new"] == values(runs, 5)


@pytest.mark.long
def test_a_pipeline_that_starts_with_the_newest_record_cannot_be_rebuilt(runs, new):
    """The rebuild would read no record, and so write a tombstone for each key."""
    latest_only = replace(new, source=Source(runs.topics.source, start="latest"))

    with pytest.raises(CommandError, match=f"it reads {runs.topics.source} with start: latest"):
        runs.rebuild(latest_only)


def test_the_first_run_needs_no_rebuild(runs):
    """It computes everything from the start anyway."""
    assert runs.rebuild(version(runs, "new"))
    assert [] == list(runs.directory.iterdir())
