"""Ends a program together with its children, so that a test that fails leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from typing import Any


def end_group(process: subprocess.Popen[Any]) -> None:
    """Kill a program that was started with `start_new_session=True`, and its children, also after the program's own exit."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
