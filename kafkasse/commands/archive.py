"""`kafkasse archive`: archive topics to Parquet files, and maintain the archive.

PySpark and pyarrow are imported only when a command runs, so that `--help` works without them.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kafkasse.commands import options
from kafkasse.errors import CommandError
from kafkasse.tools.progress import Progress, waiting

if TYPE_CHECKING:
    from kafkasse.archive.directory import TopicDirectory

EPILOG = """\b
Example:
  kafkasse archive run /srv/kafka-archive --topic orders --topic "events.*" --bootstrap-servers localhost:9092
  kafkasse archive status /srv/kafka-archive
"""
DIRECTORY = click.argument("directory", type=click.Path(path_type=Path))
Work = Callable[["TopicDirectory", Callable[[int, int], None]], int]
TOPIC = click.option("--topic", metavar="TOPIC", help="Only this topic. The default is all topics of the archive.")


@click.group(epilog=EPILOG)
def command() -> None:
    """Keep records for longer than Kafka does. Clients read them as if Kafka still had them."""


@command.command()
@DIRECTORY
@click.option(
    "--topic", "topics", metavar="TOPIC", multiple=True, required=True, help="A topic, or a pattern. Repeatable."
)
@options.BOOTSTRAP_SERVERS
@options.KAFKA_CONFIG
@click.option(
    "--interval",
    "interval_s",
    type=options.Number(min=1),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="How often to commit. Each commit adds a file for each partition with new records.",
)
@click.option("--once", is_flag=True, help="End after archiving the records that the topics contain now.")
@click.option("--master", metavar="URL", help="Where Spark runs: local[16] (the default) or spark://...")
@options.LOG_LEVEL
def run(kafka_config: Path | None, **of_application: Any) -> None:
    """Archive topics to DIRECTORY until Ctrl-C or SIGTERM.

    The command prints "kafkasse archive: ready" when Spark is running. It continues after the last offset in the archive, so
    a restart neither loses nor repeats a record. Do not archive a topic with two processes.
    """
    from kafkasse.pipelines.supervisor import StopRequests

    stop = StopRequests()
    stop.install()  # before PySpark is imported, which takes a second

    from kafkasse.pipelines.archive import application

    options.log_to_stderr()
    given = application.ArchiveOptions(properties=options.client_properties(kafka_config), **of_application)
    application.run(given, stop, lambda: click.echo("kafkasse archive: ready"))
    if stop.interrupted:
        raise click.Abort


@command.command()
@DIRECTORY
@TOPIC
def compact(directory: Path, topic: str | None) -> None:
    """Merge the small files in DIRECTORY. Clients can read the archive meanwhile, and `archive run` can write to it."""
    from kafkasse.archive import maintenance

    _change(_topics(directory, topic), "compacting", maintenance.compact, "fewer files")


@command.command()
@DIRECTORY
@click.option("--topic", metavar="TOPIC", required=True, help="The topic of the key.")
@click.option("--key", metavar="TEXT", help="The key, in UTF-8.")
@click.option("--key-base64", metavar="BASE64", help="The key, if it is not text.")
def erase(directory: Path, topic: str, key: str | None, key_base64: str | None) -> None:
    """Remove all records of a key from DIRECTORY.

    The command rewrites each file that contains the key. Clients skip the erased offsets and receive no gap event for them.
    Remove the key from Kafka first: records that are archived later are not erased.
    """
    from kafkasse.archive import maintenance

    wanted = _key(key, key_base64)
    _change(
        _topics(directory, topic),
        "erasing",
        lambda of_topic, show: maintenance.erase(of_topic, wanted, show),
        "records erased",
    )


def _key(key: str | None, key_base64: str | None) -> bytes:
    if (key is None) == (key_base64 is None):
        raise click.UsageError("pass either --key or --key-base64.")
    try:
        return key.encode() if key is not None else base64.b64decode(key_base64 or "", validate=True)
    except binascii.Error as error:
        raise click.BadParameter(f"it is not Base64: {error}", param_hint="--key-base64") from error


@dataclass(frozen=True)
class TopicStatus:
    """The contents of an archive for one topic. A hole is `[partition, start, end]`."""

    topic: str
    topic_id: str
    partitions: int
    files: int
    bytes: int
    records: int
    first_day: str
    last_day: str
    ends: dict[int, int]
    holes: list[tuple[int, int, int]]

    @classmethod
    def of(cls, directory: TopicDirectory) -> TopicStatus:
        """Read the newest commit of a topic."""
        manifest = directory.read()
        entries = [*manifest]
        days = [entry.day for entry in entries] or [""]
        return cls(
            directory.topic,
            directory.topic_id,
            len(manifest.partitions),
            len(manifest.paths),
            sum(entry.size for entry in entries),
            sum(entry.records for entry in entries),
            min(days),
            max(days),
            {partition: entries[-1].end for partition, entries in manifest.partitions.items()},
            [*manifest.holes()],
        )

    def lines(self) -> Iterator[str]:
        """Yield the status as text."""
        days = f"{self.first_day} to {self.last_day}" if self.records else "no records"
        yield f"{self.topic} ({self.topic_id}): {days}"
        yield f"  {self.records:,} records, {self.files:,} files, {self.bytes:,} bytes, {self.partitions} partitions"
        for partition, start, end in self.holes:
            yield f"  partition {partition} lacks the offsets {start} to {end - 1}, which Kafka removed first"


@command.command()
@DIRECTORY
@TOPIC
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def status(directory: Path, topic: str | None, as_json: bool) -> None:
    """Show the records that DIRECTORY contains of each topic, and the offsets that are missing."""

    def show(of_topic: TopicDirectory) -> None:
        with _readable(of_topic), waiting(f"reading the archive of {of_topic.topic}"):
            read = TopicStatus.of(of_topic)
        click.echo(json.dumps(asdict(read)) if as_json else "\n".join(read.lines()))

    _for_each(_topics(directory, topic), show)


def _topics(directory: Path, topic: str | None) -> Iterable[TopicDirectory]:
    from kafkasse.archive.directory import ArchiveDirectory, NotAnArchive

    try:
        topics = [of_topic for of_topic in ArchiveDirectory(directory).topics() if topic in (None, of_topic.topic)]
    except NotAnArchive as error:
        raise CommandError(str(error)) from error
    if not topics and topic is not None:
        raise CommandError(f"{directory} does not contain the topic {topic}")
    return topics


@contextmanager
def _readable(directory: TopicDirectory) -> Iterator[None]:
    """Raise CommandError instead of the errors of an archive that is damaged, or that another process changes."""
    from kafkasse.archive.directory import Conflict
    from kafkasse.archive.manifest import InvalidManifest

    try:
        yield
    except (InvalidManifest, OSError) as error:
        raise CommandError(f"the archive of {directory.topic} cannot be read or written: {error}") from error
    except Conflict as error:
        raise CommandError(str(error)) from error


def _change(topics: Iterable[TopicDirectory], verb: str, work: Work, unit: str) -> None:
    """Change the archive of each topic, and show the results."""
    _for_each(topics, lambda topic: click.echo(f"{topic.topic} ({topic.topic_id}): {_run(topic, verb, work)} {unit}"))


def _for_each(topics: Iterable[TopicDirectory], act: Callable[[TopicDirectory], None]) -> None:
    """Call `act` for each topic, even after errors. Raise these at the end."""
    errors = []
    for topic in topics:
        try:
            act(topic)
        except CommandError as error:
            errors.append(str(error))
    if errors:
        raise CommandError("; ".join(errors))


def _run(directory: TopicDirectory, verb: str, work: Work) -> int:
    from kafkasse.archive.parquet import DamagedFile

    with _readable(directory), Progress(f"{verb} {directory.topic}", 100) as progress:
        try:
            return work(directory, lambda done, total: progress.show(100 * done // total, f"{done} of {total}"))
        except DamagedFile as error:
            raise CommandError(f"{error}; restore the file from a backup") from error
