"""A log with an archive: readers receive the records that Kafka has removed from the archive, then Kafka's."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent.event import Event

pytest.importorskip("pyarrow", reason="pip install pyarrow")

from kafkasse.archive import log as archive_log
from kafkasse.archive import parquet, with_archive
from kafkasse.archive.directory import MARKER, ArchiveDirectory
from kafkasse.archive.log import ArchivedLog
from kafkasse.errors import ArchiveUnavailable, KafkaUnavailable
from kafkasse.log import UNKNOWN_EPOCH, Cursor, OffsetAndEpoch, OffsetOutOfRange, OffsetRange, Partition, Record
from kafkasse.log.memory import MemoryLog
from tests.support.archive import archive, topic_directory, write_file
from tests.support.waiting import TIMEOUT_S

AT = Partition("t", 0)
MAX_POLLS = 20


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> MemoryLog:
    """A topic with ten records. Files have two records in each row group, and unavailable files are read again at once."""
    monkeypatch.setattr(parquet, "ROW_GROUP_BYTES", 150)
    monkeypatch.setattr(archive_log, "RETRY_S", 0.0)
    monkeypatch.setattr(archive_log, "MAX_LOOKUP_S", TIMEOUT_S)
    log = MemoryLog()
    create(log)
    return log


def create(log: MemoryLog) -> None:
    log.create("t")
    log.elect_leader("t")
    append(log, 10)


def append(log: MemoryLog, count: int) -> None:
    for number in range(count):
        log.append("t", b'{"n":%d}' % number, key=b"k%d" % number, timestamp=1000 + number, headers=[("h", None)])


@pytest.fixture
def log(tmp_path: Path, kafka: MemoryLog) -> Iterator[ArchivedLog]:
    opened = with_archive(kafka, str(tmp_path))
    assert isinstance(opened, ArchivedLog)
    with closing(opened):
        opened.describe(["t"])
        yield opened


@pytest.fixture
def archived(tmp_path: Path, kafka: MemoryLog) -> Path:
    """The directory of the topic. The offsets [0, 8) are archived in two files, and Kafka holds [6, 10)."""
    archive(tmp_path, kafka, "t", end=4)
    archive(tmp_path, kafka, "t", end=8)
    kafka.drop_before("t", 6)
    return topic_directory(tmp_path, kafka, "t").path


def total(log: ArchivedLog, metric: str, reason: str = "") -> float:
    return next(total.value for total in log.totals() if (metric, reason) == (total.metric, total.reason))


def files(archived: Path) -> list[Path]:
    return sorted(archived.glob("day=*/*.parquet"))


def records(cursor: Cursor, count: int, polls: int = MAX_POLLS) -> list[Record]:
    """Return the next records, `count` at least."""
    found: list[Record] = []
    for _ in range(polls):
        if len(found) >= count:
            break
        found += (record for batch in cursor.poll(0.01) for record in batch.records)
    return found


def offsets(log: ArchivedLog, start: int, count: int) -> list[int]:
    with closing(log.cursor({AT: start})) as cursor:
        return [record.offset for record in records(cursor, count)]


def out_of_range(log: ArchivedLog, start: int) -> tuple[int, str]:
    """Return the end and the reason of the hole at `start`."""
    with closing(log.cursor({AT: start})) as cursor:
        return hole(cursor)


def hole(cursor: Cursor) -> tuple[int, str]:
    with pytest.raises(OffsetOutOfRange) as raised:
        records(cursor, 100)
    return raised.value.unreadable[AT]


READ_IN_A_NEW_PROCESS = """
import sys
from pathlib import Path
from kafkasse.archive import parquet
from kafkasse.archive.manifest import Entry

