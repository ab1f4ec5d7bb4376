"""Side tables: small tables that a query joins with the rows of its sources.

A table is read when the query starts, and becomes a part of the query. Real-time mode rejects a query that reads a table
while it runs, apart from files. Spark lists files only when the query starts: it would not read new
files, and would fail if one is deleted.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType

from kafkasse.errors import CommandError
from kafkasse.pipelines.operators.json_state import JSON_OPTIONS

MAX_ROWS = 1_000_000


def local(table: DataFrame) -> DataFrame:
    """Return a DataFrame that contains the current rows of `table` itself, and does not read them from their source again.

    Raises:
        CommandError: the table has more than MAX_ROWS rows.
    """
    rows = as_json(table).limit(MAX_ROWS + 1).collect()
    if len(rows) > MAX_ROWS:
        raise CommandError(f"a side table has more than {MAX_ROWS} rows; filter it, or join it in a query of your own")
    return of_json([row[0] for row in rows], table)


def as_json(table: DataFrame) -> DataFrame:
    """Return each row as a JSON object, in one column. Bytes become base64."""
    return table.select(F.to_json(F.struct("*"), JSON_OPTIONS))


def of_json(objects: list[str], like: DataFrame) -> DataFrame:
    """Return rows with the columns of `like` from JSON objects.

    createDataFrame() would start a Python process for each slot in each batch, and need Python on the executors.
    """
    array = F.from_json(F.lit(f"[{','.join(objects)}]"), ArrayType(like.schema), JSON_OPTIONS)
    return like.sparkSession.range(1).select(F.inline(array))


def latest(records: DataFrame) -> DataFrame:
    """Return the latest record of each key in the rows of Spark's Kafka source, without tombstones."""
    return local(newest(records).where("value IS NOT NULL"))


def newest(records: DataFrame) -> DataFrame:
    """Return the newest record of each key. If partitions were added to the topic, a key can be in several of them."""
    record, of_partition = F.max_by(F.struct("*"), "offset"), F.struct("r.timestamp", "r.partition")
    newest = records.where("key IS NOT NULL").groupBy("key", "partition").agg(record.alias("r"))
    return newest.groupBy("key").agg(F.max_by("r", of_partition).alias("r")).select("r.*")
