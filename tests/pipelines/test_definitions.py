"""A YAML file defines pipelines. Each error names the file, the line, the path of the field, and what to write instead."""

from __future__ import annotations

import dataclasses
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkasse import schemas
from kafkasse.errors import CommandError
from kafkasse.pipelines import Pipeline, Source
from kafkasse.pipelines.definition.catalog import find, of_file
from kafkasse.pipelines.definition.definitions import SchemaUnavailable
from kafkasse.pipelines.definition.fields import fields
from kafkasse.pipelines.definition.steps import reversible
from kafkasse.pipelines.manifest import CheckpointManifest, plain_settings
from kafkasse.pipelines.pipeline import MAX_OFFSET, Mode
from tests.support.certificates import Authority
from tests.support.examples import examples
from tests.support.registry import Registry

ORDERS = """\
pipelines:
  large-orders:
    source:
      topic: orders
      schema: {properties: {id: {type: string}, amount: {type: number}}, required: [id]}
    query:
      where: amount > 100
    sink: large-orders
"""
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pipelines.yaml"
    path.write_text(ORDERS)
    return path


def defined(file: Path, **changes: Any) -> Pipeline:
    """The pipeline of ORDERS with these settings changed."""
    definition = yaml.safe_load(ORDERS)
    definition["pipelines"]["large-orders"] |= changes
    file.write_text(json.dumps(definition))
    return find(str(file))


def message(file: Path, content: str | None = None, action: Callable[[Pipeline], object] = lambda _: None) -> str:
    """The error for the file, or of the action, without the folder of the file."""
    if content is not None:
        file.write_text(content)
    with pytest.raises(CommandError) as error:
        action(find(str(file)))
    return error.value.detail.replace(f"{file.resolve().parent}/", "").replace(f"{file.parent}/", "")


def cases(table: str) -> list[tuple[str, str]]:
    """The cases of a table. A case is a line, in which \\n stands for a line break, and the indented text below it."""
    lines = (case.split("\n") for case in re.split(r"\n(?=\S)", table.strip()))
    return [(case.replace(r"\n", "\n"), " ".join(map(str.strip, text))) for case, *text in lines]


def test_a_file_defines_a_pipeline(file):
    """The name may be omitted, because the file has only one."""
    pipeline = find(str(file))

    assert pipeline.name == "large-orders"
    assert (["orders"], ["large-orders"]) == (pipeline.source_topics, pipeline.sink_topics)
    assert {"where": "amount > 100"} == pipeline.settings["query"]["queries"]["sink"]


def test_all_options_reach_the_pipeline(file):
    """The options have the names of the arguments of Pipeline. Only real-time mode has an interval of commits."""
    options = {
        "mode": "microbatch",
        "checkpoint": "/data",
        "state_partitions": 4,
        "spark": {"spark.executor.memory": "2g"},
        "version": 2,
        "dead_letters": "bad-orders",
        "summary": "Orders above 100",
    }
    source = {"topic": "orders", "start": {"0": 5, "1": 6}, "max_records_per_s": 10}
    schema = {"properties": {"amount": {"type": "number"}}}

    pipeline = defined(file, source=source | {"schema": schema}, **options)

    assert options == {name: getattr(pipeline, name) for name in options}
    assert Source("orders", {0: 5, 1: 6}, 10) == pipeline.sources["source"]
    assert 60 == defined(file, commit_interval_s=60).commit_interval_s


