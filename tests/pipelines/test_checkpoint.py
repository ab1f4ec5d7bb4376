"""The files of a checkpoint: the manifest, the marker of the run that uses it, and the list of skipped records.

A change that does not fit the checkpoint is rejected, with the difference and the possible solutions.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from kafkasse.errors import CommandError
from kafkasse.pipelines import Pipeline, Source
from kafkasse.pipelines.checkpoints import checkpoint, lease
from kafkasse.pipelines.kafka.skipped_records import Skipped
from kafkasse.pipelines.manifest import CheckpointManifest, differences, plain_settings
from kafkasse.pipelines.spark.files import Files

CHECKPOINT = "hdfs:///kafkasse/topn"


def query(rows: Any, **settings: Any) -> Any:
    return rows


def pipeline(**settings: Any) -> Pipeline:
    return Pipeline("topn", "countries", partial(query, **settings), "topn")


def manifest(pipeline: Pipeline, **state: Any) -> CheckpointManifest:
    return CheckpointManifest(pipeline.name, plain_settings(pipeline), 0, 0, "0.1.0", "4.3.0", **state)


def test_an_unchanged_pipeline_continues():
    """The manifest survives its text form."""
    written = manifest(pipeline(n=3, fields={"code": "text"}))

    read = CheckpointManifest.parse(written.text(), CHECKPOINT)

    assert written == read
    read.check(pipeline(n=3, fields={"code": "text"}), {}, CHECKPOINT)


def test_another_n_is_rejected():
    with pytest.raises(CommandError) as error:
        manifest(pipeline(n=3)).check(pipeline(n=5), {}, CHECKPOINT)

    assert str(error.value) == (
        "the pipeline topn cannot continue with the checkpoint hdfs:///kafkasse/topn: query.n was 3 and is 5 now. Run it "
        "with --rebuild to compute all results again beside the running version and then switch over, or undo the change, "
        "or use another --checkpoint, which writes all results again, from the oldest to the newest"
    )


def test_a_rebuild_is_not_recommended_if_it_would_read_no_record():
    changed = replace(pipeline(n=5), source=Source("countries", start="latest"))

    with pytest.raises(CommandError, match="Undo the change, or use another --checkpoint, which writes only") as error:
        manifest(pipeline(n=3)).check(changed, {}, CHECKPOINT)

    assert "--rebuild" not in error.value.detail


@pytest.mark.parametrize("sink", ["fields", "largest-fields"])
def test_a_sink_may_have_the_name_of_a_setting_to_which_entries_can_be_added(sink):
    before, after = (pipeline(queries={sink: {"top": {"n": 1} | more}}) for more in ({}, {"order": "ascending"}))

    assert [f'query.queries.{sink}.top.order was null and is "ascending" now'] == manifest(before).changes(after, {})


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"state_partitions": 4}, ["state_partitions was null and is 4 now"]),
        ({"version": 2}, ["version was 1 and is 2 now"]),
        ({"key": "code"}, ['key was null and is "code" now']),
        ({"mode": "microbatch", "output_mode": "append"}, ['output_mode was "update" and is "append" now']),
        ({"mode": "microbatch"}, []),
        ({"spark": {"spark.driver.memory": "2g"}}, []),
        ({"summary": "x"}, []),
    ],
)
def test_a_change_of_the_state_or_of_the_meaning_of_results_is_rejected(change, difference):
    assert difference == manifest(pipeline()).changes(replace(pipeline(), **change), {})


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"fields": {"a": "text"}}, {"fields": {"a": "text", "b": "text"}}, []),
        ({"fields": ["a"]}, {"fields": ["b", "a"]}, []),
        ({"fields": {"a": "text"}}, {"fields": {"b": "text"}}, ['fields.a was "text" and is null now']),
        ({"fields": ["a", "b"]}, {"fields": ["b"]}, ["fields no longer contains a"]),
        ({"select": ["a"]}, {"select": ["a", "2 * a AS b"]}, []),
        ({"select": ["a AS b"]}, {"select": ["c AS b"]}, ["select no longer contains a AS b"]),
        ({"fields": {"a": "text"}}, {"fields": {"a": "number"}}, ['fields.a was "text" and is "number" now']),
        ({}, {"where": "x > 1"}, ['where was null and is "x > 1" now']),
    ],
)
def test_only_adding_a_field_is_compatible(before, after, expected):
    """Rows of the state that lack the new field are read with null in its place."""
    assert expected == list(differences(before, after))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        # The state contains rows as JSON text, so Spark itself would read a changed field as null.
        ({"fields": {"size": "bigint"}}, {"fields": {"code": "string"}}, ['fields.size was "bigint" and is null now']),
        # A group that receives no row would keep its old results. Older manifests do not contain the number of ranks.
        ({"fields": {}, "n": 3}, {"fields": {}, "n": 2}, ["n was 3 and is 2 now"]),
        ({"fields": {}, "n": 2}, {"fields": {}, "n": 2}, []),
        ({"fields": {}}, {"fields": {}, "n": 2}, []),
    ],
)
def test_an_incompatible_change_of_the_state_is_rejected(before, after, expected):
    written = manifest(pipeline(), state={"1": before})

    assert [f"state.1.{change}" for change in expected] == written.changes(pipeline(), {"1": after})


def test_a_damaged_manifest_is_an_error():
    with pytest.raises(CommandError, match=f"{CHECKPOINT}/kafkasse.json is not a manifest"):
        CheckpointManifest.parse("{}", CHECKPOINT)


def test_settings_must_be_plain_data():
    """A function in the settings could not be compared with that of another run."""
    with pytest.raises(CommandError, match="must be plain data"):
        plain_settings(pipeline(n=query))


class LocalFiles:
    """Files of this machine, as kafkasse.pipelines.spark.files.Files reads them."""

    def read(self, path: str) -> str | None:
        return Path(path).read_text() if Path(path).exists() else None

    def names(self, path: str) -> list[str]:
        return [file.name for file in Path(path).glob("*")]

    def changed_at_ms(self, path: str) -> int:
        return int(Path(path).stat().st_mtime * 1000)


@pytest.mark.parametrize(
    ("planned_at_s", "committed_at_s", "expected_ms"),
    [(10, 17, 17_000), (13, 17, 14_000), (1000, 1000, 10_000), (1001, 1000, 10_000)],
    ids=["micro-batch", "real-time mode", "copy", "copy in another order"],
)
def test_the_time_of_the_last_commit_is_that_of_the_original(tmp_path, planned_at_s, committed_at_s, expected_ms):
    """A copy of a checkpoint has the times of the copying. The sinks may contain newer results than the original."""
    for log, at_s, text in (
        ("offsets", planned_at_s, 'v1\n{"batchTimestampMs":10000}\n{}'),
        ("commits", committed_at_s, "v1\n{}"),
    ):
        (tmp_path / log).mkdir()
        (tmp_path / log / "7").write_text(text)
        os.utime(tmp_path / log / "7", (at_s, at_s))
    written = replace(manifest(pipeline()), created_at_ms=5000)

    assert expected_ms == checkpoint.last_commit_ms(cast(Files, LocalFiles()), str(tmp_path), written)
    assert 5000 == checkpoint.last_commit_ms(cast(Files, LocalFiles()), str(tmp_path / "new"), written)


class SharedFiles:
    """Files on a file system that is not mounted, unless there is a `directory`.

    `contents` are those of the marker, one for each call of read().
    """

    def __init__(self, *contents: str | None, directory: Path | None = None) -> None:
        self._contents = list(contents)
        self._directory = directory

    def local(self, path: str) -> Path | None:
        return self._directory

    def read(self, path: str) -> str | None:
        return self._contents.pop(0) if len(self._contents) > 1 else self._contents[0]


class Clock:
    """A clock that only sleeping advances."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def time_ns(self) -> int:
        return int(self.now_s * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lease, "time", clock)
    return clock


