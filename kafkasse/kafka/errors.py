"""Kafka's errors as ours: what a client may be told. What may hold a broker's address or a setting goes to the log only."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from kafka import errors as kafka_errors

from kafkasse.errors import ConfigurationError, KafkasseError, KafkaUnavailable, TopicNotAvailable

log = logging.getLogger(__name__)

SETTINGS_DO_NOT_WORK = "This server's settings for Kafka do not work; its log says why."
# What a client may be told about a topic that cannot be read: nothing, as if it did not exist.
_NOT_THERE = (
    kafka_errors.UnknownTopicOrPartitionError,
    kafka_errors.TopicAuthorizationFailedError,
    kafka_errors.InvalidTopicError,
)
# Trying again will not help.
PERMANENT_ERRORS = (
    kafka_errors.KafkaConfigurationError,
    kafka_errors.SaslAuthenticationFailedError,
    kafka_errors.IncompatibleBrokerVersion,
)


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise ours in place of Kafka's."""
    try:
        yield
    except _NOT_THERE as error:
        log.warning("topic not available: %s", error)
        raise TopicNotAvailable("A topic of this stream is not available.") from error
    except PERMANENT_ERRORS as error:
        log.error("the Kafka settings do not work: %s", error)
        raise ConfigurationError(SETTINGS_DO_NOT_WORK) from error
    except kafka_errors.CorruptRecordError as error:
        log.error("damaged records: %s", error)
        raise KafkasseError(
            "The next record of this stream is damaged in Kafka, so the stream cannot go on."
        ) from error
    except (kafka_errors.KafkaError, OSError) as error:
        log.warning("Kafka cannot be reached: %s: %s", type(error).__name__, error)
        raise KafkaUnavailable("Kafka cannot be reached. Try again in a moment.") from error
    except AssertionError as error:  # kafka-python checks many of its settings by assert
        log.error("the Kafka settings do not work: %s", error)
        raise ConfigurationError(SETTINGS_DO_NOT_WORK) from error
