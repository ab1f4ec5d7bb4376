"""The pipeline that archives topics, with a real broker and Spark: each committed record once, with all of its parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import gevent
import pytest

pytest.importorskip("pyarrow", reason="pip install pyarrow")

import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kafkasse.archive import parquet, with_archive
from kafkasse.archive.directory import RUN, ArchiveDirectory, NotAnArchive, TopicDirectory
from kafkasse.archive.maintenance import compact
from kafkasse.archive.manifest import Entry, InvalidManifest, Manifest
from kafkasse.errors import CommandError
from kafkasse.log import Log, Partition
from kafkasse.pipelines.archive import application, writer
from kafkasse.pipelines.archive.offsets import Available, KafkaOffsets, Seen, Truncated
from kafkasse.pipelines.archive.writer import ArchiveRange, Committed, Written, _of_segment, make_plan
from kafkasse.pipelines.kafka.admin import Admin
from kafkasse.pipelines.supervisor import Crashed, DependencyUnavailable, PipelineState
from kafkasse.tools.broker import EmbeddedBroker
from tests.history.scenario import Scenario, client_types, routes
from tests.kafka.logs import open_log
from tests.support.kafka import Cluster

DAY_MS = 86_400_000
START_MS = 20_000 * DAY_MS  # 2024-10-04
BATCHES = 20
SEED = 1
CLIENTS = (
    "from the start", "value", "envelope", "both", "timestamps", "compact", "filtered", "an ID per run", "personal", "lines",
)  # fmt: skip
DAYS = "2024-10-04", "2024-10-05", "2024-10-06"


class World:
    """A topic with two partitions, its archive, and a log that reads both."""

    def __init__(self, spark: SparkSession, broker: EmbeddedBroker, path: Path, topic: str) -> None:
        self.kafka = {"bootstrap.servers": broker.bootstrap_servers}
        self.spark = spark
        self.cluster = Cluster(broker.bootstrap_servers)
        self.topic = self.cluster.create(topic, 2, retention_ms="-1")
        root = ArchiveDirectory(path)
        root.create()
        with Admin(spark, self.kafka) as admin:
            (topic_id,) = admin.topic_ids([topic])
        self.directory = root.topic(topic, topic_id)
        self.log: Log = with_archive(open_log(broker.bootstrap_servers), str(path))
        self.log.describe([topic])

    def archive(self) -> Committed:
        return writer.archive(self.spark, self.kafka, self.directory)

    def send(self, *values: bytes | None, **rest: Any) -> None:
        self.cluster.send(self.topic, *values, timestamp_ms=START_MS, **rest)

    def read(self, log: Log, end: int, partition: int = 0) -> list[tuple[Any, ...]]:
        """Return the records that a client receives, from the first offset on."""
        records: list[tuple[Any, ...]] = []
        position = 0
        with closing(log.cursor({Partition(self.topic, partition): 0})) as cursor:
            while position < end:
                for batch in cursor.poll(1.0):
                    position = batch.next_offset
                    records += (
                        (record.offset, record.timestamp, record.key, record.value, [*record.headers])
                        for record in batch.records
                    )
        return records

    def close(self) -> None:
        self.log.close()
        self.cluster.close()


@pytest.fixture
def world(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path, fresh_name: str) -> Iterator[World]:
    with closing(World(spark, broker, tmp_path / "archive with a space", fresh_name)) as world:
        yield world


@pytest.mark.long
def test_clients_receive_the_same_records_from_the_archive(world, monkeypatch):
    """Tombstones, headers, aborted transactions, large records, restarts and compaction: then Kafka removes the records."""
    world.send(b"a", b"", None, key=b"k", headers=[("h", b"1"), ("h", b"")])
    world.cluster.transaction(world.topic, b"aborted", commit=False)
    world.cluster.transaction(world.topic, b"committed")
    world.send(*[bytes([65 + number]) * 400_000 for number in range(5)])
    world.send(*[bytes(3000)] * 2000)  # these bytes compress to almost nothing, but not in the memory of a client
    world.send(b"late")
    world.send(b"other", partition=1)
    first = world.archive()
    nothing_new = world.archive()
    sizes = [_largest_row_group(file) for file in _files(world)]
    world.send(b"b")
    with monkeypatch.context() as patched:
        patched.setattr(TopicDirectory, "commit", _killed)
        with pytest.raises(KeyboardInterrupt):
            world.archive()
    second = world.archive()
    compact(world.directory)
    (available,) = world.log.offset_ranges([Partition(world.topic, 0)]).values()
    expected = world.read(world.log.recent, available.end), world.read(world.log.recent, 1, partition=1)
    world.cluster.drop_before(world.topic, available.end)
    world.cluster.drop_before(world.topic, 1, partition=1)
    world.send(b"live")

    received = world.read(world.log, available.end), world.read(world.log, 1, partition=1)

    assert expected == received
    assert (2011, 0, 1) == (first.records, nothing_new.records, second.records)
    assert ([], 0) == ([*world.directory.read().holes()], world.directory.read().first(0))
    assert world.directory.read().paths == {str(file.relative_to(world.directory.path)) for file in _files(world)}
    assert max(sizes + [_largest_row_group(file) for file in _files(world)]) < 2 * parquet.ROW_GROUP_BYTES


def test_a_commit_may_contain_no_records(world):
    """The offsets of an aborted transaction and of markers. Kafka returns the aborted records in several answers."""
    world.send(b"a")
    world.archive()
    world.cluster.transaction(world.topic, *[bytes(60_000)] * 6, commit=False)

    assert Committed(0, 0, is_complete=True) == world.archive()
    assert [(0, 1, 1), (1, 8, 0)] == [(entry.start, entry.end, entry.records) for entry in world.directory.read()]


def _killed(*_: Any) -> None:
    raise KeyboardInterrupt


def _files(world: World) -> list[Path]:
    world.directory.remove_unlisted(min_age_s=-60)
    return list(world.directory.path.glob("day=*/*.parquet"))


def _largest_row_group(file: Path) -> int:
    metadata = pq.read_metadata(file)
    return max(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))


def test_clients_of_a_server_read_the_archive_then_kafka_then_live_records(spark, broker, fresh_name, tmp_path):
    """Clients with all ID types and wire formats, with filters and personal streams, which are cut and reconnect."""
    root = ArchiveDirectory(tmp_path / "archive")
    root.create()
    kafka = {"bootstrap.servers": broker.bootstrap_servers}
    with (
        closing(Cluster(broker.bootstrap_servers)) as cluster,
        closing(Scenario(cluster, fresh_name, tmp_path, SEED)) as scenario,
    ):
        routes_ = routes(scenario.topic, scenario.table)
        scenario.configure(archive=str(root.path), allowed_topics=["*"], idle_feed_timeout_s=0.2, routes=routes_)
        scenario.write(BATCHES, pause_s=0)
        with Admin(spark, kafka) as admin:
            (topic_id,) = admin.topic_ids([scenario.topic])
        directory = root.topic(scenario.topic, topic_id)
        writer.archive(spark, kafka, directory)
        scenario.write(5, pause_s=0, first=BATCHES)
        scenario.read()
        for partition, entries in directory.read().partitions.items():
            cluster.drop_before(scenario.topic, entries[-1].end * 2 // 3, partition)
        with scenario.servers([""]) as servers:
            types = [
                client_type
                for client_type in client_types(scenario.topic, scenario.table)
                if client_type.name in CLIENTS
            ]
            clients = [gevent.spawn(scenario.client, servers, client_type) for client_type in types]
            scenario.write(10, first=BATCHES + 5)
            scenario.end()
            histories = [client.get() for client in clients]
        reached = scenario.read()
        # The archive holds all that Kafka has removed.
        for known in scenario._watch.bounds.values():
            known[:] = [bounds._replace(first=0) for bounds in known]

        violations = scenario.violations(histories, reached)

    assert len(CLIENTS) == len(histories)
    assert [] == violations


# The plan, without Kafka and Spark.


class FakeOffsets:
    """A log of one partition: the epoch and the day of each record. Offsets that are not in the map have no record."""

    def __init__(self, records: dict[int, tuple[int, int]], end: int, start: int = 0) -> None:
        self.records = {
            offset: Seen(offset, epoch, START_MS + day * DAY_MS) for offset, (epoch, day) in records.items()
        }
        self.start, self.end = start, end

    def available(self) -> dict[int, Available]:
        return {0: Available(self.start, self.end)}

    def at_time(self, partition: int, timestamp_ms: int) -> Seen | None:
        return next((record for record in self.records.values() if record.timestamp >= timestamp_ms), None)

    def first(self, partition: int, start: int, end: int, epoch: int = -1) -> Seen | None:
        truncated = [
            record.offset for record in self.records.values() if record.epoch > epoch >= 0 and record.offset < start
        ]
        if truncated:
            raise Truncated(min(truncated))
        return next((record for record in self.records.values() if start <= record.offset < end), None)

    def last(self, partition: int, start: int, end: int) -> Seen | None:
        return next((record for record in reversed(self.records.values()) if start <= record.offset < end), None)

    def epoch_starts(self, partition: int, first: Seen, last: Seen) -> list[Seen]:
        starts = {
            record.epoch: record
            for record in reversed(self.records.values())
            if first.offset <= record.offset <= last.offset
        }
        return sorted(starts.values())


def plan(offsets: FakeOffsets, *archived: Entry) -> writer.Plan:
    return make_plan(Manifest("t", "id").append(archived), offsets)  # type: ignore[arg-type]


ARCHIVED = Entry(0, 0, 4, 0, DAYS[0], 0, 4, path="x")


@pytest.mark.parametrize(
    ("records", "end", "archived", "segments"),
    [
        # A segment has one epoch and one day. A record that arrives late belongs to the day of the newest record before it.
        # Markers belong to a segment, too.
        (
            {0: (0, 0), 1: (0, 0), 3: (1, 0), 4: (1, 1), 5: (1, 0), 7: (2, 2)},
            9,
            (),
            [(0, 3, 0, DAYS[0]), (3, 4, 1, DAYS[0]), (4, 7, 1, DAYS[1]), (7, 9, 2, DAYS[2])],
        ),
        # The day never moves back, also in the next commit.
        ({0: (0, 0), 1: (0, 1), 2: (0, 0)}, 3, [Entry(0, 0, 2, 0, DAYS[1])], [(2, 3, 0, DAYS[1])]),
        # A timestamp in the future belongs to today: it does not affect the days of all later records.
        ({0: (0, 0), 1: (0, 100_000), 2: (0, 0)}, 3, (), [(0, 3, 0, DAYS[0])]),
        # The log was truncated: the records that it has lost leave the archive, and those in their place enter it.
        ({0: (0, 0), 1: (0, 0), 2: (1, 0), 3: (1, 0), 4: (1, 0)}, 5, [ARCHIVED], [(2, 5, 1, DAYS[0])]),
        # The log was truncated, and nothing has been written since.
        ({0: (0, 0)}, 1, [ARCHIVED], []),
    ],
    ids=["epochs and days", "next commit", "future", "truncated", "shorter"],
)
def test_the_plan_continues_where_the_archive_ends(records, end, archived, segments):
    made = plan(FakeOffsets(records, end), *archived)

    assert [ArchiveRange(0, *segment) for segment in segments] == [*made.segments]
    if archived:
        assert made.manifest.end(0) == (segments[0][0] if segments else end)


def test_offsets_without_records_are_archived():
    """Transaction markers are accounted for, so that they are not a hole."""
    assert [(0, 0, 2)] == [segment[:3] for segment in plan(FakeOffsets({}, end=2)).segments]


def test_no_answer_of_kafka_does_not_mean_no_records():
    """A broker that pauses for longer than the timeout has not proved that the offsets are those of markers."""
    offsets = KafkaOffsets.__new__(KafkaOffsets)
    offsets._jvm, offsets._consumer, offsets._topic = MagicMock(), MagicMock(), "t"
    offsets._consumer.poll.return_value.records.return_value.isEmpty.return_value = True
    offsets._consumer.position.return_value = 3

    with pytest.raises(DependencyUnavailable, match="Kafka does not return the records of t/0"):
        offsets.first(0, 3, 5)


def test_records_that_kafka_removed_before_they_were_archived_are_a_hole():
    """The archive continues with Kafka's first record, and the commit states how many offsets are lost."""
    made = plan(FakeOffsets({4: (0, 0)}, end=5, start=4), Entry(0, 0, 2, 0, DAYS[0]))

    assert ([ArchiveRange(0, 4, 5, 0, DAYS[0])], 2) == (made.segments, writer._lost(made))


