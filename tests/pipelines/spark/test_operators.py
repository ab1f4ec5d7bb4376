"""The operators in Spark return what plain Python computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby, pairwise
from random import Random

import pytest
from hypothesis import given
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from kafkasse.errors import CommandError
from kafkasse.pipelines.operators import json_state, latest_per_key, ranked
from tests.pipelines import edits as plain
from tests.pipelines.edits import CHANCES, Edit, with_many_histories
from tests.pipelines.spark.rows import MicroBatches

HISTORIES = 100  # Spark takes seconds for a query, however many independent histories it contains
STATE_PARTITIONS = 2


@pytest.fixture
def partitions(spark: SparkSession) -> Iterator[None]:
    """More than one partition of the state."""
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)
    spark.conf.set(name, str(STATE_PARTITIONS))
    yield
    spark.conf.set(name, before or "1")


def frame(spark: SparkSession, edits: Iterable[Edit]) -> DataFrame:
    """The edits as rows, in a random order."""
    rows = [edit.row for edit in edits]
    Random(1).shuffle(rows)  # noqa: S311 - not used for cryptography
    return spark.createDataFrame(rows, plain.SCHEMA).coalesce(1)


@with_many_histories
@given(CHANCES)
def test_ranked_equals_plain_python(spark, partitions, chance):
    """Inserts, corrections, moves, removals and reordered rows give the top n, with all fields."""
    n, edits = chance.randint(1, 4), histories(chance)

    rows = ranked(frame(spark, edits), n).collect()

    items = {edit.key: edit.row[3] for edit in plain.latest(edits).values()}
    expected = {group: [items[key] for key in keys] for group, keys in plain.top(edits, n).items()}
    assert expected == {row.group: [item.asDict() for item in row["items"]] for row in rows if row["items"]}


@with_many_histories
@given(CHANCES)
def test_latest_per_key_equals_plain_python(spark, partitions, chance):
    """With an order, late rows are ignored. Each change of a key has a higher version than the previous change.

    A removed key has a row without values only if the row before has values.
    """
    edits = histories(chance)

    rows = latest_per_key(frame(spark, edits), removed="group IS NULL", order="order").collect()

    newest = {row.key: row for row in sorted(rows, key=lambda row: row.version)}
    expected = {key: edit.rank for key, edit in plain.latest_by_order(edits).items()}
    assert expected == {row.key: row.rank for row in newest.values() if row.group is not None}
    assert len({(row.key, row.version) for row in rows}) == len(rows)
    in_order = sorted(rows, key=lambda row: (row.key, row.version))
    for _, of_key in groupby(in_order, key=lambda row: row.key):
        assert (True, True) not in pairwise([True, *(row.group is None for row in of_key)])


@with_many_histories
@given(CHANCES)
def test_latest_per_key_emits_only_changes(spark, partitions, chance):
    """A record that repeats the row of its key changes nothing, although its offset and its timestamp differ."""
    edits = histories(chance)
    rows = as_kafka_rows(frame(spark, edits))

    emitted = latest_per_key(rows, removed="group IS NULL").sort("version").collect()

    found: dict[str, list[tuple[str | None, int | None]]] = {edit.key: [] for edit in edits}
    for row in emitted:
        found[row.key].append((row.group, row.rank))
    assert plain.changes(edits) == found
    assert ["key", "group", "rank", "topic", "version", "position"] == latest_per_key(rows).columns


def histories(chance: Random) -> list[Edit]:
    """Independent histories. Each has its own keys and groups."""
    return [plain.with_prefix(edit, f"{number} ") for number in range(HISTORIES) for edit in plain.history(chance)]


def as_kafka_rows(edits: DataFrame) -> DataFrame:
    """The edits with the columns of Spark's Kafka source."""
    return edits.select(
        "key",
        "group",
        "rank",
        F.lit("edits").alias("topic"),
        "partition",
        "offset",
        F.timestamp_seconds("offset").alias("timestamp"),
        F.lit(0).alias("timestampType"),
    )


def view(results: Iterable[Row]) -> dict[str, list[str]]:
    """What a client shows that drops results with a lower version than the one that it shows."""
    shown: dict[str, Row] = {}
    for row in results:
        if row.group not in shown or row.version >= shown[row.group].version:
            shown[row.group] = row
    return {group: [item.key for item in row["items"]] for group, row in shown.items() if row["items"]}


