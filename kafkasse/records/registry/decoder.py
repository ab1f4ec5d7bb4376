"""The decoder of a route: from a record to a value in JSON types, with the schema that the record names."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from kafkasse.log import Record
from kafkasse.process.event_loop import take_turn
from kafkasse.records.frame import DeserializationError
from kafkasse.records.frame.record_view import RecordView
from kafkasse.records.registry.lookup import SchemaRegistry
from kafkasse.records.registry.wire_format import split

LARGE_BYTES = 65_536


class Decoder:
    """Decodes the values of records. May wait for the registry.

    Args:
        registry: looks up the schemas.
        validate: whether to validate values against their JSON Schema. Avro and Protobuf values always match.
    """

    def __init__(self, registry: SchemaRegistry, validate: bool) -> None:
        self._registry = registry
        self._validate = validate

    def prepare(self, records: Iterable[Record]) -> None:
        """Start to look up the schemas of the next records, if there have been unknown IDs: each of them needs a request."""
        if not self._registry.has_unknown_ids:
            return
        for record in records:
            with suppress(DeserializationError):
                self._registry.prepare(split(record)[0])

    def __call__(self, view: RecordView) -> Any:
        """Return the value of a record.

        Raises:
            DecoderPending: the lookup of the schema takes longer. Call again.
            RegistryUnavailable: the registry is not available.
            DeserializationError: the record has no schema ID, the value does not match its schema, the schema is unknown, or
                the schema is not cached and records have waited too long for unknown IDs.
        """
        schema_id, data = split(view.record)
        value = self._registry.schema(schema_id, view.topic).decode(data, self._validate)
        if len(data) >= LARGE_BYTES:
            take_turn()  # the encoder will encode the value at once
        return value
