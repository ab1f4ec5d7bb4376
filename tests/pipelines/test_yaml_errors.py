"""Each error of a YAML file names the line, the pipeline, the path of the field, and what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kafkasse.errors import CommandError
from kafkasse.pipelines import catalog
from kafkasse.pipelines.catalog import check_tables, find
from tests.pipelines.rows import kafka_rows

FILE = """\
pipelines:
  large-orders:
    source:
      topic: orders
      schema: {properties: {id: {type: string}, amount: {type: number}}, required: [id]}
    query:
      where: amount > 100
    sink: large-orders
"""
TOPIC, SCHEMA, WHERE, QUERY, SINK = "topic: orders", "schema: {", "where: amount > 100", "    query:", "    sink:"
TIME = "a time with its offset from UTC such as '2026-11-01T00:00:00Z', or a map from partitions to offsets"
COLUMN = "a column name: letters, digits and underscores, not starting with a digit"

# The text to replace in FILE, its replacement, and the error: the line, the path in the pipeline, and the reason.
WRONG = [
    (TOPIC, "topics: orders", 4, "source.topics", "is not a setting (did you mean topic?)"),
    ("source:\n      topic: orders\n", "source:\n", 3, "source", "needs topic"),
    (
        TOPIC,
        f"{TOPIC}\n      start: 2026-11-01",
        5,
        "source.start",
        f"must be 'earliest', 'latest', {TIME}, not '2026-11-01'",
    ),
    (
        TOPIC,
        f"{TOPIC}\n      start: {{a: 5}}",
        5,
        "source.start.a",
        "is not a valid name; it must be the number of a partition",
    ),
    (
        TOPIC,
        f"{TOPIC}\n      key: ids",
        5,
        "source.key",
        "ids is not one of the fields of the schema: id, amount (did you mean id?)",
    ),
    (
        TOPIC,
        f"{TOPIC}\n      max_records_per_s: 10",
        5,
        "source.max_records_per_s",
        "works only with mode: microbatch; add this mode to the pipeline, or remove the limit",
    ),
    (
        SCHEMA,
        "schema: order.json #",
        5,
        "source.schema",
        "must be a mapping with file, with registry and subject, or with properties, not 'order.json'",
    ),
    (SCHEMA, "schema: {propertys: {}} #", 5, "source.schema.propertys", "is not a setting (did you mean properties?)"),
    (SCHEMA, "schema: {} #", 5, "source.schema", "needs file, or registry with subject, or properties"),
    (SCHEMA, "schema: {registry: 'http://r'} #", 5, "source.schema", "needs subject"),
    (
        SCHEMA,
        "schema: {registry: 'r:8081', subject: s} #",
        5,
        "source.schema.registry",
        "must be an address without a user name, such as https://registry.example",
    ),
    (
        SCHEMA,
        "schema: {registry: 'http://r', subject: s, user: me} #",
        5,
        "source.schema.user",
        "is not a setting (did you mean username?)",
    ),
    (
        SCHEMA,
        "schema: {registry: 'http://r', subject: s, username: me} #",
        5,
        "source.schema",
        "needs both username and password_file",
    ),
    (
        SCHEMA,
        "schema: {registry: 'http://r', subject: s, file: order.json} #",
        5,
        "source.schema.registry",
        "cannot be combined with file; remove one of them",
    ),
    (
        "{type: number}",
        "{type: numbr}",
        5,
        "source.schema",
        "the schema is not a JSON Schema: properties.amount.type must be one of string, integer, number, boolean, array, "
        "object, null, not 'numbr' (did you mean number?)",
    ),
    (
        "{type: number}",
        "number",
        5,
        "source.schema",
        "the schema is not a JSON Schema: properties.amount must be a mapping; write {type: number}",
    ),
    ("[id]", "id", 5, "source.schema", "the schema is not a JSON Schema: required must be a list, not 'id'"),
    (
        "[id]",
        "[id, amont]",
        5,
        "source.schema.required",
        "amont is not one of the properties: id, amount (did you mean amount?)",
    ),
    (
        QUERY,
        f"    tables: {{shops: shops.csv}}\n{QUERY}",
        6,
        "tables.shops",
        "must be a mapping with csv, parquet, or topic and schema, not 'shops.csv'",
    ),
    (
        QUERY,
        f"    tables: {{my-shops: {{csv: shops.csv}}}}\n{QUERY}",
        6,
        "tables.my-shops",
        "is not a valid name; it must be letters, digits and underscores, not starting with a digit",
    ),
    (
        f"{QUERY}\n      {WHERE}",
        "    query: amount > 100",
        6,
        "query",
        "must be a mapping of steps, such as {where: amount > 100}, not 'amount > 100'",
    ),
    (
        WHERE,
        "filter: amount > 100",
        7,
        "query.filter",
        "is not a setting; use one of: from, enrich, where, select, latest, top, window",
    ),
    (WHERE, "from: sorce", 7, "query.from", "sorce is not one of the sources: source (did you mean source?)"),
    (WHERE, "latest: false", 7, "query.latest", "must be true or omitted, not false"),
    (
        WHERE,
        "select: amount",
        7,
        "query.select",
        "must be a list of expressions, such as [id, amount * 2 AS double], not 'amount'",
    ),
    (
        WHERE,
        "enrich: {table: shops, on: id}",
        7,
        "query.enrich",
        "must be a list, such as [{table: shops, on: shop}], not a mapping",
    ),
    (WHERE, "enrich: [shops]", 7, "query.enrich.0", "must be a mapping with table and on, not 'shops'"),
    (
        WHERE,
        "enrich: [{table: shop, on: id}]\n    tables: {shops: {csv: shops.csv}}",
        7,
        "query.enrich.0.table",
        "shop is not one of the tables: shops (did you mean shops?)",
    ),
    (
        WHERE,
        "enrich: [{table: shop, on: id}]",
        7,
        "query.enrich.0.table",
        "the pipeline has no tables; add shop to tables",
    ),
    (WHERE, "top: {n: 3, by: -amount, group: id}", 7, "query.top.by", f"must be {COLUMN}, not '-amount'"),
    (
        WHERE,
        "top: {n: 3, by: amount, group: id}\n      latest: true",
        7,
        "query.top",
        "a query has only one of: latest, top; remove the others, or use another sink for each",
    ),
    (
        WHERE,
        "window: {size: 1 hour, aggregates: [count(*)]}",
        7,
        "query.window.aggregates",
        "must be a mapping of names to expressions, such as {orders: count(*)}, not a list",
    ),
    (
        WHERE,
        "window: {size: 1 hour, by: id, aggregates: {n: count(*)}}",
        7,
        "query.window.by",
        "must be a list of columns, such as [shop], not 'id'",
    ),
    (
        WHERE,
        "window: {size: 1 hour, aggregates: {n: count(*)}, results: final}",
        7,
        "query.window.results",
        "final needs mode: microbatch or mode: once; add one of them to the pipeline, or write updates",
    ),
    (
        SINK,
        "    sinks: {a: large-orders} #",
        8,
        "sinks.a",
        "must be a mapping with topic and query, not 'large-orders'",
    ),
    (f"{SINK} large-orders", f"{SINK} orders", 8, "sink", "orders is also a source; write to another topic"),
    (SINK, f"    dead_letters: orders\n{SINK}", 8, "dead_letters", "orders is also a source; use another topic"),
    (
        SINK,
        f"    refresh_tables_s: 10\n    mode: once\n{SINK}",
        8,
        "refresh_tables_s",
        "has no effect with mode: once; remove it, or use mode: microbatch",
    ),
    (SINK, f"    checkpoints: /data\n{SINK}", 8, "checkpoints", "is not a setting (did you mean checkpoint?)"),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The path of a file of pipelines."""
    return tmp_path / "pipelines.yaml"


