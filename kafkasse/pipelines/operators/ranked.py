"""The top n rows of each group."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructType

from kafkasse.errors import CommandError
from kafkasse.pipelines.operators import json_state
from kafkasse.pipelines.operators.latest import key_changes
from kafkasse.pipelines.operators.schemas import GROUP_STATE, MEMBER, ORDER_KEY, RESULT
from kafkasse.pipelines.pipeline import Mode
from kafkasse.pipelines.spark import private_spark

JAVA_CLASS = "kafkasse.operators.Ranked"
# The batches after a restart in which the Java class repeats results: see repeats() in Ranked.java.
REPEATING_BATCHES: dict[Mode, int] = {"realtime": 3, "microbatch": 0, "once": 0}


def ranked(rows: DataFrame, n: int, order: str | None = None) -> DataFrame:
    """Compute the top `n` items of each group, by descending rank and, for equal ranks, by key.

    Args:
        rows: one row for each change of a key, with its position, see latest_per_key(). `key` and `group` are text, `rank`
            is a bigint, and `item` is a struct. A row replaces the previous row of its key. A row whose group or rank is
            null removes the key.
        n: the number of items for each group. The state contains all keys, not only the top n.
        order: see latest_per_key().

    Returns:
        `group`, `items`, `version` and `position`: one row each time that the top n of a group change. `items` is empty if
        the group's last key was removed. Use output mode update.

        A micro-batch emits at most one row for each group. `version` increases with each change of a group, and it does
        not depend on the order in which partitions were read.

    Raises:
        CommandError: a column is missing, or it has the wrong type.
    """
    if n < 1:
        raise CommandError(f"n is {n}; it must be at least 1")
    if not isinstance(rows.schema["rank"].dataType, LongType):
        raise CommandError("the column 'rank' is not a bigint; cast it")
    text, item_type = json_state.to_json(rows, "item")
    is_removed = F.col("group").isNull() | F.col("rank").isNull()
    changes = key_changes(rows, ["group", "rank", text.alias("item")], is_removed, order)
    json_state.record("n", n)
    arguments: list[int | StructType] = [n, REPEATING_BATCHES[json_state.mode.get()], ORDER_KEY, MEMBER, GROUP_STATE]
    tops = private_spark.transform_with_state(_moves(changes), "group", JAVA_CLASS, arguments, RESULT)
    return tops.withColumn("items", F.transform("items", lambda text: json_state.from_json(text, item_type)))


def _moves(changes: DataFrame) -> DataFrame:
    """Return what each change means for a group: one row, or two rows if the key moves from one group to another."""
    before, after = F.col("before.group"), F.col("after.group")
    leaves = F.struct(
        before.alias("group"),
        F.col("before.rank").alias("old_rank"),
        F.lit(None).cast("bigint").alias("rank"),
        F.col("before.item").alias("item"),
    )
    joins = F.struct(
        after.alias("group"),
        F.when(before == after, F.col("before.rank")).alias("old_rank"),
        F.col("after.rank").alias("rank"),
        F.col("after.item").alias("item"),
    )
    moves = F.array(F.when(before.isNotNull() & ~before.eqNullSafe(after), leaves), F.when(after.isNotNull(), joins))
    numbered = changes.select("key", F.col("version").alias("sequence"), "step", "position", F.inline(moves))
    return numbered.where(F.col("group").isNotNull())
