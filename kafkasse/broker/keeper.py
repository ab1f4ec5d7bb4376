"""Keeps a child process only as long as the process that wanted it is alive, however that one ends.

A parent that is killed by SIGKILL cannot end its children, and a broker that stays behind holds its port and 200 MB.
Linux can send a signal when a parent dies, but it does so when the *thread* that started the child ends, and macOS cannot
do it at all. So a small Python process stands in between, run from this file alone: it looks at its own parent once a
second, hands SIGTERM on, and ends with the child's exit code, having killed what the child has left behind. It knows
nothing of what it keeps.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

LOOK_AT_PARENT_AFTER_S = 1.0
GRACE_S = 10.0  # between SIGTERM and SIGKILL, once the parent is gone


class Kept:
    """A command that runs now, and that neither outlives this process nor leaves children of its own.

    It gets a session of its own, so Ctrl-C in the terminal reaches only us, who then end things in order.

    Args:
        command: the words of the command.
        scratch: a directory to remove when we die without having done so ourselves; "" for none.
        popen: further arguments for Popen: where output goes, the environment, descriptors to pass on.
    """

    pid: int
    """The process id of the command itself, 0 if it could not be started."""

    def __init__(self, command: Sequence[str], *, scratch: str = "", **popen: Any) -> None:
        told, tell = os.pipe()
        # Files rather than descriptors: gevent puts os.close off, and we would wait for the end of our own pipe.
        with os.fdopen(told, "rb") as answer:
            with os.fdopen(tell, "wb"):
                words = [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(tell), scratch, *command]
                passed = (*popen.pop("pass_fds", ()), tell)
                self._keeper = subprocess.Popen(words, pass_fds=passed, start_new_session=True, **popen)  # noqa: S603
            self.pid = int(answer.read() or 0)

    def ended(self) -> bool:
        """Whether it has ended, however."""
        return self._keeper.poll() is not None

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait until it ends. Returns its exit code, or 128 and the number of the signal that ended it."""
        return self._keeper.wait(timeout_s)

    def terminate(self) -> None:
        """Ask it to end."""
        self._keeper.terminate()

    def stop(self, timeout_s: float) -> None:
        """Ask it to end, and wait; after that time it is made to."""
        self.terminate()
        try:
            self.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it at once."""
        if not self.ended():
            os.kill(self.pid, signal.SIGKILL)
            self.wait()


def _keep(parent: int, tell: int, scratch: str, command: list[str]) -> int:
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    os.set_inheritable(tell, False)
    # What the parent asked for, with the descriptors that it passed on, in a process group with all that it starts.
    child = subprocess.Popen(command, close_fds=False, process_group=0)  # noqa: S603
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    with os.fdopen(tell, "wb") as answer:
        answer.write(str(child.pid).encode())
    while child.poll() is None and os.getppid() == parent:
        if select.select([woken], [], [], LOOK_AT_PARENT_AFTER_S)[0]:
            os.read(woken, 512)
    orphaned = os.getppid() != parent
    if orphaned:
        _end(child)
    # A command that ended well leaves nobody; one that was killed may leave its own children.
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    if orphaned:
        shutil.rmtree(scratch, ignore_errors=True)
    # As a shell does it: 128 and the signal's number.
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


if __name__ == "__main__":
    sys.exit(_keep(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]))
