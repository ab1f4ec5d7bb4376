"""Translates kafka-python's errors into kafkasse's errors.

Broker addresses, names of settings and causes go into KafkasseError.reason, which is logged and never sent to clients.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kafka import errors as kafka_errors

from kafkasse.errors import (
    ConfigurationError,
    KafkasseError,
    KafkaTooOld,
    KafkaUnavailable,
    ServerFull,
    TopicNotAvailable,
    Unavailable,
)
from kafkasse.log import Partition
from kafkasse.process.limited_log import LimitedLog

log = logging.getLogger(__name__)

OLDEST_KAFKA = "0.11"
KAFKA_TOO_OLD = f"The Kafka cluster is too old for this server, which needs Kafka {OLDEST_KAFKA} or newer."
TOO_OLD_RETRY_AFTER_S = 60
SETTINGS_DO_NOT_WORK = "The server cannot use Kafka with its current settings. The server's log gives the reason."
COPY_OLD_RECORDS = (
    "kafkasse reads only format 2, which Kafka 0.11 introduced."
    " Copy the records to a new topic, for example with MirrorMaker."
)
LOG_INTERVAL_S = 60.0  # a tail looks up its leaders about once a second
TOPIC_NOT_AVAILABLE = "A topic of this stream no longer exists, or the server may no longer read it."

# All of them result in the same response, so that a client cannot find out which topics exist.
_TOPIC_ERRORS = (
    kafka_errors.UnknownTopicOrPartitionError,
    kafka_errors.TopicAuthorizationFailedError,
    kafka_errors.InvalidTopicError,
)
_ADVICE = {
    kafka_errors.SaslAuthenticationFailedError: "Check kafka.sasl_plain_username and kafka.sasl_plain_password,"
    " or the other credentials that your kafka.sasl_mechanism uses.",
    kafka_errors.UnsupportedSaslMechanismError: "Check kafka.sasl_mechanism.",
    kafka_errors.IllegalSaslStateError: "The broker's listener may not use SASL."
    " Check kafka.security_protocol and the port in kafka.bootstrap_servers.",
    kafka_errors.KafkaConfigurationError: "No stream can be served until the settings are changed.",
}
PERMANENT_ERRORS = (*_ADVICE, kafka_errors.IncompatibleBrokerVersion)  # retrying cannot help

# OpenSSL's reasons for a certificate that one side rejects, and for a listener that does not speak TLS. They are
# permanent. A connection that ends during the handshake is not: the broker may be starting or stopping.
_REJECTED_CERTIFICATE = ("CERTIFICATE", "UNKNOWN_CA", "HANDSHAKE_FAILURE")
_NOT_TLS = "WRONG_VERSION_NUMBER"

_CONNECT_FAILURES = {
    r"DNS": "The host name cannot be resolved (DNS)",
    r"Invalid frame length": "The response is not Kafka's, so another program uses this port",
    r"^socket disconnected|Connection reset": "The listener closed the connection. It may expect TLS, or be stopping",
    r"Request timed out": "The listener accepted the connection, but did not respond",
}


class OldMessageFormat(kafka_errors.CorruptRecordError):  # type: ignore[misc]
    """The next records have a format from before Kafka 0.11."""


class Outages:
    """Translates the errors of lookups in one cluster, counts failures, and logs outages.

    During an outage, each type of error is logged once in LOG_INTERVAL_S.

    Args:
        servers: the addresses of the cluster, for the log.

    Attributes:
        failures: how many lookups of metadata and connections of cursors have failed.
    """

    def __init__(self, servers: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.failures = 0
        self._servers = servers
        self._clock = clock
        self._limited = LimitedLog(clock, LOG_INTERVAL_S)
        self._began_at: float | None = None  # when the first lookup of metadata since the last answer failed
        self._is_logged = False

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Raise translate()'s result in place of an error of kafka-python or of a socket, and log its reason."""
        try:
            yield
        except (kafka_errors.KafkaError, OSError) as error:
            translated = translate(error)
            if not isinstance(translated, Unavailable):
                _log_reason(translated)
            elif self._limited.is_due((type(error), type(translated))):
                self._is_logged = self._is_logged or isinstance(translated, KafkaUnavailable)
                _log_reason(translated)
            raise translated from error

    @contextmanager
    def looking_up_metadata(self) -> Iterator[None]:
        """Like translate_errors(), for a lookup of metadata. Also counts failures, and logs the end of an outage."""
        try:
            with self.translate_errors():
                yield
        except KafkaUnavailable:
            self.failures += 1
            self._began_at = self._clock() if self._began_at is None else self._began_at
            raise
        if self._began_at is not None and self._is_logged:
            took_s = self._clock() - self._began_at
            log.info("Kafka answers again at %s, %.0f s after the first failure.", self._servers, took_s)
        self._began_at, self._is_logged = None, False

    def connection_failed(self, node_id: int, error: Exception) -> None:
        """Count and log that a broker cannot be reached, which the metadata may still name as a leader."""
        if isinstance(error, kafka_errors.KafkaError | OSError) and isinstance(translate(error), KafkaUnavailable):
            self.failures += 1
        if self._limited.is_due((type(error), node_id)):
            log.warning("Connection to broker %d failed: %s: %s", node_id, type(error).__name__, error)


