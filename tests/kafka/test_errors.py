"""Errors of kafka-python: clients get a neutral answer, and the log gives the reason and advice."""

from __future__ import annotations

import json

import pytest
from kafka import errors as kafka_errors

from kafkasse.errors import ConfigurationError
from kafkasse.kafka.errors import SETTINGS_DO_NOT_WORK, report


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
