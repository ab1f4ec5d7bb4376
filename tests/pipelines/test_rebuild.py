"""A rebuild computes all results with the new version beside the old one, and then switches over."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from kafkasse.errors import CommandError
from kafkasse.pipelines import Pipeline, rebuild
from kafkasse.pipelines.admin import Admin
from kafkasse.pipelines.catalog import TOPN
from kafkasse.pipelines.contract import GENERATION
from kafkasse.pipelines.files import Files
from kafkasse.pipelines.lease import MARKER
from kafkasse.pipelines.queries.topn import topn
from kafkasse.pipelines.runner import running_query
from kafkasse.pipelines.supervisor import Crashed, StopRequests
from tests.pipelines.countries import country, top
from tests.pipelines.topics import Topics, read
from tests.support.waiting import wait_until

TIMEOUT_S = 120


def named(records: DataFrame, name: str, without: str = "") -> DataFrame:
    """A query that adds a name to each value, and leaves out a key."""
    value = F.concat("value", F.lit(f" {name}"))
    return records.where(F.col("key") != without).select(
        "key", value.alias("value"), (F.col("offset") + 1).alias("version")
    )


def pipeline(topics: Topics, name: str, without: str = "") -> Pipeline:
    query = partial(named, name=name, without=without)
    return Pipeline("named", topics.source, query, topics.sink, mode="microbatch")


def run_beside(query: StreamingQuery, spark: SparkSession, topics: Topics, new: Pipeline, directory: Path) -> None:
    """Rebuild while the query of the old version runs. Fail as the runner does when the query has ended."""
    read(topics, topics.sink, 4)
    assert rebuild.run(spark, new, topics.kafka, str(directory), StopRequests())
    wait_until(lambda: not query.isActive)
    raise Crashed("the query has ended")


def latest(records: list[Any]) -> dict[bytes, bytes | None]:
    return {record.key: record.value for record in records}


def staging_topics(topics: Topics) -> list[str]:
    with closing(KafkaConsumer(bootstrap_servers=topics.cluster.bootstrap_servers)) as consumer:
        return [name for name in consumer.topics() if name.startswith(f"{topics.sink}.rebuild-")]


@pytest.mark.long
def test_switches_over_while_the_old_version_runs(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    """The old version ends, the sink contains the results of the new one, and all of them have higher versions."""
    old, new = pipeline(topics, "old"), pipeline(topics, "new", without="b")
    topics.send((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"))
    with (
        pytest.raises(CommandError, match="a rebuild has replaced this run"),
        running_query(spark, old, topics.kafka, str(tmp_path)) as query,
    ):
        run_beside(query, spark, topics, new, tmp_path)
    topics.send((b"a", b"3"))
    with running_query(spark, new, topics.kafka, str(tmp_path)):
        records = read(topics, topics.sink, 8)

    assert {b"a": b"3 new", b"b": None, b"c": b"1 new"} == latest(records)
    versions = [int(dict(record.headers)["kafkasse-version"]) for record in records]
    assert all(version < GENERATION for version in versions[:4])
    assert all(version >= GENERATION for version in versions[4:])
    assert [] == staging_topics(topics)


@pytest.mark.long
def test_continues_an_interrupted_rebuild(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    """Until then, the pipeline does not start, because the sink does not contain its results yet."""
    old, new = pipeline(topics, "old"), pipeline(topics, "new")
    topics.send((b"a", b"1"))
    with running_query(spark, old, topics.kafka, str(tmp_path)):
        read(topics, topics.sink, 1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rebuild._Rebuild, "_copy", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            rebuild.run(spark, new, topics.kafka, str(tmp_path), StopRequests())
    with (
        pytest.raises(CommandError, match="was interrupted; continue it with --rebuild"),
        running_query(spark, new, topics.kafka, str(tmp_path)),
    ):
        pass

    rebuild.run(spark, new, topics.kafka, str(tmp_path), StopRequests())

    assert [b"1 old", b"1 new"] == [record.value for record in read(topics, topics.sink, 2)]


@pytest.mark.long
def test_a_second_rebuild_cannot_copy_at_the_same_time(
    spark: SparkSession, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one holds the lease, also on a file system that has no locks: its marker exists."""
    old, new = pipeline(topics, "old"), pipeline(topics, "new")
    topics.send((b"a", b"1"))
    with running_query(spark, old, topics.kafka, str(tmp_path)):
        read(topics, topics.sink, 1)
    copy = rebuild._Rebuild._copy

    def copy_beside_another(*arguments: Any) -> None:
        monkeypatch.undo()
        with pytest.raises(CommandError, match=r"another run of the pipeline uses the checkpoint .+rebuild-1"):
            rebuild.run(spark, new, topics.kafka, str(tmp_path), StopRequests())
        wait_until(lambda: list(tmp_path.glob(f"*.rebuild-1/{MARKER}")))
        copy(*arguments)

    monkeypatch.setattr(rebuild._Rebuild, "_copy", copy_beside_another)
    assert rebuild.run(spark, new, topics.kafka, str(tmp_path), StopRequests())

    assert [b"1 old", b"1 new"] == [record.value for record in read(topics, topics.sink, 2)]
    assert [] == list(tmp_path.glob(f"*/{MARKER}"))


