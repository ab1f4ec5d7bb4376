"""Everything that an operator can set, from a file, the environment and code, checked by one schema.

What each setting is for stands in schemas/config.schema.json. Later wins: defaults, file, environment, code. Nothing is
read at import; nothing here opens a socket.
"""

from __future__ import annotations

import logging
import math
import os
import re
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from kafkasse import schemas
from kafkasse.config.settings import FeedSettings, KafkaSettings, WebSettings
from kafkasse.errors import ConfigurationError
from kafkasse.frame import Deserializer, Filterer
from kafkasse.position import IdType
from kafkasse.route import Route, StartAt

SCHEMA = "config"
ENVIRONMENT_PREFIX = "KAFKASSE_"
FILE_VARIABLE = "KAFKASSE_CONFIG"
BOOTSTRAP_DEFAULT = "localhost:9092"
DIGITS_MAX = 19  # of a 64-bit number; Python refuses to read thousands
_YES_OR_NO = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}

# kafkasse's promises rest on these: no groups, no commits, no silent rewinding, no topics made by asking for them.
KAFKA_NOT_YOURS = frozenset({
    "group_id", "group_instance_id", "auto_offset_reset", "enable_auto_commit", "allow_auto_create_topics",
    "key_deserializer", "value_deserializer", "isolation_level", "max_poll_records", "consumer_timeout_ms",
    "fetch_max_bytes", "fetch_max_wait_ms", "max_partition_fetch_bytes", "metrics_enabled", "kafka_client", "selector",
    "partition_assignment_strategy",
})  # fmt: skip

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """KafkaSSE's hooks, as plain callables.

    deserializer: makes the message from a record (frame.TopicRecord). One that fails skips its record.
    filterer: is given the message, sends what it returns true for. One that fails ends the stream.
    on_connect_error: is given the error (errors.KafkasseError) of a request that gets no stream; what it returns, if
        anything, is the response in place of ours.
    kafka_event_handlers: by KafkaSSE's event names: `ready` and `disconnected` are called with the stream's topics,
        `event.error` with the exception.
    """

    deserializer: Deserializer | None = None
    filterer: Filterer | None = None
    on_connect_error: Callable[[Exception], Any] | None = None
    kafka_event_handlers: Mapping[str, Callable[[Any], object]] = field(default_factory=dict)
    logger: logging.Logger = field(default_factory=lambda: logging.getLogger("kafkasse"))


@dataclass(frozen=True)
class Config:
    """Checked settings. `Config(allowed_topics=["events.*"], filterer=...)` takes settings and hooks alike.

    Raises:
        ConfigurationError: naming the setting, what is wrong with it, and where it came from.
    """

    kafka: KafkaSettings
    feed: FeedSettings
    web: WebSettings
    hooks: Hooks
    routes: tuple[Route, ...]

    def __init__(self, **settings_and_hooks: Any) -> None:
        hooks = {name: settings_and_hooks.pop(name) for name in list(settings_and_hooks) if name in _HOOK_NAMES}
        settings = _defaults() | settings_and_hooks
        _check(settings)
        settings["cors_origins"] = tuple(settings["cors_origins"])
        for name, kind in (("kafka", KafkaSettings), ("feed", FeedSettings), ("web", WebSettings)):
            object.__setattr__(self, name, kind(**{each.name: settings[each.name] for each in fields(kind)}))
        object.__setattr__(self, "hooks", Hooks(**hooks))
        object.__setattr__(self, "routes", _routes(settings))

    @classmethod
    def load(
        cls, environ: Mapping[str, str] | None = None, file: Path | None = None, **settings_and_hooks: Any
    ) -> Config:
        """Settings from a YAML file, then the environment, then the arguments.

        Args:
            environ: os.environ unless given.
            file: a YAML file of settings; else the one that KAFKASSE_CONFIG names.
            settings_and_hooks: as for Config(); None means not given.
        """
        environ = os.environ if environ is None else environ
        path = file or (Path(environ[FILE_VARIABLE]) if environ.get(FILE_VARIABLE) else None)
        settings = _from_file(path) if path else {}
        environment = _from_environment(environ)
        kafka = _merged(settings.get("kafka"), environment.pop("kafka"), settings_and_hooks.pop("kafka", None))
        given = {name: value for name, value in settings_and_hooks.items() if value is not None}
        return cls(**{**settings, **environment, **given, "kafka": kafka})

    def require_topics(self) -> None:
        """Raise ConfigurationError if there is nothing to serve: neither allowed topics nor routes."""
        if not any(route.topics or route.allowed for route in self.routes):
            raise ConfigurationError(
                "There is nothing to serve: set allowed_topics to the topics that clients may read, "
                'such as allowed_topics: [orders, "events.*"] in the file or KAFKASSE_ALLOWED_TOPICS=orders,events.*, '
                "or configure routes."
            )

    def kafka_settings(self) -> dict[str, Any]:
        """Settings for a kafka-python client; makes the TLS context that in-memory certificates need."""
        settings = {"bootstrap_servers": BOOTSTRAP_DEFAULT, **self.kafka.kafka}
        if "ssl_pem" in settings:
            settings["ssl_context"] = _tls_context(settings.pop("ssl_pem"))
        return settings