path = Path(sys.argv[1])
entry = Entry(0, 0, 4, 0, "1970-01-01", first=0, records=4)
known = set(sys.modules)  # pyarrow imports pandas when it needs it for the first time
records, _ = parquet.read(path, entry, 0)
later, _ = parquet.read(path, entry, 3)
print(len(records[:]), len(later), parquet.find_timestamp(path, entry, 1002), *sorted(set(sys.modules) - known))
"""


@pytest.mark.processes
def test_reading_a_file_imports_no_module(archived):
    """Files are read in threads. There, gevent's locks can make an import wait forever for an import in another thread."""
    command = [sys.executable, "-c", READ_IN_A_NEW_PROCESS, str(files(archived)[0])]

    assert "2 1 2" == subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_reads_the_archive_and_then_kafka(kafka, log, tmp_path):
    """Each record arrives once, in order, with its timestamp, key, value and headers, or without them."""
    kafka.append("t", None, timestamp=-1)
    append(kafka, 2)
    archive(tmp_path, kafka, "t", end=12)
    whole = kafka.read(AT, 0)
    kafka.drop_before("t", 11)

    with closing(log.cursor({AT: 1})) as cursor:
        found = records(cursor, 12)

    assert whole is not None
    assert [fields(record) for record in whole.records[1:]] == [fields(record) for record in found]


def fields(record: Record) -> tuple[object, ...]:
    return record.offset, record.timestamp, record.key, record.value, tuple(record.headers)


def test_a_topic_that_is_not_archived_starts_in_kafka(log, archived, kafka):
    kafka.create("other")
    kafka.append("other", b"{}")
    kafka.drop_before("other", 1)
    log.describe(["other"])

    assert {Partition("other", 0): OffsetRange(1, 1)} == log.offset_ranges([Partition("other", 0)])


def test_the_directory_is_read_once_for_all_partitions(log, archived, kafka, monkeypatch):
    """On a network file system, many reads in a row take seconds. These partitions are not archived."""
    partitions = [Partition("other", number) for number in range(5)]
    kafka.create("other", len(partitions))
    for _, number in partitions:
        kafka.append("other", b"{}", partition=number)
        kafka.drop_before("other", 1, number)
    log.describe(["other"])
    reads: list[str] = []
    monkeypatch.setattr(ArchiveDirectory, "find", lambda _, topic, topic_id: reads.append(topic))

    assert dict.fromkeys(partitions, OffsetRange(1, 1)) == log.offset_ranges(partitions)
    assert ["other"] == reads


@pytest.mark.parametrize(("timestamp", "offset"), [(0, 0), (1002, 2), (1005, 5), (1006, 6), (1009, 9), (2000, 10)])
def test_finds_a_time_before_kafkas_first_record(log, archived, timestamp, offset):
    """A time that is older than Kafka's retention is found in the archive, a later one in Kafka."""
    assert {AT: offset} == log.offsets_at({AT: timestamp})


def test_a_late_record_at_the_end_of_the_archive_does_not_hide_earlier_ones(tmp_path, kafka, log):
    """The answer is that of Kafka with all records, also if the last file contains only older timestamps."""
    kafka.append("t", b"late", timestamp=1002)
    archive(tmp_path, kafka, "t", end=10)
    archive(tmp_path, kafka, "t")
    expected = kafka.offsets_at({AT: 1007})
    kafka.append("t", b"{}", timestamp=2000)
    kafka.drop_before("t", 11)

    assert {AT: 7} == expected == log.offsets_at({AT: 1007})


def test_a_timestamp_in_the_future_in_the_archive_does_not_affect_recent_times(tmp_path, kafka, log):
    kafka.append("t", b"{}", timestamp=2**42)  # in the year 2109
    archive(tmp_path, kafka, "t")
    append(kafka, 10)
    archive(tmp_path, kafka, "t", end=15)
    kafka.drop_before("t", 15)

    assert {AT: 16} == log.offsets_at({AT: 1005})


def test_a_hole_ends_where_the_archive_continues(log, kafka, tmp_path):
    """Records that were removed before they were archived are an exact gap."""
    archive(tmp_path, kafka, "t", end=2)
    kafka.drop_before("t", 5)
    archive(tmp_path, kafka, "t", end=7)
    kafka.drop_before("t", 7)

    assert [0, 1] == offsets(log, 0, 2)
    assert (5, "removed by retention") == out_of_range(log, 2)
    assert [5, 6, 7, 8, 9] == offsets(log, 5, 5)


def test_retention_moves_a_reader_of_kafka_to_the_archive(log, archived, kafka):
    append(kafka, 600)  # more than one poll returns
    with closing(log.cursor({AT: 6})) as cursor:
        found = records(cursor, 1)
        archive(archived.parents[1], kafka, "t")
        kafka.drop_before("t", 608)
        found += records(cursor, 610 - 6 - len(found), polls=1000)

    assert [*range(6, 610)] == [record.offset for record in found]


