"""What a platform does with the project: install requirements.txt, set variables, run the Procfile or the image."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.client import Client, ask
from tests.support.kafka import Cluster

NO_BROKER = "127.0.0.1:1"


@pytest.fixture(scope="session")
def procfile(tree: Path) -> str:
    """The command of the Procfile's only kind of process."""
    ((kind, command),) = re.findall(r"^(\w+): (.+)$", (tree / "Procfile").read_text(), re.MULTILINE)
    assert kind == "web"
    return str(command)


@pytest.fixture
def run_procfile(procfile: str, tree: Path, web_venv: Path, start: Callable[..., Any]) -> Callable[..., Any]:
    """Runs the Procfile's command in the tree, in an environment of nothing but requirements.txt, with variables."""
    return lambda **variables: start(procfile, tree, web_venv, **variables)


def test_streams_from_two_variables(run_procfile: Callable[..., Any], cluster: Cluster, fresh_name: str) -> None:
    """The Procfile's command, with PORT and the brokers' address alone, streams what Kafka holds."""
    cluster.send(cluster.create(fresh_name), b"1", b"2", b"3")
    server = run_procfile(KAFKASSE_BOOTSTRAP_SERVERS=cluster.bootstrap_servers, KAFKASSE_ALLOWED_TOPICS="*")

    with Client(server.port, f"/{fresh_name}?timestamp=0") as stream:
        events = stream.events(3)

    assert ["1", "2", "3"] == [event.data for event in events]


def test_another_instance_goes_on(run_procfile: Callable[..., Any], cluster: Cluster, fresh_name: str) -> None:
    """An instance that the platform stops ends its streams politely, and any other goes on with them."""
    cluster.send(cluster.create(fresh_name), b"1", b"2", b"3")
    variables = {"KAFKASSE_BOOTSTRAP_SERVERS": cluster.bootstrap_servers, "KAFKASSE_ALLOWED_TOPICS": "*"}
    first, second = (run_procfile(**variables) for _ in range(2))

    with Client(first.port, f"/{fresh_name}?timestamp=0") as stream:
        seen = stream.events(2)
        first.terminate()
        stream.rest()
    with Client(second.port, f"/{fresh_name}", Last_Event_ID=seen[1].id) as resumed:
        events = resumed.events(1)

    assert stream.body.rpartition(b"retry: ")[2].strip().isdigit()
    assert 0 == first.wait()
    assert ["3"] == [event.data for event in events]


def test_is_healthy_without_kafka(run_procfile: Callable[..., Any]) -> None:
    """While Kafka is away the health check passes, and streams are refused: when to come back, and no address."""
    server = run_procfile(
        KAFKASSE_BOOTSTRAP_SERVERS=NO_BROKER, KAFKASSE_ALLOWED_TOPICS="*", KAFKASSE_KAFKA_TIMEOUT_S="1"
    )

    health, refused = ask(server.port, "/-/health"), ask(server.port, "/anything")

    assert 200 == health.status
    assert 503 == refused.status
    assert refused.headers["retry-after"].isdigit()
    assert NO_BROKER.encode() not in refused.body


class Image(NamedTuple):
    """The Dockerfile, and what it copies into /app."""

    instructions: list[tuple[str, str]]
    app: Path

    def last(self, instruction: str) -> str:
        return [text for name, text in self.instructions if name == instruction][-1]


@pytest.fixture(scope="session")
def image(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Read as the builder reads it: there is no container engine here to build it with."""
    text = re.sub(r"\\\n\s*", "", (tree / "Dockerfile").read_text())
    lines = [line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")]
    image = Image([(name, rest) for name, rest in lines], tmp_path_factory.mktemp("image"))
    for name, rest in image.instructions:
        if name == "COPY" and not rest.startswith("--from"):
            *sources, target = rest.split()
            for source in sources:
                _copy(tree, source, image.app / (source if target == "./" else target.lstrip("/")))
    return image


def test_image_runs_what_the_procfile_runs(image: Image, procfile: str) -> None:
    """One way to start it, wherever it runs."""
    assert shlex.split(procfile) == json.loads(image.last("CMD"))


def test_image_is_not_run_by_root(image: Image) -> None:
    """The last stage ends as a user without a name, a home or rights."""
    names = [name for name, _ in image.instructions]

    assert all(int(number) >= 1000 for number in image.last("USER").split(":"))
    assert names.index("USER") > len(names) - 1 - names[::-1].index("FROM")


def test_image_holds_what_the_server_needs(
    image: Image, web_venv: Path, run: Callable[..., str], start: Callable[..., Any]
) -> None:
    """What the Dockerfile copies and installs is enough to serve, and the health check tells a live server from none."""
    check = json.loads(image.last("HEALTHCHECK").partition("CMD ")[2])
    variables = {"KAFKASSE_BOOTSTRAP_SERVERS": NO_BROKER, "KAFKASSE_ALLOWED_TOPICS": "*"}
    server = start(shlex.join(json.loads(image.last("CMD"))), image.app, web_venv, **variables)
    look = ["env", f"PORT={server.port}", web_venv / "bin" / check[0], *check[1:]]

    run(*look)

    server.stop()
    with pytest.raises(AssertionError, match="ConnectionRefusedError"):
        run(*look)


def _copy(tree: Path, source: str, target: Path) -> None:
    patterns = [line for line in (tree / ".dockerignore").read_text().split("\n") if line and not line.startswith("#")]
    let_through = [pattern for pattern in patterns if fnmatchcase(source, pattern.removeprefix("!"))][-1].startswith(
        "!"
    )
    assert let_through, f"{source} is not in the build's context"
    copy = shutil.copytree if (tree / source).is_dir() else shutil.copy
    copy(tree / source, target)
