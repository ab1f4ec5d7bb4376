"""Records in Avro: their fields come from the schema registry, and each record is decoded with the schema that wrote it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from kafkasse.errors import CommandError
from kafkasse.pipelines import Pipeline, Source, avro_records
from kafkasse.pipelines.avro_records import AvroSource
from kafkasse.pipelines.definition.catalog import find
from kafkasse.pipelines.execution import dead_letters
from kafkasse.pipelines.explain import explain
from kafkasse.pipelines.spark import failures, private_spark
from kafkasse.pipelines.supervisor import DependencyUnavailable
from tests.pipelines.spark.rows import kafka_rows
from tests.registry.avro_values import NODE, VALUES, encoded
from tests.support.certificates import Authority
from tests.support.registry import Registry, framed

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "string"}, {"name": "amount", "type": "int"}],
}
NEWER = ORDER | {
    "fields": [
        *ORDER["fields"],
        {"name": "price", "type": ["null", "double"], "default": None},
        {"name": "shop", "type": "string", "default": "web"},
    ]
}
ENCODED = encoded(NEWER, {"id": "a", "amount": 1})
SUBJECT = "orders-value"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "pipelines.yaml"


def defined(file: Path, registry: Registry, **schema: Any) -> Pipeline:
    """A pipeline whose schema is in the registry."""
    source = {"topic": "orders", "schema": {"registry": registry.url, "subject": SUBJECT} | schema}
    query = {"select": ["id", "amount", "price", "shop"]}
    file.write_text(json.dumps({"pipelines": {"x": {"source": source, "query": query, "sink": "result"}}}))
    return find(str(file))


def test_all_types_become_the_json_of_the_web_process(spark, registry):
    """The Java decoder and kafkasse.records.registry.avro write the same JSON, inside a record."""
    columns = []
    for number, (type_, value, _) in enumerate(VALUES):
        schema = {"type": "record", "name": "Outer", "fields": [{"name": "a", "type": type_}]}
        data = framed(registry.register(f"s{number}", schema), encoded(schema, {"a": value}))
        arguments = [registry.url, "", "", json.dumps(schema)]
        inputs = [F.lit(data), F.lit(None).cast("binary")]
        row = private_spark.call(spark, f"decode_{number}", avro_records.CLASS, arguments, avro_records.RESULT, inputs)
        columns.append(row.alias(f"c{number}"))

    [decoded] = spark.range(1).select(*columns).collect()

    assert [(None, {"a": expected}) for _, _, expected in VALUES] == [
        (row.problem, json.loads(row.json or "null")) for row in decoded
    ]


def test_each_record_is_decoded_with_the_schema_that_wrote_it(spark, registry, file):
    """Older records get the default values of new fields. A tombstone removes its key. The ID may be a GUID."""
    first, second = registry.register(SUBJECT, ORDER), registry.register(SUBJECT, NEWER)
    old = encoded(ORDER, {"id": "a", "amount": 1})
    new = encoded(NEWER, {"id": "b", "amount": 2, "price": 2.5, "shop": "s"})
    guid = b"\1" + registry.guid(second).bytes + new
    pipeline = defined(file, registry)

    rows = kafka_rows(spark, ("a", framed(first, old)), ("b", framed(second, new)), ("c", guid), ("d", None))
    results = pipeline.query(source=rows)["sink"].collect()

    values = [row.value and json.loads(row.value) for row in results]
    newer = {"id": "b", "amount": 2, "price": 2.5, "shop": "s"}
    assert [{"id": "a", "amount": 1, "price": None, "shop": "web"}, newer, newer, None] == values
    assert {"id": "STRING", "amount": "BIGINT", "price": "DOUBLE", "shop": "STRING"} == (
        pipeline.settings["query"]["fields"]["source"]
    )


def record(registry: Registry) -> bytes:
    return framed(registry.register(SUBJECT, NEWER), ENCODED)


def result(spark: SparkSession, pipeline: Pipeline, value: bytes) -> Any:
    [row] = pipeline.query(source=kafka_rows(spark, ("a", value)))["sink"].collect()
    return json.loads(row.value)


def test_a_version_that_is_registered_while_the_pipeline_runs_is_read(spark, registry, file):
    """The fields remain those of the version that the pipeline has read at its start."""
    registry.register(SUBJECT, NEWER)
    pipeline = defined(file, registry)
    newest = NEWER | {"fields": [*NEWER["fields"], {"name": "new", "type": "string", "default": ""}]}
    value = framed(registry.register(SUBJECT, newest), encoded(newest, {"id": "a", "amount": 1, "new": "x"}))

    assert {"id": "a", "amount": 1, "price": None, "shop": "web"} == result(spark, pipeline, value)


def test_a_header_can_contain_the_id_of_the_schema(spark, registry, file):
    """The value then contains only the data."""
    prefix = framed(registry.register(SUBJECT, NEWER), b"")
    header = F.struct(F.lit(avro_records.HEADER).alias("key"), F.lit(prefix).alias("value"))
    rows = kafka_rows(spark, ("a", ENCODED)).withColumn("headers", F.array(header))

    [row] = defined(file, registry).query(source=rows)["sink"].collect()

    assert "a" == json.loads(row.value)["id"]


def test_a_record_that_cannot_be_decoded_is_a_dead_letter(spark, registry, file):
    """A value of a few bytes that claims to contain a gigabyte does not use a gigabyte."""
    schema_id = registry.register(SUBJECT, NEWER)
    json_id = registry.register("other", {"type": "object"}, "JSON")
    other_id = registry.register("other", NODE)
    huge = b"\x80\x80\x80\x80\x08"  # the length 2**30 as a zigzag number
    values = [b"{}", framed(999, b""), framed(json_id, b"{}"), framed(schema_id, b"\x02"), framed(schema_id, huge)]
    rows = kafka_rows(spark, *(("a", value) for value in [*values, framed(other_id, b"\0")]))

    bad = dead_letters.bad_records(defined(file, registry), {"source": rows})

    assert bad
    assert [
        "its value does not start with a schema ID",
        "the registry has no schema ids/999",
        f"the schema ids/{json_id} is not of type AVRO",
        f"its value is not Avro of the schema ids/{schema_id}: EOFException",
        f"its value is not Avro of the schema ids/{schema_id}: SystemLimitException",
        f"its value is not Avro of the schema ids/{other_id}: AvroTypeException",
    ] == [row.problem for row in bad.sort("offset").collect()]


def test_a_registry_that_does_not_respond_is_asked_again(spark, registry, file):
    """Its records do not become dead letters."""
    value = record(registry)
    pipeline = defined(file, registry)
    answers = [(503, {}), (429, {})]
    registry.failure = lambda: answers.pop() if answers else None

    assert "a" == result(spark, pipeline, value)["id"]
    assert not answers


@pytest.mark.parametrize(
    ("failure", "reason", "settings"),
    [
        (401, "status 401", "username and password_file"),
        (403, "status 403", "username and password_file"),
        ("a replaced authority", "TLS failed: ", "ca_file"),
    ],
)
def test_a_registry_that_rejects_requests_ends_the_pipeline(spark, secured, file, failure, reason, settings):
    """The error is permanent and names the settings. No record becomes a dead letter."""
    value = record(secured)
    pipeline = defined(file, secured, ca_file="ca.pem")
    if isinstance(failure, int):
        secured.failure = lambda: (failure, {"error_code": failure, "message": "no"})
    else:
        (file.parent / "ca.pem").write_text(Authority().certificate)

    bad = dead_letters.bad_records(pipeline, {"source": kafka_rows(spark, ("a", value))})
    assert bad
    for action in (lambda: result(spark, pipeline, value), bad.collect):
        with pytest.raises(Py4JJavaError) as failed:
            action()
        error = failures.explain(private_spark.error_text(spark, failed.value), committed=False)
        assert isinstance(error, CommandError)
        assert error.detail.startswith(f"the schema registry rejects requests: {reason}")
        assert error.detail.endswith(f"; correct {settings} in the schema of the source")


@pytest.mark.long
@pytest.mark.parametrize("pause", ["429, 500 and 503", "a closed port"])
def test_a_registry_that_stays_down_restarts_the_pipeline(runs, registry, file, pause):
    """The tasks retry with backoff. Then the pipeline waits for the registry. No record becomes a dead letter."""
    topics = runs.topics
    topics.send((b"a", record(registry)))
    ends: Any = {"source": {"source": Source(topics.source)}, "sink": {"sink": topics.sink}}
    pipeline = replace(defined(file, registry), **ends)
    statuses = cycle([429, 500, 503])
    registry.failure = lambda: (next(statuses), {})
    if pause == "a closed port":
        registry.close()

    with pytest.raises(DependencyUnavailable, match=r"^the schema registry is not available: "):
        runs.attempt(pipeline)

    assert [] == topics.cluster.records(f"{topics.sink}.dead-letters")


def test_a_registry_can_have_a_private_authority(spark, secured, file):
    """The path is relative to the YAML file. Python and the JVM trust each authority in it."""
    value = record(secured)

    assert "a" == result(spark, defined(file, secured, ca_file="ca.pem"), value)["id"]


@pytest.mark.parametrize("content", [None, "", "-----BEGIN CERTIFICATE-----\n"])
def test_a_file_without_certificates_is_an_error(spark, tmp_path, content):
    """The error names the file. Without this error, the JVM would trust the authorities in its own list."""
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    source = AvroSource(json.dumps(ORDER), "https://registry", ca_file=str(file))

    with pytest.raises(CommandError, match=r"the ca_file of the schema registry.*/ca\.pem"):
        avro_records.decoded(kafka_rows(spark, ("a", b"")), source)


def test_real_time_mode_accepts_avro_and_the_plan_has_no_password(spark, registry, file):
    """The password is read from its file, which is relative to the YAML file, when the pipeline starts."""
    value = record(registry)
    (file.parent / "login").write_text("hunter2\n")
    registry.login = ("me", "hunter2")
    pipeline = defined(file, registry, username="me", password_file="login")  # noqa: S106 - a file

    explanation = explain(spark, pipeline)

    assert {"realtime": None, "microbatch": None} == explanation.rejections
    assert avro_records.FUNCTION in explanation.plan
    assert "hunter2" not in explanation.plan + repr(pipeline)
    assert "a" == result(spark, pipeline, value)["id"]


def test_a_missing_file_with_the_password_is_an_error(spark, tmp_path):
    source = AvroSource(json.dumps(ORDER), "http://registry", "me", str(tmp_path / "none"))

    with pytest.raises(CommandError, match=r"cannot read the password of the schema registry: .*/none"):
        avro_records.decoded(kafka_rows(spark, ("a", b"")), source)


def zigzag(number: int) -> bytes:
    """A long in Avro."""
    number, buffer = (number << 1) ^ (number >> 63), bytearray()
    while number > 0x7F:
        buffer.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*buffer, number])


NULLS = {"type": "array", "items": "null"}
HUGE = zigzag(2**40)
CLAIMS = [
    (NULLS, HUGE),
    ({"type": "array", "items": {"type": "record", "name": "Empty", "fields": []}}, HUGE),
    ({"type": "map", "values": NULLS}, zigzag(1) + zigzag(1) + b"k" + HUGE),
    ({"type": "array", "items": NULLS}, zigzag(1000) + 1000 * (zigzag(1_000_000) + b"\0")),
]


@pytest.mark.parametrize("is_skipped", [False, True], ids=["read", "skipped"])
@pytest.mark.parametrize(("type_", "data"), CLAIMS, ids=["nulls", "empty records", "a map", "arrays"])
def test_a_record_that_claims_a_huge_number_of_empty_items_is_a_dead_letter(spark, registry, type_, data, is_skipped):
    """If the pipeline's schema lacks a field of the record, the decoder skips the field. Small arrays are read."""
    written = ORDER | {"fields": [{"name": "x", "type": type_}, *ORDER["fields"]]}
    schema_id = registry.register(SUBJECT, written)
    source = AvroSource(json.dumps(ORDER if is_skipped else written), registry.url)
    order = encoded(ORDER, {"id": "a", "amount": 1})
    rows = kafka_rows(spark, ("a", framed(schema_id, data + order)), ("b", framed(schema_id, b"\0" + order)))

    value, problem = avro_records.decoded(rows, source)
    bad, good = rows.select(value.alias("value"), problem.alias("problem")).collect()

    # For an array that it reads, Avro raises UnsupportedOperationException if a Java array cannot have that many items.
    limits = "SystemLimitException" if is_skipped else "SystemLimitException|UnsupportedOperationException"
    assert re.fullmatch(f"its value is not Avro of the schema ids/{schema_id}: ({limits})", bad.problem)
    assert "a" == json.loads(good.value)["id"]
