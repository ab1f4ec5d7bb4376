"""Errors of kafka-python: clients get a neutral answer, and the log gives the reason and advice."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress

import pytest
from kafka import errors as kafka_errors

from kafkasse.errors import ConfigurationError, KafkaUnavailable, ServerFull, TopicNotAvailable
from kafkasse.kafka.errors import LOG_INTERVAL_S, SETTINGS_DO_NOT_WORK, Outages, report


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (kafka_errors.SaslAuthenticationFailedError("denied"), "Check kafka.sasl_plain_username"),
        (kafka_errors.UnsupportedSaslMechanismError("denied"), "Check kafka.sasl_mechanism."),
        (kafka_errors.IllegalSaslStateError("denied"), "The broker's listener may not use SASL."),
    ],
)
def test_settings_that_brokers_reject(error, advice, caplog):
    """Only the log contains the broker's reason, followed by what to check."""
    answer = report(error)

    assert (ConfigurationError, SETTINGS_DO_NOT_WORK) == (type(answer), answer.detail)
    assert "denied" not in json.dumps(answer.problem())
    [line] = [record.getMessage() for record in caplog.records if record.name.startswith("kafkasse.kafka")]
    assert line == answer.reason
    assert line.startswith("The Kafka settings do not work. ")
    assert "denied" in line
    assert advice in line


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({0: "refused", 1: "refused", 2: "slow", LOG_INTERVAL_S: "refused"}, ["refused", "slow", "refused"]),
        ({0: "refused", 2: "refused", 24.4: "", 25: ""}, ["refused", "24 s"]),
        ({0: "refused", 5: "", 9: "refused", 12: ""}, ["refused", "5 s"]),  # the second outage has no line at all
        ({0: "refused", 5: "", 9: "refused", 69: "refused", 79: ""}, ["refused", "5 s", "refused", "70 s"]),
        ({0: "", 1: "no topic", 2: "", 3: "no topic"}, ["no topic", "no topic"]),
    ],
)
def test_an_outage_is_logged_at_once_then_once_a_minute_and_at_its_end(answers, expected, caplog):
    """A tail looks up its leaders about once a second. Each cause has its own lines."""
    errors = {
        "refused": kafka_errors.KafkaConnectionError("refused"),
        "slow": kafka_errors.KafkaTimeoutError("slow"),
        "no topic": kafka_errors.InvalidTopicError("no topic"),
    }
    caplog.set_level("INFO")
    now = 0.0
    outages = Outages("a:9092", lambda: now)
    for answered_at, answer in answers.items():
        now = answered_at
        with suppress(KafkaUnavailable, TopicNotAvailable), outages.looking_up_metadata():
            if answer:
                raise errors[answer]

    lines = [record.getMessage() for record in caplog.records]
    assert len(expected) == len(lines)
    for text, line in zip(expected, lines, strict=True):
        assert (f"Kafka answers again at a:9092, {text} after" if text.endswith(" s") else text) in line
    assert sum(answer in ("refused", "slow") for answer in answers.values()) == outages.failures


def test_the_end_of_an_outage_is_only_logged_if_metadata_could_not_be_looked_up(caplog):
    """While one of several brokers is down, lookups of metadata succeed, but other lookups continue to fail."""
    caplog.set_level("INFO")
    outages = Outages("a:9092")
    for _ in range(2):
        with pytest.raises(KafkaUnavailable), outages.translate_errors():
            raise kafka_errors.KafkaConnectionError("refused")
        with outages.looking_up_metadata():
            pass

    assert ["WARNING"] == [record.levelname for record in caplog.records]
    assert 0 == outages.failures


def test_the_end_of_an_outage_is_only_logged_if_its_start_was(caplog):
    """The line of the second outage is not due yet. A line about descriptors is none about an outage."""
    caplog.set_level("INFO")
    outages = Outages("a:9092", lambda: 0.0)
    refused, full = kafka_errors.KafkaConnectionError("refused"), OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    for failures in [refused], [refused, full]:
        for error in failures:
            with suppress(KafkaUnavailable, ServerFull), outages.looking_up_metadata():
                raise error
        with outages.looking_up_metadata():
            pass

    assert ["WARNING", "INFO", "WARNING"] == [record.levelname for record in caplog.records]


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_too_few_descriptors_to_connect(code):
    """The server is full. Nothing is wrong with Kafka or its addresses."""
    text = f"kafka-1:9092: [Errno {code}] {os.strerror(code)}. Check kafka.bootstrap_servers"

    for error in kafka_errors.KafkaTimeoutError(text), OSError(code, os.strerror(code)):
        answer = report(error)
        assert ServerFull is type(answer)
        assert "ulimit -n" in answer.reason
        assert "bootstrap" not in answer.reason
