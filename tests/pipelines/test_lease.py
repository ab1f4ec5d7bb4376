"""Only one run uses a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from kafkasse.errors import CommandError
from kafkasse.pipelines import lease
from kafkasse.pipelines.files import Files


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


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lease, "time", clock)
    return clock


def use(files: Any, checkpoint: str = "hdfs:///checkpoint") -> None:
    with lease.exclusive(cast(Files, files), checkpoint):
        pass


@pytest.mark.parametrize("contents", [(None,), ("other 1",), ("other 1", "other 1", None), (f"{lease._PROCESS} 1",)])
def test_uses_a_checkpoint_that_no_other_run_uses(contents: tuple[str | None, ...], clock: Clock) -> None:
    """There is no marker, its run was killed or has just ended, or it belongs to an earlier attempt of this process."""
    use(SharedFiles(*contents))

    assert clock.now_s <= lease.SILENCE_S


def test_a_marker_that_changes_belongs_to_a_run() -> None:
    """A checkpoint in object storage cannot be locked."""
    with pytest.raises(
        CommandError, match="another run of the pipeline uses the checkpoint hdfs:///checkpoint; stop it"
    ):
        use(SharedFiles("other 1", "other 1", "other 2"))


def test_a_checkpoint_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """The error names the reason and what to change."""
    (tmp_path / "file").touch()

    with pytest.raises(
        CommandError,
        match=r"cannot write to the checkpoint .+ \(Not a directory\); change its permissions, or use another",
    ):
        use(SharedFiles(None, directory=tmp_path / "file" / "checkpoint"))
