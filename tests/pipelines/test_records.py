"""What counts as a JSON object with certain fields, and what is said of the rest."""

from __future__ import annotations

import json

from pyspark.sql import SparkSession

from kafkasse.pipelines.records import TEXT, WHOLE_NUMBER, json_objects, judged
from tests.pipelines.kit import kafka_rows

FIELDS = {"code": TEXT, "size": WHOLE_NUMBER}


SET_ASIDE = [
    (b"", "its value is not JSON"),
    (b"France", "its value is not JSON"),
    (b'{"code":"FR","size":5', "its value is not JSON"),
    (b'{"code":"FR","size":5} and more', "its value is not JSON"),
    (b'{"code":"FR","size":5}{"code":"FR","size":6}', "its value is not JSON"),
    (b'{"code":"FR","size":5,"size":6}', "its value is not JSON"),
    (b"{'code':'FR','size':5}", "its value is not JSON"),
    (b'{"code":"FR","size":NaN}', "its value is not JSON"),
    (b'{"code":"FR","size":5,"name":"\xff"}', "its value is not JSON"),
    (b"null", "its code is not text"),
    (b"5", "its code is not text"),
    (b'[{"code":"FR","size":5}]', "its code is not text"),
    (b'{"size":5}', "its code is not text"),
    (b'{"code":5,"size":5}', "its code is not text"),
    (b'{"code":"FR"}', "its size is not a whole number"),
    (b'{"code":"FR","size":null}', "its size is not a whole number"),
    (b'{"code":"FR","size":"5"}', "its size is not a whole number"),
    (b'{"code":"FR","size":5.5}', "its size is not a whole number"),
    (b'{"code":"FR","size":9223372036854775808}', "its size is not a whole number"),
    (b'{"code":"DE","size":5}', "its code is not its key"),
]


def test_takes_an_object_with_the_fields(spark: SparkSession) -> None:
    """In any order, with white space and with more fields than were asked for."""
    values = [
        b'{"code":"FR","size":5}',
        b' {"size": 5, "code": "FR", "more": [1, {"a": null}]} \n',
        b'{"code":"FR","size":-9223372036854775808}',
    ]

    rows = json_objects(kafka_rows(spark, [(b"FR", value) for value in values]), FIELDS, "code").collect()

    assert [("FR", "FR", json.loads(value)["size"]) for value in values] == [tuple(row) for row in rows]


def test_sets_aside_the_rest(spark: SparkSession) -> None:
    """And says of each what is wrong with it."""
    rows = judged(kafka_rows(spark, [(b"FR", value) for value, _ in SET_ASIDE]), FIELDS, "code").collect()

    assert SET_ASIDE == [(value, row.problem) for (value, _), row in zip(SET_ASIDE, rows, strict=True)]


def test_sets_aside_what_has_no_key(spark: SparkSession) -> None:
    """Kafka keeps no order between records without one."""
    rows = judged(kafka_rows(spark, [(None, None), (None, b'{"code":"FR","size":5}')]), FIELDS, "code").collect()

    assert ["it has no key"] * 2 == [row.problem for row in rows]


def test_leaves_out_what_is_set_aside(spark: SparkSession) -> None:
    """Only what can be used goes on."""
    records = [(b"FR", b"{"), (b"FR", b'{"code":"FR","size":5}'), (b"FR", None)]

    rows = json_objects(kafka_rows(spark, records), FIELDS, "code").collect()

    assert [("FR", "FR", 5), ("FR", None, None)] == [tuple(row) for row in rows]
