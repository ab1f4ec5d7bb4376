"""How far a long job is, told on stderr, and what a command says on stdout.

On a terminal one line is drawn again and again; a log file or a pipe, where that would be thousands of lines, gets one
for each tenth of the way.
"""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType

REDRAW_AFTER_S = 0.1
BAR_WIDTH = 30
LINES_MAX = 10  # where there is no terminal


def say(text: str) -> None:
    """One line to stdout, at once: whoever reads it through a pipe may be waiting for it."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Progress:
    """A bar with words: `with Progress("fetching", total) as progress: progress.show(done, "3 of 46")`.

    Args:
        what: what is going on, in a word or three.
        total: how much there is to do, in whatever `done` counts; 0 when nobody knows.
    """

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total = what, total
        self._terminal = sys.stderr.isatty()
        self._drawn_at_s = float("-inf")
        self._step = 0
        self._last = ""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._terminal and self._last:
            sys.stderr.write(f"\r\x1b[K{self._last}\n")

    def show(self, done: int, note: str) -> None:
        """Tell that `done` is done. Cheap enough for every record: it draws only when somebody could see the change."""
        part = min(done / self._total, 1.0) if self._total else 0.0
        if self._terminal:
            filled = round(part * BAR_WIDTH)
            bar = f"[{'#' * filled}{' ' * (BAR_WIDTH - filled)}] {part:4.0%} " if self._total else ""
            # A line that wraps could not be drawn over.
            self._last = f"{self._what} {bar}{note}"[: shutil.get_terminal_size().columns - 1]
            if time.monotonic() - self._drawn_at_s >= REDRAW_AFTER_S:
                self._drawn_at_s = time.monotonic()
                sys.stderr.write(f"\r\x1b[K{self._last}")
                sys.stderr.flush()
        elif int(part * LINES_MAX) > self._step:
            self._step = int(part * LINES_MAX)
            sys.stderr.write(f"{self._what}: {part:.0%}, {note}\n")
            sys.stderr.flush()