_HOOK_NAMES = frozenset(Hooks.__dataclass_fields__)
_OPEN_ROUTE = "topics"


def _merged(*layers: Mapping[str, Any] | None) -> dict[str, Any]:
    """The settings of kafka from file, environment and code; a heading with nothing below it is None."""
    merged: dict[str, Any] = {}
    for layer in layers:
        if not isinstance(layer or {}, Mapping):
            raise ConfigurationError(f"The setting kafka is not valid: {layer!r} is no mapping of settings.")
        merged |= layer or {}
    return merged


def _defaults() -> dict[str, Any]:
    properties = schemas.read(SCHEMA)["properties"]
    return {name: setting["default"] for name, setting in properties.items()}


def _check(settings: Mapping[str, Any]) -> None:
    if (error := schemas.first_error(SCHEMA, settings)) is not None:
        raise ConfigurationError(f"The setting {error[0] or 'file'} is not valid: {error[1]}.")
    if strange := [name for name, value in settings.items() if isinstance(value, float) and not math.isfinite(value)]:
        raise ConfigurationError(f"The setting {strange[0]} is not valid: it must be a finite number.")
    if forbidden := sorted(KAFKA_NOT_YOURS & settings["kafka"].keys()):
        raise ConfigurationError(f"kafka.{forbidden[0]} is set by kafkasse itself: leave it out.")
    if settings["kafka"].get("security_protocol", "PLAINTEXT") not in SECURITY_PROTOCOLS:
        # kafka-python takes any other word, `ssl` in small letters too, for PLAINTEXT.
        raise ConfigurationError(f"kafka.security_protocol must be one of {', '.join(SECURITY_PROTOCOLS)}.")
    _check_routes(settings["routes"])


def _check_routes(routes: Mapping[str, Any]) -> None:
    if _OPEN_ROUTE in routes:
        raise ConfigurationError(f"routes.{_OPEN_ROUTE} has the name of the open route, /{{topics}}: choose another.")
    taken: dict[str, str] = {}
    for name, own in routes.items():
        if (first := taken.setdefault(own["path"], name)) != name:
            raise ConfigurationError(f"routes.{name}.path is that of routes.{first}: nobody could reach it.")


def _routes(settings: Mapping[str, Any]) -> tuple[Route, ...]:
    def shared(own: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "id_type": IdType(own.get("id_type", settings["id_type"])),
            "compact_ids": own.get("compact_ids", settings["compact_ids"]),
        }

    allowed = tuple(settings["allowed_topics"])
    open_route = Route(_OPEN_ROUTE, "/<topics>", None, allowed, settings["topic_prefix"], **shared({}))
    named = [
        Route(
            name,
            own["path"],
            tuple(own["topics"]),
            format=own.get("format", "kafkasse"),
            start=StartAt(own.get("start", "latest")),
            **shared(own),
        )
        for name, own in settings["routes"].items()
    ]
    return (*named, open_route)


