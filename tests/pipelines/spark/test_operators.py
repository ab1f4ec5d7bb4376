"""The operators in Spark: the Java classes and the Python classes return what plain Python computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise, product
from random import Random
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from kafkasse.errors import CommandError
from kafkasse.pipelines.operators import engines, latest_per_key, ranked
from kafkasse.pipelines.operators.engines import Engine
from kafkasse.pipelines.operators.order_key import order_key
from kafkasse.pipelines.operators.schemas import ORDER_KEY
from kafkasse.pipelines.private_spark import java_class
from tests.pipelines import edits as plain
from tests.pipelines.edits import Edit
from tests.pipelines.spark.rows import MicroBatches
from tests.support.examples import first_of, is_long

HISTORIES = 15  # Spark takes seconds for a query, however many independent histories it contains
QUERIES = 20 if is_long() else 1
STATE_PARTITIONS = 2
in_batches_of_histories = settings(
    max_examples=QUERIES, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture(params=first_of("jvm", "python"))
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each implementation. `make test` compares them in test_ranked_equals_plain_python."""
    if request.param == "python":
        need_python_operators()
    chosen: Engine = request.param
    return chosen


def need_python_operators() -> None:
    """Skip the test if a package of the implementation in Python is missing."""
    for package in ("pandas", "pyarrow", "google.protobuf"):
        pytest.importorskip(package, reason=f"needs pip install '.[python-operators]' for {package}")


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


@in_batches_of_histories
@given(st.lists(plain.histories(), min_size=HISTORIES, max_size=HISTORIES), st.integers(1, 4))
def test_ranked_equals_plain_python(spark, partitions, histories, n):
    """Inserts, corrections, moves, removals and reordered rows give the top n, with all fields.

    Both implementations give equal items, versions and positions.
    """
    need_python_operators()
    edits = plain.prefixed(histories)

    jvm, python = (ranked(frame(spark, edits), n, engine=each).sort("group").collect() for each in get_args(Engine))

    items = {edit.key: edit.row[3] for edit in plain.latest(edits).values()}
    expected = {group: [items[key] for key in keys] for group, keys in plain.top(edits, n).items()}
    assert expected == {row.group: [item.asDict() for item in row["items"]] for row in jvm if row["items"]}
    assert jvm == python


@in_batches_of_histories
@given(st.lists(plain.histories(), min_size=HISTORIES, max_size=HISTORIES))
def test_latest_per_key_equals_plain_python(spark, partitions, engine, histories):
    """With an order, late rows are ignored. Each change of a key has a higher version than the previous change.

    A removed key has a row without values only if the row before has values.
    """
    edits = plain.prefixed(histories)

    rows = latest_per_key(frame(spark, edits), removed="group IS NULL", order="order", engine=engine).collect()

    found = {row.key: row for row in sorted(rows, key=lambda row: row.version)}
    expected = {key: edit.rank for key, edit in plain.latest_by_order(edits).items()}
    assert expected == {row.key: row.rank for row in found.values() if row.group is not None}
    assert len({(row.key, row.version) for row in rows}) == len(rows)
    for key in found:
        removed = [row.group is None for row in sorted(rows, key=lambda row: row.version) if row.key == key]
        assert (True, True) not in pairwise([True, *removed])


@in_batches_of_histories
@given(st.lists(plain.histories(), min_size=HISTORIES, max_size=HISTORIES))
def test_latest_per_key_emits_only_changes(spark, partitions, engine, histories):
    """A record that repeats the row of its key changes nothing, although its offset and its timestamp differ."""
    edits = plain.prefixed(histories)
    rows = as_kafka_rows(frame(spark, edits))

    emitted = latest_per_key(rows, removed="group IS NULL", engine=engine).sort("version").collect()

    found = {edit.key: [(row.group, row.rank) for row in emitted if row.key == edit.key] for edit in edits}
    assert plain.changes(edits) == found
    assert ["key", "group", "rank", "topic", "version", "position"] == latest_per_key(rows, engine=engine).columns


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


