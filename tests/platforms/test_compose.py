"""deploy/compose.yaml: its services, started as processes of this machine with their commands and environments.

The embedded broker stands in for the image of Kafka. It has the settings of the service except the listeners and paths.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from kafkasse.pipelines.execution import runner
from kafkasse.pipelines.schema import default
from kafkasse.tools.broker import EmbeddedBroker
from kafkasse.tools.java import jars
from tests.project.conftest import Deployed
from tests.support.client import Client
from tests.support.server import ROOT, TOOLS

FILE = ROOT / "deploy/compose.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OF_THE_CONTAINER = (
    "listeners",
    "advertised.listeners",
    "listener.security.protocol.map",
    "controller.quorum.voters",
    "log.dirs",
)
OF_THE_MACHINE = ("HOME", "LANG", "KAFKASSE_IVY_SETTINGS")
EXIT_TIMEOUT_S = 120

Environment = dict[str, str]


def broker_settings() -> dict[str, str]:
    """Return the settings of the service `kafka`, which Kafka's image reads from variables."""
    variables = SERVICES["kafka"]["environment"]
    settings = {name.removeprefix("KAFKA_").lower().replace("_", "."): str(text) for name, text in variables.items()}
    return {name: text for name, text in settings.items() if name not in OF_THE_CONTAINER}


@pytest.fixture
def on_this_machine(processes: None, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Replaces the names and paths of the containers in a text by those of this machine. Runs a broker."""
    with EmbeddedBroker(settings=broker_settings()) as broker:
        names = {"kafka:9092": broker.bootstrap_servers, "/src": str(ROOT), "/home/kafkasse/data": str(tmp_path)}
        yield lambda text: re.sub("|".join(names), lambda match: names[match[0]], text)


def test_kafka_is_reachable_from_the_host_and_from_the_containers():
    """A client connects to the address that the broker advertises: localhost outside of the containers, and kafka inside."""
    settings = SERVICES["kafka"]["environment"]
    listeners, advertised = (
        dict(listener.split("://") for listener in settings[name].split(","))
        for name in ("KAFKA_LISTENERS", "KAFKA_ADVERTISED_LISTENERS")
    )
    (published,) = SERVICES["kafka"]["ports"]
    address, port, container_port = published.split(":")

    assert "127.0.0.1" == address  # other machines cannot reach it: it has no password
    assert {"PLAINTEXT": f"kafka{listeners['PLAINTEXT']}", "HOST": f"localhost:{port}"} == advertised
    assert f":{container_port}" == listeners["HOST"]
    protocols = dict(entry.split(":") for entry in settings["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(","))
    assert listeners.keys() == protocols.keys()


def environment(service: str, on_this_machine: Callable[[str], str]) -> Environment:
    """Return the variables of a service, with the jars and programs of this machine."""
    variables = {name: on_this_machine(text) for name, text in SERVICES[service]["environment"].items()}
    machine = {name: os.environ[name] for name in OF_THE_MACHINE if name in os.environ}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}"
    return variables | machine | {"PATH": path, "KAFKASSE_CACHE_DIR": str(jars.cache_directory())}


@contextmanager
def running(command: list[str], variables: Environment) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command, and stop it with SIGTERM, as Compose does."""
    with subprocess.Popen(command, env=variables) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(EXIT_TIMEOUT_S)


@pytest.mark.long
@pytest.mark.timeout(600)  # Spark starts slowly on a busy machine
def test_a_client_reads_the_results_of_the_pipeline(on_this_machine):
    """The service load fills the topic countries, the pipeline writes to topn, and kafkasse streams topn."""
    (port, path) = re.findall(r'^# Then: curl -N "http://localhost:(\d+)(\S+)"$', FILE.read_text(), re.MULTILINE)[0]
    load, pipeline = ([on_this_machine(word) for word in SERVICES[name]["command"]] for name in ("load", "pipeline"))
    subprocess.run(load, env=environment("load", on_this_machine), check=True, timeout=EXIT_TIMEOUT_S)
    variables = environment("kafkasse", on_this_machine) | {"PORT": "0"}
    command = json.loads(re.findall(r"^CMD (.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)[-1])
    command[0] = str(Path(sys.executable).with_name(command[0]))
    with (
        running(pipeline, environment("pipeline", on_this_machine)) as process,
        Deployed(command, ROOT, variables) as server,
        Client(server.port, path) as stream,
    ):
        (event,) = stream.events(1)

    assert {"continent", "nrs"} <= json.loads(event.data).keys()
    assert [f"127.0.0.1:{port}:{port}"] == SERVICES["kafkasse"]["ports"]
    assert 0 == process.returncode


def test_compose_waits_until_the_streams_have_ended(gunicorn):
    assert int(SERVICES["kafkasse"]["stop_grace_period"].removesuffix("s")) >= gunicorn["shutdown_s"]


def test_compose_waits_until_the_pipeline_has_committed():
    """Compose's default is 10 s."""
    seconds = int(SERVICES["pipeline"]["stop_grace_period"].removesuffix("s"))

    assert seconds > default("pipeline", "commit_interval_s") + runner.DRAIN_TIMEOUT_S


def test_the_image_of_kafka_has_the_version_of_the_embedded_broker():
    modules = json.loads(jars.LOCK_FILE.read_text())["groups"]["kafka"]["modules"]

    assert f"org.apache.kafka:kafka_2.13:{SERVICES['kafka']['image'].partition(':')[2]}" in modules


def test_the_images_are_built_from_files_in_the_build_context():
    """pip finds everything that pyproject.toml names. The inline Dockerfile uses the base image of the Dockerfile."""
    included = [line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines()]
    inline = COMPOSE["x-commands"]["build"]["dockerfile_inline"]
    (version,) = re.findall(r"^ARG PYTHON=(.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)

    assert {"pyproject.toml", "README.md", "LICENSE", "kafkasse", "schemas"} <= set(included)
    assert inline.startswith(f"FROM python:{version}-slim\n")


@pytest.mark.long
def test_the_file_matches_the_schemas_of_compose(processes):
    command = [TOOLS / "manifests/bin" / "cmd", FILE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stderr
    assert SERVICES.keys() == yaml.safe_load(done.stdout)["services"].keys()
