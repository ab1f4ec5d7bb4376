"""The fixtures that start programs end them together with their children."""

from __future__ import annotations

import os

import pytest

from tests.project.conftest import Deployed
from tests.support.waiting import TIMEOUT_S
from tests.tutorial.walk import Program


@pytest.mark.processes
def test_no_child_is_left(tmp_path):
    """A server that does not start, and a command of a tutorial. Each has a child that would sleep for ten minutes."""
    os.mkfifo(tmp_path / "pipe")
    alive = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)  # open for writing in the children only

    with pytest.raises(AssertionError, match="exited before it listened"):
        Deployed(["bash", "-c", "(echo >&3; exec sleep 600) 3>pipe 2>&- &"], tmp_path, dict(os.environ))
    program = Program("sleep 600 3>pipe & echo", tmp_path, dict(os.environ), tmp_path / "output")
    program.wait(TIMEOUT_S)
    program.interrupt()

    os.set_blocking(alive, True)
    while os.read(alive, 100):  # nothing is returned when the children have ended
        pass
    os.close(alive)
