"""A progress display on stderr for long-running work.

A terminal shows one line that is redrawn in place. A log file or a pipe, where that would be thousands of lines, gets one
line for every 10 %.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

REDRAW_INTERVAL_S = 0.1
BAR_WIDTH = 30
MAX_LOG_LINES = 10
SILENCE_S = 1.0  # work that takes longer is shown


class Progress:
    """A progress bar with a note: `with Progress("fetching", total) as progress: progress.show(done, "3 of 46")`.

    Args:
        label: a short description of the work.
        total: the amount of work, in the unit of `done`; 0 if it is unknown.
    """

    def __init__(self, label: str, total: int) -> None:
        self._label, self._total = label, total
        self._terminal = sys.stderr.isatty()
        self._drawn_at_s = float("-inf")
        self._logged = 0
        self._line = ""

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._terminal and self._line:
            sys.stderr.write(f"\r\x1b[K{self._line}\n")

    def show(self, done: int, note: str) -> None:
        """Report the amount of work that is `done`. Cheap enough to call for every record, because it seldom draws."""
        fraction = min(done / self._total, 1.0) if self._total else 0.0
        if self._terminal:
            self._draw(fraction, note)
        elif int(fraction * MAX_LOG_LINES) > self._logged:
            self._logged = int(fraction * MAX_LOG_LINES)
            sys.stderr.write(f"{self._label}: {fraction:.0%}, {note}\n")
            sys.stderr.flush()

    def _draw(self, fraction: float, note: str) -> None:
        filled = round(fraction * BAR_WIDTH)
        bar = f"[{'#' * filled}{' ' * (BAR_WIDTH - filled)}] {fraction:4.0%} " if self._total else ""
        # Cut the line: a line that wraps cannot be redrawn in place.
        self._line = f"{self._label} {bar}{note}"[: shutil.get_terminal_size().columns - 1]
        if time.monotonic() - self._drawn_at_s >= REDRAW_INTERVAL_S:
            self._drawn_at_s = time.monotonic()
            sys.stderr.write(f"\r\x1b[K{self._line}")
            sys.stderr.flush()


@contextmanager
def waiting(label: str) -> Iterator[None]:
    """Show the label and the seconds on a terminal while the block runs, if it takes longer than a second."""
    if not sys.stderr.isatty():
        yield
        return
    finished = threading.Event()
    thread = threading.Thread(target=_show_seconds, args=(label, finished), daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def _show_seconds(label: str, finished: threading.Event) -> None:
    started_s = time.monotonic()
    is_shown = False
    while not finished.wait(SILENCE_S):
        is_shown = True
        line = f"{label} ... {time.monotonic() - started_s:.0f} s"
        sys.stderr.write(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}")
        sys.stderr.flush()
    if is_shown:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
