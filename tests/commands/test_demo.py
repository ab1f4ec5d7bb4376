"""`kafkasse demo` and `make setup`.

One test runs the whole demo with Kafka, Spark and gunicorn. The other tests use cheap processes instead.
"""

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

from kafkasse import Config
from kafkasse.broker import EmbeddedBroker
from kafkasse.commands.demo import CONFIG, Processes
from kafkasse.errors import CommandError

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 120.0
RETRIES_FOREVER = "cat", "http://127.0.0.1:1/"  # a command that runs until it is stopped, and starts quickly

pidfd = pytest.mark.skipif(
    not hasattr(os, "pidfd_open"), reason="needs Linux, to wait for processes of other processes"
)


class Demo:
    """A running `kafkasse demo` with its temporary files in `home`."""

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

    def read_until(self, text: str) -> None:
        """Read stdout up to the first line that contains `text`."""
        assert self.process.stdout
        for line in self.process.stdout:
            if text in line:
                return
        assert self.process.stderr
        pytest.fail(f"the demo did not print {text!r}; stderr: {self.process.stderr.read()}")

    def get(self, path: str) -> http.client.HTTPResponse:
        """Send a GET request to the demo's web server."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        connection.request("GET", path)
        return connection.getresponse()


def descendants(pid: int) -> set[int]:
    """Return the process IDs of the children of `pid`, of their children, and so on."""
    parents = dict(_parents())
    found: set[int] = set()
    generation = {pid}
    while generation:
        generation = {each for each, parent in parents.items() if parent in generation}
        found |= generation
    return found


def _parents() -> Iterator[tuple[int, int]]:
    """Yield each process ID with that of its parent."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            yield int(path.name), int((path / "stat").read_text().rpartition(")")[2].split()[1])