# The text to replace in ORDERS => its replacement. Below: the line, the path of the field in the pipeline, and the reason.
INVALID = r"""
source:\n      topic: orders\n => source:\n
  3: source: needs topic
source: => sauce:
  3: sauce: is not a setting (did you mean source?)
topic: orders => topics: orders
  4: source.topics: is not a setting (did you mean topic?)
topic: orders => topic: all orders
  4: source.topic: must be a topic name: at most 249 letters, digits, dots, underscores and hyphens, not 'all
  orders'
topic: orders => topic: ".."
  4: source.topic: must be a topic name: at most 249 letters, digits, dots, underscores and hyphens, not '..'
topic: orders => topic: orders\n      start: 2026-11-01
  5: source.start: must be 'earliest', 'latest', a time with its offset from UTC such as '2026-11-01T00:00:00Z', or
  a map from partitions to offsets, not '2026-11-01'
topic: orders => topic: orders\n      start: {a: 5}
  5: source.start.a: is not a valid name; it must be the number of a partition, such as 0
topic: orders => topic: orders\n      start: {"0": 2, "00": 1}
  5: source.start.00: is not a valid name; it must be the number of a partition, such as 0
topic: orders => topic: orders\n      key: ids
  5: source.key: ids is not one of the fields of the schema: id, amount (did you mean id?)
topic: orders => topic: orders\n      max_records_per_s: 10
  5: source.max_records_per_s: requires mode 'microbatch'; use this mode, or remove the limit
schema: { => schema: order.json #
  5: source.schema: must be a mapping with file, with registry and subject, or with properties, not 'order.json'
schema: { => schema: {propertys: {}} #
  5: source.schema.propertys: is not a setting (did you mean properties?)
schema: { => schema: {} #
  5: source.schema: needs file, or registry with subject, or properties
schema: { => schema: {registry: 'http://r'} #
  5: source.schema: needs subject
schema: { => schema: {registry: 'r:8081', subject: s} #
  5: source.schema.registry: must be an address without a user name, such as https://registry.example
schema: { => schema: {registry: 'http://r', subject: s, user: me} #
  5: source.schema.user: is not a setting (did you mean username?)
schema: { => schema: {registry: 'http://r', subject: s, username: me} #
  5: source.schema: needs both username and password_file
schema: { => schema: {registry: 'http://r', subject: s, file: order.json} #
  5: source.schema.registry: cannot be combined with file; remove one of them
{type: number} => {type: numbr}
  5: source.schema: the schema is not a JSON Schema: properties.amount.type must be one of string, integer, number,
  boolean, array, object, null, not 'numbr' (did you mean number?)
{type: number} => number
  5: source.schema: the schema is not a JSON Schema: properties.amount must be a mapping; write {type: number}
[id] => id
  5: source.schema: the schema is not a JSON Schema: required must be a list, not 'id'
[id] => [id, amont]
  5: source.schema.required: amont is not one of the properties: id, amount (did you mean amount?)
{properties => {file: order.json, properties
  5: source.schema.properties: cannot be combined with file; remove one of them
query: => tables: {shops: shops.csv}\n    query:
  6: tables.shops: must be a mapping with csv, parquet, or topic and schema, not 'shops.csv'
query: => tables: {my-shops: {csv: shops.csv}}\n    query:
  6: tables.my-shops: is not a valid name; it must be letters, digits and underscores, not starting with a digit
query:\n      where: amount > 100 => query: amount > 100
  6: query: must be a mapping of steps, such as {where: amount > 100}, not 'amount > 100'
where: amount > 100 => filter: amount > 100
  7: query.filter: is not a setting; use one of: from, enrich, where, select, latest, top, window
where: amount > 100 => from: sorce
  7: query.from: sorce is not one of the sources: source (did you mean source?)
where: amount > 100 => latest: false
  7: query.latest: must be true or omitted, not false
where: amount > 100 => select: amount
  7: query.select: must be a list of expressions, such as [id, amount * 2 AS double], not 'amount'
where: amount > 100 => enrich: {table: shops, on: id}
  7: query.enrich: must be a list, such as [{table: shops, on: shop}], not a mapping
where: amount > 100 => enrich: [shops]
  7: query.enrich.0: must be a mapping with table and on, not 'shops'
where: amount > 100 => enrich: [{table: shop, on: id}]\n    tables: {shops: {csv: shops.csv}}
  7: query.enrich.0.table: shop is not one of the tables: shops (did you mean shops?)
where: amount > 100 => enrich: [{table: shop, on: id}]
  7: query.enrich.0.table: the pipeline has no tables; add shop to tables
where: amount > 100 => top: {n: 3, by: -amount, group: id}
  7: query.top.by: must be a column name: letters, digits and underscores, not starting with a digit, not '-amount'
where: amount > 100 => top: {n: 3, by: amount, group: id}\n      latest: true
  7: query.top: a query has only one of: latest, top; remove the others, or use another sink for each
where: amount > 100 => window: {size: 1 hour, aggregates: [count(*)]}
  7: query.window.aggregates: must be a mapping of names to expressions, such as {orders: count(*)}, not a list
where: amount > 100 => window: {size: 1 hour, by: id, aggregates: {n: count(*)}}
  7: query.window.by: must be a list of columns, such as [shop], not 'id'
where: amount > 100 => window: {size: 1 hour, aggregates: {n: count(*)}, results: final}
  7: query.window.results: final needs mode: microbatch or mode: once; add one of them to the pipeline, or write
  updates
amount > 100 => 5
  7: query.where: must be an expression in Spark SQL, not 5
where: amount > 100 => top: {n: 1, by: amount, group: items}
  7: query.top.as: items is the column of the group; use another name for the list
sink: => tables: {source: {topic: shops, schema: {properties: {id: {type: string}}}}}\n    sink:
  8: tables.source: is also the name of a source; rename the table
id: {type: string}, => id: {type: string}, _key: {type: string},
  5: source.schema: the field _key has the name of a column of all rows; leave it out
where: amount > 100 => top: {}
  7: query.top: needs n, by and group
where: amount > 100 => top: {n: 1, by: amount}
  7: query.top: needs group
where: amount > 100 => select: []
  7: query.select: must not be empty
where: amount > 100 => window: {size: 1m, aggregates: {n: count(*)}}
  7: query.window.size: must be a number and a unit, such as '10 seconds', not '1m'
where: amount > 100 => from: 5
  7: query.from: must be the name of a source, or a list of names, not 5
sink: => sinks: {a: large-orders} #
  8: sinks.a: must be a mapping with topic and query, not 'large-orders'
sink: large-orders => sink: orders
  8: sink: orders is also a source; write to another topic
sink: => dead_letters: orders\n    sink:
  8: dead_letters: orders is also a source; use another topic
sink: => mode: real-time\n    sink:
  8: mode: must be one of realtime, microbatch, once, not 'real-time' (did you mean realtime?)
sink: => version: 2.0\n    sink:
  8: version: must be a whole number from 1 to 2147483647, not 2.0
sink: => spark: {driver.memory: 2g}\n    sink:
  8: spark.driver.memory: is not a valid name; it must be the name of a Spark setting, such as spark.executor.memory
sink: => tables: {x: {topic: shops}}\n    sink:
  8: tables.x: needs csv, or parquet, or topic with schema
sink: => tables: {x: {csv: a, parquet: b}}\n    sink:
  8: tables.x: has contradictory settings; use only csv, or parquet, or topic with schema
where: amount > 100 => top: {n: 1, by: amount, group: id}\n      window: {size: 1 hour, aggregates: {n: count(*)}}
  8: query.window: a query has only one of: top, window; remove the others, or use another sink for each
query:\n      where: amount > 100\n    sink: => sinks: {a: {topic: a}, b: {topic: b, query: {latest: true}}} #
  6: sinks.b.query.latest: with several sinks, latest needs mode: microbatch or mode: once; add one of them to the pipeline
where: amount > 100 => latest: true\n      window: {size: 1 hour, aggregates: {n: count(*), most: max(amount)}}
  8: query.window.aggregates.most: max(amount) cannot be combined with latest, because it cannot subtract a
  corrected row; use count(*), count(…), sum(…) or avg(…)
"""


