"""`make` and `kafkasse demo`, as a person meets them: data on the page, one sentence of trouble, and nothing left."""

from __future__ import annotations

import http.client
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ANSWER_TIMEOUT_S = 120.0


class Demo:
    """A demo at work, with all its temporary files in a directory of its own."""

    def __init__(self, home: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.port = server.getsockname()[1]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kafkasse", "demo", "--port", str(self.port), "--rate", "50"],
            env={**os.environ, "TMPDIR": str(home), "KAFKASSE_BOOTSTRAP_SERVERS": "127.0.0.1:1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def until(self, words: str) -> None:
        """Read what it says up to a line with these words."""
        assert self.process.stdout
        for line in self.process.stdout:
            if words in line:
                return
        assert self.process.stderr
        pytest.fail(f"never said {words!r} but {self.process.stderr.read()}")

    def get(self, path: str) -> http.client.HTTPResponse:
        """The answer of its web server."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_TIMEOUT_S)
        connection.request("GET", path)
        return connection.getresponse()

    def descendants(self) -> dict[int, str]:
        """Every process that it has started, and that these have, with its command line."""
        rows = list(_processes())
        found: dict[int, str] = {}
        generation = {self.process.pid}
        while generation:
            children = {pid: args for pid, parent, args in rows if parent in generation}
            found |= children
            generation = set(children)
        return found

    def one(self, words: str) -> int:
        """The process id of the command with these words."""
        return next(pid for pid, args in self.descendants().items() if words in args and "keeper.py" not in args)


def _processes() -> Iterator[tuple[int, int, str]]:
    """(pid, parent's pid, command line) of all processes."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
            yield int(path.name), int(parent), (path / "cmdline").read_text().replace("\0", " ")


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    """A demo that has been started, and that leaves neither a process nor a file."""
    if sys.platform != "linux":
        pytest.skip("only Linux tells about processes that are not one's children")
    running = Demo(tmp_path)
    with ExitStack() as stack:
        try:
            running.until("Open")
            left = [os.pidfd_open(pid) for pid in running.descendants()]
            for descriptor in left:
                stack.callback(os.close, descriptor)
            yield running
            for descriptor in left:
                assert select.select([descriptor], [], [], 60)[0], "a process is left"
        finally:
            running.process.kill()
            running.process.communicate()
    assert not list(tmp_path.iterdir())


def test_countries_reach_the_page(demo: Demo) -> None:
    """The Top 3 of Europe streams as its countries are loaded, the page is there, and Ctrl-C ends everything."""
    assert demo.get("/").status == 200
    stream = demo.get("/topn/updates")
    europe: list[str] = []

    while europe != ["RU", "UA", "FR"]:
        line = stream.readline()
        assert line, "the stream ended"
        if line.startswith(b"data:") and (event := json.loads(line[5:]))["continent"] == "Europe":
            europe = [country["code"] for country in event["nrs"]]

    demo.until("252 rows acknowledged in topic countries")
    demo.process.send_signal(signal.SIGINT)
    assert demo.process.wait(60) == 0


@pytest.mark.parametrize(("words", "name"), [("pipeline run", "pipeline"), ("gunicorn", "server")])
def test_a_child_that_dies(demo: Demo, words: str, name: str) -> None:
    """The demo does not go on without one of its parts, and says which has failed."""
    os.kill(demo.one(words), signal.SIGKILL)

    _, said = demo.process.communicate(timeout=60)

    assert demo.process.returncode == 1
    assert f"kafkasse demo: the {name} has ended (exit code 137)" in said


def test_a_broker_that_dies(demo: Demo) -> None:
    """The same for Kafka itself."""
    os.kill(demo.one("kafka.Kafka"), signal.SIGKILL)

    _, said = demo.process.communicate(timeout=60)

    assert demo.process.returncode == 1
    assert "kafkasse demo: the broker has ended" in said


def test_killed(demo: Demo) -> None:
    """Even SIGKILL leaves nothing, since each child has a keeper."""
    demo.process.kill()

    assert demo.process.wait(60) == -signal.SIGKILL


def test_busy_port() -> None:
    """A port in use is named at once, before anything starts."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])

        done = subprocess.run(
            [sys.executable, "-m", "kafkasse", "demo", "--port", port], capture_output=True, text=True, timeout=60
        )

    assert done.returncode == 1
    assert done.stderr == f"kafkasse demo: port {port} is in use; stop what uses it, or name another\n"
    assert done.stdout == ""


def setup(home: Path, python: str) -> subprocess.CompletedProcess[str]:
    """`make setup` in a place that has only the Makefile and the requirements."""
    for name in ("Makefile", "requirements.txt", "requirements-dev.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, home)
    return subprocess.run(["make", "setup", f"PYTHON={python}"], cwd=home, capture_output=True, text=True, timeout=60)


def pretend(home: Path, script: str) -> str:
    """A python that does only this."""
    program = home / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ('case "$2" in *version_info*) exit 1;; esac', "is older than Python 3.11; name a newer one"),
        ('case "$2" in *ensurepip*) exit 1;; esac', "cannot make virtual environments; install its venv package"),
    ],
)
def test_make_with_a_python_that_will_not_do(tmp_path: Path, script: str, sentence: str) -> None:
    """One sentence says what is wrong with it and how to name another."""
    done = setup(tmp_path, pretend(tmp_path, script))

    assert done.returncode != 0
    assert sentence in done.stderr.splitlines()[0]
    assert not (tmp_path / ".venv").exists()


def test_make_without_python(tmp_path: Path) -> None:
    """The same where there is none at all."""
    done = setup(tmp_path, "python-that-nobody-has")

    assert done.returncode != 0
    assert "there is no python-that-nobody-has here" in done.stderr.splitlines()[0]
