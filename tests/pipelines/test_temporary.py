"""The temporary files of a killed run are removed by the next run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kafkasse.pipelines.temporary import directory

PREFIX = "kafkasse-test-"
HOLD = """
import sys, time
from kafkasse.pipelines.temporary import directory
with directory(sys.argv[1]) as path:
    (path / "file").write_text("text")
    print(path, flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@contextmanager
def other_process(parent: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process, and the directory that it uses."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, PREFIX],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(parent)},
    ) as process:
        try:
            assert process.stdout
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def test_is_removed_at_the_end() -> None:
    """The directory exists only while the block runs."""
    with directory(PREFIX) as path:
        (path / "file").write_text("text")

    assert path.name.startswith(PREFIX)
    assert not path.exists()


@pytest.mark.processes
def test_removes_the_directory_of_a_killed_process(parent: Path) -> None:
    """SIGKILL leaves a directory behind, and the next run removes it."""
    with other_process(parent) as (process, left):
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert left.exists()

        with directory(PREFIX) as path:
            assert [path] == list(parent.iterdir())


@pytest.mark.processes
def test_keeps_the_directory_of_a_running_process(parent: Path) -> None:
    """Two pipelines on one machine do not disturb each other."""
    with other_process(parent) as (_, used), directory(PREFIX) as path:
        assert {path, used} == set(parent.iterdir())
        assert "text" == (used / "file").read_text()


def test_does_not_follow_links(parent: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A link with our prefix, which any user of the machine can create, does not make kafkasse remove its target."""
    target = tmp_path_factory.mktemp("target")
    (target / "kafkasse.lock").touch()
    (parent / f"{PREFIX}link").symlink_to(target)

    with directory(PREFIX):
        pass

    assert target.exists()