@pytest.mark.parametrize(("change", "error"), cases(INVALID))
def test_an_invalid_field_is_an_error_with_its_line_and_path(file, change, error):
    """The reason says what to write instead. It suggests the name that is most similar to a misspelled one."""
    old, _, new = change.partition(" => ")
    assert 1 == ORDERS.count(old)
    line, _, rest = error.partition(": ")

    assert f"pipelines.yaml:{line}: pipelines.large-orders.{rest}" == message(file, ORDERS.replace(old, new))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "1: needs pipelines"),
        ("[]", "1: must be a mapping with pipelines, not an empty list"),
        ("pipeline: {}", "1: pipeline: is not a setting (did you mean pipelines?)"),
        ("pipelines:\n  x:", "2: pipelines.x: must be a mapping with source, query and sink, not null"),
        ("pipelines:\n\tx: 1", "2: this is not valid YAML: a line is indented with a tab: use spaces"),
        (
            ORDERS.replace("large-orders:", "large orders:"),
            "2: pipelines.large orders: is not a valid name; it must be up to 100 letters, digits, dots, underscores and "
            "hyphens, beginning with a letter or digit",
        ),
        (ORDERS.replace("    sink: large-orders", ""), "2: pipelines.large-orders: it needs either sink or sinks"),
        (ORDERS.replace("topic: orders", "topic: orders\n      topic: more"), "5: topic is set twice; remove one"),
        (
            ORDERS.replace("topic: orders", "topic: ["),
            "6: this is not valid YAML: expected ',' or ']', but got '<scalar>'",
        ),
    ],
)
def test_an_invalid_file_is_an_error_with_its_line(file, content, expected):
    """A file can be wrong before it names a pipeline."""
    assert f"pipelines.yaml:{expected}" == message(file, content)