def test_other_partitions_are_read_meanwhile(log, archived, kafka):
    """A partition in Kafka does not wait until another one has left the archive."""
    other = Partition("t", 1)
    kafka.create("t", 2)
    kafka.append("t", b"{}", partition=1)

    with closing(log.cursor({AT: 0, other: 0})) as cursor:
        batches = [batch.partition for _ in range(3) for batch in cursor.poll(0.01)]

    assert {AT, other} == set(batches)


def test_a_recreated_topic_does_not_read_the_archive_of_the_former_one(log, archived, kafka):
    kafka.delete("t")
    create(kafka)
    kafka.drop_before("t", 3)
    log.describe(["t"])

    assert {AT: OffsetRange(3, 10, 0)} == log.offset_ranges([AT])
    assert (3, "removed by retention") == out_of_range(log, 0)


def test_a_reader_of_the_archive_does_not_continue_in_a_recreated_topic(log, archived, kafka):
    """The cursor waits, and the stream ends as soon as it notices that the topic was recreated."""
    with closing(log.cursor({AT: 0})) as cursor:
        cursor.poll(0.0)
        kafka.delete("t")
        create(kafka)
        found = records(cursor, 100)

    assert max(record.offset for record in found) < 6


def test_a_client_of_a_truncated_log_is_noticed_by_the_archive(log, kafka, tmp_path, monkeypatch):
    """Kafka forgets where a leader epoch ended when it removes the records. The archive knows it."""
    archive(tmp_path, kafka, "t")
    kafka.truncate("t", 4)
    append(kafka, 10)
    archive(tmp_path, kafka, "t")
    kafka.drop_before("t", 12)
    monkeypatch.setattr(kafka, "epoch_ends", lambda epochs: dict.fromkeys(epochs, OffsetAndEpoch(12, 0)))

    assert {AT: OffsetAndEpoch(4, UNKNOWN_EPOCH)} == log.epoch_ends({AT: 0})


@pytest.mark.parametrize("first", [6, 12])
def test_a_cursor_in_a_truncated_log_returns_to_the_truncation(log, kafka, tmp_path, first):
    """Retention passes the truncation before the cursor notices. The archive holds other records than the cursor read."""
    with closing(log.cursor({AT: 0})) as cursor:
        assert 10 == len(records(cursor, 10))
        kafka.truncate("t", 4)
        append(kafka, 10)
        archive(tmp_path, kafka, "t")
        kafka.drop_before("t", first)
        kafka._partitions[AT].epoch_starts = {1: first}  # as Kafka, which forgets where removed epochs ended

        with pytest.raises(OffsetOutOfRange) as raised:
            cursor.poll(0)

    assert {AT: OffsetAndEpoch(4, UNKNOWN_EPOCH)} == raised.value.diverged_at


def test_the_archive_of_a_truncated_log_is_followed_by_a_gap(log, kafka, tmp_path):
    """Kafka compares the leader epoch of the last archived record with its own."""
    archive(tmp_path, kafka, "t", end=8)
    kafka.truncate("t", 7)  # the archive does not know it yet
    append(kafka, 10)
    kafka.drop_before("t", 8)
    kafka._partitions[AT].epoch_starts = {0: 0, 1: 7}  # the log of another replica, the new leader, starts earlier

    with closing(log.cursor({AT: 0})) as cursor, pytest.raises(OffsetOutOfRange) as raised:
        records(cursor, 100)

    assert {AT: OffsetAndEpoch(7, 0)} == raised.value.diverged_at


# Faults of the archive.