def use(files: Any) -> None:
    with lease.exclusive(cast(Files, files), CHECKPOINT):
        pass


@pytest.mark.parametrize("contents", [(None,), ("other 1",), ("other 1", "other 1", None), (f"{lease._PROCESS} 1",)])
def test_uses_a_checkpoint_that_no_other_run_uses(contents, clock):
    """There is no marker, its run was killed or has just ended, or it belongs to an earlier attempt of this process."""
    use(SharedFiles(*contents))

    assert clock.now_s <= lease.SILENCE_S


def test_a_marker_that_changes_belongs_to_a_run(clock):
    """A checkpoint in object storage cannot be locked."""
    with pytest.raises(CommandError, match=f"another run of the pipeline uses the checkpoint {CHECKPOINT}; stop it"):
        use(SharedFiles("other 1", "other 1", "other 2"))


def test_a_checkpoint_that_cannot_be_written_is_an_error(tmp_path, clock):
    (tmp_path / "file").touch()

    advice = r"cannot write to the checkpoint .+ \(Not a directory\); change its permissions, or use another"
    with pytest.raises(CommandError, match=advice):
        use(SharedFiles(None, directory=tmp_path / "file" / "checkpoint"))


SKIPPED = Skipped(frozenset({("orders", 0, 17), ("orders", 0, 3), ("orders", 10, 5), ("refunds", 0, 1)}))


def test_the_list_of_skipped_records_contains_the_offsets_of_each_topic():
    """A missing file is an empty list."""
    assert '{"orders": {"0": [3, 17], "10": [5]}, "refunds": {"0": [1]}}' == SKIPPED.text()
    assert SKIPPED == Skipped.parse(SKIPPED.text())
    assert Skipped() == Skipped.parse(None) == Skipped.parse(Skipped().text())
    assert ({0: [3, 17], 10: [5]}, {}) == (SKIPPED.offsets("orders"), SKIPPED.offsets("nix"))


@pytest.mark.parametrize("text", ['{"orders": {"0": [1', "[]", '{"orders": [1]}', '{"orders": {"0": [null]}}'])
def test_a_damaged_list_of_skipped_records_is_an_error(text):
    with pytest.raises(CommandError, match=r"the file kafkasse-skipped\.json in the checkpoint is damaged"):
        Skipped.parse(text)


def test_a_skipped_record_that_is_added_twice_is_one_record():
    assert SKIPPED == SKIPPED.plus([("orders", 0, 17)])
    assert {0: [3, 17], 10: [5, 6]} == SKIPPED.plus([("orders", 10, 6)]).offsets("orders")


def test_a_commit_removes_the_skipped_records_before_it():
    """The query reads the record at the offset of the commit next. Records of partitions without a commit are kept."""
    after = SKIPPED.after({("orders", 0): 17, ("refunds", 0): 2})

    assert {("orders", 0, 17), ("orders", 10, 5)} == after.records
    assert SKIPPED == SKIPPED.after({})
