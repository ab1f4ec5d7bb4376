"""Run a child process that cannot outlive its parent, even if the parent is killed.

A parent that is killed by SIGKILL cannot stop its children, and an orphaned broker would keep its port and 200 MB of memory.
Linux can signal a child when its parent dies, but the signal is sent when the *thread* that started the child ends. macOS
has no such signal. So a small Python process, the supervisor, runs between the parent and the child. It executes only this
file. It checks once a second that its parent is alive, forwards SIGTERM to the child, and exits with the child's exit code
after killing all processes that the child left behind. If the supervisor is killed too, as by `pkill -9 -f kafkasse`, Linux
sends SIGTERM to the child. This module does not depend on the command that it runs.
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

PARENT_CHECK_INTERVAL_S = 1.0
PR_SET_PDEATHSIG = 1  # linux/prctl.h
ORPHAN_GRACE_S = 10.0  # between SIGTERM and SIGKILL, after the parent died


class SupervisedProcess:
    """A running command that does not outlive this process and leaves no child processes behind.

    The command runs in its own session, so that Ctrl-C in the terminal reaches only this process, which can then stop its
    children in order.

    Args:
        scratch: a directory that the supervisor removes if this process dies; "" for none.
        popen: more arguments for Popen, such as the output, the environment and the descriptors to pass on.
    """

    pid: int
    """The process ID of the command itself; 0 if it could not be started."""

    def __init__(self, command: Sequence[str], *, scratch: str = "", **popen: Any) -> None:
        read_end, write_end = os.pipe()
        # Use file objects: gevent defers os.close(), so read() below would wait while we still hold the write end open.
        with os.fdopen(read_end, "rb") as reader:
            with os.fdopen(write_end, "wb"):
                words = [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(write_end), scratch, *command]
                descriptors = (*popen.pop("pass_fds", ()), write_end)
                self._supervisor = subprocess.Popen(  # noqa: S603 - the caller's command
                    words, pass_fds=descriptors, start_new_session=True, **popen
                )
            self.pid = int(reader.read() or 0)

    def ended(self) -> bool:
        """Whether the command has exited."""
        return self._supervisor.poll() is not None

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the command to exit. Return its exit code, or 128 plus the number of the signal that killed it."""
        return self._supervisor.wait(timeout_s)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._supervisor.terminate()

    def stop(self, timeout_s: float) -> None:
        """Send SIGTERM and wait. After the timeout, send SIGKILL."""
        self.terminate()
        try:
            self.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Send SIGKILL and wait."""
        if not self.ended():
            with suppress(ProcessLookupError):
                # The process ID 0 would be our own process group.
                os.kill(self.pid or self._supervisor.pid, signal.SIGKILL)
            self.wait()


def _supervise(parent: int, pid_descriptor: int, scratch: str, command: list[str]) -> int:
    wakeup_read, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    signal.set_wakeup_fd(wakeup_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    os.set_inheritable(pid_descriptor, False)
    # The caller's command, with the descriptors that the caller passed on. Its process group includes all its children.
    child = subprocess.Popen(  # noqa: S603
        command, close_fds=False, process_group=0, preexec_fn=_end_with_parent if sys.platform == "linux" else None
    )
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    with os.fdopen(pid_descriptor, "wb") as pid_pipe:
        pid_pipe.write(str(child.pid).encode())
    while child.poll() is None and os.getppid() == parent:
        if select.select([wakeup_read], [], [], PARENT_CHECK_INTERVAL_S)[0]:
            os.read(wakeup_read, 512)
    orphaned = os.getppid() != parent
    if orphaned:
        _end(child)
    # A command that exits normally leaves no processes behind, but a killed command may leave its children.
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    if orphaned:
        shutil.rmtree(scratch, ignore_errors=True)
    # The convention of shells: 128 plus the signal's number.
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _end_with_parent() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(ORPHAN_GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


if __name__ == "__main__":
    sys.exit(_supervise(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]))
