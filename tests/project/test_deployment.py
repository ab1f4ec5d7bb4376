"""A platform installs requirements.txt, sets variables, and runs the Procfile or the image."""

from __future__ import annotations

import json
import os
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
from tests.support.server import PYTHON
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


def test_an_existing_app_streams_to_each_customer_their_own_records(tree, web_venv, start, cluster, fresh_name):
    """The app is examples/legacy_app.py, started by the command that it shows, without kafkasse's gunicorn.conf.py.

    Without a login, a page redirects, and a stream gets a 401 that asks for no token. A logout, and a login of someone else
    in the same browser, end the streams of this customer, and the cookie that the browser has after a logout opens no
    stream. `make compat` runs this with the packages of an older app.
    """
    prefix = f"{fresh_name}."
    topic = cluster.create(f"{prefix}orders")
    for customer, order in (("ada", b"1"), ("grace", b"2"), ("ada", b"3")):
        cluster.send(topic, order, key=customer.encode())
    variables = {
        "KAFKASSE_BOOTSTRAP_SERVERS": cluster.bootstrap_servers,
        "KAFKASSE_TOPIC_PREFIX": prefix,
        "SECRET_KEY": "s",
    }
    home = Path(PYTHON).parents[1] if "SERVER_PYTHON" in os.environ else web_venv
    server = start(LEGACY_APP, tree / "examples", home, PYTHONPATH=str(tree), KAFKASSE_PUBLIC="false", **variables)
    site = f"http://127.0.0.1:{server.port}"
    path = "/streams/orders/ada?timestamp=0"

    def log_in(name: str) -> requests.Session:
        visitor = requests.Session()
        visitor.post(f"{site}/login", data={"user": name})
        return visitor

    def cookie(visitor: requests.Session) -> str:
        return "; ".join(f"{name}={text}" for name, text in visitor.cookies.items())

    page = requests.get(site, allow_redirects=False, timeout=TIMEOUT_S)
    stream = requests.get(f"{site}{path}", allow_redirects=False, timeout=TIMEOUT_S)
    other = requests.get(f"{site}/streams/orders", allow_redirects=False, timeout=TIMEOUT_S)
    ada, grace = log_in("ada"), log_in("grace")
    with (
        Client(server.port, path, Cookie=cookie(ada)) as of_ada,
        Client(server.port, path.replace("ada", "grace"), Cookie=cookie(grace)) as of_grace,
    ):
        orders = [[event.data for event in client.events(count)] for client, count in ((of_ada, 2), (of_grace, 1))]
        ada.post(f"{site}/logout")
        of_ada.rest()
        cluster.send(topic, b"4", key=b"grace")
        later = of_grace.events(1)
        foreign = grace.get(f"{site}{path}")
        grace.post(f"{site}/login", data={"user": "ada"})
        of_grace.rest()
    after = ada.get(f"{site}{path}")

    assert (302, "/login") == (page.status_code, page.headers["Location"].removeprefix(site))
    assert (401, 'Cookie realm="session"') == (stream.status_code, stream.headers["WWW-Authenticate"])
    assert 404 == other.status_code
    assert [["1", "3"], ["2"]] == orders
    assert ["4"] == [event.data for event in later]
    assert (401, 403) == (after.status_code, foreign.status_code)