def report(error: kafka_errors.KafkaError | OSError) -> KafkasseError:
    """Return translate()'s result, and log its reason."""
    translated = translate(error)
    _log_reason(translated)
    return translated


def _log_reason(error: KafkasseError) -> None:
    is_temporary = isinstance(error, TopicNotAvailable | Unavailable)
    log.log(logging.WARNING if is_temporary else logging.ERROR, "%s", error.reason)


def translate(error: kafka_errors.KafkaError | OSError) -> KafkasseError:
    """Return the KafkasseError for an error of kafka-python or of a socket, with its reason.

    Returns:
        ConfigurationError: brokers reject the settings. Retrying cannot help.
        KafkaTooOld: a broker does not support a request that kafkasse needs.
        TopicNotAvailable: a topic does not exist, or we may not read it.
        ServerFull: this process, or this machine, has too many open files.
        KafkaUnavailable: the cluster does not answer now.
        KafkasseError: a record is damaged or too old, Kafka is too old for its compression, or the topic has no timestamps.
    """
    translated, reason = _translate(error, message(error))
    translated.reason = reason
    return translated


def _translate(error: kafka_errors.KafkaError | OSError, text: str) -> tuple[KafkasseError, str]:
    if isinstance(error, _TOPIC_ERRORS):
        return TopicNotAvailable(TOPIC_NOT_AVAILABLE), (
            f"Topic not available: {type(error).__name__}: {text}. Check that it exists and that the Kafka user may read it."
        )
    if isinstance(error, kafka_errors.IncompatibleBrokerVersion):
        too_old = KafkaTooOld(KAFKA_TOO_OLD, retry_after_s=TOO_OLD_RETRY_AFTER_S)
        return too_old, f"Kafka is too old: {text}. kafkasse needs Kafka {OLDEST_KAFKA} or newer."
    if isinstance(error, PERMANENT_ERRORS):
        advice = next(advice for error_type, advice in _ADVICE.items() if isinstance(error, error_type))
        return ConfigurationError(SETTINGS_DO_NOT_WORK), f"The Kafka settings do not work. {text}. {advice}"
    if isinstance(error, OldMessageFormat):
        return (
            KafkasseError("The next record has a format from before Kafka 0.11, so the stream cannot continue."),
            f"Old records: {text}. {COPY_OLD_RECORDS}",
        )
    if isinstance(error, kafka_errors.CorruptRecordError):
        return (
            KafkasseError("The next record is damaged in Kafka, so the stream cannot continue."),
            f"Damaged records: {text}. Streams that reach these records end with an error.",
        )
    if isinstance(error, kafka_errors.UnsupportedCompressionTypeError):
        return (
            KafkasseError(
                "The server cannot read a topic of this stream, because Kafka is too old for its compression."
            ),
            f"Topic {text} is compressed with zstd, which needs Kafka 2.1 or newer.",
        )
    if isinstance(error, kafka_errors.UnsupportedForMessageFormatError):
        return (
            KafkasseError(
                "The records of a topic of this stream have no timestamps, because their format is that of Kafka 0.9."
            ),
            f"{text} has message format 0. {COPY_OLD_RECORDS}",
        )
    if os.strerror(errno.EMFILE) in text:  # kafka-python keeps only the text; that of ENFILE starts the same
        return (
            ServerFull("The server has too many open files. Retry in a few seconds."),
            "Too many open files, so the server cannot connect to Kafka. Raise ulimit -n, or fs.file-max of the machine.",
        )
    return (
        KafkaUnavailable("The server cannot reach Kafka. Retry in a few seconds."),
        f"Kafka is unavailable. {type(error).__name__}: {text}",
    )


