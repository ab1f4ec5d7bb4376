"""Options that several commands share, and helpers of the commands that run Spark."""

from __future__ import annotations

import logging
import os
from math import isnan
from pathlib import Path
from typing import Any

import click

from kafkasse.errors import CommandError


class Number(click.FloatRange):
    """A number in a range. NaN is in none, although each comparison of click's range with it is false."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


def not_empty(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Reject an empty value, which may come from an unset shell variable."""
    if value == "":
        raise click.BadParameter("must not be empty.")
    return value


# For commands that load the settings. The value is the argument `kafka` of Config.load().
KAFKA = click.option(
    "--bootstrap-servers",
    "kafka",
    metavar="HOST:PORT,...",
    callback=lambda ctx, param, value: {"bootstrap_servers": value} if value else None,
    help="Kafka's addresses (KAFKASSE_BOOTSTRAP_SERVERS) [default: localhost:9092]",
)


def _addresses(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if "@" in value:  # the value is not shown, because it contains a password
        raise click.BadParameter("an address is HOST:PORT without a password; use --kafka-config for credentials.")
    return value


# For commands that run Spark, which do not load the settings.
BOOTSTRAP_SERVERS = click.option(
    "--bootstrap-servers",
    metavar="HOST:PORT,...",
    envvar="KAFKASSE_BOOTSTRAP_SERVERS",
    default="localhost:9092",
    show_envvar=True,
    show_default=True,
    callback=_addresses,
    help="Kafka's addresses.",
)
KAFKA_CONFIG = click.option(
    "--kafka-config",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Client settings (TLS, SASL, ...) in the properties format of Kafka's own tools.",
)
LOG_LEVEL = click.option(
    "--log-level",
    default="OFF",
    show_default=True,
    type=click.Choice(["OFF", "ERROR", "WARN", "INFO", "DEBUG"]),
    help="The level of Spark's log, which goes to stderr.",
)


def configuration(file: Path | None, config: Path | None) -> Path | None:
    """Return the file that the argument FILE or the option --config names."""
    if file and config:
        raise click.UsageError("Use either FILE or --config FILE.")
    return file or config


def client_properties(kafka_config: Path | None) -> str:
    """Return the content of the file of --kafka-config, or "" without it. Raise CommandError if it cannot be read."""
    try:
        return kafka_config.read_text(encoding="utf-8") if kafka_config else ""
    except (OSError, UnicodeError) as error:
        raise CommandError(f"cannot read --kafka-config {kafka_config}: {error}") from error


def log_to_stderr() -> None:
    """Log as text or as JSON, like the web process."""
    from kafkasse.process.telemetry import log_format

    handler = logging.StreamHandler()
    handler.setFormatter(log_format.formatter(os.environ.get(log_format.VARIABLE, "text").lower()))
    logger = logging.getLogger("kafkasse")
    logger.addHandler(handler)
    logger.setLevel(os.environ.get("KAFKASSE_LOG_LEVEL", "info").upper())
    logging.getLogger().addHandler(logging.NullHandler())  # py4j also logs each exception that it raises
