"""The query of a pipeline that a YAML file defines.

    parse ─▶ combine ─▶ enrich ─▶ where ─▶ select ─▶ records, latest, top, window, or latest ─▶ window

`where` does not drop a row: it marks the row as removed, and the last step removes the key of the row from the result. So a
row that stops matching is removed from the result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped,unused-ignore]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, IntegralType

from kafkasse.errors import CommandError, did_you_mean
from kafkasse.pipelines import avro_records, json_records, rejected_records
from kafkasse.pipelines.avro_records import AvroSource
from kafkasse.pipelines.json_records import Type
from kafkasse.pipelines.kafka import tables
from kafkasse.pipelines.kafka.sink_rows import VERSIONED_BY
from kafkasse.pipelines.manifest import SOURCE_ORDER
from kafkasse.pipelines.operators import ranked
from kafkasse.pipelines.operators.latest import key_changes
from kafkasse.pipelines.schema import default
from kafkasse.pipelines.spark import failures, private_spark

# Columns of each row besides its fields. Expressions may use them.
KEY, PRESENT, PARTITION, OFFSET, TIMESTAMP = "_key", "_present", "_partition", "_offset", "_timestamp"
SIGN = "_sign"  # 1 if a window counts the row, -1 if it takes the row back
METADATA = (KEY, PRESENT, PARTITION, OFFSET, TIMESTAMP)
JSON_OPTIONS = {"ignoreNullFields": "false"}
# The partitions of a second source get other numbers, so that a position does not mix the offsets of two topics.
PARTITIONS_PER_SOURCE = 1_000_000


FieldPath = tuple[str | int, ...]  # of a value in the YAML file


@dataclass(frozen=True)
class DeclaredSource:
    """How to parse the records of a source."""

    fields: Mapping[str, Type]
    key: str | None = None  # the field that must equal the record's key, or None
    # Whether values start with the ID of a schema, as the serializers of schema registries write them.
    framed: bool = False
    avro: AvroSource | None = None  # how to decode values in Avro, or None if they are JSON


@dataclass(frozen=True)
class DeclaredTable:
    """A side table: a file, or the topic that the query receives under the table's name."""

    format: str | None = None  # `csv`, `parquet`, or None for a topic
    path: str | None = None
    fields: Mapping[str, Type] | None = None  # the columns of a topic or of a CSV file


