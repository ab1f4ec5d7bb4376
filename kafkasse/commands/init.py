"""`kafkasse init`: connect to Kafka, and write a commented configuration file.

The comments come from the schema of the configuration, so they always match the settings.
"""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from kafkasse import schemas
from kafkasse.commands import options
from kafkasse.commands.kafka_clients import existing_topics
from kafkasse.config import Config
from kafkasse.config.kafka import MASK, servers
from kafkasse.errors import CommandError
from kafkasse.tools import files

COMMENT_WIDTH = 100
MAX_TOPICS = 100  # in the comment
# Settings that many servers change.
OFFERED = ("catalog", "cors_origins", "trusted_proxies", "max_streams_per_client", "max_stream_age_s", "heartbeat_s")

EPILOG = """\b
Examples:
  kafkasse init --bootstrap-servers kafka-1.example:9092
  kafkasse init shop.yaml --topics 'orders,events.*' --public
"""


@click.command(epilog=EPILOG)
@click.argument("file", type=click.Path(path_type=Path), default="kafkasse.yaml")
@options.KAFKA
@click.option("--topics", metavar="TOPIC,...", default="", help="The topics that clients may read: names and patterns.")
@click.option("--public", is_flag=True, help="Everyone who can connect to the server may read these topics.")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
def command(file: Path, kafka: dict[str, str] | None, topics: str, public: bool, force: bool) -> None:
    """Write a commented configuration to FILE, by default kafkasse.yaml.

    The command connects to Kafka with the settings in the environment (KAFKASSE_KAFKA_...), and lists the existing topics in
    the file. Passwords stay in the environment: the file contains none. No topic is served until you allow it.
    """
    if file.exists() and not file.is_file():
        raise CommandError(f"{file} is not a regular file; choose another file")
    if file.exists() and not force:
        raise CommandError(f"{file} exists; choose another file, or replace it with --force")
    config = Config.load(os.environ, kafka=kafka)
    existing = {name: number for name, number in existing_topics(config).items() if not name.startswith("__")}
    allowed = [name.strip() for name in topics.split(",") if name.strip()]
    text = "\n".join(_lines(file, config, existing, allowed, public)) + "\n"
    try:
        files.replace(file.resolve(), text.encode())
    except OSError as error:
        raise CommandError(f"{file} cannot be written: {error.strerror}") from None
    click.echo(f"Wrote {file}. Kafka at {servers(config.kafka_settings())} has {_count(existing)}.")
    todo = [*([] if allowed else ["allow topics"]), *([] if public else ["say who may read them"])]
    if todo:
        click.echo(f"Edit the file: {' and '.join(todo)}.")
    click.echo(f"Then run: kafkasse check {file}")


def _lines(
    file: Path, config: Config, existing: Mapping[str, int], allowed: Sequence[str], public: bool
) -> Iterator[str]:
    yield f"# The configuration of kafkasse. Check it: kafkasse check {file}. Use it: kafkasse serve {file}"
    yield "# docs/configuration.md describes all settings. An environment variable overrides the same setting in this file."
    yield "\nkafka:"
    for name, value in _kafka(config):
        yield f"  {name}: {json.dumps(value)}"
    yield "  # Passwords belong in the environment, such as KAFKASSE_KAFKA_SASL_PLAIN_PASSWORD."
    yield from ("", *_comment("allowed_topics"), f"allowed_topics: {json.dumps(allowed)}")
    yield "# These topics exist:"
    some = sorted(existing.items())[:MAX_TOPICS]
    lines = [f"{name}  ({number} partition{'s' if number > 1 else ''})" for name, number in some]
    yield from (f"#   {line}" for line in lines or ["none that this Kafka user may see"])
    if len(existing) > MAX_TOPICS:
        yield "#   and more; kafkasse topics lists all of them"
    yield from ("", *_comment("public"), "public: true" if public else "# public: true")
    yield "\n# A route is a stream with a path and settings of its own. See docs/routes.md and docs/access.md."
    topic = next(iter([*allowed, *existing]), "orders")
    route = {"path": "/live", "topics": [topic], "access": "public", "start": "-15m"}
    yield from ("# routes:", "#   live:", *(f"#     {name}: {json.dumps(value)}" for name, value in route.items()))
    yield "\n# A guard names visitors. To let them read, set access: [partners] here, or in a route."
    yield "# `kafkasse key create` prints the lines of the file. Its path is relative to the server's working directory."
    yield f"# guards: {json.dumps({'partners': {'api_keys': {'file': 'partner-keys'}}})}"
    for name in OFFERED:
        yield from (
            "",
            *_comment(name),
            f"# {name}: {json.dumps(schemas.read('config')['properties'][name]['default'])}",
        )


def _count(topics: Mapping[str, int]) -> str:
    return "1 topic" if len(topics) == 1 else f"{len(topics)} topics"


def _kafka(config: Config) -> Iterator[tuple[str, object]]:
    for name, value, _ in config.effective():
        if name.startswith("kafka.") and MASK not in json.dumps(value):
            yield name.removeprefix("kafka."), value


def _comment(setting: str) -> list[str]:
    description = schemas.read("config")["properties"][setting]["description"]
    return textwrap.wrap(description, COMMENT_WIDTH, initial_indent="# ", subsequent_indent="# ")