@pytest.mark.long
@pytest.mark.parametrize("owner", [Admin, Files])
def test_an_interrupted_cleanup_is_completed(
    spark: SparkSession, topics: Topics, tmp_path: Path, owner: type[Admin | Files]
) -> None:
    """It deletes the topics of the rebuild, and then the marker in its checkpoint. The results are not written again."""
    old, new = pipeline(topics, "old"), pipeline(topics, "new")
    topics.send((b"a", b"1"))
    with running_query(spark, old, topics.kafka, str(tmp_path)):
        read(topics, topics.sink, 1)
    copy = rebuild._Rebuild._copy
    with pytest.MonkeyPatch.context() as patched:

        def copy_and_break(*arguments: Any) -> None:
            copy(*arguments)
            patched.setattr(owner, "delete", lambda *_: 1 / 0)

        patched.setattr(rebuild._Rebuild, "_copy", copy_and_break)
        with pytest.raises(ZeroDivisionError):
            rebuild.run(spark, new, topics.kafka, str(tmp_path), StopRequests())

    assert rebuild.run(spark, new, topics.kafka, str(tmp_path), StopRequests())

    assert [] == staging_topics(topics)
    topics.send((b"a", b"2"))
    with running_query(spark, new, topics.kafka, str(tmp_path)):
        records = read(topics, topics.sink, 3)
    assert [b"1 old", b"1 new", b"2 new"] == [record.value for record in records]


@pytest.mark.long
def test_starts_again_without_its_topics(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    """A discarded rebuild may have a checkpoint but no topics. To continue it would write tombstones for all keys."""
    old, new = pipeline(topics, "old"), pipeline(topics, "new")
    topics.send((b"a", b"1"))
    with running_query(spark, old, topics.kafka, str(tmp_path)):
        read(topics, topics.sink, 1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rebuild._Rebuild, "_copy", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            rebuild.run(spark, new, topics.kafka, str(tmp_path), StopRequests())
    [staging] = staging_topics(topics)
    topics.cluster.delete(staging)

    assert rebuild.run(spark, new, topics.kafka, str(tmp_path), StopRequests())

    assert [b"1 old", b"1 new"] == [record.value for record in read(topics, topics.sink, 2)]


def largest(type_: str) -> Pipeline:
    """A pipeline whose state has a column of this type. Its settings do not depend on the type."""

    def query(records: DataFrame) -> DataFrame:
        value = F.max(F.col("value").cast("string").cast(type_))
        return records.groupBy("key").agg(value.cast("string").alias("value"))

    return Pipeline("named", "source", query, "sink", mode="microbatch")


@pytest.mark.long
@pytest.mark.parametrize("change", ["settings", "state"])
@pytest.mark.parametrize("interrupted", ["_wait_for_end_of_others", "_copy"])
def test_a_changed_pipeline_starts_an_interrupted_rebuild_again(
    spark: SparkSession, topics: Topics, tmp_path: Path, change: str, interrupted: str
) -> None:
    """The unfinished rebuild cannot be continued, so it is discarded. `interrupted` is the step that failed."""
    if change == "settings":
        old, new, newer = (pipeline(topics, name) for name in ("old", "new", "newer"))
        expected = b"2 newer"
    else:
        definitions = [largest("int"), largest("int"), largest("double")]
        old, new, newer = (replace(each, source=topics.source, sink=topics.sink) for each in definitions)
        expected = b"2.0"
    topics.send((b"a", b"1"))
    with running_query(spark, old, topics.kafka, str(tmp_path)):
        read(topics, topics.sink, 1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rebuild._Rebuild, interrupted, lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            rebuild.run(spark, new, topics.kafka, str(tmp_path), StopRequests())
    topics.send((b"a", b"2"))

    assert rebuild.run(spark, newer, topics.kafka, str(tmp_path), StopRequests())

    assert expected == read(topics, topics.sink, 2)[-1].value
    [current] = [path for path in tmp_path.iterdir() if "rebuild" in path.name]
    assert not (current / "kafkasse-rebuild").exists()
    assert [] == staging_topics(topics)


@pytest.mark.long
@pytest.mark.timeout(400)  # it runs three queries, which take a minute each on a busy machine
def test_another_n_recomputes_all_groups(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    """A group that receives no further record has five countries too. Without a rebuild, the checkpoint is rejected."""
    old = replace(TOPN, source=topics.source, sink=topics.sink, mode="once")
    new = replace(old, query=partial(topn, n=5))
    topics.send(*(country(code, size) for size, code in enumerate("ABCDEF")), country("G", 1, "Asia"))
    with running_query(spark, old, topics.kafka, str(tmp_path)) as query:
        assert query.awaitTermination(TIMEOUT_S)
    with (
        pytest.raises(CommandError, match=r"query\.n was 3 and is 5 now.*--rebuild"),
        running_query(spark, new, topics.kafka, str(tmp_path)),
    ):
        pass

    assert rebuild.run(spark, new, topics.kafka, str(tmp_path), StopRequests())

    found = topics.read(lambda latest: len(latest) == 2 and len(top(latest["Europe"])) == 5)
    assert {"Europe": list("FEDCB"), "Asia": ["G"]} == {key: top(value) for key, value in found}


@pytest.mark.long
def test_a_stop_request_ends_a_rebuild(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    """The old version is still the current one."""
    old, new = pipeline(topics, "old"), pipeline(topics, "new")
    topics.send((b"a", b"1"))
    with running_query(spark, old, topics.kafka, str(tmp_path)):
        read(topics, topics.sink, 1)
    stop = StopRequests()
    stop.signals.put(15)

    is_complete = rebuild.run(spark, new, topics.kafka, str(tmp_path), stop)

    assert not is_complete
    topics.send((b"a", b"2"))
    with running_query(spark, old, topics.kafka, str(tmp_path)):
        records = read(topics, topics.sink, 2)
    assert b"2 old" == records[-1].value


def test_the_first_run_needs_no_rebuild(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    """It computes everything from the start anyway."""
    assert rebuild.run(spark, pipeline(topics, "new"), topics.kafka, str(tmp_path), StopRequests())
    assert [] == list(tmp_path.iterdir())
