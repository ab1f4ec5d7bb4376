"""A YAML file defines pipelines, and each error names the file, the line and the reason."""

from __future__ import annotations

import dataclasses
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkasse import schemas
from kafkasse.errors import CommandError
from kafkasse.pipelines import Pipeline, Source
from kafkasse.pipelines.catalog import find, of_file
from kafkasse.pipelines.definitions import RegistryUnavailable
from kafkasse.pipelines.fields import fields
from kafkasse.pipelines.pipeline import MAX_OFFSET
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


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with a pipeline."""
    path = tmp_path / "pipelines.yaml"
    path.write_text(ORDERS)
    return path


def message(file: Path, name: str = "large-orders") -> str:
    """The error for the file, without its folder."""
    with pytest.raises(CommandError) as error:
        find(f"{file}:{name}")
    return error.value.detail.replace(f"{file.parent}/", "")


def test_a_file_defines_a_pipeline(file: Path) -> None:
    """The name may be omitted, because the file has only one."""
    found = find(str(file))

    assert ("large-orders", "orders", "large-orders") == (
        found.name,
        found.sources["source"].topic,
        found.sinks["sink"].topic,
    )
    assert {"where": "amount > 100"} == found.settings["query"]["queries"]["sink"]


def test_all_options_reach_the_pipeline(file: Path) -> None:
    """The options have the names of the arguments of Pipeline."""
    options = {
        "mode": "microbatch",
        "checkpoint": "/data",
        "state_partitions": 4,
        "refresh_tables_s": 600,
        "spark": {"spark.executor.memory": "2g"},
        "version": 2,
        "dead_letters": "bad-orders",
        "summary": "Orders above 100",
    }
    definition = yaml.safe_load(ORDERS)
    definition["pipelines"]["large-orders"] |= options
    definition["pipelines"]["large-orders"]["source"] |= {"start": {"0": 5, "1": 6}, "max_records_per_s": 10}
    file.write_text(yaml.safe_dump(definition))

    found = find(str(file))

    assert options == {name: getattr(found, name) for name in options}
    assert Source("orders", {0: 5, 1: 6}, 10) == found.sources["source"]


def test_the_interval_of_commits_reaches_the_pipeline(file: Path) -> None:
    """Only real-time mode has this setting."""
    definition = yaml.safe_load(ORDERS)
    definition["pipelines"]["large-orders"]["commit_interval_s"] = 60
    file.write_text(yaml.safe_dump(definition))

    assert 60 == find(str(file)).commit_interval_s


INVALID = [
    ("source:", "sauce:", "3: pipelines.large-orders.sauce: is not a setting (did you mean source?)"),
    ("where:", "were:", "7: pipelines.large-orders.query.were: is not a setting (did you mean where?)"),
    ("topic: orders", "topic: all orders", "4: pipelines.large-orders.source.topic: must be a topic name: at most 249"),
    ("amount > 100", "5", "7: pipelines.large-orders.query.where: must be an expression in Spark SQL, not 5"),
    ("    sink: large-orders", "", "2: pipelines.large-orders: it needs either sink or sinks"),
    (
        "    sink:",
        "    mode: real-time\n    sink:",
        "8: pipelines.large-orders.mode: must be one of realtime, microbatch, once, not 'real-time' (did you",
    ),
    (
        "    sink:",
        "    spark: {driver.memory: 2g}\n    sink:",
        "8: pipelines.large-orders.spark.driver.memory: is not a valid",
    ),
    (
        "    sink:",
        "    tables: {x: {}}\n    sink:",
        "8: pipelines.large-orders.tables.x: needs csv, or parquet, or topic with schema",
    ),
    (
        "    sink:",
        "    tables: {x: {topic: shops}}\n    sink:",
        "8: pipelines.large-orders.tables.x: needs csv, or parquet, or topic with schema",
    ),
    ("where: amount > 100", "top: {}", "7: pipelines.large-orders.query.top: needs n, by and group"),
    ("where: amount > 100", "top: {by: amount}", "7: pipelines.large-orders.query.top: needs n and group"),
    ("where: amount > 100", "top: {n: 1, by: amount}", "7: pipelines.large-orders.query.top: needs group"),
    (
        "    sink:",
        "    tables: {x: {csv: a, parquet: b}}\n    sink:",
        "8: pipelines.large-orders.tables.x: has contradictory settings; use only csv, or parquet, or topic with schema",
    ),
    ("where: amount > 100", "select: []", "7: pipelines.large-orders.query.select: must not be empty"),
    (
        "where: amount > 100",
        "window: {size: 1m, aggregates: {n: count(*)}}",
        "7: pipelines.large-orders.query.window.size: must be a number and a unit, such as '10 seconds', not '1m'",
    ),
    (
        "where: amount > 100",
        "from: 5",
        "7: pipelines.large-orders.query.from: must be the name of a source, or a list of names, not 5",
    ),
    (
        "where: amount > 100",
        "from: shop",
        "7: pipelines.large-orders.query.from: shop is not one of the sources: source",
    ),
    (
        "where: amount > 100",
        "enrich: [{table: shops, on: id}]",
        "7: pipelines.large-orders.query.enrich.0.table: the pipeline has no tables; add shops to tables",
    ),
    (
        "where: amount > 100",
        "top: {n: 1, by: amount, group: id}\n      window: {size: 1 hour, aggregates: {n: count(*)}}",
        "8: pipelines.large-orders.query.window: a query has only one of: top, window",
    ),
    (
        "where: amount > 100",
        "latest: true\n      window: {size: 1 hour, aggregates: {n: count(*), most: max(amount)}}",
        "8: pipelines.large-orders.query.window.aggregates.most: max(amount) cannot be combined with latest, "
        "because it cannot subtract a corrected row; use count(*)",
    ),
    (
        "where: amount > 100",
        "window: {size: 1 minute, aggregates: {n: count(*)}, results: final}",
        "7: pipelines.large-orders.query.window.results: final needs mode: microbatch or mode: once",
    ),
    (
        "{properties",
        "{file: order.json, properties",
        "5: pipelines.large-orders.source.schema.properties: cannot be combined with file; remove one of them",
    ),
    (
        "schema: {",
        "schema: {} #",
        "5: pipelines.large-orders.source.schema: needs file, or registry with subject, or prop",
    ),
    ("topic: orders", "topic: orders\n      topic: more", "5: not YAML: topic occurs twice"),
    ("topic: orders", "topic: [", "6: not YAML:"),
    (
        "topic: orders",
        "topic: orders\n      start: noon",
        "5: pipelines.large-orders.source.start: must be 'earliest'",
    ),
]


@pytest.mark.parametrize(("old", "new", "expected"), INVALID, ids=[expected for _, _, expected in INVALID])
def test_an_invalid_file_is_an_error_with_its_line(file: Path, old: str, new: str, expected: str) -> None:
    """The error suggests the name that is most similar to a misspelled one."""
    file.write_text(ORDERS.replace(old, new))

    assert message(file).startswith(f"pipelines.yaml:{expected}")


WHOLE = """
pipelines:
  whole:
    mode: microbatch
    state_partitions: 2
    spark: {spark.executor.memory: 2g}
    sources: {eu: {topic: eu, start: {"0": 5}, max_records_per_s: 1, schema: {properties: {x: {type: integer}}}}}
    tables: {shops: {csv: shops.csv}}
    sinks:
      top: {topic: t, query: {from: eu, select: [x], enrich: [{table: shops, on: {x: x}}], top: {n: 1, by: x, group: x}}}
      sums: {topic: s, query: {where: x > 1, window: {size: 1 hour, by: [x], aggregates: {n: count(*)}, results: updates}}}
      all: {topic: a, query: {from: [eu], latest: true}}
