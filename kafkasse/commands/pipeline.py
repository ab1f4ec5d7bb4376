"""`kafkasse pipeline`: run a pipeline in the foreground, or list them.

Spark is imported only when a pipeline is asked for: the command line must be able to say that it is missing.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from kafkasse.errors import CommandError
from kafkasse.progress import say

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafkasse.pipelines.catalog import Pipeline

BOOTSTRAP_DEFAULT = "localhost:9092"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("list", help="say which pipelines there are").set_defaults(act=_list)
    run = actions.add_parser("run", help="run one until Ctrl-C")
    run.set_defaults(act=_run)
    run.add_argument("name", metavar="NAME", help="as `kafkasse pipeline list` says")
    run.add_argument(
        "--bootstrap-servers",
        metavar="H:P,…",
        default=os.environ.get("KAFKASSE_BOOTSTRAP_SERVERS", BOOTSTRAP_DEFAULT),
        help="Kafka's addresses; also KAFKASSE_BOOTSTRAP_SERVERS (%(default)s)",
    )
    run.add_argument(
        "--kafka-config",
        type=Path,
        metavar="FILE",
        help="client settings (TLS, SASL, …) as Kafka's own tools take them",
    )
    run.add_argument("--source", metavar="TOPIC", help="read this topic instead of the pipeline's usual one")
    run.add_argument("--sink", metavar="TOPIC", help="write this one")
    run.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="keep state and positions there, and go on from there; without it the source is read from its start again",
    )
    run.add_argument(
        "--master", help="where Spark runs: local[16], the default, or spark://…; needs a slot for each partition"
    )
    run.add_argument(
        "--log-level",
        default="OFF",
        choices=("OFF", "ERROR", "WARN", "INFO", "DEBUG"),
        help="Spark's own log, on stderr",
    )


def run(args: argparse.Namespace) -> int:
    """List the pipelines, or run one until Ctrl-C or SIGTERM, which end it and its JVM."""
    act: Callable[[argparse.Namespace], int] = args.act
    return act(args)


def _list(_: argparse.Namespace) -> int:
    from kafkasse.pipelines.catalog import PIPELINES

    for pipeline in PIPELINES.values():
        say(f"{pipeline.name}: {pipeline.source} -> {pipeline.sink}: {pipeline.summary}")
    return 0


def _run(args: argparse.Namespace) -> int:
    from kafkasse.pipelines import running, topics
    from kafkasse.pipelines.session import session

    asked_to_end: SimpleQueue[int] = SimpleQueue()
    _note_signals(asked_to_end)
    logging.getLogger().addHandler(logging.NullHandler())  # py4j tells the root logger what it raises as well
    pipeline = _pipeline(args)
    kafka_config = _read(args.kafka_config) if args.kafka_config else ""
    topics.reach(args.bootstrap_servers)
    with session(f"kafkasse {args.name}", args.master) as spark, _checkpoint(args, spark) as checkpoint:
        spark.sparkContext.setLogLevel(args.log_level)
        _note_signals(asked_to_end)  # again, because PySpark has put a handler of its own there
        kafka = topics.settings(spark, kafka_config, args.bootstrap_servers)
        with running.started(spark, pipeline, kafka, checkpoint) as query:
            if running.await_running(spark, query, asked_to_end):
                say("kafkasse pipeline: ready")
                running.follow(query, asked_to_end)
    return 0


def _pipeline(args: argparse.Namespace) -> Pipeline:
    from kafkasse.pipelines.catalog import PIPELINES

    if args.name not in PIPELINES:
        raise CommandError(f"there is no pipeline {args.name}; there is: {', '.join(PIPELINES)}")
    usual = PIPELINES[args.name]
    return replace(usual, source=args.source or usual.source, sink=args.sink or usual.sink)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise CommandError(f"cannot read --kafka-config {file}: {error}") from error


@contextmanager
def _checkpoint(args: argparse.Namespace, spark: SparkSession) -> Iterator[str]:
    from kafkasse.pipelines.session import is_local

    if args.checkpoint:
        yield args.checkpoint
    elif is_local(str(spark.sparkContext.master)):
        with tempfile.TemporaryDirectory(prefix="kafkasse-checkpoint-", ignore_cleanup_errors=True) as directory:
            yield directory
    else:
        raise CommandError("a cluster needs a --checkpoint that all its machines see, such as hdfs://… or s3a://…")


def _note_signals(arrived: SimpleQueue[int]) -> None:
    """Ctrl-C and SIGTERM are noted, and looked for where it is safe to end.

    Raised as exceptions they would hit PySpark while it starts its JVM, which then nobody knows and nobody ends, or in
    the middle of a call to it. A queue, because its put() may be called by a signal handler, and an Event's set() not.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: arrived.put(number))