def wait_for_exit(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        assert select.select([descriptor], [], [], 60)[0], "a process is still running"


@pidfd
def test_shows_the_largest_countries_live_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """The page, Europe's Top 3 and the pipeline's health are served. Ctrl-C ends all processes and deletes all files."""
    demo = Demo(tmp_path)
    with ExitStack() as stack:
        stack.callback(demo.process.communicate)
        stack.callback(demo.process.kill)
        demo.read_until("Open")
        started = [os.pidfd_open(pid) for pid in descendants(demo.process.pid)]
        for descriptor in started:
            stack.callback(os.close, descriptor)

        assert 200 == demo.get("/").status
        assert 200 == demo.get("/-/demo").status
        assert 200 == demo.get("/countries").status
        health = demo.get("/pipelines")
        while b'"topn"' not in (line := health.readline()):
            assert line, "the stream ended"
        stream = demo.get("/topn/updates")
        europe: list[str] = []
        while europe != ["RU", "UA", "FR"]:
            line = stream.readline()
            assert line, "the stream ended"
            if line.startswith(b"data:") and (event := json.loads(line[5:])).get("continent") == "Europe":
                europe = [country["code"] for country in event["nrs"]]
        demo.read_until("252 rows acknowledged in topic countries")

        demo.process.send_signal(signal.SIGINT)

        assert 130 == demo.process.wait(60)
        wait_for_exit(started)
    assert [] == list(tmp_path.iterdir())


class RunningBroker(EmbeddedBroker):
    """A broker that costs nothing: it was never started, but reports that it is running."""

    def ended(self) -> bool:
        return False


def test_names_the_process_that_was_killed() -> None:
    """The demo does not continue without one of its processes."""
    with Processes(RunningBroker()) as processes:
        server = processes.start("server", *RETRIES_FOREVER)
        os.kill(server.process.pid, signal.SIGKILL)

        with pytest.raises(CommandError) as error:
            processes.wait_until(lambda: False)

    assert "the server has stopped (exit code 137)" in str(error.value)


def test_shows_the_log_of_a_process_that_exited() -> None:
    """A process that should run, but exits, is a failure even if its exit code is 0. The error shows its log."""
    with Processes(RunningBroker()) as processes:
        processes.start("pipeline", "pipeline", "list")

        with pytest.raises(CommandError) as error:
            processes.wait_until(lambda: False)

    assert "the pipeline has stopped (exit code 0). The end of its log:\ntopn: countries -> topn" in str(error.value)


def test_a_process_may_exit_when_it_has_finished() -> None:
    """Loading the file ends, and the demo continues."""
    with Processes(RunningBroker()) as processes:
        load = processes.start("load", "pipeline", "list", exits=True)

        processes.wait_until(load.process.ended)

        load.check()
        assert load.output().startswith("topn: countries -> topn")


def test_stops_if_the_broker_stops() -> None:
    with EmbeddedBroker() as broker, Processes(broker) as processes:
        os.kill(broker.pid, signal.SIGKILL)

        with pytest.raises(CommandError) as error:
            processes.wait_until(lambda: False)

    assert "the broker has stopped. The end of its log:\n" in str(error.value)


def test_gives_up_after_a_timeout() -> None:
    with Processes(RunningBroker()) as processes, pytest.raises(CommandError) as error:
        processes.wait_until(lambda: False, timeout_s=0)

    assert str(processes.logs) in str(error.value)


@pidfd
def test_a_killed_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    """If the demo is killed with SIGKILL, its processes end and their files are deleted."""
    script = (
        "import sys\n"
        "from kafkasse.broker import EmbeddedBroker\n"
        "from kafkasse.commands.demo import Processes\n"
        f"with Processes(EmbeddedBroker()) as processes:\n"
        f"    print(processes.start('server', *{RETRIES_FOREVER!r}).process.pid, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as demo:
        assert demo.stdout
        assert demo.stdout.readline()
        started = [os.pidfd_open(pid) for pid in descendants(demo.pid)]
        assert list(tmp_path.iterdir())

        demo.kill()

        wait_for_exit(started)
    assert [] == list(tmp_path.iterdir())


def test_serves_both_topics_and_the_page() -> None:
    """The demo's configuration file is valid and depends on no default."""
    config = Config.load({}, CONFIG)

    assert config.web.pages
    assert {"/topn/updates", "/pipelines", "/{topics}"} == {route.path for route in config.routes}


def test_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])

        done = subprocess.run(
            [sys.executable, "-m", "kafkasse", "demo", "--port", port], capture_output=True, text=True, timeout=60
        )

    assert 1 == done.returncode
    assert done.stderr.startswith(f"kafkasse demo: port {port} is in use")
    assert 1 == len(done.stderr.splitlines())
    assert "" == done.stdout


def make_setup(home: Path, python: str) -> subprocess.CompletedProcess[str]:
    """Run `make setup` in a directory that contains only the Makefile and the requirements."""
    for name in ("Makefile", "requirements.txt", "requirements-dev.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, home)
    return subprocess.run(["make", "setup", f"PYTHON={python}"], cwd=home, capture_output=True, text=True, timeout=60)


def fake_python(home: Path, script: str) -> str:
    """Create an executable that runs this shell script instead of Python."""
    program = home / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ('case "$2" in *version_info*) exit 1;; esac', "is older than Python 3.11. Name a newer one"),
        ('case "$2" in *ensurepip*) exit 1;; esac', "cannot create virtual environments. Install its venv package"),
    ],
)
def test_make_rejects_an_unsuitable_python(tmp_path: Path, script: str, sentence: str) -> None:
    """The error is one sentence: the reason why this Python does not work, and how to choose another."""
    done = make_setup(tmp_path, fake_python(tmp_path, script))

    assert done.returncode != 0
    assert sentence in done.stderr.splitlines()[0]
    assert not (tmp_path / ".venv").exists()


def test_make_without_python(tmp_path: Path) -> None:
    done = make_setup(tmp_path, "no-such-python")

    assert done.returncode != 0
    assert "no-such-python was not found" in done.stderr.splitlines()[0]