def _from_file(path: Path) -> dict[str, Any]:
    try:
        settings = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"The configuration file {path} cannot be read: {error.strerror}.") from None
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        # PyYAML hands on what Python says of a date such as 2026-99-99.
        raise ConfigurationError(f"The configuration file {path} is not YAML: {error}") from None
    if not isinstance(settings or {}, dict):
        raise ConfigurationError(f"The configuration file {path} holds no mapping of settings.")
    if strange := [name for name in settings or {} if not isinstance(name, str) or name in _HOOK_NAMES]:
        raise ConfigurationError(f"The setting {strange[0]!r} is not valid: a file cannot hold it.")
    return settings or {}


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name, schema in schemas.read(SCHEMA)["properties"].items():
        text = environ.get(ENVIRONMENT_PREFIX + name.upper())
        if text is not None and name not in ("kafka", "routes"):
            settings[name] = _value(name, text, schema)
    settings["kafka"] = _kafka_from_environment(environ)
    if environ.get("KAFKA_PREFIX"):
        settings.setdefault("topic_prefix", environ["KAFKA_PREFIX"])
    return settings


def _value(name: str, text: str, schema: Mapping[str, Any]) -> Any:
    kinds = schema.get("type", "string")
    if "array" in kinds:
        return [each.strip() for each in text.split(",") if each.strip()]
    if "boolean" in kinds:
        return _YES_OR_NO.get(text.lower(), text)
    if "integer" in kinds or "number" in kinds:
        try:
            return int(text) if text.isdecimal() else float(text)
        except ValueError:
            raise ConfigurationError(
                f"{ENVIRONMENT_PREFIX}{name.upper()} is {text!r}, which is not a number."
            ) from None
    return text


def _kafka_from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """KAFKASSE_BOOTSTRAP_SERVERS, KAFKASSE_KAFKA_<SETTING>, and the variables of Heroku's Kafka add-on."""
    settings: dict[str, Any] = {}
    if url := environ.get("KAFKA_URL"):
        settings |= _from_kafka_url(url)
        if environ.get("KAFKA_TRUSTED_CERT"):
            settings["ssl_pem"] = tuple(
                environ.get(name, "") for name in ("KAFKA_TRUSTED_CERT", "KAFKA_CLIENT_CERT", "KAFKA_CLIENT_CERT_KEY")
            )
    prefix = ENVIRONMENT_PREFIX + "KAFKA_"
    for name, text in environ.items():
        if name.startswith(prefix) and name != prefix + "TIMEOUT_S":  # that one is ours: kafka_timeout_s
            setting = name.removeprefix(prefix).lower()
            settings[setting] = _kafka_value(setting, text)
    if servers := environ.get(ENVIRONMENT_PREFIX + "BOOTSTRAP_SERVERS"):
        settings["bootstrap_servers"] = servers
    return settings


def _kafka_value(setting: str, text: str) -> str | int | bool:
    """kafka-python wants real numbers and real yes or no; a password of digits is still text."""
    if setting.endswith(("password", "username")):
        return text
    is_number = text.isdecimal() and len(text) <= DIGITS_MAX
    return int(text) if is_number else {"true": True, "false": False}.get(text.lower(), text)


def _from_kafka_url(url: str) -> dict[str, Any]:
    """Servers and protocol of `kafka+ssl://host:9096,kafka+ssl://host:9096` or `kafka://host:9092`."""
    parts = [re.fullmatch(r"(kafka(?:\+ssl)?)://([^/?#]+)/?", each.strip()) for each in url.split(",")]
    if not all(parts) or len({part[1] for part in parts if part}) != 1:
        raise ConfigurationError("KAFKA_URL must be kafka+ssl://HOST:PORT or kafka://HOST:PORT, comma separated.")
    return {
        "bootstrap_servers": [part[2] for part in parts if part],
        "security_protocol": "SSL" if url.startswith("kafka+ssl") else "PLAINTEXT",
    }


def _tls_context(pem: tuple[str, str, str]) -> ssl.SSLContext:
    """A context from certificates held in memory.

    Heroku's brokers present certificates that name no host, signed by a CA that is the add-on's own: trusting that CA
    alone is the check, so host names are not compared.
    """
    trusted, certificate, key = pem
    try:
        context = ssl.create_default_context(cadata=trusted)
        context.check_hostname = False
        if certificate:
            # OpenSSL reads certificates from files only; this one is private and gone at once.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                file.write(f"{certificate}\n{key}\n")
                file.flush()
                context.load_cert_chain(file.name)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigurationError(
            f"The certificates in KAFKA_TRUSTED_CERT or KAFKA_CLIENT_CERT are not PEM: {error}"
        ) from None
    return context