WHOLE = """
pipelines:
  whole:
    mode: microbatch
    state_partitions: 2
    spark: {spark.executor.memory: 2g}
    sources: {eu: {topic: eu, start: {"0": 5}, max_records_per_s: 1, schema: {properties: {x: {type: integer}}}}}
    tables: {shops: {csv: shops.csv}}
    sinks:
      top: {topic: t, query: {from: eu, select: [x], enrich: [{table: shops, "on": {x: x}}], top: {n: 1, by: x, group: x}}}
      sums: {topic: s, query: {where: x > 1, window: {size: 1 hour, by: [x], aggregates: {n: count(*)}, results: updates}}}
      all: {topic: a, query: {from: [eu], latest: true}}
"""


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each mapping or list in `value`, with the name or number of each of its members."""
    for name in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, name
        yield from places(value[name])


@pytest.mark.parametrize("wrong", [None, 5, {"x": 5}], ids=repr)
def test_a_value_of_another_type_is_an_error(file, wrong):
    """At each place of a file, a wrong value gives an error with the file and a line, or is valid after all."""
    definition, errors = yaml.safe_load(WHOLE), []
    for parent, name in list(places(definition)):
        right, parent[name] = parent[name], wrong
        file.write_text(yaml.safe_dump(definition))
        try:
            of_file(file)
        except CommandError as error:
            errors.append(error.detail)
        parent[name] = right

    assert errors
    assert [] == [error for error in errors if not re.match(rf"{re.escape(str(file))}:\d+: ", error)]


def test_an_unknown_name_is_an_error_that_lists_the_pipelines_of_the_file(file):
    expected = f"{file} has no pipeline large-order (did you mean large-orders?); it has: large-orders"
    with pytest.raises(CommandError, match=re.escape(expected)):
        find(f"{file}:large-order")


def test_a_missing_file_is_an_error(tmp_path):
    assert "cannot read none.yaml: No such file or directory" == message(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("schema: {", "schema: {registry: 'http://me:hunter2@registry', subject: s} #"),
        ("    sink:", "    spark: {spark.hadoop.secret: [hunter2]}\n    sink:"),
    ],
)
def test_an_error_does_not_show_a_password(file, old, new):
    assert "hunter2" not in message(file, ORDERS.replace(old, new))


def test_the_schema_can_be_in_a_file(file):
    """The path is relative to the file of pipelines."""
    (file.parent / "order.json").write_text('{"properties": {"id": {"type": "string"}}}')

    pipeline = defined(file, source={"topic": "orders", "schema": {"file": "order.json"}})

    assert {"id": "STRING"} == pipeline.settings["query"]["fields"]["source"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [(None, "cannot read"), ("{", "the schema is not JSON"), ('{"type": "object"}', "the schema has no properties")],
)
def test_an_unusable_schema_is_an_error(file, content, expected):
    if content:
        (file.parent / "order.json").write_text(content)

    error = message(file, ORDERS.replace("schema: {", "schema: {file: order.json} #"))

    assert error.startswith("pipelines.yaml:5: pipelines.large-orders.source.schema")
    assert expected in error


def in_registry(registry: Registry, **more: Any) -> str:
    schema = {"registry": registry.url, "subject": "orders-value"} | more
    return ORDERS.replace("schema: {", f"schema: {json.dumps(schema)} #")


def test_the_schema_can_be_in_a_registry(file, registry):
    """The latest version is used, unless the file names another one."""
    for name in ("id", "order_id"):
        registry.register("orders-value", {"properties": {name: {"type": "string"}}}, "JSON")
    types = []

    for version in ({}, {"version": 1}):
        file.write_text(in_registry(registry, **version))
        types.append(find(str(file)).settings["query"]["fields"]["source"])

    assert [{"order_id": "STRING"}, {"id": "STRING"}] == types


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("protobuf", "has the type PROTOBUF, but a YAML pipeline reads only JSON and AVRO; for other formats, define"),
        ("text", "the schema has no properties; a record must be an object with known fields"),
        # Such an array has any number of items in a few bytes.
        ("nulls", "is not valid: it contains an array whose items take up no bytes"),
        ("payments", "the registry has no version latest of the subject payments"),
    ],
)
def test_a_schema_of_the_registry_that_cannot_be_used_is_an_error(file, registry, subject, expected):
    nulls = {"name": "a", "type": {"type": "array", "items": "null"}}
    registry.register("protobuf", FileDescriptorProto(name="order.proto"), "PROTOBUF")
    registry.register("text", "string")
    registry.register("nulls", {"type": "record", "name": "R", "fields": [nulls]})

    assert expected in message(file, in_registry(registry, subject=subject))


LOGIN = "Check its username and password_file."


@pytest.mark.parametrize(
    ("status", "expected", "is_temporary"),
    [
        (401, f"cannot read the schema from the registry: it responded with status 401. {LOGIN}", False),
        (403, f"cannot read the schema from the registry: it responded with status 403. {LOGIN}", False),
        (404, "cannot read the schema from the registry: it responded with status 404, and not as a schema", False),
        (429, "the registry is not available: it responded with status 429", True),
        (503, "the registry is not available: it responded with status 503", True),
        (None, "the registry is not available: ConnectionError", True),
    ],
)
def test_a_registry_that_fails_is_an_error(file, registry, status, expected, is_temporary):
    """The type of the error says whether another attempt may succeed."""
    file.write_text(in_registry(registry))
    registry.failure = lambda: (status or 500, {})
    if status is None:
        registry.close()

    with pytest.raises(CommandError) as error:
        find(str(file))

    assert f"pipelines.yaml:5: pipelines.large-orders.source.schema: {expected}" in error.value.detail
    assert is_temporary == isinstance(error.value, SchemaUnavailable)


@pytest.mark.parametrize(
    "ca", [{}, {"ca_file": "other.pem"}, {"ca_file": "none.pem"}, {"ca_file": "empty.pem"}], ids=str
)
def test_a_registry_whose_certificate_is_not_trusted_is_an_error(file, secured, ca):
    """The error names the setting."""
    (file.parent / "other.pem").write_text(Authority().certificate)
    (file.parent / "empty.pem").write_text("")

    error = message(file, in_registry(secured, **ca))

    assert re.search(r"source\.schema: cannot read the schema from the registry: .*ca_file", error)
    assert ca.get("ca_file") != "none.pem" or "none.pem" in error


def test_a_table_in_avro_is_an_error(file, registry):
    order = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
    registry.register("orders-value", order)
    table = {"topic": "shops", "schema": {"registry": registry.url, "subject": "orders-value"}}
    content = ORDERS.replace("    query:", f"    tables: {json.dumps({'shops': table})}\n    query:")

    expected = "pipelines.large-orders.tables.shops.schema: the records of a table must be JSON, not Avro"
    assert expected in message(file, content)


def test_a_pipeline_has_several_sources_and_sinks(file):
    """Each sink has its own query."""
    schema = {"properties": {"id": {"type": "string"}}}
    definition = {
        "sources": {"eu": {"topic": "orders-eu", "schema": schema}, "us": {"topic": "orders-us", "schema": schema}},
        "sinks": {"all": {"topic": "orders"}, "us": {"topic": "us-orders", "query": {"from": "us"}}},
    }
    file.write_text(json.dumps({"pipelines": {"split": definition}}))

    pipeline = find(str(file))

    assert {"eu": "orders-eu", "us": "orders-us"} == pipeline.settings["sources"]
    assert {"all": "orders", "us": "us-orders"} == pipeline.settings["sinks"]


def test_sources_in_another_order_do_not_fit_a_checkpoint(file):
    """Positions contain the number of the source. An earlier version has not recorded the order of the sources."""
    source = {"topic": "orders", "schema": {"properties": {"id": {"type": "string"}}}}
    sources = {"us": source, "eu": source | {"topic": "orders-eu"}}
    pipelines = []
    for names in (("us", "eu"), ("eu", "us")):
        definition = {"sources": {name: sources[name] for name in names}, "sink": "all"}
        file.write_text(json.dumps({"pipelines": {"all": definition}}))
        pipelines.append(find(str(file)))
    before, after = pipelines
    manifest = CheckpointManifest("all", plain_settings(before), 0, 0, "", "")
    old = dataclasses.replace(manifest, settings=json.loads(manifest.text())["settings"])
    del old.settings["query"]["source_order"]

    assert [] == manifest.changes(before, {}) == old.changes(before, {})
    expected = 'query.source_order was ["us", "eu"] and is ["eu", "us"] now'
    assert [expected] == manifest.changes(after, {})


def test_final_results_are_appended(file):
    """Spark's output mode follows from the query."""
    window = {"size": "1 minute", "aggregates": {"n": "count(*)"}, "results": "final"}

    assert "append" == defined(file, query={"window": window}, mode="microbatch").output_mode
    assert "update" == defined(file, query={"window": window | {"results": "updates"}}).output_mode


