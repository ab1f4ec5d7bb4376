"""`kafkasse demo`: stream the countries of a CSV file through Kafka, Spark and the web server to a web page.

Everything runs on this machine. Each part is another kafkasse command, in a child process with its own log file. This module
starts the parts in order, prints their addresses, and stops all of them, even if one of them fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from math import inf
from pathlib import Path

import click
from kafka import KafkaAdminClient

from kafkasse.commands import options, stop_at_signals
from kafkasse.commands.kafka_clients import silence_kafka_python
from kafkasse.errors import CommandError
from kafkasse.tools.broker.embedded import HOST, EmbeddedBroker, last_lines, require_free
from kafkasse.tools.java import jars
from kafkasse.tools.supervised_process import SupervisedProcess

DATA = Path(__file__).parents[1] / "assets/data"
COUNTRIES = DATA / "countries.csv"
CONFIG = DATA / "demo.yaml"
STATUS_TOPIC = "_pipelines"
TOPICS = {
    "countries": {"num_partitions": 1},
    "topn": {"num_partitions": 1, "configs": {"cleanup.policy": "compact"}},
    STATUS_TOPIC: {"num_partitions": 1, "configs": {"cleanup.policy": "compact"}},
}
PIPELINE_READY = "kafkasse pipeline: ready"
READY_TIMEOUT_S = 120.0
HEALTH_TIMEOUT_S = 1.0
CHECK_INTERVAL_S = 0.1
STOP_TIMEOUT_S = 15.0
# The child processes inherit only INHERITED_SETTINGS of the user's settings. The others may point to another Kafka.
SETTING_PREFIXES = ("KAFKASSE_", "KAFKA_")
INHERITED_SETTINGS = ("KAFKASSE_CACHE_DIR", "KAFKASSE_IVY_SETTINGS", "KAFKASSE_CORS_ORIGINS")

STOPPED = "\nEverything has stopped. The demo's data is deleted."
EPILOG = """\b
Example:
  kafkasse demo --port 8080
"""


@click.command(epilog=EPILOG)
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(1, 65535),
    default=6917,
    show_default=True,
    help="The port of the web page.",
)
@click.option(
    "--rate",
    metavar="R",
    type=options.Number(min=1e-6),
    default=8.0,  # slow enough to watch
    show_default=True,
    help="Countries loaded per second.",
)
def command(port: int, rate: float) -> None:
    """Try everything: Kafka, Spark and a live web page on this machine.

    The demo loads countries into Kafka, Spark keeps the three largest of each continent, and the page shows them live. The
    first run downloads the jars of Kafka and Spark. Ctrl-C stops everything and deletes the data.
    """
    silence_kafka_python()
    stop_at_signals()
    require_free(port)
    try:
        for group in ("kafka", "spark-kafka"):
            jars.fetch(group)
        click.echo("Starting Kafka ...")
        with EmbeddedBroker() as broker:
            with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as admin:
                admin.create_topics(TOPICS, wait_for_metadata=True)
            with Processes(broker) as processes:
                _run(processes, port, rate)
    except KeyboardInterrupt:
        click.echo(STOPPED)  # Ctrl-C is the usual end, so it is not a failure
    except SystemExit:
        click.echo(STOPPED)
        raise


def _run(processes: Processes, port: int, rate: float) -> None:
    """Run the demo until Ctrl-C, or raise CommandError if a process fails."""
    click.echo("Starting Spark and the web server ...")
    pipeline = processes.start("pipeline", "pipeline", "run", "topn", "--status-topic", STATUS_TOPIC)
    processes.start("server", "serve", "--bind", f"{HOST}:{port}", "--config", str(CONFIG))
    processes.wait_until(lambda: _is_healthy(port))
    click.echo(_overview(processes, port))
    processes.wait_until(lambda: PIPELINE_READY in pipeline.output())
    click.echo(f"Spark is ready. Loading {rate:g} countries per second:")
    options = "--topic", "countries", "--key", "code", "--rate", str(rate)
    load = processes.start("load", "load", str(COUNTRIES), *options, exits=True)
    processes.wait_until(load.process.ended, timeout_s=inf)
    load.check()
    click.echo(f"{load.output().splitlines()[0]}. The page stays available until you press Ctrl-C.")
    processes.wait_until(lambda: False, timeout_s=inf)


def _overview(processes: Processes, port: int) -> str:
    url = f"http://{HOST}:{port}"
    return f"""
  Kafka       {processes.broker.bootstrap_servers}, with the topics countries and topn
  Spark       reads countries, writes the three largest countries of each continent to topn
  Web server  {url}, streams both topics as Server-Sent Events
  Logs        {processes.logs} (deleted at the end)

  Open        {url}/-/demo, or {url}/ for the console
  or run      curl -N {url}/topn/updates
              curl -N {url}/countries
  Press Ctrl-C to stop everything.
"""


def _is_healthy(port: int) -> bool:
    connection = HTTPConnection(HOST, port, timeout=HEALTH_TIMEOUT_S)
    try:
        connection.request("GET", "/-/health")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


class _Part:
    """A running kafkasse command and its log file. If `exits` is true, the command exits when it has finished its work."""

    def __init__(self, name: str, process: SupervisedProcess, log: Path, *, exits: bool) -> None:
        self.name, self.process, self._log, self._exits = name, process, log, exits

    def output(self) -> str:
        """Return the log so far."""
        return self._log.read_text(errors="replace")

    def check(self) -> None:
        """Raise CommandError if the process has failed, or has exited although it should run."""
        if not self.process.ended():
            return
        code = self.process.wait()
        if code or not self._exits:
            raise CommandError(
                f"the {self.name} has stopped (exit code {code}). The end of its log:\n{last_lines(self.output())}"
            )


class Processes:
    """The child processes that run next to `broker`. Leaving the `with` block stops them."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        self._started: list[_Part] = []
        self._environ = {
            name: value
            for name, value in os.environ.items()
            if name in INHERITED_SETTINGS or not name.startswith(SETTING_PREFIXES)
        }

    def __enter__(self) -> Processes:
        self._directory = tempfile.TemporaryDirectory(prefix="kafkasse-demo-", ignore_cleanup_errors=True)
        self.logs = Path(self._directory.name)
        # TMPDIR puts the temporary files of the processes here, so that they are deleted even if a process is killed.
        self._environ |= {"KAFKASSE_BOOTSTRAP_SERVERS": self.broker.bootstrap_servers, "TMPDIR": str(self.logs)}
        return self

    def __exit__(self, *_: object) -> None:
        for part in self._started:
            part.process.terminate()
        for part in self._started:
            part.process.stop(STOP_TIMEOUT_S)
        self._directory.cleanup()

    def start(self, name: str, *args: str, exits: bool = False) -> _Part:
        """Start `kafkasse` with `args`. If `exits` is true, the command writes its progress to our stderr."""
        log = self.logs / f"{name}.log"
        with log.open("wb") as output:
            process = SupervisedProcess(
                [sys.executable, "-m", "kafkasse", *args],
                scratch=str(self.logs),
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=None if exits else output,
            )
        self._started.append(_Part(name, process, log, exits=exits))
        return self._started[-1]

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until `condition()` is true. Raise CommandError if a process or the broker stops, or at the timeout."""
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            for part in self._started:
                part.check()
            if self.broker.ended():
                raise CommandError(f"the broker has stopped. The end of its log:\n{last_lines(self.broker.log())}")
            if time.monotonic() > deadline_s:
                raise CommandError(f"the demo was not ready after {timeout_s:.0f} s. See the logs in {self.logs}.")
            time.sleep(CHECK_INTERVAL_S)
