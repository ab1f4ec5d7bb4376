"""A platform installs requirements.txt, sets variables, and runs the Procfile or the image."""

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
import requests

from tests.support.client import Client, fetch
from tests.support.kafka import Cluster
from tests.support.waiting import TIMEOUT_S

NO_BROKER = "127.0.0.1:1"
LEGACY_APP = "gunicorn --bind 127.0.0.1:0 --worker-class kafkasse.server.worker.Worker legacy_app:app"


@pytest.fixture(scope="session")
def procfile(tree: Path) -> str:
    """The command of the only process type in the Procfile."""
    ((process_type, command),) = re.findall(r"^(\w+): (.+)$", (tree / "Procfile").read_text(), re.MULTILINE)
    assert process_type == "web"
    return str(command)


@pytest.fixture(scope="module")
def run_procfile(procfile: str, tree: Path, web_venv: Path, start: Callable[..., Any]) -> Callable[..., Any]:
    """Runs the Procfile's command with only the packages in requirements.txt installed."""
    return lambda **variables: start(procfile, tree, web_venv, **variables)


@pytest.fixture(scope="module")
def variables(cluster: Cluster) -> dict[str, str]:
    """The variables that a platform needs in addition to PORT."""
    return {"KAFKASSE_BOOTSTRAP_SERVERS": cluster.bootstrap_servers, "KAFKASSE_ALLOWED_TOPICS": "*"}


@pytest.fixture(scope="module")
def server(run_procfile: Callable[..., Any], variables: dict[str, str]) -> Any:
    """An instance that no test stops."""
    return run_procfile(**variables)


def test_the_procfile_needs_three_variables(server, cluster, fresh_name):
    """With PORT, the address of Kafka and the allowed topics, the Procfile's command streams records."""
    cluster.send(cluster.create(fresh_name), b"1", b"2", b"3")

    with Client(server.port, f"/{fresh_name}?timestamp=0") as stream:
        events = stream.events(3)

    assert ["1", "2", "3"] == [event.data for event in events]


def test_a_client_resumes_at_another_instance(run_procfile, variables, server, cluster, fresh_name):
    cluster.send(cluster.create(fresh_name), b"1", b"2", b"3")
    first = run_procfile(**variables)

    with Client(first.port, f"/{fresh_name}?timestamp=0") as stream:
        seen = stream.events(2)
        first.terminate()
        stream.rest()
    with Client(server.port, f"/{fresh_name}", Last_Event_ID=seen[1].id) as resumed:
        events = resumed.events(1)

    assert stream.body.rpartition(b"retry: ")[2].strip().isdigit()
    assert 0 == first.wait()
    assert ["3"] == [event.data for event in events]


class Image(NamedTuple):
    """The instructions of the Dockerfile, and a directory with what they copy into /app."""

    instructions: list[tuple[str, str]]
    app: Path

    def last(self, instruction: str) -> str:
        return [text for name, text in self.instructions if name == instruction][-1]


@pytest.fixture(scope="session")
def image(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The image, interpreted by this test. `make image` builds it."""
    text = re.sub(r"\\\n\s*", "", (tree / "Dockerfile").read_text())
    lines = [line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")]
    image = Image([(name, rest) for name, rest in lines], tmp_path_factory.mktemp("image"))
    for name, rest in image.instructions:
        if name == "COPY" and not rest.startswith("--from"):
            *sources, target = rest.split()
            for source in sources:
                _copy(tree, source, image.app / (source if target == "./" else target.lstrip("/")))
    return image


def test_the_image_and_the_procfile_run_the_same_command(image, procfile):
    assert shlex.split(procfile) == json.loads(image.last("CMD"))


def test_the_image_does_not_run_as_root(image):
    names = [name for name, _ in image.instructions]

    assert all(int(number) >= 1000 for number in image.last("USER").split(":"))
    assert names.index("USER") > len(names) - 1 - names[::-1].index("FROM")


def test_the_image_contains_everything_for_the_server(image, web_venv, run, start):
    """The files and packages of the image are enough to serve. Its health check fails when the server has stopped."""
    check = json.loads(image.last("HEALTHCHECK").partition("CMD ")[2])
    variables = {"KAFKASSE_BOOTSTRAP_SERVERS": NO_BROKER, "KAFKASSE_ALLOWED_TOPICS": "*"}
    server = start(shlex.join(json.loads(image.last("CMD"))), image.app, web_venv, **variables)
    fetch(server.port, "/-/health")  # the check may take 2 s, and a worker may take longer to start
    check_health = ["env", f"PORT={server.port}", web_venv / "bin" / check[0], *check[1:]]

    run(*check_health)

    server.stop()
    with pytest.raises(AssertionError, match="ConnectionRefusedError"):
        run(*check_health)


def _copy(tree: Path, source: str, target: Path) -> None:
    patterns = [line for line in (tree / ".dockerignore").read_text().split("\n") if line and not line.startswith("#")]
    is_included = [pattern for pattern in patterns if fnmatchcase(source, pattern.removeprefix("!"))][-1].startswith(
        "!"
    )
    assert is_included, f"{source} is not in the build context"
    copy = shutil.copytree if (tree / source).is_dir() else shutil.copy
    copy(tree / source, target)


def test_the_login_of_an_existing_app_protects_the_streams(tree, web_venv, start, broker, cluster, fresh_name):
    """The app is examples/legacy_app.py, started by the command that it shows, without kafkasse's gunicorn.conf.py.

    Without a login, pages redirect to the login page, and a stream is rejected. A customer receives only their own records,
    until the logout.
    """
    topic = cluster.create(f"orders.{fresh_name}")
    cluster.send(topic, b'{"customer":"grace","n":1}', b'{"customer":"ada","n":2}')
    variables = {"PYTHONPATH": str(tree), "KAFKASSE_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
    server = start(LEGACY_APP, tree / "examples", web_venv, **variables)
    site = f"http://127.0.0.1:{server.port}"

    page, stream = (
        requests.get(f"{site}{path}", allow_redirects=False, timeout=TIMEOUT_S) for path in ("/", "/streams/orders")
    )
    with requests.Session() as visitor:
        visitor.post(f"{site}/login", data={"user": "ada"})
        cookie = f"session={visitor.cookies['session']}"
        with Client(server.port, "/streams/orders?timestamp=0", Cookie=cookie) as client:
            (event,) = client.events(1)
            visitor.post(f"{site}/logout")
            client.rest()
        after = visitor.get(f"{site}/streams/orders", timeout=TIMEOUT_S)

    assert (302, "/login") == (page.status_code, page.headers["Location"])
    assert (401, "UnauthorizedError") == (stream.status_code, stream.json()["name"])
    assert '{"customer":"ada","n":2' in event.data
    assert 401 == after.status_code
