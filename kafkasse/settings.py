"""The settings as typed objects, one for each package that reads them. schemas/config.schema.json describes each setting.

This module imports no other module of kafkasse, so that a command can read the Kafka settings without importing Flask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """Read by kafkasse.kafka. repr() omits the settings of kafka-python's client, which can be secrets."""

    kafka: Mapping[str, Any] = field(repr=False)
    clusters: Mapping[str, Mapping[str, Any]] = field(repr=False)
    kafka_timeout_s: float
    topic_prefix: str
    isolation_level: str
    client_rack: str
    max_fetch_bytes: int
    max_decompressed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedSettings:
    """Read by kafkasse.feed. kafkasse.app reads `archive` and `archives`."""

    kafka_timeout_s: float
    heartbeat_s: float
    metadata_refresh_s: float
    idle_feed_timeout_s: float
    max_ring_bytes: int
    max_total_ring_bytes: int
    max_catch_ups: int
    max_snapshot_bytes: int
    archive: str
    archives: Mapping[str, str]
    # No settings; only tests pass other values. A chunk is what is written at once to a client.
    max_chunk_bytes: int = 131_072
    max_ring_records: int = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    """Read by kafkasse.web."""

    heartbeat_s: float
    retry_ms: int
    max_stream_age_s: float
    shared_cache_s: int
    write_timeout_s: float
    max_streams: int
    max_streams_per_client: int
    max_rejections_per_s: float
    max_topics_per_stream: int
    max_client_filters: int
    max_last_event_id_bytes: int
    trusted_proxies: int | tuple[str, ...]
    id_frequency: str
    position_events: bool
    compression: tuple[str, ...]
    cors_origins: tuple[str, ...]
    cors_credentials: bool
    catalog: bool | None
    console: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Read by kafkasse.access. `guards` may contain functions of the application, which repr() does not show."""

    guards: Mapping[str, Any] = field(repr=False)
    operations_access: tuple[str | Mapping[str, Any], ...]
    tickets: bool
    ticket_secret_file: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRegistrySettings:
    """Read by kafkasse.records.registry."""

    url: str
    username: str | None = None
    password_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    timeout_s: float = 5
    max_wait_s: float = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSettings:
    """Read by kafkasse.config.routes, which creates the routes."""

    allowed_topics: tuple[str, ...]
    topic_groups: Mapping[str, Sequence[str]]
    topic_prefix: str
    schema_registry: Mapping[str, Any] | None
    schema_registries: Mapping[str, Mapping[str, Any]]
    decoder: str
    validate_values: bool
    id_type: str
    compact_ids: bool | None
    access: tuple[str | Mapping[str, Any], ...]
    client_filters: tuple[str, ...]
    public: bool
    cors_origins: tuple[str, ...]
    cors_credentials: bool
    routes: Mapping[str, Mapping[str, Any]]
