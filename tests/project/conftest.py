"""Fixtures that install the project as on a new machine: its files, virtual environments, and servers that run in them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path
from typing import Any

import gevent
import pytest
import yaml

from tests.support.process_group import end_group
from tests.support.server import ROOT, Server


@pytest.fixture(scope="session")
def root() -> Path:
    """The directory that contains pyproject.toml."""
    return ROOT


@pytest.fixture(scope="session")
def run(processes: None) -> Callable[..., str]:
    """Runs a command and returns its output. If the command fails, the test fails with the output."""

    def run(*command: object, cwd: Path = ROOT) -> str:
        words = [str(word) for word in command]
        process = subprocess.Popen(
            words, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            output, problem = process.communicate()
        finally:
            end_group(process)
        assert process.returncode == 0, output + problem
        return output

    return run


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project without the files that git ignores, as a platform gets it."""
    ignored = [line.rstrip("/").rpartition("/")[2] for line in (ROOT / ".gitignore").read_text().split()]
    tree = tmp_path_factory.mktemp("project") / "tree"
    return Path(shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", *ignored)))


@pytest.fixture(scope="session")
def web_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the packages in requirements.txt only, as on a PaaS.

    They are links to those of the tests, because pip would need 10 s of CPU. test_pip_installs_nothing_else uses pip.
    """
    home = tmp_path_factory.mktemp("web") / "venv"
    venv.create(home)
    link(re.findall(r"^([\w.-]+)(?:\[.*\])?==", (ROOT / "requirements.txt").read_text(), re.M), home)
    return home


def link(packages: Iterable[str], home: Path) -> None:
    """Add packages of this environment to the virtual environment `home`."""
    for file in [file for package in packages for file in metadata.files(package) or ()]:
        source = Path(str(file.locate())).resolve()
        target = home / source.relative_to(Path(sys.prefix).resolve())
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.parent == home / "bin":  # a script begins with the path of its Python
            target.write_text(source.read_text().replace(f"{sys.prefix}/bin", f"{home}/bin"))
            target.chmod(0o755)
        elif source.suffix != ".pyc":
            target.symlink_to(source)


def alerts() -> list[dict[str, Any]]:
    """Return the alerts in deploy/prometheus."""
    groups = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def pip(home: Path) -> tuple[object, ...]:
    """Return the command of this environment's pip for another environment, which needs none of its own."""
    return sys.executable, "-m", "pip", "--python", home / "bin/python"


class Deployed(Server):
    """A gunicorn that is started by the command of a platform or a user."""

    def __init__(self, words: list[str], cwd: Path, environment: dict[str, str]) -> None:
        self.log = ""
        self._process = subprocess.Popen(
            words, cwd=cwd, env=environment, stderr=subprocess.PIPE, text=True, bufsize=1, start_new_session=True
        )
        try:
            self.port = int(self._wait_for_log(r"Listening at: \S+:(\d+)"))
        except BaseException:
            end_group(self._process)
            raise
        self._reading = gevent.spawn(self._read)

    def stop(self) -> None:
        try:
            super().stop()
        finally:
            end_group(self._process)


@pytest.fixture(scope="module")
def start(processes: None) -> Iterator[Callable[..., Server]]:
    """Starts a server: start(command, cwd, home, NAME=value, …). It is stopped after the last test of the module.

    Its environment consists of a PATH that begins with the virtual environment `home`, a PORT of 0, so that the system
    chooses one, KAFKASSE_PUBLIC, and the named variables.
    """
    started: list[Server] = []
    with ExitStack() as servers:

        def start(command: str, cwd: Path, home: Path, **variables: str) -> Server:
            program, *words = shlex.split(command)
            path = f"{home / 'bin'}{os.pathsep}{os.defpath}"
            environment = {"PATH": path, "PORT": "0", "KAFKASSE_PUBLIC": "true", **variables}
            started.append(servers.enter_context(Deployed([str(home / "bin" / program), *words], cwd, environment)))
            return started[-1]

        yield start
        for server in started:
            server.terminate()  # all of them before waiting for the first