@pytest.mark.parametrize("written", [[], [(0, 1)], [(1, 2)]])
def test_files_without_the_first_or_the_last_record_are_not_committed(written):
    """Files that Spark did not complete, or wrote elsewhere, must not become a commit."""
    made = plan(FakeOffsets(dict.fromkeys(range(3), (0, 0)), end=3))
    (segment,) = made.segments
    files = {segment: [Written(first, last, last - first + 1, 0, Path()) for first, last in written]}

    with pytest.raises(Crashed, match="Spark did not write all records of partition 0"):
        writer._check_complete(made, files)


@pytest.mark.parametrize(("count", "complete"), [(3, True), (4, False)])
def test_a_commit_has_a_limited_size(count, complete, monkeypatch):
    """A long topic is archived in several commits."""
    monkeypatch.setattr(writer, "MAX_COMMIT_OFFSETS", 3)
    made = plan(FakeOffsets(dict.fromkeys(range(count), (0, 0)), count))

    assert (3, complete) == (made.segments[-1].end, made.is_complete)


def test_a_commit_can_have_many_segments(spark):
    """Each segment of a quiet topic has the records of one day, so its first commit can have hundreds for each partition."""
    segments = [ArchiveRange(partition, day, day + 1, 7, DAYS[0]) for partition in range(2) for day in range(400)]
    records = spark.createDataFrame([(1, 398), (0, 0), (1, 1000)], "partition int, offset bigint").coalesce(1)

    rows = records.select(*(_of_segment(segments, name) for name in ("epoch", "start"))).collect()

    assert [(7, 398), (7, 0), (7, 399)] == [tuple(row) for row in rows]


