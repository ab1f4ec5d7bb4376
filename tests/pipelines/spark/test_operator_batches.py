"""The operators over many micro-batches: the result does not depend on how a source's records are split into batches.

One query processes many independent histories, because each micro-batch takes a third of a second.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, Row, SparkSession

from kafkasse.pipelines.operators import latest_per_key, ranked, schemas
from kafkasse.pipelines.spark import private_spark
from tests.pipelines import edits as plain
from tests.pipelines.edits import CHANCES, Edit, with_many_histories
from tests.pipelines.spark.rows import MicroBatches
from tests.support.examples import examples

HISTORIES, SPLITS = 80, 3
BATCHES = 8
RANKS = st.integers(-(2**63), 2**63 - 1)


class Stream:
    """A query in micro-batches.

    Attributes:
        results: the rows that it has emitted.
    """

    def __init__(self, spark: SparkSession, directory: Path, query: Any, batches: Iterable[list[Edit]]) -> None:
        self._spark, self._checkpoint = spark, str(directory / "checkpoint")
        stream = MicroBatches(spark, directory, query)
        stream.process(*(frame(spark, batch) for batch in batches))
        self.results = stream.results

    def state(self, name: str) -> list[Row]:
        """The rows of a variable of the state, in the order of the state store."""
        operators = self._spark.read.format("state-metadata").load(self._checkpoint).collect()
        [number] = [row.operatorId for row in operators if f'"stateName":"{name}"' in (row.operatorProperties or "")]
        options = {"operatorId": number, "stateVarName": name}
        return self._spark.read.format("statestore").options(**options).load(self._checkpoint).collect()

    def groups(self) -> dict[str, Row]:
        """The state of each group apart from its members."""
        return {row.key[0]: row.value for row in self.state("group")}

    def tops(self) -> dict[str, list[str]]:
        """The last result of each group, without empty ones."""
        last = {row.group: [item.key for item in row["items"]] for row in self.results}
        return {group: keys for group, keys in last.items() if keys}


def frame(spark: SparkSession, edits: list[Edit]) -> DataFrame:
    return spark.createDataFrame([edit.row for edit in edits], plain.SCHEMA).coalesce(1)


def split(edits: list[Edit], chance: Random) -> list[list[Edit]]:
    """Split the edits into BATCHES that read each partition in order, but the partitions in any order.

    Some edits occur twice in a batch. A source never returns a committed record again.
    """
    batches: list[list[Edit]] = [[] for _ in range(BATCHES)]
    for partition in range(plain.PARTITIONS):
        of_partition = [edit for edit in edits if edit.partition == partition]
        numbers = sorted(chance.randrange(BATCHES) for _ in of_partition)
        for number, edit in zip(numbers, of_partition, strict=True):
            batches[number].append(edit)
    return [shuffled([*batch, *chance.sample(batch, min(len(batch), 3))], chance) for batch in batches]


def shuffled(edits: list[Edit], chance: Random) -> list[Edit]:
    return chance.sample(edits, len(edits))


def together(many: Iterable[list[list[Edit]]]) -> list[list[Edit]]:
    """Combine the batches of independent histories: `north` in the third history is the group `2 north`."""
    prefixed = [
        [[plain.with_prefix(edit, f"{number} ") for edit in batch] for batch in batches]
        for number, batches in enumerate(many)
    ]
    return [[edit for batch in batches for edit in batch] for batches in zip(*prefixed, strict=True)]


def expected_tops(members: Iterable[dict[str, list[str]]], n: int) -> dict[str, list[str]]:
    """What tops() must return, given the members of each history by group."""
    return {
        f"{number} {group}": [f"{number} {key}" for key in keys[:n]]
        for number, groups in enumerate(members)
        for group, keys in groups.items()
    }


@pytest.fixture
def directories(tmp_path: Path) -> Iterator[Path]:
    """New directories, because hypothesis calls a test several times."""
    return (tmp_path / str(number) for number in range(1000))


@with_many_histories
@given(CHANCES)
def test_the_top_n_equal_those_of_plain_python(spark, directories, chance):
    """The result does not depend on how the edits are split into micro-batches, or repeated and reordered within them.

    Equal input gives equal sizes, versions and positions. Each result of a group has a higher version than the one before,
    also after the group became empty. The version for all edits is the highest, in whichever order some of them were read.
    """
    n = chance.randint(1, 4)
    copies = [history for _ in range(HISTORIES) for history in [plain.history(chance)] * SPLITS]

    stream = Stream(
        spark, next(directories), lambda rows: ranked(rows, n), together(split(history, chance) for history in copies)
    )

    assert expected_tops(map(plain.members, copies), n) == stream.tops()
    groups = stream.groups()
    sizes = {
        f"{number} {group}": len(keys)
        for number, copy in enumerate(copies)
        for group, keys in plain.members(copy).items()
    }
    assert sizes == {group: of_group.size for group, of_group in groups.items() if of_group.size}
    for number in range(0, len(copies), SPLITS):
        for group in plain.GROUPS:
            of_copies = [groups.get(f"{number + copy} {group}") for copy in range(SPLITS)]
            assert 1 == len({state and (state.size, state.version, tuple(state.position)) for state in of_copies})
    for group, of_group in groups.items():
        versions = [row.version for row in stream.results if row.group == group]
        assert sorted(set(versions)) == versions
        assert all(version <= of_group.version for version in versions)


@with_many_histories
@given(CHANCES)
def test_late_edits_are_ignored(spark, directories, chance):
    """With an order, an edit that arrives after one with a higher order changes nothing, even if that one was a removal."""
    n = chance.randint(1, 4)
    histories = [plain.history(chance) for _ in range(HISTORIES)]
    batches = together([*split(history, chance), *split(history, chance)] for history in histories)

    stream = Stream(spark, next(directories), lambda rows: ranked(rows, n, order="order"), batches)

    latest = [plain.ranked_members(plain.latest_by_order(history).values()) for history in histories]
    assert expected_tops(latest, n) == stream.tops()


def test_old_rows_change_nothing(spark, tmp_path):
    """A record that is read again, and with an order, a record with the same order and a lower offset."""
    first, second, late = (
        Edit("k", "north", rank, partition, offset, order=1)
        for rank, partition, offset in ((1, 0, 4), (2, 0, 5), (3, 1, 3))
    )

    without, with_order = (
        Stream(spark, tmp_path / str(order), partial(latest_per_key, order=order), [[first], [second], [read_later]])
        for order, read_later in ((None, first), ("order", late))
    )

    assert [1, 2] == [row.rank for row in without.results] == [row.rank for row in with_order.results]


def test_a_key_in_two_partitions_has_the_position_of_both(spark, tmp_path):
    rows = [Edit("k", "north", 1, 0, 4), Edit("k", "north", 2, 1, 3)]

    stream = Stream(spark, tmp_path, latest_per_key, [[row] for row in rows])

    assert [({0: 4}, 5), ({0: 4, 1: 3}, 9)] == [(row.position, row.version) for row in stream.results]


def test_after_a_replay_in_another_order_the_last_result_can_be_outdated(spark, tmp_path):
    """This is why Ranked.java repeats results in real-time mode after a restart.

    Before the restart, only partition 0 was read. After it, the result of all edits has a lower version.
    """
    edits = [Edit("x", "north", 5), *(Edit(f"small {i}", "north", 0, offset=i) for i in range(1, 10))]
    larger = Edit("y", "north", 9, partition=1)
    before, after = [edits, []], [[larger], edits]

    stream = Stream(spark, tmp_path, lambda rows: ranked(rows, 1), together([before, after]))

    assert [("0 north", ["0 x"], 55), ("1 north", ["1 y"], 1)] == [
        (row.group, [item.key for item in row["items"]], row.version) for row in sorted(stream.results)
    ]
    assert 56 == stream.groups()["1 north"].version


def test_a_removed_key_leaves_no_state(spark, tmp_path):
    """The state does not grow with removed keys, whatever the batch boundaries."""
    add, remove = Edit("k", "north", 1, offset=1), Edit("k", None, 1, offset=2)

    stream = Stream(spark, tmp_path, lambda rows: ranked(rows, 1), together([[[add], [remove]], [[], [add, remove]]]))

    assert [] == stream.state("latest")
    assert [] == stream.state("members")


class Members:
    """A state of the members of one group that counts the entries which are read. Java calls its methods.

    Args:
        order: returns the stored keys in the order in which the state returns them.
    """

    class Java:
        implements = ("org.apache.spark.sql.streaming.MapState",)

    def __init__(self, jvm: Any, order: Callable[[Iterable[bytes]], Iterable[bytes]]) -> None:
        self._jvm, self._order = jvm, order
        self._entries: dict[bytes, Any] = {}
        self._read: list[Any] = []

    @property
    def entries_read(self) -> int:
        return sum(iterator.nextIndex() for iterator in self._read)

    def containsKey(self, key: Any) -> bool:
        return stored_bytes(key) in self._entries

    def updateValue(self, key: Any, member: Any) -> None:
        self._entries[stored_bytes(key)] = self._jvm.scala.Tuple2(key, member)

    def removeKey(self, key: Any) -> None:
        del self._entries[stored_bytes(key)]

    def iterator(self) -> Any:
        entries = self._jvm.java.util.ArrayList()
        for key in self._order(self._entries):
            entries.add(self._entries[key])
        self._read.append(entries.listIterator())
        return self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(self._read[-1])


def stored_bytes(key: Any) -> bytes:
    """The bytes by which the state store sorts, given the key of a member in Java."""
    return struct.pack("<5q", *json.loads(key.toString()))


def top_of(spark: SparkSession, n: int, members: Members, moves: list[tuple[str, int, int | None, int | None]]) -> Any:
    """The top of a group after additions (key, sequence, None, rank) and removals (key, sequence, rank, None).

    They reach the operator in one micro-batch, in any order.
    """
    ensure_callback_server_started(spark.sparkContext._gateway)
    jvm: Any = private_spark.java(spark)
    types = [schemas.ORDER_KEY, schemas.MEMBER, schemas.GROUP_STATE]
    processor = private_spark.new_instance(spark, "kafkasse.operators.Ranked", [n, 0, *types])
    testers = jvm.org.apache.spark.sql.streaming.TwsTester
    defaults = [getattr(testers, f"$lessinit$greater$default${number}")() for number in range(2, 6)]
    tester = testers(processor, *defaults)
    field = processor.getClass().getDeclaredField("members")
    field.setAccessible(True)
    field.set(processor, members)
    shuffled = Random(1).sample(moves, len(moves))  # noqa: S311 - not used for cryptography
    rows = spark.createDataFrame(
        [(key, sequence, 1, {0: sequence}, "north", old_rank, rank, key) for key, sequence, old_rank, rank in shuffled],
        "key string, sequence bigint, step bigint, position map<int, bigint>, group string, old_rank bigint, "
        "rank bigint, item string",
    )
    converters = jvm.scala.jdk.javaapi.CollectionConverters
    results = tester.test("north", converters.asScala(rows._jdf.collectAsList()).toList())
    return list(results.head().get(1))


def removals_of_the_largest(count: int, of: int) -> list[tuple[str, int, int | None, int | None]]:
    """Add members with the ranks `[0, of)`, and then remove the largest ones."""
    added = [(f"k{rank:03}", rank, None, rank) for rank in range(of)]
    return [*added, *((key, 2 * of - rank, rank, None) for key, rank, _, _ in added[-count:])]


def test_a_large_group_is_read_only_as_far_as_needed(spark):
    """Removing the largest members of a group of 300 reads a few entries of the state, and not all."""
    members = Members(private_spark.java(spark), sorted)

    top = top_of(spark, 3, members, removals_of_the_largest(100, of=300))

    assert ["k199", "k198", "k197"] == top
    assert 0 < members.entries_read < 200


def test_all_members_are_read_if_the_state_is_not_sorted(spark):
    """A state store with another layout makes the operator slower, and not wrong."""
    members = Members(private_spark.java(spark), lambda keys: sorted(keys, reverse=True))

    top = top_of(spark, 3, members, removals_of_the_largest(20, of=60))

    assert ["k039", "k038", "k037"] == top


def test_keys_with_an_equal_prefix_are_read_together(spark):
    """The state store sorts them by hashes, so only the operator can put them into the order of their keys."""
    keys = [f"a common prefix of 24 by {number:03}" for number in range(120)]
    added = [(key, number, None, 0) for number, key in enumerate(keys)]
    removed = [(key, 200 + number, 0, None) for number, key in enumerate(keys[:20])]

    top = top_of(spark, 3, Members(private_spark.java(spark), sorted), [*added, *removed])

    assert keys[20:23] == top


def order_keys(spark: SparkSession, members: list[tuple[int, str]]) -> list[bytes]:
    """The stored bytes of the keys under which Java stores members."""
    methods = private_spark.java_class(spark, "kafkasse.operators.OrderKey").getMethods()
    of = next(method for method in methods if method.getName() == "of")
    jvm: Any = private_spark.java(spark)
    keys = []
    for rank, key in members:
        arguments = spark.sparkContext._gateway.new_array(jvm.Object, 2)
        arguments[0], arguments[1] = jvm.Long.valueOf(rank), key
        keys.append(stored_bytes(of.invoke(None, arguments)))
    return keys


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(RANKS, st.one_of(st.sampled_from(plain.KEYS), st.text())), unique=True))
@example(
    [
        (0, ""),
        (0, "\0"),
        (0, "k" * 16),
        (0, "k" * 17),
        (0, "k" * 16 + "\0"),
        (-1, ""),
        (-(2**63), "k"),
        (2**63 - 1, "k"),
    ]
)
def test_order_keys_sort_by_rank_and_by_the_first_bytes_of_the_key(spark, members):
    """Members with the same rank and the same first 16 bytes have different keys, but may have any order."""
    keys = order_keys(spark, members)

    assert [struct.pack(">Q", 2**63 - 1 - rank) + key.encode()[:16].ljust(16, b"\0") for rank, key in members] == [
        key[:24] for key in keys
    ]
    assert len(keys) == len(set(keys))


def test_the_state_store_returns_members_in_rank_order(spark, tmp_path):
    """Otherwise the operators would read whole groups. This depends on how Spark encodes the keys of a map."""
    chance = Random(5)  # noqa: S311 - not used for cryptography
    edits = plain.numbered(
        Edit(f"k{i}" * chance.randint(1, 3), "north", chance.randint(-(2**63), 2**63 - 1) >> chance.randint(0, 60))
        for i in range(500)
    )

    stream = Stream(spark, tmp_path, lambda rows: ranked(rows, 1), [edits])

    assert plain.members(edits)["north"] == [row.user_map_value.key for row in stream.state("members")]