"""


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each mapping or list in `value`, with the name or number of each of its members."""
    for name in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, name
        yield from places(value[name])


@pytest.mark.parametrize("wrong", [None, 5, {"x": 5}], ids=repr)
def test_a_value_of_another_type_is_an_error(file: Path, wrong: Any) -> None:
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


def test_an_unknown_name_is_an_error(file: Path) -> None:
    """The error lists the pipelines of the file."""
    assert message(file, "large-order") == (
        "pipelines.yaml has no pipeline large-order (did you mean large-orders?); it has: large-orders"
    )


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    """The error names the file."""
    assert message(tmp_path / "none.yaml") == "cannot read none.yaml: No such file or directory"


def test_an_error_does_not_show_a_password(file: Path) -> None:
    """Credentials may be in an address and in Spark settings."""
    file.write_text(ORDERS.replace("schema: {", "schema: {registry: 'http://me:hunter2@registry', subject: s} #"))
    assert "hunter2" not in message(file)
    file.write_text(ORDERS.replace("    sink:", "    spark: {spark.hadoop.secret: [hunter2]}\n    sink:"))
    assert "hunter2" not in message(file)


def test_the_schema_can_be_in_a_file(file: Path) -> None:
    """The path is relative to the file of pipelines."""
    (file.parent / "order.json").write_text('{"properties": {"id": {"type": "string"}}}')
    file.write_text(ORDERS.replace("schema: {", "schema: {file: order.json} #"))

    assert {"id": "STRING"} == find(str(file)).settings["query"]["fields"]["source"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [(None, "cannot read"), ("{", "the schema is not JSON"), ('{"type": "object"}', "the schema has no properties")],
)
def test_an_unusable_schema_is_an_error(file: Path, content: str | None, expected: str) -> None:
    """The error names the line of the schema."""
    if content:
        (file.parent / "order.json").write_text(content)
    file.write_text(ORDERS.replace("schema: {", "schema: {file: order.json} #"))

    assert message(file).startswith("pipelines.yaml:5: pipelines.large-orders.source.schema")
    assert expected in message(file)


