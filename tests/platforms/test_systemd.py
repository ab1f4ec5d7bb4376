"""deploy/systemd: systemd accepts the units, and their commands and variables run the server and a pipeline."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kafkasse import schemas
from kafkasse.commands import pipeline
from kafkasse.pipelines.execution.runner import DRAIN_TIMEOUT_S
from kafkasse.pipelines.schema import default
from tests.project.conftest import Deployed
from tests.support.client import fetch
from tests.support.server import ROOT
from tests.support.waiting import wait_until

UNIT = ROOT / "deploy/systemd/kafkasse.service"
PIPELINE = UNIT.with_name("kafkasse-pipeline@.service")
PROGRAM = "/opt/kafkasse/bin/kafkasse"
MAX_EXPOSURE = 2.0  # of 10, as systemd-analyze measures it

needs_systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs the package systemd")


def setting(name: str, unit: Path = UNIT) -> str:
    (value,) = re.findall(rf"^{name}=(.*)$", unit.read_text(), re.MULTILINE)
    return str(value)


@pytest.fixture(params=[UNIT, PIPELINE], ids=lambda unit: unit.name)
def installed(processes: None, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A unit, with the path of a program that exists."""
    file = tmp_path / str(request.param.name)
    file.write_text(request.param.read_text().replace(PROGRAM, str(Path(sys.executable).with_name("kafkasse"))))
    return file


@needs_systemd
def test_systemd_accepts_the_unit(installed):
    """systemd-analyze reports neither errors nor warnings about it. It may report some about the units of this machine."""
    done = subprocess.run(["systemd-analyze", "verify", installed], capture_output=True, text=True, check=False)

    assert [] == [line for line in done.stderr.splitlines() if installed.stem in line]


@needs_systemd
def test_the_unit_is_hardened(installed):
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", installed]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    (exposure,) = re.findall(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert float(exposure) <= MAX_EXPOSURE


def test_systemd_waits_until_the_streams_have_ended(gunicorn):
    """It sends SIGKILL after gunicorn's graceful_timeout. The limit of descriptors is above max_streams."""
    max_streams = schemas.read("config")["properties"]["max_streams"]["default"]

    assert int(setting("TimeoutStopSec")) >= gunicorn["shutdown_s"]
    assert int(setting("LimitNOFILE")) >= 2 * max_streams


def test_systemd_waits_until_a_pipeline_has_committed():
    """systemd does not restart a run that a rebuild has replaced: its exit code is 0."""
    _, *words = shlex.split(setting("ExecStart", PIPELINE).replace("%i", "x").replace("$PIPELINE_OPTIONS", "--rebuild"))
    context = pipeline.run.make_context("run", words[2:])

    assert ["pipeline", "run"] == words[:2]
    assert "%S/" + setting("StateDirectory", PIPELINE) == context.params["checkpoint"]
    assert f"KAFKASSE_CACHE_DIR=%C/{setting('CacheDirectory', PIPELINE)}" in setting("Environment", PIPELINE)
    assert int(setting("TimeoutStopSec", PIPELINE)) > default("pipeline", "commit_interval_s") + DRAIN_TIMEOUT_S
    assert ("on-failure", "mixed") == (setting("Restart", PIPELINE), setting("KillMode", PIPELINE))


def test_the_units_have_different_users():
    """DynamicUser= takes the name of the unit, which another account must not have."""
    assert "yes" == setting("DynamicUser")
    assert UNIT.stem != setting("User", PIPELINE)
    assert f"useradd --system {setting('User', PIPELINE)};" in PIPELINE.read_text()


def test_the_unit_starts_reloads_and_stops_the_server(processes, tmp_path):
    """The server reports to systemd that it is ready, ExecReload replaces the workers, and SIGTERM ends it with code 0."""
    config = tmp_path / "kafkasse.yaml"
    config.write_text("{kafka: {bootstrap_servers: ['127.0.0.1:1']}, allowed_topics: [orders], public: true}")
    program, *words = shlex.split(setting("ExecStart"))
    runtime = tmp_path / setting("RuntimeDirectory")
    runtime.mkdir(mode=int(setting("RuntimeDirectoryMode"), 8))
    environment = dict(variable.split("=") for variable in setting("Environment").replace("%t", str(tmp_path)).split())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications:
        notifications.bind(str(tmp_path / "notify"))
        environment |= {"NOTIFY_SOCKET": str(tmp_path / "notify"), "PORT": "0", "PATH": os.defpath}

        command = [sys.executable, "-m", "kafkasse", *words[:-1], str(config)]
        with Deployed(command, ROOT, environment) as server:
            assert (PROGRAM, "READY=1") == (program, notifications.recv(1000).decode().splitlines()[0])
            assert 200 == fetch(server.port, "/-/health").status
            before = server.workers()
            subprocess.run(setting("ExecReload").replace("$MAINPID", str(server.pid)).split(), check=True)
            wait_until(lambda: server.workers() and not set(before) & set(server.workers()))

            assert any(runtime.iterdir())
            os.kill(server.pid, signal.SIGTERM)
            assert 0 == server.wait()