def flip_a_byte(file: Path, group: int = 1, column: int = 6, from_end: int = 5) -> None:
    """Change a byte in a column of a row group, by default in the values of the second group."""
    chunk = parquet.pq.read_metadata(file).row_group(group).column(column)
    content = bytearray(file.read_bytes())
    content[chunk.data_page_offset + chunk.total_compressed_size - from_end] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "start", "end"),
    [
        (lambda file: file.unlink(), 0, 4),
        (lambda file: file.write_bytes(file.read_bytes()[:100]), 0, 4),
        (lambda file: file.write_bytes(b""), 0, 4),
        (lambda file: file.write_bytes(b"PAR1" + bytes(1000) + b"PAR1"), 0, 4),
        (flip_a_byte, 2, 4),
    ],
    ids=["missing", "half-written", "empty", "overwritten", "flipped bit"],
)
def test_a_damaged_file_is_a_gap(log, archived, damage, start, end):
    """The gap covers exactly the unreadable records, and the reader continues after them."""
    damage(files(archived)[0])

    with closing(log.cursor({AT: 0})) as cursor:
        before = [record.offset for record in records(cursor, start)]
        assert (end, "the archive is damaged") == hole(cursor)
        cursor.seek({AT: end})
        after = [record.offset for record in records(cursor, 10 - end)]

    assert ([*range(start)], [*range(end, 10)]) == (before, after)
    assert 1 == total(log, "archive_errors", "damaged")


def test_files_that_were_swapped_are_damaged(log, archived):
    first, second = files(archived)
    shutil.copy(second, first)

    assert (4, "the archive is damaged") == out_of_range(log, 0)


def test_a_time_is_found_without_the_row_groups_before_it(log, archived):
    """A file may have millions of records, which would take gigabytes of memory."""
    (file, _) = files(archived)
    for from_end in range(1, 20):
        flip_a_byte(file, group=0, column=1, from_end=from_end)  # the offsets

    assert {AT: 3} == log.offsets_at({AT: 1003})


def test_a_damaged_timestamp_does_not_hide_records(log, archived):
    """The client starts before the file, and receives a gap when it reaches the damage."""
    (file, _) = files(archived)
    flip_a_byte(file, group=1, column=3)  # the timestamps

    assert {AT: 0} == log.offsets_at({AT: 1003})


def test_an_uncommitted_file_is_not_read(log, archived, kafka):
    """A writer that was killed before its commit leaves files that nobody reads."""
    directory = topic_directory(archived.parents[1], kafka, "t")
    write_file(directory, 0, 8, 10, 0, kafka._partitions[AT].records[2:])
    kafka.drop_before("t", 10)

    assert [*range(8)] == offsets(log, 0, 8)
    assert (10, "removed by retention") == out_of_range(log, 8)


def move_away(archived: Path) -> Path:
    """Let the archive disappear, as an unmounted file system does: its directory is empty. Return where it is now."""
    root, hidden = archived.parents[1], archived.parents[1].with_name("hidden")
    root.rename(hidden)
    root.mkdir()
    return hidden


def test_readers_wait_while_the_archive_is_missing(log, archived):
    """A file system that is not mounted is not a gap. The reader continues when it is mounted again."""
    with closing(log.cursor({AT: 0})) as cursor:
        found = records(cursor, 1)
        hidden = move_away(archived)
        waiting = records(cursor, 100)
        archived.parents[1].rmdir()
        hidden.rename(archived.parents[1])
        found += records(cursor, 10 - len(found))

    assert [] == waiting
    assert [*range(10)] == [record.offset for record in found]


def test_readers_wait_while_kafka_does_not_say_where_it_begins(log, archived, kafka, monkeypatch):
    """Their streams stay open, as without an archive."""

    def fail(partitions: object) -> None:
        raise KafkaUnavailable("no answer")

    with closing(log.cursor({AT: 0})) as cursor, monkeypatch.context() as patched:
        patched.setattr(kafka, "offset_ranges", fail)
        waiting = records(cursor, 1)
        patched.undo()
        found = records(cursor, 10)

    assert [] == waiting
    assert [*range(10)] == [record.offset for record in found]


def damaged_commit(content: bytes) -> Callable[[Path], object]:
    return lambda archived: sorted(archived.glob("_commits/*.json"))[-1].write_bytes(content)


