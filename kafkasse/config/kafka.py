"""The settings of kafka-python's client: which are allowed, how they depend on each other, and which are secret.

This module opens no connection. It does not import kafka-python, which hangs if it is imported before gevent patches the
standard library. schemas/config.schema.json lists the settings; tests/config/test_kafka.py compares it with kafka-python.
"""

from __future__ import annotations

import re
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

BOOTSTRAP_DEFAULT = "localhost:9092"
MASK = "********"

# kafkasse depends on these values: no consumer groups, no commits, no silent resets, no automatic creation of topics.
RESERVED = frozenset({
    "group_id", "group_instance_id", "auto_offset_reset", "enable_auto_commit", "allow_auto_create_topics",
    "key_deserializer", "value_deserializer", "isolation_level", "max_poll_records", "consumer_timeout_ms",
    "fetch_max_bytes", "fetch_max_wait_ms", "max_partition_fetch_bytes", "metrics_enabled", "kafka_client", "selector",
    "partition_assignment_strategy",
})  # fmt: skip

_SECRET_NAME = re.compile(r"password|passwd|secret|token|jaas|private|credential|ssl_context|pem$", re.IGNORECASE)
_HOST_AND_PORT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/@,\[\]]+):([0-9]{1,5})")
_PLAIN_LOGIN = ("sasl_plain_username", "sasl_plain_password")
_FILES = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile")


class PemCertificates(NamedTuple):
    """The certificates of Heroku's add-on, as PEM text. repr() does not show them."""

    trusted: str
    certificate: str
    key: str

    def __repr__(self) -> str:
        return MASK

    def context(self) -> ssl.SSLContext:
        """Create a TLS context.

        The context trusts only the add-on's own certificate authority. It does not check host names, because the
        certificates of Heroku's brokers contain none.

        Raises:
            ssl.SSLError, ValueError: the text is not PEM.
        """
        context = ssl.create_default_context(cadata=self.trusted)
        context.check_hostname = False
        if self.certificate:
            # OpenSSL reads certificates only from files. Only this user can read the file, and it is deleted at once.
            # The empty password keeps OpenSSL from asking for a password at the terminal.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                file.write(f"{self.certificate}\n{self.key}\n")
                file.flush()
                context.load_cert_chain(file.name, password="")
        return context


def client_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a kafka-python client, without `bootstrap_servers` if this setting has no value."""
    arguments = dict(settings)
    if isinstance(pem := arguments.get("ssl_context"), PemCertificates):
        arguments["ssl_context"] = pem.context()
    if isinstance(version := arguments.get("api_version"), list):
        arguments["api_version"] = tuple(version)
    return arguments


def servers(settings: Mapping[str, Any]) -> str:
    """Return `bootstrap_servers`, or its default, as text."""
    addresses = settings.get("bootstrap_servers", BOOTSTRAP_DEFAULT)
    return addresses if isinstance(addresses, str) else ", ".join(addresses)


def settings_of_url(url: str) -> dict[str, Any] | None:
    """Return servers and protocol of `kafka+ssl://host:9096,kafka+ssl://host:9096` or `kafka://host:9092`, or None."""
    parts = [re.fullmatch(r"(kafka(?:\+ssl)?)://([^/?#]+)/?", address.strip()) for address in url.split(",")]
    servers = [part[2] for part in parts if part and _is_address(part[2])]
    if len(servers) < len(parts) or len({part[1] for part in parts if part}) != 1:
        return None
    return {"bootstrap_servers": servers, "security_protocol": "SSL" if url.startswith("kafka+ssl") else "PLAINTEXT"}


def is_secret(name: str) -> bool:
    """Return whether the value of a setting with this name must not be shown."""
    return bool(_SECRET_NAME.search(name))


def without_credentials(text: str) -> str:
    """Mask the part of an address before its last @, such as the user name and the password in a URL."""
    before, at, address = text.rpartition("@")
    return f"{MASK}{at}{address}" if before else text


def problems(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield, for each setting that cannot work, its name and the rest of a sentence that starts with the name."""
    yield from _problems_of_servers(settings.get("bootstrap_servers", BOOTSTRAP_DEFAULT))
    yield from _problems_of_login(settings)
    yield from _problems_of_files(settings)
    yield from _problems_of_objects(settings)
    if isinstance(pem := settings.get("ssl_context"), PemCertificates):
        try:
            pem.context()
        except (ssl.SSLError, ValueError):
            rest = (
                "cannot be used: KAFKA_TRUSTED_CERT and KAFKA_CLIENT_CERT must be certificates in PEM form, and "
                "KAFKA_CLIENT_CERT_KEY must be the private key of KAFKA_CLIENT_CERT. Example: -----BEGIN CERTIFICATE-----…"
            )
            yield "ssl_context", rest