class FakeStop:
    """A stop request after a number of calls."""

    def __init__(self, calls: int) -> None:
        self.calls = calls

    def wait(self, _: float) -> bool:
        self.calls -= 1
        return self.calls < 0


def application_of(monkeypatch, path: Path, *topics: str, once: bool = True) -> application._ArchiveApplication:
    """Return an application for a cluster with the topics a1, a2 and a3."""
    admin = MagicMock()
    admin.return_value.__enter__.return_value = MagicMock(
        **{"names.return_value": {"a3", "a2", "a1"}, "topic_ids": list}
    )
    monkeypatch.setattr(application, "Admin", admin)
    options = application.ArchiveOptions("localhost:9092", path, topics, 60, once)
    return application._ArchiveApplication(options, MagicMock(), FakeStop(20), MagicMock())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "once", "expected"),
    [
        (DependencyUnavailable("no leader"), False, DependencyUnavailable("no leader")),
        (InvalidManifest("damaged"), True, InvalidManifest("damaged")),
        # A crash loop would end the archiving of the other topics, too.
        (InvalidManifest("damaged"), False, DependencyUnavailable("a topic cannot be archived: damaged")),
        (Crashed("truncated"), False, DependencyUnavailable("a topic cannot be archived: truncated")),
    ],
)
def test_a_topic_that_cannot_be_archived_does_not_stop_the_others(error, once, expected, tmp_path, monkeypatch, caplog):
    """The other topics are archived completely before the attempt ends."""
    commits = [error, Committed(1, 0, is_complete=False), Committed(0, 0, is_complete=True)]
    commits += [error, Committed(1, 0, is_complete=True), Committed(0, 0, is_complete=True)]
    monkeypatch.setattr(application, "archive", MagicMock(side_effect=commits))

    with pytest.raises(type(expected), match=str(expected)):
        application_of(monkeypatch, tmp_path, "a*", once=once)._archive_all(MagicMock(), {})

    assert 2 == caplog.text.count(f"cannot archive the topic a1: {error}")


