"""`kafkasse topics`: list the topics that exist, and where a server would stream them; or create topics."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple, cast

import click

from kafkasse.commands import options
from kafkasse.commands.kafka_clients import connected, existing_topics, message
from kafkasse.commands.table import print_table
from kafkasse.config import Config
from kafkasse.errors import CommandError
from kafkasse.route import Route, is_pattern

EPILOG = """\b
Examples:
  kafkasse topics kafkasse.yaml
  kafkasse topics --bootstrap-servers kafka-1.example:9092
  kafkasse topics create orders --partitions 3
"""
DEFAULT = "list"


class TopicRow(NamedTuple):
    """A topic, the number of its partitions (0 if it does not exist), and the paths of its streams."""

    topic: str
    cluster: str
    partitions: int
    paths: list[str]


class _TopicsGroup(click.Group):
    """Runs `list` unless the first word is the name of another command: `kafkasse topics kafkasse.yaml`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = args[0] if args else ""
        if first in {*self.commands, *ctx.help_option_names}:
            return super().parse_args(ctx, args)
        if "--create" in args:  # an option of `kafkasse load`
            raise click.UsageError("There is no option --create. Did you mean kafkasse topics create?", ctx)
        return super().parse_args(ctx, [DEFAULT, *args])


@click.group(cls=_TopicsGroup, epilog=EPILOG)
def command() -> None:
    """List topics, or create them. Without a command, kafkasse topics lists them."""


@command.command(DEFAULT)
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path))
@options.KAFKA
@click.option("--internal", is_flag=True, help="List Kafka's internal topics, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per topic.")
def list_topics(file: Path | None, kafka: dict[str, str] | None, internal: bool, as_json: bool) -> None:
    """List the topics that exist and the paths at which a server streams them.

    FILE is a YAML file of settings. Without it, the command reads the file that KAFKASSE_CONFIG names. Environment variables
    apply as they do for kafkasse serve. The list includes topics that a route names but that do not exist.
    """
    config = Config.load(os.environ, file, kafka=kafka)
    rows = [
        row
        for cluster in ("", *config.kafka.clusters)
        for row in _rows(config, cluster, existing_topics(config, cluster))
        if internal or row.paths or not row.topic.startswith("__")
    ]
    if as_json:
        for row in rows:
            click.echo(json.dumps(row._asdict(), ensure_ascii=False))
    elif rows:
        print_table([("TOPIC", "PARTITIONS", "STREAMED AT"), *map(_cells, rows)])
    else:
        click.echo("There are no topics, or the Kafka user may not see any.")


def _configs(ctx: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise click.BadParameter(f"{pair} is not NAME=VALUE, such as cleanup.policy=compact.")
    return dict(cast("tuple[str, str]", tuple(pair.split("=", 1))) for pair in pairs)


@command.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--partitions", metavar="N", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--config", "configs", metavar="NAME=VALUE", multiple=True, callback=_configs, help="A topic setting.")
@options.KAFKA
def create(names: tuple[str, ...], partitions: int, configs: dict[str, str], kafka: dict[str, str] | None) -> None:
    """Create topics. Those that exist stay as they are.

    \b
    Example:
      kafkasse topics create prices --partitions 3 --config cleanup.policy=compact
    """
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    config = Config.load(kafka=kafka)
    with closing(connected(KafkaAdminClient, config.kafka_settings())) as admin:
        for name in names:
            topic = config.topic_prefix("") + name
            try:
                is_new = topic not in admin.list_topics()
                if is_new:
                    settings = {"num_partitions": partitions, "configs": configs}
                    admin.create_topics({topic: settings}, wait_for_metadata=True)
            except (KafkaError, ValueError) as error:
                raise CommandError(f"cannot create topic {name}: {message(error)}") from None
            click.echo(f"{name}: {'created' if is_new else 'exists already'}")


def _rows(config: Config, cluster: str, existing: Mapping[str, int]) -> Iterator[TopicRow]:
    routes = [route for route in config.routes if route.cluster == cluster]
    named = {topic for route in routes for topic in route.topics or route.allowed if not is_pattern(topic)}
    for topic in sorted({*existing, *named}):
        paths = [_path(route, topic) for route in routes if route.allows(topic)]
        yield TopicRow(topic, cluster, existing.get(topic, 0), paths)


def _path(route: Route, topic: str) -> str:
    return route.path.replace("{topics}", topic) if route.topics is None else route.path


def _cells(row: TopicRow) -> tuple[str, str, str]:
    topic = f"{row.topic} ({row.cluster})" if row.cluster else row.topic
    return topic, str(row.partitions) if row.partitions else "missing", ", ".join(row.paths) or "-"
