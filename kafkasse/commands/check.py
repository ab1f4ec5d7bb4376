"""`kafkasse check`: check the configuration, connect to Kafka once, and report what a server would serve.

It reads metadata only, with the client that the server uses, so it reports the same errors.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import closing
from pathlib import Path

import click

from kafkasse.commands import options
from kafkasse.commands.kafka_clients import connected, existing_topics
from kafkasse.config import Config
from kafkasse.config.kafka import servers
from kafkasse.errors import CommandError, did_you_mean
from kafkasse.route import Route, StartAt, is_pattern

EPILOG = """\b
Examples:
  kafkasse check kafkasse.yaml
  KAFKASSE_ALLOWED_TOPICS=orders KAFKASSE_PUBLIC=true kafkasse check
"""

POLICY = "cleanup.policy"
Partitions = Mapping[str, int]  # the number of partitions of each topic


@click.command(epilog=EPILOG)
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path))
@click.option("--config", "config_file", metavar="FILE", type=click.Path(path_type=Path), help="The same as FILE.")
def command(file: Path | None, config_file: Path | None) -> None:
    """Check the configuration, connect to Kafka and list the topics of each route.

    FILE is a YAML file of settings; without it, the file that KAFKASSE_CONFIG names. Environment variables apply as they
    do for kafkasse serve. Settings in your app's code are unknown here. The exit code is 1 if a setting is not valid, if
    Kafka cannot be used, or if a topic does not exist.
    """
    from kafkasse.app import create_app

    config = Config.load(os.environ, options.configuration(file, config_file))
    create_app(config)  # fails if a file or a package is missing, and logs warnings to stderr, as the server does
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
            not_compacted = _not_compacted(config, cluster, routes, existing)
            problems += (problem for route in routes for problem in _report(config, route, existing, not_compacted))
    if problems:
        raise CommandError("\n".join(problems))
    click.echo("The configuration is valid, Kafka answers, and every configured topic exists.")


def _served(route: Route, existing: Partitions) -> list[str]:
    if route.topics is None:
        return sorted(topic for topic in existing if route.allows(topic))
    named = [topic for topic in route.topics if topic in existing]
    return list(dict.fromkeys([*named, *route.matching(existing)]))


def _not_compacted(config: Config, cluster: str, routes: Sequence[Route], existing: Partitions) -> set[str]:
    """Return the topics of snapshots that Kafka does not compact. It is empty if the Kafka user may not read settings."""
    snapshots = [route for route in routes if route.start is StartAt.SNAPSHOT]
    topics = {topic for route in snapshots for topic in _served(route, existing)}
    if not topics:
        return set()
    from kafka import KafkaAdminClient
    from kafka.admin import ConfigResource, ConfigResourceType
    from kafka.errors import KafkaError

    prefix = config.topic_prefix(cluster)
    wanted = [ConfigResource(ConfigResourceType.TOPIC, prefix + topic, {POLICY: None}) for topic in topics]
    with closing(connected(KafkaAdminClient, config.kafka_settings(cluster))) as admin:
        try:
            described = admin.describe_configs(wanted, config_filter="all")["topic"]
        except KafkaError:
            return set()
    policies = {topic: described[prefix + topic].get(POLICY) for topic in topics}
    return {topic for topic, policy in policies.items() if policy and "compact" not in policy["value"]}


def _report(config: Config, route: Route, existing: Partitions, not_compacted: Set[str]) -> Iterator[str]:
    """Print the topics of a route, and yield its problems."""
    click.echo(route.path)
    served = _served(route, existing)
    if route.topics is None:
        yield from _unmatched(config, route, served, existing)
    else:
        yield from _missing(config, ("routes", route.name, "topics"), route.topics, existing)
    for name, topics in route.groups:
        yield from _missing(config, ("topic_groups", name), topics, existing)
    width = max(map(len, served), default=0)
    for topic in served:
        is_slow = route.start is StartAt.SNAPSHOT and topic in not_compacted
        hint = ", not compacted: a snapshot reads all records. Consider cleanup.policy=compact" if is_slow else ""
        click.echo(f"  {topic:{width}}  {existing[topic]} partition{'s' if existing[topic] > 1 else ''}{hint}")


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