def name_of(code: int) -> str:
    """See cursor_core.Errors, as for the next functions."""
    name: str = kafka_errors.for_code(code).__name__
    return name


def is_temporary(code: int) -> bool:
    error = kafka_errors.for_code(code)
    return bool(error.retriable) or error is kafka_errors.UnknownError


def rejected(topic: str, code: int) -> KafkasseError:
    return report(kafka_errors.for_code(code)(topic))


def unreadable(partition: Partition, error: Exception) -> KafkasseError:
    return report(type(error)(f"{partition.topic}/{partition.partition}: {message(error)}"))


def withheld(partition: Partition, offset: int, end: int) -> KafkasseError:
    log.error(
        "Kafka returns no records of %s/%d from offset %d on, although there are records before offset %d. The next"
        " batch is damaged, or the tiered storage does not answer. Streams that reach these records end with an error.",
        *partition,
        offset,
        end,
    )
    return KafkaUnavailable("Kafka does not return the next records of this stream. Retry later.")


def message(error: Exception) -> str:
    """Return an error's text without its class name, with which the str() of kafka-python's errors starts."""
    if not isinstance(error, kafka_errors.KafkaError):
        return str(error)
    text = ". ".join(str(argument).rstrip(".") for argument in error.args)
    return text or (getattr(error, "description", None) or type(error).__name__).rstrip(".")


def explain(error: Exception) -> Exception:
    """Return a temporary failure to connect with a readable text, instead of kafka-python's `111 ECONNREFUSED`."""
    if isinstance(error, PERMANENT_ERRORS) or not isinstance(error, kafka_errors.KafkaError):
        return error
    text = message(error)
    if code := re.fullmatch(r"(\d+) E[A-Z]+", text):
        text = os.strerror(int(code[1]))
    text = next((explanation for pattern, explanation in _CONNECT_FAILURES.items() if re.search(pattern, text)), text)
    explained: Exception = kafka_errors.KafkaConnectionError(text)
    return explained


def tls_error(error: ssl.SSLError) -> kafka_errors.KafkaError:
    """Translate an OpenSSL error. The result is a permanent error if a setting or a certificate is wrong."""
    reason = error.reason or ""
    if _NOT_TLS in reason:
        return kafka_errors.KafkaConfigurationError(
            "The broker's listener does not use TLS. Check kafka.security_protocol and the port in kafka.bootstrap_servers"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return kafka_errors.KafkaConfigurationError(
            f"The broker's certificate is not trusted ({error.verify_message})."
            " Check kafka.ssl_cafile (or KAFKA_TRUSTED_CERT), kafka.ssl_check_hostname and kafka.bootstrap_servers"
        )
    if any(alert in reason for alert in _REJECTED_CERTIFICATE):
        return kafka_errors.KafkaConfigurationError(
            f"The broker rejects our certificate ({reason})."
            " Check kafka.ssl_certfile and kafka.ssl_keyfile (or KAFKA_CLIENT_CERT and KAFKA_CLIENT_CERT_KEY)"
        )
    return kafka_errors.KafkaConnectionError(f"TLS failed: {error}")
