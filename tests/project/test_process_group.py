"""The fixtures that start programs end them together with their children."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.project.conftest import Deployed
from tests.tutorial.walk import Program

pytestmark = pytest.mark.processes


@pytest.fixture
def alive(tmp_path: Path) -> int:
    """A pipe that is open for writing in the child only. Reading returns nothing when the child has ended."""
    os.mkfifo(tmp_path / "pipe")
    return os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)


def test_a_server_that_does_not_start_leaves_no_child(alive: int, tmp_path: Path) -> None:
    """The program exits, and its child would sleep for ten minutes."""
    with pytest.raises(AssertionError, match="exited before it listened"):
        Deployed(["bash", "-c", "(echo >&3; exec sleep 600) 3>pipe 2>&- &"], tmp_path, dict(os.environ))

    assert_ended(alive)


def test_a_command_of_a_tutorial_leaves_no_child(alive: int, tmp_path: Path) -> None:
    """The test that follows a tutorial ends each program with its children."""
    program = Program("sleep 600 3>pipe & echo", tmp_path, dict(os.environ), tmp_path / "output")
    program.wait(60)

    program.interrupt()

    assert_ended(alive)


def assert_ended(alive: int) -> None:
    os.set_blocking(alive, True)
    while os.read(alive, 100):
        pass
    os.close(alive)
