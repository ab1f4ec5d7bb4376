"""`kafkasse demo`: countries from a file through Kafka, Spark and the web server onto a page, on this machine alone.

Everything here is one of kafkasse's own commands, run as a child process with a log of its own; this module only starts
them in the right order, says what runs where, and ends them all, whatever happens. It knows none of their insides.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from math import inf
from pathlib import Path

import click
from kafka import KafkaAdminClient

from kafkasse.broker.embedded import HOST, EmbeddedBroker, last_lines, require_free
from kafkasse.broker.keeper import Kept
from kafkasse.errors import CommandError
from kafkasse.java import jars

COUNTRIES = Path(__file__).parents[1] / "data" / "countries.csv"
TOPICS = {
    "countries": {"num_partitions": 1},
    "topn": {"num_partitions": 1, "configs": {"cleanup.policy": "compact"}},
}
SETTINGS = {
    "allowed_topics": list(TOPICS),
    "pages": True,
    "routes": {"topn": {"path": "/topn/updates", "topics": ["topn"], "format": "value", "start": "snapshot"}},
}
PIPELINE_READY = "kafkasse pipeline: ready"
READY_TIMEOUT_S = 120.0
ANSWER_TIMEOUT_S = 1.0
LOOK_AGAIN_AFTER_S = 0.1
STOP_TIMEOUT_S = 15.0
EPILOG = """\b
Example:
  kafkasse demo --port 8080
"""
OUR_VARIABLES = ("KAFKASSE_", "KAFKA_")  # they say where somebody's real Kafka is; the demo has its own
KEPT_VARIABLES = ("KAFKASSE_CACHE_DIR", "KAFKASSE_IVY_SETTINGS")


@click.command(epilog=EPILOG)
@click.option(
    "--port", type=click.IntRange(1, 65535), default=6917, show_default=True, help="The port of the web page."
)
@click.option(
    "--rate",
    metavar="R",
    type=click.FloatRange(min=0, min_open=True),
    default=8.0,  # slow enough to watch
    show_default=True,
    help="Countries loaded per second.",
)
def command(port: int, rate: float) -> None:
    """Run the demo until Ctrl-C or SIGTERM."""
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    require_free(port)
    try:
        for group in ("kafka", "spark-kafka"):
            jars.fetch(group)
        click.echo("Starting Kafka ...")
        with EmbeddedBroker() as broker:
            _create_topics(broker.bootstrap_servers)
            with _Children(broker) as children:
                _play(children, port, rate)
    except KeyboardInterrupt:
        click.echo("\nAll ended; nothing is left.")


def _create_topics(bootstrap_servers: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap_servers)
    admin.create_topics(TOPICS, wait_for_metadata=True)
    admin.close()


def _play(children: _Children, port: int, rate: float) -> None:
    """The demo itself. Returns only by Ctrl-C, or by an error when a child has died."""
    click.echo("Starting Spark and the web server ...")
    pipeline = children.start("pipeline", "pipeline", "run", "topn")
    settings = children.logs / "kafkasse.yaml"
    settings.write_text(json.dumps(SETTINGS))  # JSON is YAML too
    children.start("server", "serve", "--bind", f"{HOST}:{port}", "--config", str(settings))
    children.wait_until(lambda: _answers(port))
    click.echo(_what_runs_where(children, port))
    children.wait_until(lambda: PIPELINE_READY in pipeline.said())
    click.echo(f"Spark is ready. Loading countries, {rate:g} a second:")
    words = str(COUNTRIES), "--topic", "countries", "--key", "code", "--rate", str(rate)
    load = children.start("load", "load", *words, ends=True)
    children.wait_until(load.process.ended, timeout_s=inf)
    load.check()
    click.echo(f"{load.said().splitlines()[0]}. The page stays until Ctrl-C.")
    children.wait_until(lambda: False, timeout_s=inf)


def _what_runs_where(children: _Children, port: int) -> str:
    url = f"http://{HOST}:{port}"
    return f"""
  Kafka       {children.broker.bootstrap_servers}, with the topics countries and topn
  Spark       keeps the three largest countries of each continent: countries -> topn
  Web server  {url}, streams the topics as Server-Sent Events
  Logs        {children.logs} (gone at the end, like all data)

  Open        {url}/
  or run      curl -N {url}/topn/updates
              curl -N {url}/countries
  Ctrl-C ends everything.
"""


def _answers(port: int) -> bool:
    connection = HTTPConnection(HOST, port, timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request("GET", "/-/health")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


class _Child:
    """One of our commands at work, and the file with all that it says."""

    def __init__(self, name: str, process: Kept, log: Path, *, ends: bool) -> None:
        self.name, self.process, self._log, self._ends = name, process, log, ends

    def said(self) -> str:
        """Its log so far."""
        return self._log.read_text(errors="replace")

    def check(self) -> None:
        """Raise CommandError if it has ended and should not have."""
        if self.process.ended() and (code := self.process.wait() or not self._ends):
            said = last_lines(self.said())
            raise CommandError(f"the {self.name} has ended (exit code {int(code)}); its last lines:\n{said}")


class _Children:
    """All that runs beside the broker, for as long as a `with` block lasts."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        self._running: list[_Child] = []
        self._environ = {
            name: value
            for name, value in os.environ.items()
            if name in KEPT_VARIABLES or not name.startswith(OUR_VARIABLES)
        }

    def __enter__(self) -> _Children:
        self._directory = tempfile.TemporaryDirectory(prefix="kafkasse-demo-", ignore_cleanup_errors=True)
        self.logs = Path(self._directory.name)
        # Temporary files of theirs go with the directory, even those of one that was killed.
        self._environ |= {"KAFKASSE_BOOTSTRAP_SERVERS": self.broker.bootstrap_servers, "TMPDIR": str(self.logs)}
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._running:
            child.process.terminate()
        for child in self._running:
            child.process.stop(STOP_TIMEOUT_S)
        self._directory.cleanup()

    def start(self, name: str, *words: str, ends: bool = False) -> _Child:
        """Start `kafkasse` with these words. One that ends by itself shows its progress on our own stderr."""
        log = self.logs / f"{name}.log"
        with log.open("wb") as out:
            process = Kept(
                [sys.executable, "-m", "kafkasse", *words],
                scratch=str(self.logs),
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=None if ends else out,
            )
        self._running.append(_Child(name, process, log, ends=ends))
        return self._running[-1]

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait for that, while all of them live."""
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            for child in self._running:
                child.check()
            if self.broker.ended():
                raise CommandError(f"the broker has ended; its last lines:\n{last_lines(self.broker.log())}")
            if time.monotonic() > deadline_s:
                raise CommandError(f"not ready after {timeout_s:.0f} s: see the logs in {self.logs}")
            time.sleep(LOOK_AGAIN_AFTER_S)