def random_edits(chance: Random, count: int) -> list[Edit]:
    """Edits that often change the top 3."""
    return [
        Edit(chance.choice(plain.KEYS), chance.choice([*plain.GROUPS, None]), chance.randint(-3, 3))
        for _ in range(count)
    ]


def test_a_query_resumes_from_its_checkpoint(spark, tmp_path):
    """After a restart, the results are those of all edits, and a client that drops lower versions shows them.

    The second run adds a field, which is null in the items that only the first run has read.
    """
    edits = plain.numbered([Edit("first", "south", 9), *random_edits(Random(3), 120)])  # noqa: S311 - not used for cryptography
    stream = MicroBatches(spark, tmp_path, partial(ranked, n=3))
    stream.process(frame(spark, edits[:60]))
    stream.query = lambda rows: ranked(rows.withColumn("item", with_rank_text()), 3)

    added = stream.process(frame(spark, edits[60:]))

    assert plain.top(edits, 3) == view(stream.results)
    old = plain.latest(edits[:60])
    texts = {key: None if old.get(key) == edit else str(edit.rank) for key, edit in plain.latest(edits).items()}
    found = {item.key: item.text for row in added for item in row["items"]}
    assert found.items() <= texts.items()
    assert {"first"} < found.keys()


def with_rank_text() -> Column:
    return F.col("item").withField("text", F.col("rank").cast("string"))


def test_the_manifest_contains_the_number_of_ranks(spark):
    """A run with another number rejects the checkpoint: groups that receive no row would keep their old results."""
    with json_state.recording("microbatch") as state:
        ranked(frame(spark, [Edit("k0", "north", 5)]), n=3)

    assert [3] == [entry["n"] for entry in state.values() if "n" in entry]


def test_an_empty_group_is_emitted_and_continues_to_count(spark, tmp_path):
    """A group without members has no items. Its version increases when it has members again.

    After a restart in micro-batches, nothing is repeated: Spark repeats exactly the batch that was not committed, so its
    results have the same versions.
    """

    def query(rows: DataFrame) -> DataFrame:
        with json_state.recording("microbatch"):
            return ranked(rows, n=1)

    stream = MicroBatches(spark, tmp_path, query)
    edits = [Edit("k", "north", 1, offset=5), Edit("k", None, 1, offset=6), Edit("k", "north", 2, offset=7)]
    stream.process(*(frame(spark, [edit]) for edit in edits))

    repeated = stream.process(frame(spark, [Edit("k1", "north", 1, offset=8)]))

    assert [] == repeated
    assert [["k"], [], ["k"]] == [[item.key for item in row["items"]] for row in stream.results]
    assert [6, 7, 15] == [row.version for row in stream.results]
    assert [{0: 5}, {0: 6}, {0: 7}] == [row.position for row in stream.results]


@pytest.mark.long
def test_after_a_restart_unchanged_results_are_repeated_with_their_new_version(spark, tmp_path):
    """In real-time mode, the run before may have emitted a result of other edits with a higher version."""
    stream = MicroBatches(spark, tmp_path, partial(ranked, n=1))
    stream.process(*(frame(spark, [Edit(f"k{offset}", "north", -offset, offset=offset)]) for offset in range(3)))

    repeated = stream.process(
        *(frame(spark, [Edit(f"k{offset}", "north", -offset, offset=offset)]) for offset in range(3, 8))
    )

    assert [(1, ["k0"]), (10, ["k0"]), (15, ["k0"]), (21, ["k0"])] == [
        (row.version, [item.key for item in row["items"]]) for row in stream.results
    ]
    assert 3 == len(repeated)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.withColumn("key", F.lit(1)), "the column 'key' is not text; cast it to string"),
        (lambda rows: rows.withColumn("rank", F.lit("1")), "the column 'rank' is not a bigint; cast it"),
        (lambda rows: rows.drop("offset"), "select them too"),
    ],
)
def test_wrong_columns_are_reported(spark, change, message):
    """Before the query starts."""
    with pytest.raises(CommandError, match=message):
        ranked(change(frame(spark, [Edit("k", "north", 1)])), 3)
