"""Manifests and commits: which file holds which offsets, also after a crash or a concurrent change."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kafkasse.archive.directory import COMMITS_KEPT, ArchiveDirectory, Conflict, NotAnArchive, TopicDirectory
from kafkasse.archive.manifest import Entry, InvalidManifest, Manifest


def entry(start: int, end: int, partition: int = 0, epoch: int = 0, path: str = "") -> Entry:
    return Entry(partition, start, end, epoch, "2026-11-22", start, end - start, 1000, 100, path)


@pytest.fixture
def manifest() -> Manifest:
    """The offsets [0, 10) and [20, 30) of partition 0, in two leader epochs."""
    return Manifest("t", "id").append([entry(20, 30, epoch=1), entry(0, 10)])


@pytest.fixture
def directory(tmp_path: Path) -> TopicDirectory:
    archive = ArchiveDirectory(tmp_path)
    archive.create()
    return archive.topic("t", "id")


@pytest.mark.parametrize(
    ("offset", "start", "following"), [(0, 0, 0), (9, 0, 9), (10, None, 20), (25, 20, 25), (30, None, None)]
)
def test_finds_the_entry_of_an_offset(manifest, offset, start, following):
    """An offset in a hole has no entry, but a next archived offset."""
    found = manifest.entry_at(0, offset)

    assert (start, following) == (found and found.start, manifest.next_from(0, offset))


def test_states_what_is_archived(manifest):
    """The first offset, the end, the holes, and where an epoch ends."""
    assert (0, 30) == (manifest.first(0), manifest.end(0))
    assert (None, None) == (manifest.first(1), manifest.end(1))
    assert [(0, 10, 20)] == [*manifest.holes()]
    assert (20, None) == (manifest.epoch_end(0, 0), manifest.epoch_end(0, 1))


def test_an_offset_is_never_archived_twice(manifest):
    with pytest.raises(InvalidManifest, match="overlap"):
        manifest.append([entry(9, 12)])


@pytest.mark.parametrize("new", [[entry(0, 9)], [entry(0, 11)], []])
def test_a_replacement_accounts_for_the_same_offsets(manifest, new):
    """Compaction and erasure can neither lose nor add an offset, but one entry may become two."""
    changed = manifest.replace([entry(0, 10)], [entry(0, 4), entry(4, 10)])

    assert [(0, 4), (4, 10), (20, 30)] == [(part.start, part.end) for part in changed]
    with pytest.raises(InvalidManifest, match="other offsets"):
        manifest.replace([entry(0, 10)], new)


def test_a_replaced_entry_must_exist(manifest):
    with pytest.raises(InvalidManifest, match="missing"):
        manifest.replace([entry(0, 5)], [entry(0, 5)])


def test_truncation_removes_later_offsets(manifest):
    """An entry on both sides is cut. Without records before the end, it needs no file."""
    cut = manifest.truncate(0, 25)
    empty = manifest.replace([entry(20, 30, epoch=1)], [Entry(0, 20, 30, 1, "", first=27, path="x")]).truncate(0, 25)

    assert [(0, 10), (20, 25)] == [(part.start, part.end) for part in cut]
    assert ["", ""] == [part.path for part in empty]


def test_a_commit_is_the_newest_manifest(directory, manifest):
    """Before the first commit, the manifest is empty. Old commits are removed."""
    assert [] == [*directory.read()]

    for _ in range(COMMITS_KEPT + 2):
        committed = directory.commit(manifest)
        manifest = committed

    assert committed == directory.read()
    assert COMMITS_KEPT == len(list(directory.path.glob("_commits/*")))


def test_of_two_concurrent_commits_one_fails(directory, manifest):
    first = directory.commit(manifest)

    with pytest.raises(Conflict):
        directory.commit(manifest.append([entry(40, 50)]))

    assert first == directory.read()


def test_a_commit_may_succeed_although_the_file_system_reports_an_error(directory, manifest, monkeypatch):
    """If NFS loses the answer of link(2), it repeats the call, which finds the link that exists."""
    link = os.link

    def answer_lost(*paths: Path) -> None:
        link(*paths)
        raise FileExistsError

    monkeypatch.setattr(os, "link", answer_lost)

    assert directory.commit(manifest) == directory.read()


def test_a_full_disk_leaves_no_file(tmp_path, directory, manifest, monkeypatch):
    """Neither a part of a commit, nor a marker without content, which would prevent the next start."""

    def flush(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def write(path: Path, *_: str, **__: str) -> None:
        path.touch()
        flush(0)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", flush)
        patched.setattr(Path, "write_text", write)
        with pytest.raises(OSError, match="No space"):
            directory.commit(manifest)
        with pytest.raises(OSError, match="No space"):
            ArchiveDirectory(tmp_path / "new").create()
    ArchiveDirectory(tmp_path / "new").create()

    assert [] == [*directory.path.glob("_commits/*")]


def test_an_interrupted_commit_is_ignored(directory, manifest):
    """A writer that was killed leaves a temporary file, which is not a commit."""
    committed = directory.commit(manifest)
    (directory.path / "_commits" / ".f00").write_text('{"format"')

    assert committed == directory.read()


def test_files_that_no_commit_lists_are_removed(directory, manifest):
    """Files that a killed writer has left are removed. A new file may be about to be committed."""
    day = directory.path / "day=2026-11-22"
    day.mkdir(parents=True)
    for name in ("listed", "unlisted", "new"):
        (day / name).write_bytes(b"")
        os.utime(day / name, (0, 0) if name != "new" else None)
    directory.commit(manifest.append([entry(50, 60, path="day=2026-11-22/listed")]))

    assert 1 == directory.remove_unlisted()
    assert ["listed", "new"] == sorted(path.name for path in day.iterdir())


def test_a_directory_with_other_files_does_not_become_an_archive(tmp_path):
    """A wrong path does not fill another directory with files."""
    (tmp_path / "other").write_bytes(b"")

    with pytest.raises(NotAnArchive, match="use an empty directory"):
        ArchiveDirectory(tmp_path).create()


def test_finds_the_incarnation_of_a_topic(tmp_path):
    """The first eight characters of the topic ID identify the incarnation."""
    archive = ArchiveDirectory(tmp_path)
    archive.create()
    for topic_id in ("aaaaaaaaAAAA", "bbbbbbbbBBBB"):
        directory = archive.topic("t", topic_id)
        directory.commit(directory.read())
    incarnation = archive.find("t", "bbbbbbbb")

    assert incarnation is not None
    assert ("bbbbbbbbBBBB", None) == (incarnation.topic_id, archive.find("t", "cccccccc"))
    assert ["aaaaaaaaAAAA", "bbbbbbbbBBBB"] == [topic.topic_id for topic in archive.topics()]