def message(file: Path, action: Callable[[], object]) -> str:
    """The error that the action raises, without the folder of the file."""
    with pytest.raises(CommandError) as error:
        action()
    return error.value.detail.replace(f"{file.resolve().parent}/", "").replace(f"{file.parent}/", "")


@pytest.mark.parametrize(
    ("old", "new", "line", "path", "reason"), WRONG, ids=[f"{path}: {new}" for _, new, _, path, _ in WRONG]
)
def test_a_wrong_field_is_an_error_with_its_path(
    file: Path, old: str, new: str, line: int, path: str, reason: str
) -> None:
    """The reason says what to write instead."""
    assert 1 == FILE.count(old)
    file.write_text(FILE.replace(old, new))

    assert f"pipelines.yaml:{line}: pipelines.large-orders.{path}: {reason}" == message(file, lambda: find(str(file)))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "1: needs pipelines"),
        ("[]", "1: must be a mapping with pipelines, not an empty list"),
        ("pipeline: {}", "1: pipeline: is not a setting (did you mean pipelines?)"),
        ("pipelines:\n  x:", "2: pipelines.x: must be a mapping with source, query and sink, not null"),
        (
            "pipelines:\n\tx: 1",
            "2: not YAML: found character '\\t' that cannot start any token; indent with spaces instead of tabs",
        ),
        (
            FILE.replace("large-orders:", "large orders:"),
            "2: pipelines.large orders: is not a valid name; it must be up to 100 letters, digits, dots, underscores and "
            "hyphens, beginning with a letter or digit",
        ),
    ],
)
def test_a_wrong_file_is_an_error_with_its_line(file: Path, content: str, expected: str) -> None:
    """A file can be wrong before it names a pipeline."""
    file.write_text(content)

    assert f"pipelines.yaml:{expected}" == message(file, lambda: find(str(file)))


