"""What a stranger's machine gets: the project's files, an environment of its own, and servers started in it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tarfile
import venv
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import gevent
import pytest

from tests.support.server import ROOT, Server


@pytest.fixture(scope="session")
def root() -> Path:
    """Where pyproject.toml lies."""
    return ROOT


@pytest.fixture(scope="session")
def run(processes: None) -> Callable[..., str]:
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


class Deployed(Server):
    """A gunicorn that is started as somebody else would start it."""

    def __init__(self, words: list[str], cwd: Path, environment: dict[str, str]) -> None:
        self.log = ""
        self._process = subprocess.Popen(words, cwd=cwd, env=environment, stderr=subprocess.PIPE, text=True, bufsize=1)
        self.port = int(self._said(r"Listening at: \S+:(\d+)"))
        self._reading = gevent.spawn(self._read)


@pytest.fixture
def start(processes: None) -> Iterator[Callable[..., Server]]:
    """Starts a server: start(command, cwd, home, NAME=value, …). All that were started are stopped at the end.

    Its whole environment is what a platform sets, a PATH that begins with the virtual environment `home` and a PORT (0,
    so that the system chooses one), and the variables that are named.
    """
    with ExitStack() as servers:

        def start(command: str, cwd: Path, home: Path, **variables: str) -> Server:
            program, *words = shlex.split(command)
            environment = {"PATH": f"{home / 'bin'}{os.pathsep}{os.defpath}", "PORT": "0", **variables}
            return servers.enter_context(Deployed([str(home / "bin" / program), *words], cwd, environment))

        yield start