@pytest.fixture
def registry() -> Iterator[Registry]:
    """A schema registry."""
    registry = Registry()
    yield registry
    registry.close()


def in_registry(registry: Registry, **more: Any) -> str:
    """ORDERS with its schema in the registry."""
    schema = {"registry": registry.url, "subject": "orders-value"} | more
    return ORDERS.replace("schema: {", f"schema: {json.dumps(schema)} #")


def test_the_schema_can_be_in_a_registry(file: Path, registry: Registry) -> None:
    """The latest version is used, unless the file names another one."""
    for name in ("id", "order_id"):
        registry.register("orders-value", {"properties": {name: {"type": "string"}}}, "JSON")
    file.write_text(in_registry(registry))
    latest = find(str(file))
    file.write_text(in_registry(registry, version=1))

    first = find(str(file))

    assert {"order_id": "STRING"} == latest.settings["query"]["fields"]["source"]
    assert {"id": "STRING"} == first.settings["query"]["fields"]["source"]


def test_a_schema_of_another_type_is_an_error(file: Path, registry: Registry) -> None:
    """The error names the type and the alternative."""
    registry.register("orders-value", FileDescriptorProto(name="order.proto"), "PROTOBUF")
    registry.register("orders", "string")
    file.write_text(in_registry(registry))
    assert "has the type PROTOBUF, but a YAML pipeline reads only JSON and AVRO; for other formats, define" in message(
        file
    )
    file.write_text(in_registry(registry, subject="orders"))
    assert "the schema has no properties; a record must be an object with known fields" in message(file)
    file.write_text(in_registry(registry, subject="payments"))
    assert message(file).endswith("the registry has no version latest of the subject payments")


@pytest.mark.parametrize(
    ("status", "expected", "is_temporary"),
    [
        (
            401,
            "cannot read the schema from the registry: it responded with status 401. Check its username and password_file.",
            False,
        ),
        (
            403,
            "cannot read the schema from the registry: it responded with status 403. Check its username and password_file.",
            False,
        ),
        (
            404,
            "cannot read the schema from the registry: it responded with status 404, and not as a schema registry.",
            False,
        ),
        (429, "the registry is not available: it responded with status 429", True),
        (503, "the registry is not available: it responded with status 503", True),
        (None, "the registry is not available: ConnectionError", True),
    ],
)
def test_a_registry_that_fails_is_an_error(
    file: Path, registry: Registry, status: int | None, expected: str, is_temporary: bool
) -> None:
    """The type of the error says whether another attempt may succeed."""
    file.write_text(in_registry(registry))
    registry.failure = lambda: (status or 500, {})
    if status is None:
        registry.close()

    with pytest.raises(CommandError) as error:
        find(str(file))

    assert f"pipelines.yaml:5: pipelines.large-orders.source.schema: {expected}" in error.value.detail
    assert is_temporary == isinstance(error.value, RegistryUnavailable)


def test_a_table_in_avro_is_an_error(file: Path, registry: Registry) -> None:
    """The error names the table."""
    order = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
    registry.register("orders-value", order)
    table = {"topic": "shops", "schema": {"registry": registry.url, "subject": "orders-value"}}
    file.write_text(ORDERS.replace("    query:", f"    tables: {json.dumps({'shops': table})}\n    query:"))

    assert "pipelines.large-orders.tables.shops.schema: the records of a table must be JSON, not Avro" in message(file)


def pipeline_of(file: Path, **changes: Any) -> Pipeline:
    """The pipeline of ORDERS with these settings changed."""
    definition = yaml.safe_load(ORDERS)
    definition["pipelines"]["large-orders"] |= changes
    file.write_text(json.dumps(definition))
    return find(str(file))