def _problems_of_objects(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    context, provider = settings.get("ssl_context"), settings.get("sasl_oauth_token_provider")
    if not isinstance(context, ssl.SSLContext | PemCertificates | None):
        yield "ssl_context", f"must be an ssl.SSLContext, not a value of type {type(context).__name__}."
    if provider is not None and not callable(provider) and not callable(getattr(provider, "token", None)):
        rest = "must be a function that returns a token, or an object with a method token() that returns one."
        yield "sasl_oauth_token_provider", rest


def unused(settings: Mapping[str, Any]) -> str:
    """Return the name of a setting that has no effect without another one, or ""."""
    name = "sasl_oauth_token_provider"
    return name if settings.get(name) is not None and settings.get("sasl_mechanism") != "OAUTHBEARER" else ""


def _problems_of_servers(servers: str | list[str]) -> Iterator[tuple[str, str]]:
    for server in servers.split(",") if isinstance(servers, str) else servers:
        if not _is_address(server.strip()):
            shown = repr(without_credentials(server.strip())[:100])
            yield "bootstrap_servers", f"must be HOST:PORT, not {shown}. Example: kafka-1.example:9092"


def _is_address(server: str) -> bool:
    match = _HOST_AND_PORT.fullmatch(server)
    return match is not None and 0 < int(match[2]) < 65_536


def _problems_of_login(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    protocol, mechanism = settings.get("security_protocol", "PLAINTEXT"), settings.get("sasl_mechanism")
    if protocol.startswith("SASL") and mechanism is None:
        yield "security_protocol", f"is {protocol}, which needs sasl_mechanism. Example: sasl_mechanism: SCRAM-SHA-512"
    login = [name for name in ("sasl_mechanism", *_PLAIN_LOGIN) if settings.get(name)]
    if login and not protocol.startswith("SASL"):
        needed = "security_protocol: SASL_SSL" + (", sasl_mechanism: SCRAM-SHA-512" if mechanism is None else "")
        yield login[0], f"has no effect while security_protocol is {protocol}. Example: {needed}"
    if mechanism and mechanism.startswith(("PLAIN", "SCRAM")):
        for name in _PLAIN_LOGIN:
            if settings.get(name) is None:
                yield "sasl_mechanism", f"is {mechanism}, which needs {name}."
    if mechanism == "OAUTHBEARER" and settings.get("sasl_oauth_token_provider") is None:
        yield (
            "sasl_mechanism",
            "is OAUTHBEARER, which needs sasl_oauth_token_provider, a function that only code can set.",
        )


def _problems_of_files(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    given = [name for name in _FILES if settings.get(name) is not None]
    protocol = settings.get("security_protocol", "PLAINTEXT")
    if given and not protocol.endswith("SSL"):
        yield given[0], f"has no effect while security_protocol is {protocol}. Example: security_protocol: SSL"
        return
    rejected = [(name, reason) for name in given if (reason := unreadable(settings[name]))]
    for name, reason in rejected:
        yield name, f"names the file {settings[name]!r}, which cannot be read: {reason}. Example: /etc/kafka/ca.pem"
    if not rejected:
        yield from _problems_of_certificates(settings)


def unreadable(path: str) -> str:
    """Return why a file cannot be read, or "" if it can be read."""
    try:
        with Path(path).open("rb"):
            return ""
    except OSError as error:
        return error.strerror or type(error).__name__
    except ValueError:
        return "the path contains a null character"


def _problems_of_certificates(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if cafile := settings.get("ssl_cafile"):
        try:
            context.load_verify_locations(cafile)
        except (ssl.SSLError, ValueError):
            yield "ssl_cafile", f"names the file {cafile!r}, which contains no certificate in PEM form."
    if certfile := settings.get("ssl_certfile"):
        try:
            context.load_cert_chain(certfile, settings.get("ssl_keyfile"), settings.get("ssl_password") or "")
        except (ssl.SSLError, ValueError):
            file = f"names the file {certfile!r}, which does not contain a certificate in PEM form"
            yield "ssl_certfile", f"{file}, or does not belong to ssl_keyfile and ssl_password."
