"""The Kafka clients of the commands: the topics of a cluster, and clients of kafka-python whose errors are one sentence."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from kafkasse.config import Config
from kafkasse.config.kafka import servers
from kafkasse.errors import CommandError
from kafkasse.kafka.version import check_version
from kafkasse.tools.progress import waiting

BOOTSTRAP_TIMEOUT_S = 5.0
_BROKERS_TEXT = re.compile(r"error_message=(['\"])(.*?)\1, ")


def existing_topics(config: Config, cluster: str = "") -> dict[str, int]:
    """Return the topics of a cluster that start with topic_prefix, without the prefix, and their numbers of partitions.

    Uses the client and the error messages of the web process.

    Raises:
        CommandError: Kafka cannot be used; the message has the reason.
    """
    check_version()
    from kafka.errors import KafkaError  # here, because importing kafka-python takes longer than most commands

    from kafkasse.kafka.client import Client
    from kafkasse.kafka.errors import translate

    silence_kafka_python()
    settings = config.kafka_settings(cluster)
    with waiting(f"connecting to Kafka at {servers(settings)}"):
        client = Client(settings, config.kafka.kafka_timeout_s, config.topic_prefix(cluster))
        try:
            with closing(client):
                topics = client.metadata(None)
        except (KafkaError, OSError) as error:
            raise CommandError(translate(error).reason + _hint(settings)) from None
    return {name: topic.partitions for name, topic in topics.items() if not topic.error_code}


def connected(client_class: Any, settings: Mapping[str, Any], **client_settings: Any) -> Any:
    """Create a kafka-python client. Settings that its class does not know are left out, because it would reject them.

    Raises:
        CommandError: Kafka cannot be used.
    """
    from kafka.errors import KafkaError, KafkaTimeoutError

    silence_kafka_python()
    hint = _hint(settings)
    settings = {"bootstrap_servers": servers({})} | dict(settings)
    known = {name: value for name, value in settings.items() if name in client_class.DEFAULT_CONFIG}
    try:
        with waiting(f"connecting to Kafka at {servers(settings)}"):
            return client_class(**{**known, **client_settings, "bootstrap_timeout_ms": int(BOOTSTRAP_TIMEOUT_S * 1000)})
    except KafkaTimeoutError:
        raise CommandError(
            f"cannot reach Kafka at {servers(settings)} within {BOOTSTRAP_TIMEOUT_S:.0f} s; start it, or pass another"
            f" address with --bootstrap-servers{hint}"
        ) from None
    except (KafkaError, ValueError, OSError) as error:
        raise CommandError(f"cannot connect to Kafka, check its settings: {message(error)}") from error


def _hint(settings: Mapping[str, Any]) -> str:
    """Someone who has set no address may have no Kafka."""
    return "" if "bootstrap_servers" in settings else ". `kafkasse broker` starts a Kafka for development"


def message(error: BaseException) -> str:
    """Return the text of an error, or else its type. kafka-python quotes a whole response; the broker's text is in it."""
    found = _BROKERS_TEXT.search(str(error))
    return found[2] if found else str(error) or type(error).__name__


def silence_kafka_python() -> None:
    """Silence kafka-python's log, unless the user wants to debug: the commands report a failure in one line."""
    is_debug = os.environ.get("KAFKASSE_LOG_LEVEL", "").lower() == "debug"
    logging.getLogger("kafka").setLevel(logging.WARNING if is_debug else logging.CRITICAL)
    if is_debug:
        logging.basicConfig()