def test_a_pattern_without_topics_is_logged_once(tmp_path, monkeypatch, caplog):
    """It may be a typing error."""
    archive = application_of(monkeypatch, tmp_path, "oders*", "a1", "a[12]")

    names = [[name for name, _ in archive._topics(MagicMock(), {})] for _ in range(2)]

    assert [["a1", "a2"]] * 2 == names
    assert 1 == caplog.text.count("no topic matches the pattern oders*")


class ShrinkingCluster:
    """A cluster from which another process deletes the topic a1 after some requests."""

    def __init__(self, requests: int) -> None:
        self._requests = requests

    def names(self) -> set[str]:
        return {"a1", "a2"} if self._is_there() else {"a2"}

    def topic_ids(self, topics: list[str]) -> list[str]:
        if "a1" in topics and not self._is_there():
            raise CommandError("the topic a1 does not exist")
        return topics

    def archive(self, spark: Any, kafka: Any, directory: TopicDirectory) -> Committed:
        if directory.topic == "a1" and not self._is_there():
            raise PySparkException("UnknownTopicOrPartitionException")
        return Committed(1, 0, is_complete=True)

    def _is_there(self) -> bool:
        self._requests -= 1
        return self._requests >= 0


@pytest.mark.parametrize("requests", [1, 2])
def test_only_the_deletion_of_a_named_topic_ends_the_archive(requests, tmp_path, monkeypatch):
    def run(*topics: str) -> list[str]:
        archive, cluster = application_of(monkeypatch, tmp_path, *topics), ShrinkingCluster(requests)
        application.Admin.return_value.__enter__.return_value = cluster  # type: ignore[attr-defined]
        commits = MagicMock(side_effect=cluster.archive)
        monkeypatch.setattr(application, "archive", commits)
        archive._archive_all(MagicMock(), {})
        return [call.args[2].topic for call in commits.call_args_list]

    assert "a2" in run("a*")
    with pytest.raises((CommandError, PySparkException)):
        run("a*", "a1")