@dataclass(frozen=True)
class DeclaredQuery:
    """The queries of all sinks. A call with the rows of each source returns the rows of each sink."""

    queries: Mapping[str, Mapping[str, Any]]  # a query for each sink, as the YAML file defines it
    sources: Mapping[str, DeclaredSource]
    tables: Mapping[str, DeclaredTable]
    paths: Mapping[str, FieldPath] = field(default_factory=dict, repr=False)  # the path of each query in the YAML file
    # Returns the error for a path and a reason.
    error: Callable[[FieldPath, str], CommandError] = field(default=lambda _, reason: CommandError(reason), repr=False)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings on which the state depends."""
        types = {name: {column: type_.sql for column, type_ in of.fields.items()} for name, of in self.sources.items()}
        # The state and the results contain the numbers of the sources; see PARTITIONS_PER_SOURCE.
        order = {SOURCE_ORDER: list(self.sources)} if len(self.sources) > 1 else {}
        return {"queries": {name: dict(query) for name, query in self.queries.items()}, "fields": types} | order

    @property
    def warnings(self) -> list[str]:
        """What `kafkasse pipeline check` warns of."""
        return [
            f"`window`{'' if name == 'sink' else f' of {name}'} also counts rows that a later record of their key corrects "
            "or removes; to count only the latest row of each key, add latest: true"
            for name, query in self.queries.items()
            if "window" in query and "latest" not in query
            if all(map(_is_reversible, query["window"]["aggregates"].values()))  # latest allows no others
        ]

    def __call__(self, **frames: DataFrame) -> dict[str, DataFrame]:
        """Return the rows of each sink."""
        checked: set[str] = set()
        return {name: self._result(name, query, frames, checked) for name, query in self.queries.items()}

    def _result(
        self, name: str, query: Mapping[str, Any], frames: Mapping[str, DataFrame], checked: set[str]
    ) -> DataFrame:
        rows = self._parsed(query, frames, checked)
        for number, step in enumerate(query.get("enrich", [])):
            with self._at(name, "enrich", number):
                rows = _enriched(rows, step, self._table(step["table"], frames))
        if "where" in query:
            with self._at(name, "where"):
                rows = rows.withColumn(PRESENT, F.col(PRESENT) & _matches(rows, query["where"]))
        if "select" in query:
            with self._at(name, "select"):
                rows = _selected(rows, query["select"])
        if "window" in query:
            with self._at(name, "window"):
                return (_window_of_latest if "latest" in query else _window)(rows, query["window"])
        if "top" in query:
            with self._at(name, "top"):
                return _top(rows, query["top"])
        with self._at(name, *(["latest"] if "latest" in query else [])):
            return _latest(rows, keys_move=len(self._names(query)) > 1) if "latest" in query else _records(rows)

    def _names(self, query: Mapping[str, Any]) -> list[str]:
        """Return the names of the sources of a query."""
        given: str | list[str] = query.get("from", list(self.sources))
        return [given] if isinstance(given, str) else given

    @contextmanager
    def _at(self, sink: str, *step: str | int) -> Iterator[None]:
        """Add the path of a step to its errors."""
        try:
            yield
        except CommandError as error:
            raise self.error((*self.paths.get(sink, ()), *step), error.detail) from error
        except AnalysisException as error:
            raise self.error((*self.paths.get(sink, ()), *step), failures.message(error)) from error

    def _parsed(self, query: Mapping[str, Any], frames: Mapping[str, DataFrame], checked: set[str]) -> DataFrame:
        """Combine the sources of a query: one column for each field, and METADATA.

        The bad records of a source become dead letters once, although several sinks may use the source: `checked` contains
        the sources of the queries before this one.
        """
        numbers = list(self.sources)
        parsed = []
        for name in self._names(query):
            source = self.sources[name]
            if name not in checked:
                needs_key = any(_needs_key(other) for other in self.queries.values() if name in self._names(other))
                rejected_records.reject(_validated(frames[name], source, needs_key))
                checked.add(name)
            good = _validated(frames[name], source, _needs_key(query)).where("problem IS NULL")
            parsed.append(_row(good, source.fields, numbers.index(name)))
        return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parsed)

    def _table(self, name: str, frames: Mapping[str, DataFrame]) -> DataFrame:
        table = self.tables[name]
        spark = next(iter(frames.values())).sparkSession
        types = table.fields or {}
        if table.format is None:
            validated = json_records.validate(frames[name], types, None)
            return validated.where("problem IS NULL AND fields IS NOT NULL").select("fields.*")
        if table.format == "parquet":
            try:
                return spark.read.parquet(str(table.path))
            except Py4JJavaError as error:
                reason = failures.first_line(private_spark.error_text(spark, error))
                if "is not a Parquet file" not in reason:  # else another attempt may succeed
                    raise
                raise CommandError(reason) from error
        schema = ", ".join(f"`{field}` {type_.sql}" for field, type_ in types.items())
        reader = spark.read.option("header", True).option("enforceSchema", False).option("mode", "FAILFAST")
        return (reader.schema(schema) if schema else reader).csv(str(table.path))


def _needs_key(query: Mapping[str, Any]) -> bool:
    return "latest" in query or "window" not in query


def _validated(records: DataFrame, source: DeclaredSource, needs_key: bool) -> DataFrame:
    value, undecodable = None, None
    if source.avro is not None:
        value, undecodable = avro_records.decoded(records, source.avro)
    elif source.framed:
        value = F.expr(_WITHOUT_SCHEMA_ID)
    return json_records.validate(
        records, source.fields, source.key, needs_key or source.key is not None, value, undecodable
    )


def _row(valid: DataFrame, fields: Iterable[str], number: int) -> DataFrame:
    return valid.select(
        *(F.col("fields")[name].alias(name) for name in fields),
        F.col("key").alias(KEY),
        F.col("fields").isNotNull().alias(PRESENT),
        (F.col("partition") + F.lit(number * PARTITIONS_PER_SOURCE)).alias(PARTITION),
        F.col("offset").alias(OFFSET),
        F.col("timestamp").alias(TIMESTAMP),
    )


# Confluent's wire format: a zero and an ID of 4 bytes, or a one and a GUID of 16 bytes.
_WITHOUT_SCHEMA_ID = """
CASE substring(value, 1, 1) WHEN X'00' THEN substring(value, 6) WHEN X'01' THEN substring(value, 18) ELSE value END
"""


_MALFORMED = re.compile(r"MALFORMED_RECORD_IN_PARSING.*(\[.*\])")


def _enriched(rows: DataFrame, step: Mapping[str, Any], table: DataFrame) -> DataFrame:
    on = {step["on"]: step["on"]} if isinstance(step["on"], str) else step["on"]
    _require(table.columns, on.values(), f"the table {step['table']}")
    _require(rows.columns, on.keys(), "the rows")
    added = [name for name in table.columns if name not in on.values()]
    both = [name for name in added if name in rows.columns]
    if both:
        raise CommandError(f"the table {step['table']} and the rows both have the column {both[0]}; rename one of them")
    try:
        unique = tables.local(table.dropDuplicates(list(on.values())))
    except (PySparkException, Py4JJavaError) as error:
        malformed = _MALFORMED.search(private_spark.error_text(rows.sparkSession, error))
        if malformed is None:
            raise
        raise CommandError(f"the row {malformed[1]} of the table {step['table']} does not fit its columns") from error
    keys = [F.col(f"`{name}`").alias(f"_{step['table']}_{number}") for number, name in enumerate(on.values())]
    side = unique.select(*keys, *(f"`{name}`" for name in added))
    conditions = [F.col(f"`{name}`") == F.col(f"_{step['table']}_{number}") for number, name in enumerate(on)]
    joined = rows.join(F.broadcast(side), reduce(lambda one, other: one & other, conditions), "left")
    return joined.drop(*(f"_{step['table']}_{number}" for number in range(len(on))))


def _matches(rows: DataFrame, condition: str) -> Column:
    type_ = rows.select(F.expr(condition)).schema[0].dataType
    if not isinstance(type_, BooleanType):
        reason = f"has the type {type_.simpleString()}; compare it with a value, for example amount > 100"
        raise CommandError(f"needs a condition, but {condition} {reason}")
    return F.coalesce(F.expr(condition), F.lit(False))


def _selected(rows: DataFrame, expressions: Sequence[str]) -> DataFrame:
    selected: list[str] = []
    for expression in expressions:
        selected += [f"`{name}`" for name in _fields(rows)] if expression.strip() == "*" else [expression]
    result = rows.selectExpr(*selected, *METADATA)
    _require_unique(result.columns)
    return result


def _require_unique(names: Iterable[str]) -> None:
    """Check that all columns have different names. Spark ignores the case of names."""
    known: set[str] = set()
    for name in names:
        if name.lower() in known:
            raise CommandError(f"the result has two columns named {name}; rename or remove one of them")
        known.add(name.lower())


def _fields(rows: DataFrame) -> list[str]:
    return [name for name in rows.columns if name not in METADATA]


def _object(rows: DataFrame) -> Column:
    return F.struct(*(F.col(f"`{name}`") for name in _fields(rows)))


def _records(rows: DataFrame) -> DataFrame:
    """One record for each row, or a tombstone if the row was removed or does not match."""
    return rows.select(
        F.col(KEY).alias("key"),
        F.when(F.col(PRESENT), F.to_json(_object(rows), JSON_OPTIONS)).alias("value"),
        (F.col(OFFSET) + 1).alias("version"),
        F.create_map(PARTITION, OFFSET).alias("position"),
        F.col(PARTITION).alias(VERSIONED_BY),
    )


def _latest(rows: DataFrame, keys_move: bool) -> DataFrame:
    """One record each time that the row of a key changes."""
    given = rows.select(F.col(KEY).alias("key"), PRESENT, _object(rows).alias("row"), *_position())
    changes = key_changes(given, ["row"], ~F.col(PRESENT), keys_move=keys_move)
    return changes.select("key", F.to_json("after.row", JSON_OPTIONS).alias("value"), "version", "position")


def _top(rows: DataFrame, top: Mapping[str, Any]) -> DataFrame:
    """One record each time that the largest rows of a group change."""
    _require(rows.columns, (top["by"], top["group"]), "the rows")
    type_ = rows.schema[top["by"]].dataType
    if not isinstance(type_, IntegralType):
        raise CommandError(
            f"top needs a column of whole numbers, but {top['by']} has the type {type_.simpleString()}; convert it with "
            f"select, for example CAST({top['by']} * 100 AS BIGINT) AS cents"
        )
    rank = F.col(top["by"]).cast("bigint")
    members = rows.select(
        F.col(KEY).alias("key"),
        F.when(F.col(PRESENT), F.col(top["group"]).cast("string")).alias("group"),
        (F.bitwise_not(rank) if top.get("order") == "ascending" else rank).alias("rank"),  # -rank overflows for -2**63
        _object(rows).alias("item"),
        *_position(),
    )
    tops = ranked(members, top["n"])
    value = F.struct(
        F.col("group").alias(top["group"]), F.col("items").alias(top.get("as", default("query", "top", "as")))
    )
    return tops.select(
        F.col("group").alias("key"),
        F.when(F.size("items") > 0, F.to_json(value, JSON_OPTIONS)).alias("value"),
        "version",
        "position",
    )


def _window(rows: DataFrame, window: Mapping[str, Any]) -> DataFrame:
    """One record for each window and group. Rows that were removed are not counted."""
    _require_window(rows, window)
    return _aggregated(rows.where(PRESENT), window, window["aggregates"], F.lit(True))


def _window_of_latest(rows: DataFrame, window: Mapping[str, Any]) -> DataFrame:
    """One record for each window and group of the latest rows of the keys, or a tombstone if they have all left the window.

    A change of a key takes the old row back and adds the new one.
    """
    _require_window(rows, window)
    fields = [*_fields(rows), *([TIMESTAMP] if "time" not in window else [])]
    row = F.struct(*(F.col(f"`{name}`") for name in fields)).alias("row")
    given = rows.select(F.col(KEY).alias("key"), PRESENT, row, *_position())
    changes = key_changes(given, ["row"], ~F.col(PRESENT))
    signed = [F.struct(F.lit(sign).alias(SIGN), F.col(f"{at}.row")) for sign, at in ((-1, "before"), (1, "after"))]
    counted = changes.select(F.inline(F.array(*signed))).where("row IS NOT NULL").select(SIGN, "row.*")
    aggregates = {name: reversible(expression) for name, expression in window["aggregates"].items()}
    return _aggregated(counted, window, aggregates, F.sum(SIGN) > 0)


_REVERSIBLE = {
    "count": "sum(CASE WHEN ({0}) IS NOT NULL THEN {1} ELSE 0 END)",
    "sum": "sum(({0}) * {1})",
    "avg": "try_divide(sum(({0}) * {1}), sum(CASE WHEN ({0}) IS NOT NULL THEN {1} END))",
}


def reversible(aggregate: str) -> str:
    """Return an aggregate that takes the rows with the SIGN -1 back. Raise CommandError if that is impossible."""
    call = re.fullmatch(r"\s*(count|sum|avg)\s*\((.+)\)\s*", aggregate, re.IGNORECASE | re.DOTALL)
    if call is None or not _is_one_expression(call[2]) or re.match(r"\s*distinct\b", call[2], re.IGNORECASE):
        raise CommandError(
            f"{aggregate} cannot be combined with latest, because it cannot subtract a corrected row; use count(*), "
            "count(…), sum(…) or avg(…)"
        )
    return _REVERSIBLE[call[1].lower()].format("1" if call[2].strip() == "*" else call[2], SIGN)


def _is_reversible(aggregate: str) -> bool:
    try:
        return bool(reversible(aggregate))
    except CommandError:
        return False


def _is_one_expression(text: str) -> bool:
    depth = 0
    for character in re.sub(r"'[^']*'|\"[^\"]*\"", "", text):
        depth += (character == "(") - (character == ")")
        if depth < 0 or (depth == 0 and character == ","):
            return False
    return depth == 0


def _require_window(rows: DataFrame, window: Mapping[str, Any]) -> None:
    by = window.get("by", [])
    _require(rows.columns, (window.get("time", TIMESTAMP), *by), "the rows")
    _require_unique([*by, "window_start", "window_end", *window["aggregates"]])


def _aggregated(
    rows: DataFrame, window: Mapping[str, Any], expressions: Mapping[str, str], has_rows: Column
) -> DataFrame:
    time, by = window.get("time", TIMESTAMP), window.get("by", [])
    aggregates = [F.expr(expression).alias(name) for name, expression in expressions.items()]
    version = F.count(F.lit(1)).alias("_version")
    counted = (
        rows.withWatermark(time, window.get("watermark", default("query", "window", "watermark")))
        .groupBy(F.window(time, window["size"], window.get("slide", window["size"])).alias("_window"), *by)
        .agg(*aggregates, version, has_rows.alias("_has_rows"))
    )
    start = F.col("_window.start")
    group = [*by, start.alias("window_start")]
    value = F.struct(*group, F.col("_window.end").alias("window_end"), *window["aggregates"].keys())
    return counted.select(
        # JSON, because two groups must not have the same key: with a separator, ("a b", "c") would equal ("a", "b c").
        F.to_json(F.struct(*group), JSON_OPTIONS).alias("key"),
        F.when(F.col("_has_rows"), F.to_json(value, JSON_OPTIONS)).alias("value"),
        # The number of records that a result was computed from increases with each change, also in a replay.
        F.col("_version").alias("version"),
    )


def _position() -> tuple[Column, Column]:
    return F.col(PARTITION).alias("partition"), F.col(OFFSET).alias("offset")


def _require(columns: Sequence[str], names: Any, owner: str) -> None:
    for name in names:
        if name not in columns:
            known = ", ".join(column for column in columns if column not in METADATA)
            raise CommandError(
                f"{owner} of the query have no column {name}{did_you_mean(name, columns)}; the columns are: {known}"
            )
