"""`kafkasse broker`: run the embedded broker in the foreground."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

from kafkasse.commands import options, stop_at_signals
from kafkasse.errors import CommandError
from kafkasse.tools.broker.embedded import EmbeddedBroker
from kafkasse.tools.java import jars
from kafkasse.tools.progress import waiting

EPILOG = """\b
Example:
  kafkasse broker --dir kafka-data
"""


@click.command(epilog=EPILOG)
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    default=9092,
    show_default=True,
    help="The port on 127.0.0.1. 0 means any free port.",
)
@click.option(
    "--dir",
    "directory",
    metavar="DIR",
    type=click.Path(),
    callback=options.not_empty,
    help="Keep the data in this directory. Without it, the data is deleted when the broker stops.",
)
def command(port: int, directory: str | None) -> None:
    """Run a Kafka broker for development.

    It is a real Apache Kafka broker that listens on 127.0.0.1 without authentication. Its controller uses another port
    that is free. Ctrl-C or SIGTERM stops it.
    """
    stop_at_signals()
    jars.fetch("kafka")  # here, because it shows its own progress
    with ExitStack() as running:
        with waiting("starting Kafka"):
            broker = running.enter_context(EmbeddedBroker(port, Path(directory) if directory else None))
        click.echo(f"kafkasse broker: ready at {broker.bootstrap_servers}")
        data = Path(directory).absolute() if directory else "deleted when the broker stops"
        click.echo(f"Data: {data}. Press Ctrl-C to stop.")
        code = broker.wait()
    raise CommandError(f"the broker exited unexpectedly (exit code {code})")
