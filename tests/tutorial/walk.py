"""Follows a tutorial like a reader: saves its files, runs its commands in their order, and compares their output."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import gevent

from tests.support.process_group import end_group
from tests.support.server import ROOT
from tests.support.waiting import POLL_S

BLOCK = r"^```(?P<language>\w+)\n(?P<code>.*?)^```$"
PARAGRAPH = r"(?P<paragraph>(?:^(?!```)[^\n]+\n)+)"
EXPORTS = re.compile(r"^export .*\n", re.M)  # the variables of a terminal, which later commands see too
SERVER = re.compile(r"^(gunicorn|kafkasse (broker|serve|pipeline run)) ", re.M)
LIMIT_S = 900  # for a command; an installation may take minutes
FOLLOWS_A_STREAM = re.compile(r"^curl -N ", re.M)


class Step(NamedTuple):
    """A paragraph, or a block of code with its language, the paragraph before it, and the output that follows it."""

    paragraph: str
    language: str = ""
    code: str = ""
    output: str = ""


class Program:
    """A command of the tutorial that has been started, in a process group of its own."""

    def __init__(self, script: str, cwd: Path, environment: dict[str, str], output: Path) -> None:
        self._output = output
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                ["bash", "-e", "-c", script], cwd=cwd, env=environment, stdout=file, stderr=file, start_new_session=True
            )

    @property
    def text(self) -> str:
        return self._output.read_text()

    def wait_for(self, expected: str, limit_s: float) -> None:
        """Wait until the output contains the expected lines, in which … stands for any text."""
        pattern = ".*?".join(re.escape(part) for part in re.split(r"\s*…\s*", expected.strip()))
        with gevent.Timeout(limit_s, False):
            while self._process.poll() is None and not re.search(pattern, self.text, re.S):
                gevent.sleep(POLL_S)
        assert re.search(pattern, self.text, re.S), f"expected:\n{expected}\nbut the output is:\n{self.text}"

    def wait(self, limit_s: float) -> None:
        code = self._process.wait(limit_s)
        assert code == 0, self.text

    def interrupt(self) -> None:
        """Press Ctrl-C, and wait until the program has stopped. No child of it remains."""
        try:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGINT)
                self._process.wait(60)
        finally:
            end_group(self._process)


class Walk:
    """A reader who follows the tutorial.

    Args:
        runtime: the directory for the sockets of the workers.
        app_port, kafka_port: free ports, because other tests may use those of the tutorial.
        is_full: also create the virtual environment and install kafkasse, which takes minutes. Otherwise, the one of this
            process is used.
    """

    def __init__(self, home: Path, runtime: str, app_port: int, kafka_port: int, is_full: bool, page: str) -> None:
        text = (ROOT / page).read_text()
        self.folder = home / text.partition("\nmkdir ")[2].partition("\n")[0]
        self.url = f"http://127.0.0.1:{app_port}/"
        self._is_full = is_full
        self._programs: list[Program] = []
        (home / "kafkasse").symlink_to(ROOT)
        self._environment = os.environ | {
            "PATH": f"{self.folder / '.venv/bin'}{os.pathsep}{os.environ['PATH']}",
            "GUNICORN_CMD_ARGS": f"--bind 127.0.0.1:{app_port}",
            "KAFKASSE_BOOTSTRAP_SERVERS": f"127.0.0.1:{kafka_port}",
            "KAFKASSE_RUNTIME_DIR": runtime,
        }
        text = text.replace("127.0.0.1:8000", f"127.0.0.1:{app_port}")
        text = text.replace("127.0.0.1:9092", f"127.0.0.1:{kafka_port}")
        self._steps = iter(list(_steps(text.replace("kafkasse broker ", f"kafkasse broker --port {kafka_port} "))))

    def until(self, text: str) -> None:
        """Follow the tutorial up to the paragraph that contains `text`, including this paragraph."""
        for step in self._steps:
            self._follow(step)
            if not step.language and text in step.paragraph:
                return
        raise AssertionError(f"the tutorial does not contain {text!r}")

    def to_the_end(self) -> None:
        for step in self._steps:
            self._follow(step)

    def stop(self) -> None:
        """Stop all programs, the newest first."""
        with ExitStack() as programs:
            while self._programs:
                programs.callback(self._programs.pop(0).interrupt)

    def _follow(self, step: Step) -> None:
        saved = re.search(r"(?:Save this as|Replace) `([^`]+)`", step.paragraph)
        edited = re.search(r"In `([^`]+)`, (?:add this below|(replace) the line) `([^`]+)`", step.paragraph)
        if not step.language:
            if re.search(r"(?:terminal of the app, press|Stop the app with) Ctrl-C", step.paragraph):
                self._programs.pop().interrupt()
        elif step.language == "sh":
            self._run(step)
        elif saved:
            (self.folder / saved[1]).write_text(step.code)
        else:
            assert edited, f"what should the reader do with this block?\n{step.code}"
            file = self.folder / edited[1]
            before, line, after = file.read_text().partition(edited[3] + "\n")
            file.write_text(before + ("" if edited[2] else line) + step.code + after)

    def _run(self, step: Step) -> None:
        """Run a block of commands. Servers keep running. A stream is closed when it has sent the expected output."""
        cwd = self.folder
        if "venv .venv" in step.code:
            cwd = self.folder.parent
            if not self._is_full:
                self.folder.mkdir()
                (self.folder / ".venv").symlink_to(sys.prefix)
                return
        for line in EXPORTS.findall(step.code):
            self._export(line)
        program = Program(EXPORTS.sub("", step.code), cwd, self._environment, self.folder.parent / f"output-{id(step)}")
        self._programs.append(program)
        if step.output:
            program.wait_for(step.output, LIMIT_S)
        if SERVER.search(step.code):
            return
        if not FOLLOWS_A_STREAM.search(step.code):
            program.wait(LIMIT_S)
        self._programs.pop().interrupt()

    def _export(self, line: str) -> None:
        shell = ["bash", "-c", f"{line}env -0"]
        done = subprocess.run(shell, cwd=self.folder, env=self._environment, capture_output=True, text=True, check=True)
        self._environment = dict(variable.split("=", 1) for variable in done.stdout.rstrip("\0").split("\0"))


def _steps(page: str) -> Iterator[Step]:
    """Split a page into its steps. A block of text that follows a command is the output of the command."""
    paragraph = ""
    blocks = list(re.finditer(f"{BLOCK}|{PARAGRAPH}", page, re.M | re.S))
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        if block["paragraph"]:
            paragraph = block["paragraph"].replace("\n", " ")
            yield Step(paragraph)
        elif block["language"] != "text" or "Save this as" in paragraph:
            output = following["code"] if following and following["language"] == "text" else ""
            yield Step(paragraph, block["language"], block["code"], output)
