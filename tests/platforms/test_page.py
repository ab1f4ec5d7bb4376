"""docs/deployment.md: the samples are valid, and their numbers match the server's settings."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from typing import Any

import pytest
import yaml

from kafkasse import Config, schemas
from tests.platforms.conftest import RESERVE_S
from tests.support.docs import code, read
from tests.support.server import ROOT

PAGE = read("docs/deployment.md")
SETTINGS = schemas.read("config")["properties"]
OF_THE_SERVER = {"KAFKASSE_BIND", "KAFKASSE_RUNTIME_DIR"}  # read by gunicorn's settings
ROUTER_LIMITS_S = (30, 55)  # Heroku's: until the first byte, and of silence. Those of the other platforms are longer.
FILE = re.compile(r"(?:deploy/[\w./-]+|requirements\.txt)")


def option(name: str) -> int:
    (number,) = re.findall(rf"{name}[ =](\d+)", "".join(code("docs/deployment.md", "sh")))
    return int(number)


@pytest.fixture
def fly() -> dict[str, Any]:
    (block,) = code("docs/deployment.md", "toml")
    return tomllib.loads(block)


def test_the_commands_are_valid_shell(processes):
    for block in code("docs/deployment.md", "sh"):
        done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True, check=False)
        assert (0, "") == (done.returncode, done.stderr)
        words = [word for line in block.replace("\\\n", "").splitlines() for word in shlex.split(line)]
        files = [word for word in words if FILE.fullmatch(word)]
        assert [] == [file for file in files if not (ROOT / file).exists()]


def test_the_variables_are_valid_settings(fly):
    samples = [dict(re.findall(r"\b(KAFKASSE_\w+)=(\S+)", block)) for block in code("docs/deployment.md", "sh")]
    samples += [yaml.safe_load(block) for block in code("docs/deployment.md", "yaml")]
    samples.append({name: text for name, text in fly["env"].items() if name.startswith("KAFKASSE_")})
    complete = [sample for sample in samples if sample]

    for sample in complete:
        Config.load(sample).check_servable()

    assert 4 == len(complete)
    for name in re.findall(r"`(KAFKASSE_\w+)", PAGE):
        assert name in OF_THE_SERVER or name.removeprefix("KAFKASSE_").lower() in SETTINGS


def test_the_platforms_wait_until_the_streams_have_ended(fly, gunicorn):
    """The time between SIGTERM and SIGKILL is longer than gunicorn's graceful_timeout."""
    needed_s = gunicorn["shutdown_s"]
    (documented_s,) = re.findall(r"^\| time before SIGKILL \| (\d+) s or more \|", PAGE, re.MULTILINE)

    assert needed_s == int(documented_s)
    assert "SIGTERM" == fly["kill_signal"]
    assert min(fly["kill_timeout"], option("--stop-timeout")) >= needed_s


def test_heartbeats_are_more_frequent_than_the_limits_of_the_platforms():
    """A stream is never silent for as long as a router allows, even if a heartbeat is late."""
    assert 4 * SETTINGS["heartbeat_s"]["default"] <= min(ROUTER_LIMITS_S)
    assert all(f"{limit} s" in PAGE for limit in ROUTER_LIMITS_S)


def test_fly_sends_requests_to_the_port_of_the_server(fly, gunicorn):
    """Its limit of connections is that of the server's streams, and its check is the readiness probe."""
    service = fly["http_service"]
    (check,) = service["checks"]

    assert [f"0.0.0.0:{service['internal_port']}"] == gunicorn["bind"]
    assert fly["env"]["PORT"] == str(service["internal_port"])
    assert service["concurrency"]["hard_limit"] <= SETTINGS["max_streams"]["default"]
    assert "/-/ready" == check["path"]


def test_cloud_run_ends_no_stream_before_the_server():
    """kafkasse ends each stream before the timeout of the platform, and accepts as many as the platform sends."""
    (block,) = code("docs/deployment.md", "yaml")
    variables = yaml.safe_load(block)

    assert int(variables["KAFKASSE_MAX_STREAM_AGE_S"]) < option("--timeout")
    assert int(variables["KAFKASSE_MAX_STREAMS"]) == option("--concurrency")


def test_the_server_stops_before_cloud_run_kills_it():
    """Cloud Run sends SIGKILL 10 s after SIGTERM, so the page shortens gunicorn's graceful_timeout."""
    (block,) = code("docs/deployment.md", "yaml")

    assert f"--graceful-timeout={10 - RESERVE_S}" == yaml.safe_load(block)["GUNICORN_CMD_ARGS"]


def test_heroku_uses_the_python_of_the_image():
    (version,) = re.findall(r"^echo (\S+) > \.python-version$", PAGE, re.MULTILINE)

    assert f"ARG PYTHON={version}\n" in (ROOT / "Dockerfile").read_text()