def test_a_pipeline_has_several_sources_and_sinks(file: Path) -> None:
    """Each sink has its own query."""
    schema = {"properties": {"id": {"type": "string"}}}
    definition = {
        "sources": {"eu": {"topic": "orders-eu", "schema": schema}, "us": {"topic": "orders-us", "schema": schema}},
        "sinks": {"all": {"topic": "orders"}, "us": {"topic": "us-orders", "query": {"from": "us"}}},
    }
    file.write_text(json.dumps({"pipelines": {"split": definition}}))

    found = find(str(file))

    assert {"eu": "orders-eu", "us": "orders-us"} == found.settings["sources"]
    assert {"all": "orders", "us": "us-orders"} == found.settings["sinks"]


def test_final_results_are_appended(file: Path) -> None:
    """Spark's output mode follows from the query."""
    window = {"size": "1 minute", "aggregates": {"n": "count(*)"}, "results": "final"}

    assert "append" == pipeline_of(file, query={"window": window}, mode="microbatch").output_mode
    assert "update" == pipeline_of(file, query={"window": window | {"results": "updates"}}).output_mode


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
def test_a_property_has_a_sql_type(schema: Any, sql: str) -> None:
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
def test_a_reference_that_cannot_be_resolved_is_an_error(reference: str, reason: str) -> None:
    """Other documents are not downloaded."""
    with pytest.raises(CommandError, match=reason):
        fields({"properties": {"x": {"$ref": reference}}})


def test_only_a_required_property_without_null_is_required() -> None:
    """All other fields may be absent or null."""
    root = {
        "properties": {"a": {"type": "string"}, "b": {"type": ["string", "null"]}, "c": {}},
        "required": ["a", "b", "c"],
    }

    assert {"a": True, "b": False, "c": False} == {name: type_.required for name, type_ in fields(root).items()}


@given(
    st.recursive(
        st.none() | st.booleans() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["type", "properties", "items", "$ref", "required", "enum", "additionalProperties"])
                | st.text(),
                inner,
            )
        ),
        max_leaves=10,
    )
)
def test_any_schema_gives_types_or_an_error(schema: Any) -> None:
    """No JSON value makes the conversion fail in another way."""
    try:
        found = fields({"properties": {"x": schema}})
    except CommandError:
        return
    assert ["x"] == list(found)


@settings(max_examples=examples(20))  # each example writes and checks a file
@given(st.dictionaries(st.integers(0, 99), st.integers(0, MAX_OFFSET), min_size=1))
def test_start_offsets_survive_the_file(offsets: dict[int, int]) -> None:
    """The partitions are numbers, although keys of JSON objects are text."""
    definition = yaml.safe_load(ORDERS)["pipelines"]["large-orders"]
    definition["source"]["start"] = {str(partition): offset for partition, offset in offsets.items()}

    assert offsets == _in_memory(definition).sources["source"].start


def _in_memory(definition: dict[str, Any]) -> Pipeline:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(json.dumps({"pipelines": {"x": definition}}))
        file.flush()
        return find(f"{file.name}:x")


DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["pipelines.md", "pipeline-tutorial.md"])
def test_the_samples_in_the_docs_are_valid(page: str, tmp_path: Path) -> None:
    """Each YAML file of pipelines in the docs defines pipelines."""
    blocks = re.findall(r"^```yaml\n(pipelines:.*?)^```", (DOCS / page).read_text(), re.M | re.S)
    assert blocks
    for number, block in enumerate(blocks):
        path = tmp_path / f"{number}.yaml"
        path.write_text(block)

        assert all(isinstance(each, Pipeline) for each in of_file(path))


def test_every_setting_of_the_file_is_in_the_docs() -> None:
    """docs/pipelines.md names each setting in a table."""
    definitions = schemas.read("pipelines")["$defs"]
    names = {
        name for part in ("pipeline", "source", "table", "query") for name in definitions[part]["properties"]
    } | set(definitions["query"]["properties"]["window"]["properties"])
    rows = re.findall(r"^\| (`[^|]*) \|", (DOCS / "pipelines.md").read_text(), re.M)

    assert set() == names - set(re.findall(r"`(\w+)`", " ".join(rows)))


def test_every_argument_of_a_pipeline_is_in_the_docs() -> None:
    """docs/pipelines.md has a row for each."""
    rows = re.findall(r"^\| `(\w+)` \|", (DOCS / "pipelines.md").read_text(), re.M)

    assert set() == {each.name for each in dataclasses.fields(Pipeline)} - set(rows)