def with_table(file: Path, format_: str, path: str, on: str = "id") -> Callable[[], None]:
    """The check of a pipeline with this table."""
    query = f"enrich: [{{table: shops, on: {on}}}]\n    tables:\n      shops:\n        {format_}: {path}"
    file.write_text(FILE.replace(WHERE, query))
    pipeline = find(str(file))
    return lambda: check_tables(pipeline)


CSV = b"id,name\na,Ann\n"
TABLES = [
    (
        "csv",
        "shop.csv",
        CSV,
        "cannot read shop.csv: No such file or directory; correct the path, which is relative to the YAML file",
    ),
    ("csv", "shops.csv/a.csv", CSV, "cannot read shops.csv/a.csv: Not a directory"),
    ("csv", "loop.csv", CSV, "cannot read loop.csv: Too many levels of symbolic links"),
    ("csv", "shops.csv", b"", "shops.csv is empty; write a header and rows to it"),
    ("csv", "shops.csv", b"\n\n", "shops.csv has no header; write the names of the columns to its first line"),
    ("csv", "shops.csv", b"id,name\xff\n", "shops.csv is not UTF-8 text; save it as CSV with the encoding UTF-8"),
    ("csv", "shops.csv", b"PAR1", "shops.csv is a Parquet file; write parquet: instead of csv:"),
    (
        "csv",
        "shops.parquet",
        b"PAR1",
        "shops.parquet has the suffix .parquet, which is not a suffix of csv files; write parquet: instead of csv:",
    ),
    (
        "csv",
        "shops.xlsx",
        b"PK",
        "shops.xlsx has the suffix .xlsx, which is not a suffix of csv files; convert it to CSV or Parquet",
    ),
    ("csv", "empty", CSV, "the folder empty is empty; write csv files to it"),
    (
        "parquet",
        "shops.csv",
        CSV,
        "shops.csv has the suffix .csv, which is not a suffix of parquet files; write csv: instead of parquet:",
    ),
    ("parquet", "shops", CSV, "shops is not a Parquet file; for a CSV file, write csv: instead of parquet:"),
    ("parquet", "shops.parquet", b"", "shops.parquet is empty; write a Parquet file to it"),
]


