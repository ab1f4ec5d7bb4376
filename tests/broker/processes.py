"""Child processes for the tests of the broker and its supervisor."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

EXIT_TIMEOUT_S = 60


@contextmanager
def child(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process without gevent's patches. It is killed when the block ends."""
    process = subprocess.Popen(
        [sys.executable, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # A test run in the background ignores SIGINT, and its children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    """Read the next line of the process's output."""
    assert process.stdout
    return process.stdout.readline()


@contextmanager
def exits(pid: int) -> Iterator[None]:
    """Wait at the end of the block until this process has exited. It need not be a child of the test."""
    if sys.platform != "linux":
        pytest.skip("only Linux can wait for a process that is not a child")
    descriptor = os.pidfd_open(pid)
    yield
    assert select.select([descriptor], [], [], EXIT_TIMEOUT_S)[0], "the process is still running"
    os.close(descriptor)