@pytest.mark.parametrize(
    "aggregate",
    ["max(amount)", "sum(a) / sum(b)", "count(DISTINCT a)", "count(a, b)", "sum(a) FILTER (WHERE b)", "sum()", "1"],
)
def test_an_aggregate_that_cannot_subtract_a_row_is_an_error(aggregate):
    """The message lists those that can."""
    with pytest.raises(CommandError, match=r"corrected row; use count\(\*\), count\(…\), sum\(…\) or avg\(…\)"):
        reversible(aggregate)


@pytest.mark.parametrize(
    "expression", ["round(a, 2)", "CASE WHEN a = '),(' THEN 1 END", 'CASE WHEN a = "," THEN 1 END']
)
def test_an_aggregate_can_contain_any_expression(expression):
    assert expression in reversible(f"sum({expression})")


SCHEMAS = [
    ({"type": "string"}, "STRING"),
    ({"type": ["null", "integer"]}, "BIGINT"),
    ({"type": "number"}, "DOUBLE"),
    ({"type": "boolean"}, "BOOLEAN"),
    ({"type": "string", "format": "date-time"}, "TIMESTAMP"),
    ({"type": "string", "format": "date"}, "DATE"),
    ({"enum": ["new", "paid"]}, "STRING"),
    ({"type": "array", "items": {"type": "number"}}, "ARRAY<DOUBLE>"),
    ({"type": "object", "properties": {"a b": {"type": "string"}}}, "STRUCT<`a b`: STRING>"),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, "MAP<STRING, BIGINT>"),
    ({"$ref": "#/$defs/money"}, "DOUBLE"),
    ({"type": ["string", "number"]}, "STRING"),
    ({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/money"}]}, "DOUBLE"),
    ({"oneOf": [{"type": "string"}, {"type": "number"}]}, "STRING"),
    ({"type": "integer", "anyOf": [{"minimum": 1}]}, "BIGINT"),
    ({"$ref": "#/$defs/tree"}, "STRUCT<`left`: STRING, `right`: STRING>"),
    (True, "STRING"),
]


@pytest.mark.parametrize(("schema", "sql"), SCHEMAS, ids=[str(schema) for schema, _ in SCHEMAS])
def test_a_property_has_a_sql_type(schema, sql):
    """A value that may have several types, or that contains values of its own type, is JSON text."""
    tree = {"type": "object", "properties": {side: {"$ref": "#/$defs/tree"} for side in ("left", "right")}}
    root = {"properties": {"x": schema}, "$defs": {"money": {"type": "number"}, "tree": tree}}

    assert sql == fields(root)["x"].sql


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("#/$defs/none", "does not exist"),
        ("other.json", "only references within"),
        ("#/properties/x", "refers to itself"),
    ],
)
def test_a_reference_that_cannot_be_resolved_is_an_error(reference, reason):
    """Other documents are not downloaded."""
    with pytest.raises(CommandError, match=reason):
        fields({"properties": {"x": {"$ref": reference}}})


