"""The schema registry: decode values whose schemas are in a registry with Confluent's REST API and wire format.

    value ─▶ wire_format: schema ID and data ─▶ lookup: the schema, from the cache or the registry ─▶ value in JSON types

    client                       requests to the registry
    lookup                       the cache, retries, and waiting without stalling the event loop
    avro, protobuf, json_schema  one kind of schema each
    json_types                   the JSON form of values that JSON cannot represent
    decoder                      the decoder of a route, which the encoder calls

This package knows neither Flask nor a Kafka client. It needs the packages of the extra `schemas`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kafkasse.errors import ConfigurationError
from kafkasse.settings import SchemaRegistrySettings

if TYPE_CHECKING:
    from kafkasse.records.registry.lookup import SchemaRegistry


def open_registry(settings: SchemaRegistrySettings, logger: logging.Logger) -> SchemaRegistry:
    """Return the registry that the settings name. This loads the packages, but sends no request.

    Raises:
        ConfigurationError: a package is not installed.
    """
    try:
        from kafkasse.records.registry.client import RegistryClient
        from kafkasse.records.registry.lookup import SchemaRegistry

        return SchemaRegistry(RegistryClient(settings), settings.max_wait_s, logger)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"The setting schema_registry needs the package {error.name}, which is not installed. "
            'Install it with: pip install "kafkasse[schemas]"'
        ) from error
