"""Records are parsed strictly, and each bad record is reported with its problem."""

from __future__ import annotations

import json

from pyspark.sql import SparkSession

from kafkasse.pipelines.json_records import TEXT, WHOLE_NUMBER, json_objects, validate
from tests.pipelines.countries import kafka_rows

FIELDS = {"code": TEXT, "size": WHOLE_NUMBER}

BAD_VALUES = [
    (b"", "its value is not JSON"),
    (b"France", "its value is not JSON"),
    (b'{"code":"FR","size":5', "its value is not JSON"),
    (b'{"code":"FR","size":5} and more', "its value is not JSON"),
    (b'{"code":"FR","size":5}{"code":"FR","size":6}', "its value is not JSON"),
    (b'{"code":"FR","size":5,"size":6}', "its value is not JSON"),
    (b"{'code':'FR','size':5}", "its value is not JSON"),
    (b'{"code":"FR","size":NaN}', "its value is not JSON"),
    (b'{"code":"FR","size":5,"name":"\xff"}', "its value is not JSON"),
    (b"null", "its code is missing or not text"),
    (b"5", "its code is missing or not text"),
    (b'[{"code":"FR","size":5}]', "its code is missing or not text"),
    (b'{"size":5}', "its code is missing or not text"),
    (b'{"code":5,"size":5}', "its code is missing or not text"),
    (b'{"code":"FR"}', "its size is missing or not a whole number"),
    (b'{"code":"FR","size":null}', "its size is missing or not a whole number"),
    (b'{"code":"FR","size":"5"}', "its size is missing or not a whole number"),
    (b'{"code":"FR","size":5.5}', "its size is missing or not a whole number"),
    (b'{"code":"FR","size":9223372036854775808}', "its size is missing or not a whole number"),
    (b'{"code":"DE","size":5}', "its code differs from its key"),
]


def test_accepts_an_object_with_the_fields(spark: SparkSession) -> None:
    """The fields may be in any order, and the object may contain white space and other fields."""
    values = [
        b'{"code":"FR","size":5}',
        b' {"size": 5, "code": "FR", "more": [1, {"a": null}]} \n',
        b'{"code":"FR","size":-9223372036854775808}',
    ]

    rows = (
        json_objects(kafka_rows(spark, [(b"FR", value) for value in values]), FIELDS, "code")
        .select("key", *FIELDS)
        .collect()
    )

    assert [("FR", "FR", json.loads(value)["size"]) for value in values] == [tuple(row) for row in rows]


def test_rejects_a_bad_value_with_its_problem(spark: SparkSession) -> None:
    """Each bad value is rejected for the expected reason."""
    rows = validate(kafka_rows(spark, [(b"FR", value) for value, _ in BAD_VALUES]), FIELDS, "code").collect()

    assert BAD_VALUES == [(value, row.problem) for (value, _), row in zip(BAD_VALUES, rows, strict=True)]


def test_rejects_a_record_without_a_key(spark: SparkSession) -> None:
    """Kafka does not keep records without keys in order."""
    rows = validate(kafka_rows(spark, [(None, None), (None, b'{"code":"FR","size":5}')]), FIELDS, "code").collect()

    assert ["it has no key"] * 2 == [row.problem for row in rows]


def test_returns_only_the_valid_records(spark: SparkSession) -> None:
    """json_objects() leaves bad records out and keeps tombstones."""
    records = [(b"FR", b"{"), (b"FR", b'{"code":"FR","size":5}'), (b"FR", None)]

    rows = json_objects(kafka_rows(spark, records), FIELDS, "code").select("key", *FIELDS).collect()

    assert [("FR", "FR", 5), ("FR", None, None)] == [tuple(row) for row in rows]
