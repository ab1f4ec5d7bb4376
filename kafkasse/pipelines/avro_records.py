"""Decode Kafka records whose values are Avro, as the serializers of schema registries write them, to JSON text.

A Java function decodes the values, so it also runs in real-time mode. It reads the schema of each record from the registry,
so producers may use new versions of the schema while the pipeline runs.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from kafkasse.errors import CommandError
from kafkasse.pipelines.spark import private_spark

FUNCTION, CLASS = "kafkasse_avro_to_json", "kafkasse.records.AvroToJson"
HEADER = "__value_schema_id"  # some serializers write the ID of the schema into this header
RESULT = StructType().add("json", StringType()).add("problem", StringType())
CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
FLOATING = ["number", "string"]  # the type of a number that may be "NaN"


@dataclass(frozen=True)
class AvroSource:
    """How to decode the records of a source."""

    schema: str  # the Avro schema of the pipeline. Values of other versions are converted to it.
    registry: str  # the address of the schema registry
    username: str | None = None  # the login at the registry
    password_file: str | None = None
    ca_file: str | None = None  # a PEM file with the authorities to trust, or None for those that the JVM trusts


def decoded(records: DataFrame, source: AvroSource) -> tuple[Column, Column]:
    """Return the values as JSON text, and the problem of each value that cannot be decoded.

    Args:
        records: rows of Spark's Kafka source.

    Raises:
        CommandError: the file with the password or the authorities cannot be read.
    """
    header = F.lit(None).cast("binary")
    if "headers" in records.columns:
        header = F.try_element_at(F.filter("headers", lambda field: field["key"] == HEADER), F.lit(-1))["value"]
    arguments = [source.registry, _authorization(source), _authorities(source), source.schema]
    result = private_spark.call(records.sparkSession, FUNCTION, CLASS, arguments, RESULT, [F.col("value"), header])
    return result["json"], result["problem"]


def _authorization(source: AvroSource) -> str:
    if source.username is None:
        return ""
    password = _content(source.password_file or "", "the password").strip()
    return "Basic " + base64.b64encode(f"{source.username}:{password}".encode()).decode()


def _authorities(source: AvroSource) -> str:
    """Return the certificates of the authorities as PEM, or "" for the default. Executors do not have the file."""
    if source.ca_file is None:
        return ""
    certificates = CERTIFICATE.findall(_content(source.ca_file, "the ca_file"))
    if not certificates:
        raise CommandError(
            f"the ca_file of the schema registry contains no certificate in PEM format: {source.ca_file}"
        )
    return "\n".join(certificates)


def _content(path: str, name: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, ValueError) as error:
        raise CommandError(f"cannot read {name} of the schema registry: {error}") from error


def with_number_types(schema: Any) -> Any:
    """Return the JSON Schema of Avro values with the type number for all floating-point numbers.

    JSON text contains "NaN" instead of a number, so a record with such a value becomes a dead letter.
    """
    if isinstance(schema, list):
        return [with_number_types(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    converted = {name: with_number_types(part) for name, part in schema.items()}
    return converted | {"type": "number"} if schema.get("type") == FLOATING else converted
