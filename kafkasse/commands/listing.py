"""The topics of a cluster for commands, which report the reason if Kafka does not answer.

It uses the client of the server, so it reports the same errors.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager

from kafkasse.config import Config
from kafkasse.config.kafka import servers
from kafkasse.errors import CommandError, KafkasseError
from kafkasse.kafka.version import check_version
from kafkasse.tools.progress import waiting


def existing_topics(config: Config, cluster: str = "") -> dict[str, int]:
    """Return the topics of a cluster that start with topic_prefix, without the prefix, and their numbers of partitions.

    Raises:
        CommandError: Kafka cannot be used; the message has the reason.
    """
    check_version()
    from kafkasse.kafka.client import Client  # here, because importing kafka-python takes longer than most commands
    from kafkasse.kafka.errors import translate_errors

    settings = config.kafka_settings(cluster)
    with waiting(f"connecting to Kafka at {servers(settings)}"):
        client = Client(settings, config.kafka.kafka_timeout_s)
        with closing(client), _reasons(), translate_errors():
            found = client.metadata(None)
    prefix = config.topic_prefix(cluster)
    return {
        name.removeprefix(prefix): len(each.partitions)
        for name, each in found.items()
        if name.startswith(prefix) and not each.error_code
    }


@contextmanager
def _reasons() -> Iterator[None]:
    """Raise a CommandError with the reason for a Kafka error. The adapter logs it, because its errors are for clients."""
    reasons: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: reasons.append(record.getMessage())  # type: ignore[method-assign]  # no class needed
    log = logging.getLogger("kafkasse.kafka.errors")
    kafka_python_log = logging.getLogger("kafka")
    saved = log.propagate, kafka_python_log.level
    log.addHandler(handler)
    log.propagate = False
    kafka_python_log.setLevel(logging.CRITICAL)  # kafka-python logs dozens of lines about one failure
    try:
        yield
    except KafkasseError as error:
        raise CommandError(reasons[-1] if reasons else error.detail) from None
    finally:
        log.removeHandler(handler)
        log.propagate, kafka_python_log.level = saved
