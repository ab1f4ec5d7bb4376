"""`kafkasse pipeline`: list the pipelines, or run one in the foreground.

PySpark is imported only when a command runs, so that `--help` works without it.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import click

from kafkasse.errors import CommandError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafkasse.pipelines import Pipeline

EPILOG = """\b
Example:
  kafkasse pipeline list
  kafkasse pipeline run topn --bootstrap-servers localhost:9092
"""
RUN_EPILOG = """\b
Example:
  kafkasse pipeline run topn --bootstrap-servers localhost:9092 --checkpoint /var/lib/kafkasse/topn
"""


def _addresses(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if "@" in value:  # the value is not shown, because it contains a password
        raise click.BadParameter("an address is HOST:PORT without a password; use --kafka-config for credentials.")
    return value


@click.group(epilog=EPILOG)
def command() -> None:
    """Run a Spark pipeline, which reads topics and writes its results to topics."""


@command.command("list")
def list_pipelines() -> None:
    """List the pipelines of kafkasse and of the installed packages."""
    from kafkasse.pipelines import catalog

    for pipeline in (catalog.find(name) for name in catalog.names()):
        sources, sinks = (
            ", ".join(each.topic for each in named.values()) for named in (pipeline.sources, pipeline.sinks)
        )
        click.echo(f"{pipeline.name}: {sources} -> {sinks}: {pipeline.summary}")


@command.command(epilog=RUN_EPILOG)
@click.argument("name")
@click.option(
    "--bootstrap-servers",
    metavar="HOST:PORT,...",
    envvar="KAFKASSE_BOOTSTRAP_SERVERS",
    default="localhost:9092",
    show_envvar=True,
    show_default=True,
    callback=_addresses,
    help="Kafka's addresses.",
)
@click.option(
    "--kafka-config",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Client settings (TLS, SASL, ...) in the properties format of Kafka's own tools.",
)
@click.option("--source", metavar="TOPIC", help="Read this topic instead of the pipeline's default.")
@click.option("--sink", metavar="TOPIC", help="Write to this topic instead of the pipeline's default.")
@click.option(
    "--checkpoint",
    metavar="DIR",
    help="Where to keep the state and the positions. Without it, each run starts at the beginning of the source.",
)
@click.option(
    "--master",
    metavar="URL",
    help="Where Spark runs: local[16] (the default) or spark://... The pipeline needs one slot for each partition.",
)
@click.option(
    "--log-level",
    default="OFF",
    show_default=True,
    type=click.Choice(["OFF", "ERROR", "WARN", "INFO", "DEBUG"]),
    help="The level of Spark's log, which goes to stderr.",
)
def run(
    name: str,
    bootstrap_servers: str,
    kafka_config: Path | None,
    source: str | None,
    sink: str | None,
    checkpoint: str | None,
    master: str | None,
    log_level: str,
) -> None:
    """Run the pipeline NAME until Ctrl-C or SIGTERM.

    NAME is a name that `kafkasse pipeline list` shows, or package.module:attribute. The command prints "kafkasse pipeline:
    ready" when the query is running.
    """
    from kafkasse.pipelines import runner, topics
    from kafkasse.pipelines.session import session

    stop_signals: SimpleQueue[int] = SimpleQueue()
    _queue_signals(stop_signals)
    logging.getLogger().addHandler(logging.NullHandler())  # py4j also logs each exception that it raises
    pipeline = _pipeline(name, source, sink)
    properties = _read(kafka_config) if kafka_config else ""
    topics.check_reachable(bootstrap_servers)
    with (
        session(f"kafkasse {pipeline.name}", master, pipeline.spark_settings) as spark,
        _checkpoint(checkpoint or pipeline.checkpoint, spark) as directory,
    ):
        spark.sparkContext.setLogLevel(log_level)
        _queue_signals(stop_signals)  # again, because PySpark has installed its own handler
        kafka = topics.client_settings(spark, properties, bootstrap_servers)
        with runner.running_query(spark, pipeline, kafka, directory) as query:
            if runner.wait_until_running(spark, query, pipeline.mode, stop_signals):
                click.echo("kafkasse pipeline: ready")
                runner.monitor(query, pipeline.mode, stop_signals)


def _pipeline(name: str, source: str | None, sink: str | None) -> Pipeline:
    from kafkasse.pipelines import catalog

    pipeline = catalog.find(name)
    if source:
        pipeline = replace(pipeline, source=_with_topic("--source", pipeline.source, pipeline.sources, source))
    if sink:
        pipeline = replace(pipeline, sink=_with_topic("--sink", pipeline.sink, pipeline.sinks, sink))
    return pipeline


def _with_topic(option: str, given: object, named: Mapping[str, Any], topic: str) -> Any:
    """Return the only source or sink with another topic."""
    if len(named) > 1:
        raise CommandError(f"{option} is ambiguous, because the pipeline has several: {', '.join(named)}")
    changed = {name: replace(only, topic=topic) for name, only in named.items()}
    return changed if isinstance(given, Mapping) else next(iter(changed.values()))


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise CommandError(f"cannot read --kafka-config {file}: {error}") from error


@contextmanager
def _checkpoint(directory: str | None, spark: SparkSession) -> Iterator[str]:
    from kafkasse.pipelines import temporary
    from kafkasse.pipelines.session import is_local

    if directory:
        yield directory
    elif is_local(str(spark.sparkContext.master)):
        with temporary.directory("kafkasse-checkpoint-") as path:
            yield str(path)
    else:
        raise CommandError(
            "a Spark cluster needs a --checkpoint directory that all of its machines can access, such as hdfs://... or s3a://..."
        )


def _queue_signals(signals: SimpleQueue[int]) -> None:
    """Queue SIGINT and SIGTERM, so that the pipeline can stop at a safe point.

    A signal handler that raises an exception could interrupt PySpark in the middle of a call to the JVM, or while PySpark
    starts the JVM, which would then run forever. The queue is a SimpleQueue because a signal handler may call its put(), but
    not Event.set().
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: signals.put(number))
