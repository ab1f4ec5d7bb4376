"""Opens a KafkaLog with the settings that a test cares about. All other settings have their default values."""

from __future__ import annotations

from typing import Any

from kafkasse.config.settings import KafkaSettings
from kafkasse.kafka.log import KafkaLog

DEFAULTS: dict[str, Any] = {
    "kafka": {},
    "kafka_timeout_s": 5.0,
    "topic_prefix": "",
    "isolation_level": "read_committed",
    "client_rack": "",
    "max_fetch_bytes": 1_048_576,
    "max_decompressed_bytes": 16_777_216,
    "clusters": {},
}


def open_log(bootstrap_servers: str, client: dict[str, Any] | None = None, **settings: Any) -> KafkaLog:
    """Open a log.

    Args:
        bootstrap_servers: addresses of brokers.
        client: other settings of kafka-python's client.
        settings: fields of KafkaSettings.
    """
    return KafkaLog(
        KafkaSettings(**{**DEFAULTS, **settings}), {"bootstrap_servers": bootstrap_servers, **(client or {})}
    )
