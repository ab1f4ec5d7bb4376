"""The progress display, on a terminal and in a log."""

from __future__ import annotations

import io
import threading
from contextlib import redirect_stderr

import kafkasse.tools.progress
from kafkasse.tools.progress import MAX_LOG_LINES, Progress, waiting
from tests.support.waiting import wait_until


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_redraws_one_line_on_a_terminal(monkeypatch):
    """The line is never wider than the terminal, and its last state remains on the screen."""
    monkeypatch.setenv("COLUMNS", "60")

    with redirect_stderr(Terminal()) as terminal, Progress("loading a file", 200) as progress:
        for done in range(201):
            progress.show(done, f"{done} of 200, with a note that is longer than the terminal is wide")

    drawn = terminal.getvalue().split("\r\x1b[K")
    assert drawn[-1].startswith("loading a file [" + "#" * 30 + "] 100% 200")
    assert drawn[-1].endswith("\n")
    assert all(len(line.rstrip("\n")) < 60 for line in drawn)


def test_writes_few_lines_to_a_log(capsys):
    """A log gets one line for every 10 %, however often progress is reported."""
    with Progress("loading a file", 200) as progress:
        for done in range(201):
            progress.show(done, f"{done} of 200")

    lines = capsys.readouterr().err.splitlines()
    assert "loading a file: 10%, 20 of 200" == lines[0]
    assert "loading a file: 100%, 200 of 200" == lines[-1]
    assert MAX_LOG_LINES == len(lines)


def test_counts_the_seconds_on_a_terminal(monkeypatch):
    """The line is redrawn in place, and removed at the end."""
    monkeypatch.setattr(kafkasse.tools.progress, "SILENCE_S", 0.01)

    with redirect_stderr(Terminal()) as terminal, waiting("connecting"):
        wait_until(lambda: terminal.getvalue().count("connecting ... 0 s") > 1)

    assert terminal.getvalue().endswith("\r\x1b[K")


def test_writes_nothing_to_a_log_while_it_waits(monkeypatch, capsys):
    """A script that reads stderr gets only results and errors."""
    monkeypatch.setattr(kafkasse.tools.progress, "SILENCE_S", 0.01)
    threads = threading.active_count()

    with waiting("connecting"):
        assert threads == threading.active_count()

    assert "" == capsys.readouterr().err


def test_writes_nothing_about_short_work(monkeypatch):
    """Work that ends before the first second has passed is not mentioned."""
    monkeypatch.setattr(kafkasse.tools.progress, "SILENCE_S", 3600)

    with redirect_stderr(Terminal()) as terminal, waiting("connecting"):
        pass

    assert "" == terminal.getvalue()
