"""The supervisor leaves no processes behind. test_embedded.py kills its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from kafkasse.broker.supervisor import SupervisedProcess
from tests.broker.processes import EXIT_TIMEOUT_S, exits

pytestmark = pytest.mark.processes


def test_returns_the_exit_code_of_the_command() -> None:
    """The supervisor has the command's exit code; if a signal killed the command, 128 plus its number, as in a shell."""
    assert 7 == SupervisedProcess([sys.executable, "-c", "raise SystemExit(7)"]).wait(EXIT_TIMEOUT_S)

    process = SupervisedProcess(["sleep", "600"])
    os.kill(process.pid, signal.SIGKILL)
    assert 128 + signal.SIGKILL == process.wait(EXIT_TIMEOUT_S)


def test_kills_the_children_of_a_killed_command() -> None:
    """A process that the command started does not outlive it."""
    parent = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True); input()"
    process = SupervisedProcess([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process._supervisor.stdout

    with exits(int(process._supervisor.stdout.readline())):
        process.kill()


def test_kills_a_command_that_ignores_sigterm() -> None:
    """stop() sends SIGKILL after its timeout."""
    script = "import signal; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); signal.pause()"
    process = SupervisedProcess([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process._supervisor.stdout
    process._supervisor.stdout.readline()

    process.stop(0.1)

    assert 128 + signal.SIGKILL == process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="macOS has no signal for the death of a parent")
def test_a_command_ends_with_its_supervisor() -> None:
    """`pkill -9 -f kafkasse` kills the supervisor, too."""
    process = SupervisedProcess(["sleep", "600"])

    with exits(process.pid):
        process._supervisor.kill()
