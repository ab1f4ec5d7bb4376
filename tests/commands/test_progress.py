"""How far a job is, on a terminal and elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

from kafkasse.progress import LINES_MAX, Progress


class Terminal(io.StringIO):
    """A terminal that remembers what was written to it."""

    def isatty(self) -> bool:
        return True


def test_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line is drawn over and over, never wider than the terminal, and its last state stays."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "60")

    with Progress("loading a file", 200) as progress:
        for done in range(201):
            progress.show(done, f"{done} of 200, with a note that is longer than the terminal is wide")

    drawn = terminal.getvalue().split("\r\x1b[K")
    assert drawn[-1].startswith("loading a file [" + "#" * 30 + "] 100% 200")
    assert drawn[-1].endswith("\n")
    assert all(len(line.rstrip("\n")) < 60 for line in drawn)


def test_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    """A log gets a handful of lines, however often progress is told."""
    with Progress("loading a file", 200) as progress:
        for done in range(201):
            progress.show(done, f"{done} of 200")

    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "loading a file: 10%, 20 of 200"
    assert lines[-1] == "loading a file: 100%, 200 of 200"
    assert len(lines) == LINES_MAX
