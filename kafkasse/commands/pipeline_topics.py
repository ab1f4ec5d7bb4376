"""Check the topics of a pipeline with kafka-python before Spark starts, which takes seconds.

Spark's Kafka client checks the topics again. So this module ignores all problems that are not about a topic. For example,
kafka-python may be missing, or may not support a setting of Spark's client.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from kafkasse.config import java_properties
from kafkasse.errors import CommandError
from kafkasse.pipelines import Pipeline, failures

TIMEOUT_MS = 5000
NO_SUCH_TOPIC, NOT_AUTHORIZED = 3, 29  # Kafka's error codes

logger = logging.getLogger("kafkasse.pipeline")


def check(pipeline: Pipeline, properties: str, bootstrap_servers: str) -> None:
    """Check that the topics of the pipeline exist, and that this user may read the sources and write the sinks.

    Args:
        pipeline: the pipeline.
        properties: the content of the file --kafka-config.
        bootstrap_servers: Kafka's addresses.

    Raises:
        CommandError: a topic is missing, or its ACLs do not allow the operation.
    """
    try:
        described = _described({*pipeline.source_topics, *pipeline.sink_topics}, properties, bootstrap_servers)
    except Exception as error:  # noqa: BLE001 - Spark's client reports the problem, if it has it too
        logger.debug("cannot check the topics before the start: %s", error)
        return
    for topic in pipeline.source_topics:
        _check(described[topic], topic, "READ")
    for topic in pipeline.sink_topics:
        _check(described[topic], topic, "WRITE")


def _described(topics: set[str], properties: str, bootstrap_servers: str) -> dict[str, Mapping[str, Any]]:
    """Return Kafka's description of each topic by name."""
    from kafka import KafkaAdminClient

    settings = java_properties.client_settings(properties) | {"bootstrap_servers": bootstrap_servers.split(",")}
    admin = KafkaAdminClient(**settings, request_timeout_ms=TIMEOUT_MS, bootstrap_timeout_ms=TIMEOUT_MS)
    with closing(admin):
        return {each["name"]: each for each in admin.describe_topics(sorted(topics))}


def _check(described: Mapping[str, Any], topic: str, operation: str) -> None:
    if described["error_code"] == NO_SUCH_TOPIC:
        raise failures.missing_topic(topic)
    allowed = described["authorized_operations"] or ()
    # A broker before 2.3 does not list the operations.
    if described["error_code"] == NOT_AUTHORIZED or ("DESCRIBE" in allowed and operation not in allowed):
        raise CommandError(
            f"the Kafka user has no {operation} permission for the topic {topic}; add an ACL for the user in --kafka-config"
        )
