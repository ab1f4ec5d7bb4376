"""`kafkasse demo` and `make setup`.

One test runs the whole demo with Kafka, Spark and gunicorn. The other tests use cheap processes instead.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from kafkasse import Config
from kafkasse.commands.demo import CONFIG, Processes
from kafkasse.errors import CommandError
from kafkasse.tools.broker import EmbeddedBroker
from tests.commands.run import process
from tests.pipelines.standalone import children
from tests.support.client import Client, fetch
from tests.support.kafka import Cluster
from tests.support.server import ROOT
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes

RETRIES_FOREVER = "cat", "http://127.0.0.1:1/"  # a command that runs until it is stopped, and starts quickly


def read_until(demo: subprocess.Popen[str], text: str) -> str:
    found = next((line for line in demo.stdout if text in line), "")
    assert found, f"the demo did not print {text!r}; stderr: {demo.stderr.read()}"
    return found


def descendants(pid: int) -> list[int]:
    """Return the process IDs of the children of `pid`, of their children, and so on."""
    return [descendant for child in children(pid) for descendant in (child, *descendants(child))]


def recorded_programs(directory: Path, *names: str) -> str:
    """A PATH with programs that write their names and arguments to `directory/calls`, and then run the real program."""
    for name in names:
        program = directory / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {directory}/calls\nexec {shutil.which(name)} "$@"\n')
        program.chmod(0o700)
    return f"{directory}:{os.environ['PATH']}"


def wait_for_exit(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        assert select.select([descriptor], [], [], 60)[0], "a process is still running"


def test_shows_the_largest_countries_live_and_leaves_nothing_behind(tmp_path):
    """The page, Europe's Top 3 and the pipeline's health are served. Ctrl-C ends all processes and deletes all files.

    The pipeline reports a bad record. Hadoop starts no process for the files of its checkpoint.
    """
    (tmp_path / "programs").mkdir()
    path = recorded_programs(tmp_path / "programs", "chmod", "readlink", "ls", "ln")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    (tmp_path / "files").mkdir()
    settings = {"KAFKASSE_BOOTSTRAP_SERVERS": "127.0.0.1:1", "KAFKASSE_CORS_ORIGINS": "http://localhost:8000"}
    environment = os.environ | settings | {"TMPDIR": str(tmp_path / "files"), "PATH": path}
    with ExitStack() as stack, process("demo", "--port", str(port), "--rate", "50", env=environment) as demo:
        servers = read_until(demo, "  Kafka ").split()[1].removesuffix(",")
        logs = Path(read_until(demo, "  Logs ").split()[1])
        started = [os.pidfd_open(pid) for pid in descendants(demo.pid)]
        for descriptor in started:
            stack.callback(os.close, descriptor)

        assert [200, 200] == [fetch(port, path).status for path in ("/", "/-/demo")]
        with Client(port, "/topn/updates", Origin="http://localhost:8000") as page:
            assert "http://localhost:8000" == page.headers["access-control-allow-origin"]
        with Client(port, "/countries") as countries, Client(port, "/pipelines") as health:
            assert 200 == countries.status
            health.read_until_text(b'"topn"')
        with Client(port, "/topn/updates") as updates:
            europe: list[str] = []
            while europe != ["RU", "UA", "FR"]:
                result = json.loads(updates.events(1)[0].data)
                if result.get("continent") == "Europe":
                    europe = [country["code"] for country in result["nrs"]]
        read_until(demo, "252 rows acknowledged in topic countries")
        with closing(Cluster(servers)) as cluster:
            cluster.send("countries", b"Germany", key=b"DE")
        wait_until(lambda: "its value is not JSON" in (logs / "pipeline.log").read_text())
        assert "dead letters: 1 in topn.dead-letters" in (logs / "pipeline.log").read_text()

        demo.send_signal(signal.SIGINT)

        assert 0 == demo.wait(60)
        wait_for_exit(started)
    assert [] == list((tmp_path / "files").iterdir())
    calls = (tmp_path / "programs" / "calls").read_text().splitlines()
    assert {"kafkasse-operators.jar"} == {Path(call).name for call in calls}  # Spark makes the jar of a task executable


class RunningBroker(EmbeddedBroker):
    """A broker that costs nothing: it was never started, but reports that it is running."""

    def ended(self) -> bool:
        return False


def failure(processes: Processes, **limits: float) -> str:
    """Wait for something that never happens. Returns the error that ends the wait."""
    with pytest.raises(CommandError) as error:
        processes.wait_until(lambda: False, **limits)
    return str(error.value)


def test_a_process_or_broker_that_stops_and_a_timeout_are_failures(monkeypatch):
    """The error names the process, and shows where the logs are or the end of the log."""
    with Processes(RunningBroker()) as processes:
        assert str(processes.logs) in failure(processes, timeout_s=0)
        with monkeypatch.context() as patched:
            patched.setattr(RunningBroker, "ended", lambda _: True)
            assert "the broker has stopped. The end of its log:\n" in failure(processes)

        server = processes.start("server", *RETRIES_FOREVER)
        os.kill(server.process.pid, signal.SIGKILL)
        assert "the server has stopped (exit code 137)" in failure(processes)


def test_a_process_that_exits_is_a_failure_unless_it_may_exit():
    """Loading the file ends, and the demo continues. If another process exits, the error shows its log."""
    with Processes(RunningBroker()) as processes:
        load = processes.start("load", "pipeline", "list", exits=True)
        processes.wait_until(load.process.ended)
        load.check()
        assert load.output().startswith("topn: countries -> topn")

        processes.start("pipeline", "pipeline", "list")

        expected = "the pipeline has stopped (exit code 0). The end of its log:\ntopn: countries -> topn"
        assert expected in failure(processes)


def test_a_killed_demo_leaves_nothing_behind(tmp_path):
    """If the demo is killed with SIGKILL, its processes end and their files are deleted."""
    script = (
        "import sys\n"
        "from kafkasse.tools.broker import EmbeddedBroker\n"
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


def test_serves_both_topics_and_the_page():
    """The demo's configuration file is valid and depends on no default."""
    config = Config.load({}, CONFIG)

    assert {"/topn/updates", "/pipelines", "/{topics}"} == {route.path for route in config.routes}


