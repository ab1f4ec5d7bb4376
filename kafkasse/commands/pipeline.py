"""`kafkasse pipeline`: list the pipelines, explain one, or run one in the foreground.

PySpark is imported only when a command runs, so that `--help` works without it.
"""

from __future__ import annotations

import logging
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kafkasse.commands import options
from kafkasse.errors import CommandError
from kafkasse.tools.progress import waiting

if TYPE_CHECKING:
    from kafkasse.pipelines import Pipeline
    from kafkasse.pipelines.supervisor import StopRequests

EPILOG = """\b
Example:
  kafkasse pipeline list
  kafkasse pipeline check topn
  kafkasse pipeline run topn --bootstrap-servers localhost:9092
"""
CHECK_EPILOG = """\b
Example:
  kafkasse pipeline check topn
  kafkasse pipeline check shop/pipelines.yaml:large-orders
"""
RUN_EPILOG = """\b
Example:
  kafkasse pipeline run topn --bootstrap-servers localhost:9092 --checkpoint /var/lib/kafkasse/topn
"""
STATUS_EPILOG = """\b
Example:
  kafkasse pipeline status --bootstrap-servers localhost:9092
"""
REPLAY_EPILOG = """\b
Example:
  kafkasse pipeline replay-dead-letters topn.dead-letters --dry-run
"""