def test_only_a_required_property_without_null_is_required():
    """All other fields may be absent or null."""
    root = {
        "properties": {"a": {"type": "string"}, "b": {"type": ["string", "null"]}, "c": {}},
        "required": ["a", "b", "c"],
    }

    assert {"a": True, "b": False, "c": False} == {name: type_.required for name, type_ in fields(root).items()}


NAMES = st.sampled_from(["type", "properties", "items", "$ref", "required", "enum", "additionalProperties"]) | st.text()
LEAVES = st.none() | st.booleans() | st.text()


@given(st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner), max_leaves=10))
def test_any_schema_gives_types_or_an_error(schema):
    """No JSON value makes the conversion fail in another way."""
    try:
        types = fields({"properties": {"x": schema}})
    except CommandError:
        return
    assert ["x"] == list(types)


@settings(max_examples=examples(20))  # each example writes and checks a file
@given(st.dictionaries(st.integers(0, 99), st.integers(0, MAX_OFFSET), min_size=1))
def test_start_offsets_survive_the_file(offsets):
    """The partitions are numbers, although keys of JSON objects are text."""
    definition = yaml.safe_load(ORDERS)["pipelines"]["large-orders"]
    definition["source"]["start"] = {str(partition): offset for partition, offset in offsets.items()}

    assert offsets == _in_memory(definition).sources["source"].start


