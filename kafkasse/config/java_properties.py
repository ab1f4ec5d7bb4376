"""Translate client settings for Kafka's own tools (a Java properties file) into settings of kafka-python's client.

Only the settings of the connection are translated: addresses, TLS and logins. This module opens no connection.
"""

from __future__ import annotations

import re
from typing import Any

from kafkasse.errors import CommandError

_NAMES = {
    "bootstrap.servers": "bootstrap_servers",
    "client.id": "client_id",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.kerberos.service.name": "sasl_kerberos_service_name",
    "ssl.truststore.location": "ssl_cafile",
    "ssl.keystore.location": "ssl_certfile",
    "ssl.key.password": "ssl_password",
}
_JAAS = {"username": "sasl_plain_username", "password": "sasl_plain_password"}
_JAAS_OPTION = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ONLY_JAVA = ("ssl.truststore.certificates", "ssl.keystore.certificate.chain", "ssl.keystore.key")

_CONTINUED = re.compile(r"(?<!\\)((?:\\\\)*)\\\r?\n[ \t\f]*")
_LINE = re.compile(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)")
_ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse(text: str) -> dict[str, str]:
    """Return the names and values of a Java properties file.

    Source: the documentation of java.util.Properties.load.
    """
    lines = (line.lstrip() for line in _CONTINUED.sub(r"\1", text).splitlines())
    matches = (_LINE.fullmatch(line) for line in lines if line and line[0] not in "#!")
    return {_unescaped(match[1]): _unescaped(match[2]) for match in matches if match}


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)) if match[1] else _CONTROL.get(match[2], match[2]), text)


def client_settings(text: str) -> dict[str, Any]:
    """Return the settings of kafka-python's client for the connection that a properties file describes.

    Raises:
        CommandError: Python cannot use the truststore or the keystore. The message contains no value of the file.
    """
    properties = parse(text)
    for store in ("truststore", "keystore"):
        if f"ssl.{store}.location" in properties and properties.get(f"ssl.{store}.type", "JKS").upper() != "PEM":
            raise CommandError(
                f"--kafka-config names a {store} that only Java can read; convert it to PEM, set ssl.{store}.type=PEM, and "
                f"name the PEM file in ssl.{store}.location"
            )
    if unusable := next((name for name in _ONLY_JAVA if name in properties), None):
        raise CommandError(f"--kafka-config contains {unusable}, which only Java can use; name a PEM file instead")
    settings: dict[str, Any] = {_NAMES[name]: value for name, value in properties.items() if name in _NAMES}
    if "ssl_certfile" in settings:
        settings["ssl_keyfile"] = settings["ssl_certfile"]  # Java's PEM keystore contains the key too
    if properties.get("ssl.endpoint.identification.algorithm") == "":
        settings["ssl_check_hostname"] = False
    options = dict(_JAAS_OPTION.findall(properties.get("sasl.jaas.config", "")))
    return settings | {setting: _unescaped(options[name]) for name, setting in _JAAS.items() if name in options}