@pytest.mark.parametrize(
    "fail",
    [
        move_away,
        lambda archived: (archived.parents[1] / MARKER).unlink(),
        *map(damaged_commit, [b"", b"{", b'{"format": 2}', b'{"format": 1, "files": []}']),
        damaged_commit(b'{"format": 1, "topic": "t", "topic_id": "memory1", "version": 2, "files": [1]}'),
    ],
    ids=["not mounted", "wrong path", "empty commit", "no JSON", "another format", "no topic", "no entry"],
)
def test_clients_wait_for_an_archive_that_has_never_been_read(log, archived, fail):
    """An older position opens without a gap, an older time gets a temporary error, and Kafka's records are not affected."""
    fail(archived)

    assert {AT: OffsetRange(0, 10, 0)} == log.offset_ranges([AT])
    assert [] == offsets(log, 0, 1)
    assert [*range(6, 10)] == offsets(log, 6, 4)
    assert {AT: 8} == log.offsets_at({AT: 1008})
    with pytest.raises(ArchiveUnavailable):
        log.offsets_at({AT: 1000})
    assert total(log, "archive_errors", "unavailable") >= 1


def test_a_file_system_that_hangs_delays_no_one_for_long(log, archived, monkeypatch):
    """A read without an answer counts as unavailable, and the next ones fail at once for a while."""
    monkeypatch.setattr(archive_log, "READ_TIMEOUT_S", 0.0)
    monkeypatch.setattr(archive_log, "RETRY_S", 60.0)

    assert {AT: OffsetRange(0, 10, 0)} == log.offset_ranges([AT])
    calls: list[Any] = []
    monkeypatch.setattr(log.reader, "_checked", calls.append)
    assert [] == offsets(log, 0, 1)
    assert [] == calls


def test_lookups_do_not_wait_for_a_file_system_that_hangs(log, archived, monkeypatch, caplog):
    """A client that needs only Kafka's records resumes as without an archive. The log says why others wait."""
    monkeypatch.setattr(archive_log, "MAX_LOOKUP_S", 0.01)
    monkeypatch.setattr(log.reader, "_run", lambda call: Event().wait())

    with gevent.Timeout(TIMEOUT_S):
        assert {AT: OffsetRange(0, 10, 0)} == log.offset_ranges([AT])
        assert {AT: OffsetAndEpoch(10, 0)} == log.epoch_ends({AT: 0})
        assert [*range(6, 10)] == offsets(log, 6, 4)
    assert "clients that need it wait: no answer within 0.01 s" in caplog.text


def test_a_start_at_a_time_that_kafka_holds_does_not_wait_for_a_file_system_that_hangs(
    log, archived, kafka, monkeypatch
):
    """The archive may hold earlier records with this time, because the clocks of producers differ."""
    kafka.append("t", b"{}", timestamp=1000)
    kafka.drop_before("t", 10)
    kafka.append("t", b"{}", timestamp=1007)
    log.offset_ranges([AT])
    monkeypatch.setattr(archive_log, "MAX_LOOKUP_S", 0.01)
    monkeypatch.setattr(log.reader, "_run", lambda call: Event().wait())

    with gevent.Timeout(TIMEOUT_S):
        assert {AT: 11} == log.offsets_at({AT: 1007})


def test_a_topic_without_an_id_has_no_archive(log, archived):
    """Before Kafka 2.8, topics have no IDs, so the archive may be that of a former topic with the same name."""
    log._topic_ids["t"] = ""

    assert {AT: OffsetRange(6, 10, 0)} == log.offset_ranges([AT])


def test_the_footers_in_memory_are_limited(log, archived, monkeypatch):
    """The footer of a large file takes up megabytes. Each of these files has two row groups."""
    monkeypatch.setattr(parquet, "MAX_CACHED_ROW_GROUPS", 3)
    parquet._footers.clear()

    assert [*range(10)] == offsets(log, 0, 10)
    assert [files(archived)[1]] == [*parquet._footers]


def test_counts_what_is_read(log, archived):
    """A cursor counts as a reader until it continues in Kafka. Each of two files has several row groups."""
    with closing(log.cursor({AT: 0})) as cursor:
        records(cursor, 1)
        while_reading = total(log, "archive_readers"), total(log, "archive_files_read")
        records(cursor, 9)

        assert (1, 1) == while_reading
        assert (0, 2) == (total(log, "archive_readers"), total(log, "archive_files_read"))
    whole = sum(len(b'{"n":0}') + len(b"k0") for _ in range(6))
    assert whole < total(log, "archive_bytes_read") < 100 * whole