def _in_memory(definition: dict[str, Any]) -> Pipeline:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(json.dumps({"pipelines": {"x": definition}}))
        file.flush()
        return find(f"{file.name}:x")


@pytest.mark.parametrize("page", ["pipelines.md", "pipeline-tutorial.md"])
def test_the_samples_in_the_docs_are_valid(page, tmp_path):
    """Each YAML file of pipelines in the docs defines pipelines."""
    blocks = re.findall(r"^```yaml\n(pipelines:.*?)^```", (DOCS / page).read_text(), re.M | re.S)
    assert blocks
    for number, block in enumerate(blocks):
        path = tmp_path / f"{number}.yaml"
        path.write_text(block)

        assert all(isinstance(pipeline, Pipeline) for pipeline in of_file(path))


def test_every_setting_of_the_file_and_every_argument_of_a_pipeline_is_in_the_docs():
    """The pages name each setting in a table, and have a row for each argument."""
    definitions = schemas.read("pipelines")["$defs"]
    assert [*get_args(Mode)] == definitions["pipeline"]["properties"]["mode"]["enum"]
    names = {
        name for part in ("pipeline", "source", "table", "query") for name in definitions[part]["properties"]
    } | set(definitions["query"]["properties"]["window"]["properties"])
    rows = re.findall(r"^\| (`[^|]*) \|", "".join(page.read_text() for page in DOCS.glob("pipelines*.md")), re.M)

    assert set() == names - set(re.findall(r"`(\w+)`", " ".join(rows)))
    assert {field.name for field in dataclasses.fields(Pipeline)} <= {row.strip("`") for row in rows}
