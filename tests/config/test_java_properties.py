"""kafka-python's client connects with a properties file of Kafka's own tools."""

from __future__ import annotations

import pytest

from kafkasse.config import java_properties
from kafkasse.errors import CommandError


def test_reads_the_format_of_java():
    """Comments, separators, continued lines and escapes are those of java.util.Properties."""
    text = "# comment\n! comment\n  a = 1\nb:2\nc 3\nd=x\\\n   y\ne=\\u00e9\\t\\\\\nf\\=g=h=i\nempty=\n"

    found = java_properties.parse(text)

    assert {"a": "1", "b": "2", "c": "3", "d": "xy", "e": "é\t\\", "f=g": "h=i", "empty": ""} == found


def test_translates_a_login_over_tls():
    """The settings get their names in kafka-python. Settings of producers and consumers are ignored."""
    text = """
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
  username="ada" \\
  password="a\\\\"b";
ssl.truststore.type=PEM
ssl.truststore.location=/etc/kafka/ca.pem
ssl.keystore.type=PEM
ssl.keystore.location=/etc/kafka/client.pem
ssl.endpoint.identification.algorithm=
max.request.size=1000
"""

    settings = java_properties.client_settings(text)

    assert settings == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "ada",
        "sasl_plain_password": 'a"b',
        "ssl_cafile": "/etc/kafka/ca.pem",
        "ssl_certfile": "/etc/kafka/client.pem",
        "ssl_keyfile": "/etc/kafka/client.pem",
        "ssl_check_hostname": False,
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ssl.truststore.location=/etc/kafka/secret.jks", "convert it to PEM"),
        ("ssl.keystore.key=secret", "ssl.keystore.key, which only Java can use"),
    ],
)
def test_rejects_what_only_java_can_use(text, reason):
    """The error names the fix, and contains no value of the file."""
    with pytest.raises(CommandError, match=reason) as caught:
        java_properties.client_settings(text)

    assert "secret" not in str(caught.value)
