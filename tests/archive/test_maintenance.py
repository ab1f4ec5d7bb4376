"""Compaction and erasure: no offset is lost, readers are not disturbed, and a crash leaves a complete archive."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pip install pyarrow")

from kafkasse.archive import log as archive_log
from kafkasse.archive import maintenance, parquet, with_archive
from kafkasse.archive.directory import MARKER, RUN, Conflict, NotAnArchive, TopicDirectory
from kafkasse.archive.maintenance import compact, erase
from kafkasse.archive.manifest import Manifest
from kafkasse.archive.parquet import DamagedFile
from kafkasse.log import Log, Partition
from kafkasse.log.memory import MemoryLog
from tests.support.archive import archive, table, topic_directory

AT = Partition("t", 0)
RECORDS = 12
MAX_POLLS = 50


@pytest.fixture
def kafka() -> MemoryLog:
    """A topic with records of three keys, and without one."""
    log = MemoryLog()
    log.create("t")
    log.elect_leader("t")
    for number in range(RECORDS):
        log.append("t", b"v%d" % number, key=[b"a", b"b", b"c", None][number % 4], timestamp=1000 + number)
    return log


@pytest.fixture
def directory(tmp_path: Path, kafka: MemoryLog) -> TopicDirectory:
    """The archive of the topic: six files with two records each. Kafka holds no records."""
    for end in range(2, RECORDS + 1, 2):
        archive(tmp_path, kafka, "t", end=end)
    kafka.drop_before("t", RECORDS)
    return topic_directory(tmp_path, kafka, "t")


@pytest.fixture
def log(tmp_path: Path, kafka: MemoryLog, directory: TopicDirectory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    monkeypatch.setattr(archive_log, "RETRY_S", 0.0)
    with closing(with_archive(kafka, str(tmp_path))) as log:
        log.describe(["t"])
        yield log


def values(log: Log) -> list[bytes | None]:
    """Return the values that a client receives, from the first offset to the end."""
    found: list[bytes | None] = []
    with closing(log.cursor({AT: 0})) as cursor:
        for _ in range(MAX_POLLS):
            batches = cursor.poll(0.0)
            found += (record.value for batch in batches for record in batch.records)
            if batches and batches[-1].next_offset == RECORDS:
                return found
    raise AssertionError(f"the cursor did not reach the end: {found}")


def files(directory: TopicDirectory) -> set[str]:
    return {str(path.relative_to(directory.path)) for path in directory.path.glob("day=*/*")}


def test_compaction_merges_small_files(directory, log):
    """Clients receive the same records. The old files are removed later."""
    before = values(log)

    saved = compact(directory)
    directory.remove_unlisted(min_age_s=-60)

    assert 5 == saved
    assert [(0, RECORDS, RECORDS)] == [(entry.start, entry.end, entry.records) for entry in directory.read()]
    assert files(directory) == directory.read().paths
    assert before == values(log)


def test_compaction_keeps_leader_epochs_days_and_large_files_apart(tmp_path, directory, kafka, monkeypatch):
    """An entry has one leader epoch, and a limited size."""
    kafka.elect_leader("t")
    kafka.append("t", b"x")
    archive(tmp_path, kafka, "t")
    monkeypatch.setattr(maintenance, "MAX_FILE_BYTES", 3 * max(entry.size for entry in directory.read()))

    compact(directory)

    assert [(0, 6, 0), (6, 12, 0), (12, 13, 1)] == [(entry.start, entry.end, entry.epoch) for entry in directory.read()]


def test_a_client_reads_on_while_files_are_merged(directory, log):
    """The file that a client reads next is removed. The client continues in the new one."""
    with closing(log.cursor({AT: 0})) as cursor:
        found = [record.value for _ in range(2) for batch in cursor.poll(0.0) for record in batch.records]
        compact(directory)
        directory.remove_unlisted(min_age_s=-60)
        for _ in range(MAX_POLLS):
            found += (record.value for batch in cursor.poll(0.0) for record in batch.records)

    assert [b"v%d" % number for number in range(RECORDS)] == found


def test_a_client_that_sees_the_commit_late_reads_the_old_files(directory, log, monkeypatch):
    """An NFS client caches the list of commits for up to a minute. Old files are kept for an hour after the commit, too."""
    for path in files(directory):
        os.utime(directory.path / path, (0, 0))
    cached = directory._versions()
    compact(directory)
    monkeypatch.setattr(TopicDirectory, "_versions", lambda _: cached)

    assert [b"v%d" % number for number in range(RECORDS)] == values(log)


@pytest.mark.parametrize("change", [compact, lambda directory: erase(directory, b"c")], ids=["compact", "erase"])
def test_a_file_of_other_records_is_not_rewritten(directory, log, change):
    """For example, the wrong file was restored. Otherwise, no client would receive a gap for the missing records."""
    first, second, *_ = [entry.path for entry in directory.read()]
    shutil.copy(directory.path / second, directory.path / first)

    with pytest.raises(DamagedFile, match="not the file that the manifest lists"):
        change(directory)


@pytest.mark.parametrize(
    "damage", [lambda file: file.write_bytes(b""), lambda file: file.unlink()], ids=["damaged", "missing"]
)
def test_a_damaged_file_does_not_keep_others_from_being_changed(tmp_path, directory, kafka, monkeypatch, damage):
    """Otherwise, one lost file would end all maintenance for ever, and a key could never be erased from the others."""
    monkeypatch.setattr(maintenance, "MAX_FILE_BYTES", 2 * max(entry.size for entry in directory.read()))
    damage(directory.path / min(directory.read().paths))

    with pytest.raises((DamagedFile, FileNotFoundError)):
        erase(directory, b"a")
    with pytest.raises((DamagedFile, FileNotFoundError)):
        compact(directory)

    entries = [*directory.read()]
    assert [0, 2, 4, 8] == [entry.start for entry in entries]
    assert [2, 2, 3, 3] == [entry.records for entry in entries]


def test_erasure_removes_all_records_of_a_key(directory, log):
    """Clients skip the offsets without a gap, and no file contains the key. Entries of removed files keep their offsets."""
    assert (3, 3) == (erase(directory, b"b"), erase(directory, b"a"))

    manifest = directory.read()
    assert [b"v%d" % number for number in range(RECORDS) if number % 4 > 1] == values(log)
    assert (0, RECORDS, []) == (manifest.first(0), manifest.end(0), [*manifest.holes()])
    assert [(0, 2), (4, 6), (8, 10)] == [(entry.start, entry.end) for entry in manifest if not entry.path]
    assert 3 == len(files(directory))
    assert not any(b"v5" in file.read_bytes() for file in directory.path.rglob("*.parquet"))
    assert 0 == sum(parquet.count_key(directory.path / path, b"b") for path in files(directory))


@pytest.mark.parametrize("order", [[], [1, 0], [0, 0]])
def test_offsets_that_do_not_increase_are_damage(tmp_path, kafka, monkeypatch, order):
    """Each table becomes a row group. A damaged file never replaces others."""
    monkeypatch.setattr(parquet, "ROW_GROUP_BYTES", 1)
    records = kafka.read(AT, 0).records
    tables = [table(0, 0, records[:1]), table(0, 0, records[1:2])]
    parquet.write(tmp_path / "right.parquet", tables)
    parquet.write(tmp_path / "wrong.parquet", [tables[at] for at in order])

    assert (0, 1, 2, 1001) == parquet.describe(tmp_path / "right.parquet")
    with pytest.raises(DamagedFile):
        parquet.describe(tmp_path / "wrong.parquet")


def test_erasure_removes_unlisted_files_with_the_key(directory, monkeypatch):
    """Compaction or an interrupted erasure has left them. A file that the pipeline is about to commit stays."""
    added = next(path for path in files(directory) if parquet.count_key(directory.path / path, b"b"))
    os.link(directory.path / added, directory.path / "staged")

    def commit_and_stop(self: TopicDirectory, manifest: Manifest) -> None:
        commit(self, manifest)
        raise KeyboardInterrupt

    commit = TopicDirectory.commit
    with monkeypatch.context() as patched:
        patched.setattr(TopicDirectory, "commit", commit_and_stop)
        with pytest.raises(KeyboardInterrupt):
            compact(directory)

    assert 3 == erase(directory, b"b")
    assert {added} == {path for path in files(directory) if parquet.count_key(directory.path / path, b"b")}


def test_erasure_also_removes_records_of_a_truncated_log(tmp_path, kafka):
    """A file may contain records after the end of its entry, which clients never receive."""
    archive(tmp_path, kafka, "t")
    kafka.truncate("t", 9)
    kafka.append("t", b"new")
    archive(tmp_path, kafka, "t")
    directory = topic_directory(tmp_path, kafka, "t")

    assert 3 == erase(directory, b"b")
    assert 0 == sum(parquet.count_key(directory.path / path, b"b") for path in files(directory))


def test_the_pipeline_may_commit_meanwhile(tmp_path, directory, kafka, monkeypatch):
    kafka.append("t", b"new")
    commit = TopicDirectory.commit

    def commit_after_the_pipeline(self: TopicDirectory, manifest: Manifest) -> Manifest:
        monkeypatch.setattr(TopicDirectory, "commit", commit)
        archive(tmp_path, kafka, "t")
        return commit(self, manifest)

    monkeypatch.setattr(TopicDirectory, "commit", commit_after_the_pipeline)
    compact(directory)

    assert [(0, 12), (12, 13)] == [(entry.start, entry.end) for entry in directory.read()]


def test_a_compaction_that_is_killed_changes_nothing(directory, log, monkeypatch):
    """Before the commit, clients read the old files. The next run removes what the killed one has written."""

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(TopicDirectory, "commit", killed)
        with pytest.raises(KeyboardInterrupt):
            compact(directory)
    received = values(log)
    directory.remove_unlisted(min_age_s=-60)

    assert [b"v%d" % number for number in range(RECORDS)] == received
    assert directory.read().paths == files(directory)


def test_only_one_process_changes_the_files_of_a_topic(directory):
    """A second compaction or erasure fails. It would repeat the work of the first one."""
    with directory.staging_for(maintenance.STAGED), pytest.raises(Conflict, match="another process changes"):
        compact(directory)


def test_erasure_removes_the_staged_files_of_a_killed_pipeline(directory):
    """They may contain records with the key. Files of a pipeline that runs stay."""
    with directory.staging_for(RUN) as staging:
        (staging / "file").touch()
        erase(directory, b"a")
        running = [path.name for path in staging.iterdir()]
    staging.mkdir()
    (staging / "file").touch()

    erase(directory, b"a")

    assert (["file"], False) == (running, staging.exists())


def test_nothing_is_written_below_the_mount_point_of_an_archive_that_disappeared(directory, tmp_path):
    (tmp_path / MARKER).rename(tmp_path.parent / f"{tmp_path.name}-unmounted")
    (tmp_path / f"topic={directory.topic}").rename(tmp_path.parent / f"{tmp_path.name}-topic")

    with pytest.raises(NotAnArchive), directory.staging_for(RUN):
        pass

    assert [] == [*tmp_path.iterdir()]
