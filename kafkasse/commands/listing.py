"""Lists the topics of a cluster for commands, with the Kafka client and the errors of the web process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager

from kafkasse.config import Config
from kafkasse.config.kafka import servers
from kafkasse.errors import CommandError
from kafkasse.kafka.version import check_version
from kafkasse.tools.progress import waiting


def existing_topics(config: Config, cluster: str = "") -> dict[str, int]:
    """Return the topics of a cluster that start with topic_prefix, without the prefix, and their numbers of partitions.

    Raises:
        CommandError: Kafka cannot be used; the message has the reason.
    """
    check_version()
    from kafka.errors import KafkaError  # here, because importing kafka-python takes longer than most commands

    from kafkasse.kafka.client import Client
    from kafkasse.kafka.errors import translate

    settings = config.kafka_settings(cluster)
    with waiting(f"connecting to Kafka at {servers(settings)}"):
        client = Client(settings, config.kafka.kafka_timeout_s)
        try:
            with closing(client), _silent_kafka_python():
                found = client.metadata(None)
        except (KafkaError, OSError) as error:
            raise CommandError(translate(error).reason) from None
    prefix = config.topic_prefix(cluster)
    return {
        name.removeprefix(prefix): len(each.partitions)
        for name, each in found.items()
        if name.startswith(prefix) and not each.error_code
    }


@contextmanager
def _silent_kafka_python() -> Iterator[None]:
    """Silence kafka-python, which logs dozens of lines about one failure."""
    log = logging.getLogger("kafka")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