@pytest.mark.parametrize(("format_", "path", "content", "reason"), TABLES, ids=[reason for *_, reason in TABLES])
def test_an_unusable_table_is_an_error(file: Path, format_: str, path: str, content: bytes, reason: str) -> None:
    """The error names the path of the table, and comes before Spark starts."""
    for name in ("shops.csv", "shops.parquet", "shops.xlsx", "shops"):
        (file.parent / name).write_bytes(content)
    (file.parent / "empty").mkdir()
    (file.parent / "loop.csv").symlink_to("loop.csv")
    check = with_table(file, format_, path)

    assert f"pipelines.yaml:10: pipelines.large-orders.tables.shops.{format_}: {reason}" == message(file, check)


@pytest.mark.parametrize(
    ("header", "on", "reason"),
    [
        ("id,name,ID", "id", "the table has the column id 2 times; rename all but one"),
        (
            "ids,name",
            "id",
            "the table has no column id (did you mean ids?); its columns are: ids, name; if the column has "
            "another name there, write on: {column of the rows: column of the table}",
        ),
        (
            "id,name",
            "{id: shop}",
            "the table has no column shop; its columns are: id, name; if the column has "
            "another name there, write on: {column of the rows: column of the table}",
        ),
    ],
)
def test_a_table_without_its_key_is_an_error(file: Path, header: str, on: str, reason: str) -> None:
    """A key that occurs twice is ambiguous."""
    (file.parent / "shops.csv").write_text(f"{header}\na,Ann,b\n")
    check = with_table(file, "csv", "shops.csv", on)

    assert f"pipelines.yaml:7: pipelines.large-orders.query.enrich.0.on: {reason}" == message(file, check)


@pytest.mark.parametrize("path", ["shops.csv", "folder", "by-country", "s3a://bucket/shops.csv"])
def test_a_usable_table_is_accepted(file: Path, path: str) -> None:
    """A folder can be partitioned. A file in another file system is left to Spark."""
    (file.parent / "shops.csv").write_bytes(b"\xef\xbb\xbf" + CSV)
    for folder, content in (("folder", CSV), ("by-country/id=a", b"name\nAnn\n")):
        (file.parent / folder).mkdir(parents=True)
        (file.parent / folder / "_SUCCESS").touch()
        (file.parent / folder / "part-0.csv").write_bytes(content)

    with_table(file, "csv", path)()


def test_a_pipeline_in_python_has_no_tables_to_check() -> None:
    """Its query can be any function."""
    check_tables(catalog.TOPN)


@pytest.mark.parametrize(
    ("step", "path", "reason"),
    [
        (
            "where: amont > 100",
            "where",
            r"\[UNRESOLVED_COLUMN.WITH_SUGGESTION\] .*`amont` cannot be resolved.*`amount`",
        ),
        ("where: amount >", "where", r"\[PARSE_SYNTAX_ERROR\]"),
        ("select: [amont]", "select", "`amont` cannot be resolved"),
        (
            "top: {n: 1, by: amont, group: id}",
            "top",
            r"the rows of the query have no column amont \(did you mean amount\?\); the columns are: id, amount",
        ),
        (
            "window: {size: 1 hour, by: [ids], aggregates: {n: count(*)}}",
            "window",
            r"no column ids \(did you mean id\?\)",
        ),
        ("window: {size: 1 hour, aggregates: {n: sums(amount)}}", "window", "`sums`"),
    ],
)
def test_a_query_that_spark_rejects_is_an_error_with_its_path(
    spark: SparkSession, file: Path, step: str, path: str, reason: str
) -> None:
    """Spark's own message does not contain the file."""
    file.write_text(FILE.replace(WHERE, step))
    pipeline = find(str(file))

    with pytest.raises(CommandError, match=rf"pipelines\.yaml:7: pipelines\.large-orders\.query\.{path}: .*{reason}"):
        pipeline.query(source=kafka_rows(spark, ("a", "{}")))
