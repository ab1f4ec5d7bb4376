"""The Dockerfile, built and run: `make image`. Without it, tests/project/test_deployment.py interprets the Dockerfile."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import pytest
from packaging.utils import canonicalize_name

from kafkasse.tools.broker import EmbeddedBroker
from tests.platforms.image import CannotBuild, Image, check_machine, create_base
from tests.project.conftest import Deployed
from tests.support.client import Client, fetch
from tests.support.server import ROOT

pytestmark = pytest.mark.long
STARTS = 5

Start = Callable[[], Deployed]


@pytest.fixture(scope="module")
def image(processes: None) -> Iterator[Image]:
    try:
        check_machine()
        create_base()
        image = Image()
    except (CannotBuild, subprocess.CalledProcessError) as error:
        if os.environ.get("IMAGE") == "optional":
            pytest.skip(f"This machine cannot build the image: {error}")
        raise
    yield image
    image.remove()


@pytest.fixture
def start(image: Image, broker: EmbeddedBroker) -> Iterator[Start]:
    with ExitStack() as servers:

        def start() -> Deployed:
            command = image.command(
                image.config["Cmd"],
                PORT="0",
                KAFKASSE_BOOTSTRAP_SERVERS=broker.bootstrap_servers,
                KAFKASSE_ALLOWED_TOPICS="*",
                KAFKASSE_PUBLIC="true",
            )
            return servers.enter_context(Deployed(command, Path("/"), dict(os.environ)))

        yield start


def test_streams_without_root_and_from_a_read_only_file_system(start, cluster, fresh_name):
    """All processes run as the user 10001, and can write only to /tmp."""
    cluster.send(cluster.create(fresh_name), b"1", b"2")
    server = start()

    with Client(server.port, f"/{fresh_name}?timestamp=0") as stream:
        events = stream.events(2)
        processes = [server.pid, *server.workers()]
        mounts = Path(f"/proc/{server.pid}/mounts").read_text().splitlines()

    assert ["1", "2"] == [event.data for event in events]
    assert {("10001",) * 4} == {_ids(process, "Uid") for process in processes}
    assert {("10001",) * 4} == {_ids(process, "Gid") for process in processes}
    read_only = {mount.split()[1]: mount.split()[3].startswith("ro,") for mount in mounts}
    assert (True, False) == (read_only["/"], read_only["/tmp"])  # noqa: S108 - the container's own
    server.stop()
    assert 0 == server.wait()


def test_the_health_check_fails_when_the_server_has_stopped(image, start):
    """It runs in the container, as the container engine runs it."""
    server = start()
    assert 200 == fetch(server.port, "/-/health").status  # the worker has started
    kind, *words = image.config["Healthcheck"]["Test"]
    check = image.command(words, PORT=str(server.port))

    healthy = subprocess.run(check, check=False).returncode
    server.stop()
    stopped = subprocess.run(check, check=False, stderr=subprocess.PIPE, text=True)

    assert ("CMD", 0) == (kind, healthy)
    assert stopped.returncode
    assert "ConnectionRefusedError" in stopped.stderr


def test_the_image_has_no_pip(image):
    assert (image.root / "venv/bin/gunicorn").exists()
    assert not (image.root / "venv/bin/pip").exists()


def test_the_contents_of_the_image_have_licenses(image):
    """Each package of requirements.txt is in the image. `make image` stores the list for the release."""
    contents = image.contents()
    pinned = dict(re.findall(r"^([\w.-]+)==([\w.]+)$", (ROOT / "requirements.txt").read_text(), re.MULTILINE))

    versions = {
        canonicalize_name(package["name"]): package["version"] for package in contents if package["type"] == "pypi"
    }
    assert {canonicalize_name(name): version for name, version in pinned.items()}.items() <= versions.items()
    assert [] == [package for package in contents if not package["license"]]
    assert any(package["type"] == "deb" for package in contents)
    if file := os.environ.get("IMAGE_CONTENTS"):
        (ROOT / file).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / file).write_text(json.dumps(contents, indent=1) + "\n")


def test_size_and_cold_start(image, start, cluster, fresh_name, capsys):
    """Prints the figures of docs/deployment.md."""
    cluster.create(fresh_name)
    seconds = []
    for _ in range(STARTS):
        began_at = time.monotonic()
        server = start()
        with Client(server.port, f"/{fresh_name}").ready():
            seconds.append(time.monotonic() - began_at)
        server.stop()

    with capsys.disabled():
        print(f"\nThe Dockerfile adds {image.layer_mb():.0f} MB to the base image.")
        print(f"Cold start: {median(seconds):.2f} s (median of {STARTS}) until a stream has its first event ID.")
    assert STARTS == len(seconds)


def _ids(process: int, kind: str) -> tuple[str, ...]:
    """Return the real, effective, saved and file system user ("Uid") or group ("Gid") of a process."""
    status = Path(f"/proc/{process}/status").read_text()
    return tuple(status.split(f"{kind}:")[1].split("\n")[0].split())