def new_archive(path: Path) -> ArchiveDirectory:
    archive = ArchiveDirectory(path)
    archive.create()
    return archive


def test_a_lost_log_is_logged(tmp_path, monkeypatch, caplog):
    """A broker that has lost its disk returns an empty log. The archive then removes its own records of the partition."""
    directory = new_archive(tmp_path).topic("t", "id")
    directory.commit(directory.read().append([ARCHIVED]))
    offsets = MagicMock()
    offsets.return_value.__enter__.return_value = FakeOffsets({}, end=0)
    monkeypatch.setattr(writer, "KafkaOffsets", offsets)

    writer.archive(MagicMock(), {}, directory)

    assert [] == [*directory.read()]
    assert (
        "The log of t/0 was truncated or lost, so the archive no longer contains its former offsets 0 to 3."
        in caplog.text
    )


def test_a_file_has_two_links_until_it_is_committed(tmp_path):
    """erase() removes a file that no commit lists, unless it has two links: the pipeline is about to commit it."""
    directory = new_archive(tmp_path).topic("t", "id")
    with directory.staging_for(RUN) as staging:
        (staging / "file.parquet").write_bytes(b"PAR1")
        segment, written = ArchiveRange(0, 0, 1, 0, DAYS[0]), Written(0, 0, 1, 0, staging / "file.parquet")
        (entry,) = writer._add_files(directory, segment, [written])
        added = (directory.path / entry.path).stat()
    committed = (directory.path / entry.path).stat()

    assert (2, 1) == (added.st_nlink, committed.st_nlink)


def test_a_properties_file_that_java_rejects_is_no_traceback(tmp_path, monkeypatch):
    archive = application_of(monkeypatch, tmp_path)
    monkeypatch.setattr(
        application, "topics", MagicMock(**{"client_settings.side_effect": PySparkException("malformed")})
    )
    monkeypatch.setattr(archive, "stop", MagicMock(**{"wait.return_value": False}))

    with pytest.raises(Crashed, match="malformed"):
        archive.attempt()


def test_the_reader_of_stdout_may_have_gone(tmp_path, monkeypatch):
    """`ready` is printed again after each restart."""
    archive = application_of(monkeypatch, tmp_path)
    archive.ready.side_effect = BrokenPipeError

    archive.report(PipelineState.RUNNING, "")

    archive.ready.assert_called_once()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError("disk full"), Crashed("the archive cannot be changed: disk full")),
        (NotAnArchive("not mounted"), Crashed("the archive cannot be changed: not mounted")),
        (PySparkException("executor lost"), Crashed("Spark failed: executor lost")),
        (ConnectionResetError("JVM"), ConnectionResetError("JVM")),
    ],
)
def test_an_error_is_a_crash_unless_the_jvm_has_ended(error, expected, tmp_path, monkeypatch):
    """session() reports that the JVM exited. The archive must not report this as an error of the file system."""
    monkeypatch.setattr(application, "topics", MagicMock())
    monkeypatch.setattr(application._ArchiveApplication, "_archive_all", MagicMock(side_effect=error))
    options = application.ArchiveOptions("localhost:9092", tmp_path, ["t"], 60)
    stop = MagicMock(**{"wait.return_value": False})

    with pytest.raises(type(expected), match=str(expected)):
        application._ArchiveApplication(options, MagicMock(), stop, print).attempt()
