"""`kafkasse check`: check the configuration, connect to Kafka once, and report what a server would serve.

It reads metadata only, with the client that the server uses, so it reports the same errors.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from kafkasse.commands.kafka_clients import existing_topics
from kafkasse.config import Config
from kafkasse.config.kafka import servers
from kafkasse.errors import CommandError, did_you_mean
from kafkasse.route import Route
from kafkasse.web.describe.streams import is_pattern

EPILOG = """\b
Examples:
  kafkasse check kafkasse.yaml
  KAFKASSE_ALLOWED_TOPICS=orders KAFKASSE_PUBLIC=true kafkasse check
"""

Partitions = Mapping[str, int]  # the number of partitions of each topic


@click.command(epilog=EPILOG)
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path))
@click.option("--config", "config_file", metavar="FILE", type=click.Path(path_type=Path), help="The same as FILE.")
def command(file: Path | None, config_file: Path | None) -> None:
    """Check the configuration, connect to Kafka and list the topics of each route.

    FILE is a YAML file of settings; without it, the file that KAFKASSE_CONFIG names. Environment variables apply as they
    do for kafkasse serve. The exit code is 1 if a setting is not valid, if Kafka cannot be used, or if a topic does not
    exist.
    """
    from kafkasse.app import blueprint

    if file and config_file:
        raise click.UsageError("Use either FILE or --config FILE.")
    config = Config.load(os.environ, file or config_file)
    blueprint(config)  # fails if a file or a package is missing, and logs warnings to stderr, as the server does
    problems: list[str] = []
    for cluster in ("", *config.kafka.clusters):
        routes = [route for route in config.routes if route.cluster == cluster and (route.topics or route.allowed)]
        if not cluster and not routes:
            continue  # all routes read from other clusters
        try:
            existing = existing_topics(config, cluster)
            click.echo(f"Kafka at {servers(config.kafka_settings(cluster))}")
        except CommandError as error:
            problems.append(f"clusters.{cluster}: {error}" if cluster else str(error))
        else:
            problems += (problem for route in routes for problem in _report(config, route, existing))
    if problems:
        raise CommandError("\n".join(problems))
    click.echo("The configuration is valid, Kafka answers, and every configured topic exists.")


def _report(config: Config, route: Route, existing: Partitions) -> Iterator[str]:
    """Print the topics of a route, and yield its problems."""
    click.echo(route.path)
    if route.topics is None:
        served = sorted(topic for topic in existing if route.allows(topic))
        yield from _unmatched(config, route, served, existing)
    else:
        named = [topic for topic in route.topics if topic in existing]
        served = list(dict.fromkeys([*named, *route.matching(existing)]))
        yield from _missing(config, ("routes", route.name, "topics"), route.topics, existing)
    for name, topics in route.groups:
        yield from _missing(config, ("topic_groups", name), topics, existing)
    width = max(map(len, served), default=0)
    for topic in served:
        click.echo(f"  {topic:{width}}  {existing[topic]} partition{'s' if existing[topic] > 1 else ''}")


def _missing(config: Config, path: tuple[str, ...], topics: Sequence[str], existing: Partitions) -> Iterator[str]:
    for number, topic in enumerate(topics):
        if topic not in existing and not is_pattern(topic):
            yield (
                f"{config.source(*path, number)}: {path[0]}.{path[1]} needs the topic {topic}, which does not exist or is"
                f" not readable{did_you_mean(topic, existing)}. Check the name, topic_prefix and the ACLs of the Kafka user."
            )


def _unmatched(config: Config, route: Route, served: list[str], existing: Partitions) -> Iterator[str]:
    for number, pattern in enumerate(route.allowed):
        alone = Route(route.name, route.path, None, (pattern,), route.topic_prefix)
        if any(alone.allows(topic) for topic in served):
            continue
        if is_pattern(pattern):
            click.echo(f"  {pattern}  matches no topic yet")
        else:
            source = config.source("allowed_topics", number)
            yield (
                f"{source}: allowed_topics contains {pattern}, but the server can read no topic with this name"
                f"{did_you_mean(pattern, existing)}. Check the name, topic_prefix and the ACLs of the Kafka user."
            )
