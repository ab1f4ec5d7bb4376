"""What a stranger's machine gets: the project's files, an environment of its own, and servers started in it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest

from kafkasse.broker import EmbeddedBroker
from kafkasse.sse import Event, Parser
from tests.support.kafka import Cluster

ROOT = Path(__file__).parents[2]
SILENCE_S_MAX = 30.0
STOP_S_MAX = 20.0


@pytest.fixture(scope="session")
def root() -> Path:
    """Where pyproject.toml lies."""
    return ROOT


@pytest.fixture(scope="session")
def run() -> Callable[..., str]:
    """Runs a command to its end and returns its output. Fails with all that it said."""

    def run(*command: object, cwd: Path = ROOT) -> str:
        words = [str(word) for word in command]
        done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="session")
def tree(run: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's files as its sdist has them: no repository, no environment, nothing left over."""
    built = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", built)
    (sdist,) = built.iterdir()
    with tarfile.open(sdist) as archive:
        archive.extractall(built, filter="data")
    return built / sdist.name.removesuffix(".tar.gz")


@pytest.fixture(scope="session")
def web_venv(run: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with what requirements.txt names and no more, as a PaaS makes it."""
    home = tmp_path_factory.mktemp("web") / "venv"
    venv.create(home, with_pip=True)
    run(home / "bin/pip", "install", "--quiet", "-r", ROOT / "requirements.txt")
    return home


@pytest.fixture
def cluster(broker: EmbeddedBroker) -> Iterator[Cluster]:
    """Writes to the broker."""
    cluster = Cluster(broker.bootstrap_servers)
    yield cluster
    cluster.close()


class Stream:
    """A response that is being read."""

    def __init__(self, response: HTTPResponse) -> None:
        self.response = response
        self._parser = Parser()
        self._raw = b""

    def read(self, count: int) -> list[Event]:
        """The next `count` events. What came with the last of them is dropped."""
        events: list[Event] = []
        while len(events) < count:
            chunk = self.response.read1(65_536)
            self._raw += chunk
            assert chunk, f"the stream ended after {self._raw!r}"
            events += self._parser.receive(chunk)
        return events[:count]


class Server:
    """A gunicorn that has begun to listen, on the port that the system chose."""

    def __init__(self, command: list[str], cwd: Path, environment: dict[str, str]) -> None:
        self.log = ""
        self._process = subprocess.Popen(command, cwd=cwd, env=environment, stderr=subprocess.PIPE, text=True)
        self.port = self._listening()

    def _listening(self) -> int:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log += line
            if found := re.search(r"Listening at: \S+:(\d+)", line):
                return int(found[1])
        raise AssertionError(f"it ended before it listened:\n{self.log}")

    @contextmanager
    def get(self, path: str, method: str = "GET", **headers: str) -> Iterator[Stream]:
        """The response to one request; `Last_Event_ID=…` becomes the field Last-Event-ID."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=SILENCE_S_MAX)
        connection.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
        yield Stream(connection.getresponse())
        connection.close()

    def terminate(self) -> None:
        """What a platform does before it takes the machine away."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Wait for its end. Returns its exit code."""
        self.log += self._process.communicate(timeout=STOP_S_MAX)[1]
        return self._process.returncode

    def stop(self) -> None:
        """End it, and show what it logged to whoever reads about a test that failed."""
        if self._process.returncode is None:
            self.terminate()
            self.wait()
        print(self.log)


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    """Starts a server: start(command, cwd, home, NAME=value, …). All that were started are stopped at the end.

    Its whole environment is what a platform sets, a PATH that begins with the virtual environment `home` and a PORT (0,
    so that the system chooses one), and the variables that are named.
    """
    servers: list[Server] = []

    def start(command: str, cwd: Path, home: Path, **variables: str) -> Server:
        program, *words = shlex.split(command)
        environment = {"PATH": f"{home / 'bin'}{os.pathsep}{os.defpath}", "PORT": "0", **variables}
        servers.append(Server([str(home / "bin" / program), *words], cwd, environment))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()