def test_a_query_resumes_from_its_checkpoint(spark, engine, tmp_path):
    """After a restart, the results are those of all edits, and a client that drops lower versions shows them.

    The second run adds a field, which is null in the items that only the first run has read.
    """
    edits = plain.numbered([Edit("first", "south", 9), *random_edits(Random(3), 120)])  # noqa: S311 - not used for cryptography
    stream = MicroBatches(spark, tmp_path, partial(ranked, n=3, engine=engine))
    stream.process(frame(spark, edits[:60]))
    stream.query = lambda rows: ranked(rows.withColumn("item", with_rank_text()), 3, engine=engine)

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
    with engines.recording("microbatch") as state:
        ranked(frame(spark, [Edit("k0", "north", 5)]), n=3, engine="jvm")

    assert [3] == [each["n"] for each in state.values() if "n" in each]


def test_an_empty_group_is_emitted_and_continues_to_count(spark, tmp_path):
    """A group without members has no items. Its version increases when it has members again.

    After a restart in micro-batches, nothing is repeated: Spark repeats exactly the batch that was not committed, so its
    results have the same versions.
    """

    def query(rows: DataFrame) -> DataFrame:
        with engines.recording("microbatch"):
            return ranked(rows, n=1, engine="jvm")

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
    stream = MicroBatches(spark, tmp_path, partial(ranked, n=1, engine="jvm"))
    stream.process(*(frame(spark, [Edit(f"k{offset}", "north", -offset, offset=offset)]) for offset in range(3)))

    repeated = stream.process(
        *(frame(spark, [Edit(f"k{offset}", "north", -offset, offset=offset)]) for offset in range(3, 8))
    )

    assert [(1, ["k0"]), (10, ["k0"]), (15, ["k0"]), (21, ["k0"])] == [
        (row.version, [item.key for item in row["items"]]) for row in stream.results
    ]
    assert 3 == len(repeated)


class StoredOrder(StatefulProcessor):
    """Stores the rows of a group under their order keys, and returns them in the order of the state store."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._map = handle.getMapState("map", ORDER_KEY, "key string, rank bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self._map.updateValue(order_key(row.rank, row.key), (row.key, row.rank))
        return iter([Row(key=name, rank=rank) for name, rank in self._map.values()])


def test_the_state_store_returns_order_keys_in_rank_order(spark):
    """Otherwise the operators would read whole groups. This depends on how Spark encodes the keys of a map."""
    pytest.importorskip("pyarrow", reason="needs pip install '.[python-operators]'")
    chance = Random(5)  # noqa: S311 - not used for cryptography
    members = [
        (f"k{i}" * chance.randint(1, 3), chance.randint(-(2**63), 2**63 - 1) >> chance.randint(0, 60))
        for i in range(500)
    ]
    rows = spark.createDataFrame([("g", *member) for member in members], "group string, key string, rank bigint")

    stored = (
        rows.groupBy("group").transformWithState(StoredOrder(), "key string, rank bigint", "update", "none").collect()
    )

    assert sorted(members, key=lambda member: (-member[1], member[0].encode())) == [tuple(row) for row in stored]


def test_both_implementations_have_equal_order_keys(spark):
    members = list(
        product([0, 1, -1, 2**63 - 1, -(2**63), 123456789], ["", "k", "k" * 16, "k" * 17, "\uffff", "\U0001f600" * 9])
    )
    found = java_class(spark, "kafkasse.operators.OrderKey").getMethods()
    of = next(method for method in found if method.getName() == "of")
    rows = []

    for rank, key in members:
        arguments = spark.sparkContext._gateway.new_array(spark._jvm.Object, 2)
        arguments[0], arguments[1] = spark._jvm.Long.valueOf(rank), key
        rows.append(of.invoke(None, arguments))

    assert [order_key(*member) for member in members] == [tuple(row.get(i) for i in range(5)) for row in rows]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.withColumn("key", F.lit(1)), "the key column key is not text; cast it to string"),
        (lambda rows: rows.withColumn("rank", F.lit("1")), "the rank column rank is not a bigint; cast it"),
        (lambda rows: rows.drop("offset"), "select them too"),
    ],
)
def test_wrong_columns_are_reported(spark, change, message):
    """Before the query starts."""
    with pytest.raises(CommandError, match=message):
        ranked(change(frame(spark, [Edit("k", "north", 1)])), 3)