def _settings(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    for value in values:
        if not value.startswith("spark.") or "=" not in value:
            raise click.BadParameter(f"a setting is written spark.NAME=VALUE, not {value}.")
    return dict(value.split("=", 1) for value in values)


def _size(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not re.fullmatch(r"[1-9][0-9]*[kmgtKMGT]", value):
        raise click.BadParameter(f"{value!r} is not a size; use a whole number and k, m, g or t, such as 512m.")
    return value


@click.group(epilog=EPILOG)
def command() -> None:
    """Run a Spark pipeline, which reads topics and writes its results to topics."""


@command.command("list")
@click.argument("file", required=False, type=click.Path(path_type=Path))
def list_pipelines(file: Path | None) -> None:
    """List the pipelines of kafkasse and of the installed packages, or those of a YAML FILE."""
    from kafkasse.pipelines.definition import catalog

    for pipeline in catalog.of_file(file) if file else map(catalog.find, catalog.names()):
        sources, sinks = ", ".join(pipeline.source_topics), ", ".join(pipeline.sink_topics)
        click.echo(f"{pipeline.name}: {sources} -> {sinks}: {pipeline.summary}")


@command.command(epilog=CHECK_EPILOG)
@click.argument("name")
def check(name: str) -> None:
    """Explain the pipeline NAME without running it, and check its query.

    Spark plans the query and says whether real-time mode and micro-batches accept it. Kafka is not used. The exit code is 1
    if the pipeline's mode does not accept the query.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as after Ctrl-C, end the JVM and remove its files

    from kafkasse.pipelines.definition import catalog
    from kafkasse.pipelines.explain import explain, text
    from kafkasse.pipelines.spark.session import session

    logging.getLogger().addHandler(logging.NullHandler())  # PySpark also logs each exception that it raises
    pipeline = catalog.find(name)
    name = f"kafkasse check {pipeline.name}"
    with waiting("planning the query with Spark"), session(name, None, pipeline.spark_settings) as spark:
        spark.sparkContext.setLogLevel("OFF")
        explanation = explain(spark, pipeline)
    for line in text(pipeline, explanation):
        click.echo(line)
    rejection = explanation.rejections["realtime" if pipeline.mode == "realtime" else "microbatch"]
    if rejection:
        raise CommandError(f"the mode {pipeline.mode} of the pipeline {pipeline.name} is {rejection}")


@command.command(epilog=RUN_EPILOG)
@click.argument("name")
@options.BOOTSTRAP_SERVERS
@options.KAFKA_CONFIG
@click.option("--source", metavar="TOPIC", help="Read this topic instead of the pipeline's default.")
@click.option("--sink", metavar="TOPIC", help="Write to this topic instead of the pipeline's default.")
@click.option(
    "--checkpoint",
    metavar="DIR",
    help="Where to keep the state and the positions. Without it, each run starts at the source's `start`.",
)
@click.option(
    "--master",
    metavar="URL",
    help="Where Spark runs: local[16] (the default) or spark://... The pipeline needs one slot for each partition.",
)
@click.option(
    "--memory",
    metavar="SIZE",
    callback=_size,
    help="The heap of Spark's JVM and, on a cluster, of each executor, such as 2g. The default is 512m.",
)
@click.option(
    "--conf",
    "conf",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_settings,
    help="A Spark setting. It overrides those of the pipeline and of kafkasse, but not those of spark-submit. Repeatable.",
)
@click.option(
    "--metrics-bind",
    metavar="HOST:PORT",
    help="Serve /-/metrics and /-/ready here. Off by default; the address has no access control.",
)
@click.option(
    "--status-topic",
    metavar="TOPIC",
    help="Write the pipeline's status to this topic, such as _pipelines. Off by default.",
)
@options.LOG_LEVEL
@click.option(
    "--rebuild",
    is_flag=True,
    help="Compute all results again while the old version runs, and then switch to the new results. "
    "Each start with this option does so; leave it out afterwards.",
)
def run(
    name: str,
    kafka_config: Path | None,
    source: str | None,
    sink: str | None,
    memory: str | None,
    conf: dict[str, str],
    **of_application: Any,
) -> None:
    """Run the pipeline NAME until Ctrl-C or SIGTERM.

    NAME is a name that `kafkasse pipeline list` shows, package.module:attribute, or file.yaml:name. The command prints
    "kafkasse pipeline: ready" when the query is running.
    """
    from kafkasse.pipelines.supervisor import StopRequests

    stop = StopRequests()
    stop.install()  # before PySpark is imported, which takes a second

    from kafkasse.pipelines import application

    options.log_to_stderr()
    pipeline = _awaited(lambda: _pipeline(name, source, sink), name, stop)
    if pipeline is None:
        return
    spark = ({"spark.driver.memory": memory, "spark.executor.memory": memory} if memory else {}) | conf
    properties = options.client_properties(kafka_config)
    given = application.PipelineOptions(properties=properties, spark=spark, **of_application)
    application.run(pipeline, given, stop, lambda: click.echo("kafkasse pipeline: ready"))
    if stop.interrupted:
        raise click.Abort


@command.command("replay-dead-letters", epilog=REPLAY_EPILOG)
@click.argument("topic")
@options.KAFKA
@click.option("--dry-run", is_flag=True, help="Only list the records that would be replayed.")
def replay_dead_letters(topic: str, kafka: dict[str, str] | None, dry_run: bool) -> None:
    """Write the records of the dead letters in TOPIC to their source topics again.

    The command replays the dead letters that no earlier call has replayed, up to the current end of TOPIC, and writes each
    record to its original partition. Correct the query first: a record that is still bad becomes a dead letter again. A
    replayed record becomes the newest record of its key, even if the source has received a later record of this key.
    """
    from kafkasse.commands import dead_letters  # needs kafka-python, which a machine that runs pipelines may lack

    dead_letters.replay(topic, kafka, dry_run)


@command.command(epilog=STATUS_EPILOG)
@options.KAFKA
@click.option("--topic", metavar="TOPIC", default="_pipelines", show_default=True, help="The status topic.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each pipeline.")
def status(kafka: dict[str, str] | None, topic: str, as_json: bool) -> None:
    """Print the status of the pipelines that run with --status-topic."""
    from kafkasse.commands import pipeline_status  # needs kafka-python, which a machine that runs pipelines may lack

    pipeline_status.show(topic, kafka, as_json)


def _pipeline(name: str, source: str | None, sink: str | None) -> Pipeline:
    from kafkasse.pipelines.definition import catalog

    pipeline = catalog.find(name)
    if source:
        name = _only("--source", pipeline.sources)
        changed = replace(pipeline.sources[name], topic=source)
        pipeline = replace(pipeline, source={name: changed} if isinstance(pipeline.source, Mapping) else changed)
    if sink:
        name = _only("--sink", pipeline.sinks)
        pipeline = replace(pipeline, sink={name: sink} if isinstance(pipeline.sink, Mapping) else sink)
    return pipeline


def _awaited(find: Callable[[], Pipeline], name: str, stop: StopRequests) -> Pipeline | None:
    """Find the pipeline. While its schema registry is not available, wait. Returns None after a stop request."""
    from kafkasse.pipelines.definition.definitions import SchemaUnavailable
    from kafkasse.pipelines.supervisor import PipelineState, backoff_s, log_state

    for failures in count(1):
        try:
            return find()
        except SchemaUnavailable as error:
            log_state(name, PipelineState.WAITING, error.detail)
        if stop.wait(backoff_s(failures)):
            break
    if stop.interrupted:
        raise click.Abort
    return None


def _only(option: str, named: Mapping[str, object]) -> str:
    """Return the name of the only source or sink."""
    if len(named) > 1:
        raise CommandError(f"{option} is ambiguous, because the pipeline has several: {', '.join(named)}")
    return next(iter(named))