def test_port_in_use(run):
    """It is reported at once, before anything starts."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        code, out, err = run("demo", "--port", str(port))

    assert (1, "", 1) == (code, out, len(err.splitlines()))
    assert err.startswith(f"kafkasse demo: port {port} is in use")


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ('case "$2" in *version_info*) exit 1;; esac', "is older than Python 3.11. Name a newer one"),
        ('case "$2" in *ensurepip*) exit 1;; esac', "cannot create virtual environments. Install its venv package"),
        (None, "python was not found"),
    ],
)
def test_make_rejects_an_unsuitable_python(tmp_path, script, sentence):
    """The error is one sentence: the reason why this Python does not work, and how to choose another."""
    for name in ("Makefile", "requirements.txt", "requirements-dev.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / "python"
    if script:
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)

    make = ["make", "setup", f"PYTHON={python}"]
    done = subprocess.run(make, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    assert done.returncode != 0
    assert sentence in done.stderr.splitlines()[0]
    assert not (tmp_path / ".venv").exists()


def test_make_demo_ends_without_an_error_after_ctrl_c(tmp_path):
    """Ctrl-C reaches make and the demo. The demo ends with 0, so make reports no error."""
    for name in ("Makefile", "requirements.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    program = tmp_path / ".venv/bin/kafkasse"
    program.parent.mkdir(parents=True)
    # Like the demo, the program does not end before make has received the signal: then make would wait for it twice.
    pending = "grep -q '^ShdPnd.*[2367abef]$' /proc/$PPID/status"  # signal 2
    stop = f"while {pending}; do sleep 0.1; done; echo stopped; exit 0"
    program.write_text(f'#!/bin/sh\ntrap "{stop}" INT\necho started\nwhile :; do sleep 0.1; done\n')
    program.chmod(0o755)
    (tmp_path / ".venv/demo").touch()  # all packages are installed
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}

    command = ["make", "--no-print-directory", "demo"]  # a make that is started by another one prints its directory
    with subprocess.Popen(command, cwd=tmp_path, start_new_session=True, **pipes) as make:
        assert "started\n" == make.stdout.readline()
        os.killpg(make.pid, signal.SIGINT)
        rest = make.communicate(timeout=60)[0]

    assert "stopped\n" == rest


def test_an_installation_shows_the_reason_of_its_failure(tmp_path):
    """Not hundreds of lines: only the end of pip's output, and what to do."""
    script = ROOT / "tests/project/install.py"
    words = [tmp_path / "venv", "--no-index", "a-package-that-does-not-exist"]

    done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, timeout=120)

    assert (1, "") == (done.returncode, done.stdout)
    assert "No matching distribution found for a-package-that-does-not-exist" in done.stderr
    assert "Fix it and run make again." == done.stderr.rstrip()[-26:]
