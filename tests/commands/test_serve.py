"""`kafkasse serve`: gunicorn as the Procfile starts it, or one sentence on why not."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkasse.broker import EmbeddedBroker
from tests.support.client import ask

ANSWER_S_MAX = 30
ENVIRONMENT = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}


def serve(*words: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "kafkasse", "serve", *words]
    return subprocess.Popen(command, env=ENVIRONMENT | environment, stderr=subprocess.PIPE, text=True, bufsize=1)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stderr
    line = process.stderr.readline()
    assert line, "it ended before it listened"
    return line


def refusal(*words: str, **environment: str) -> str:
    """What it says before it ends with exit code 1."""
    with serve(*words, **environment) as process:
        _, said = process.communicate(timeout=ANSWER_S_MAX)

    assert 1 == process.returncode
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize(
    "start",
    [
        lambda bootstrap, port: serve(
            "--bootstrap-servers", bootstrap, "--bind", f"127.0.0.1:{port}", KAFKASSE_ALLOWED_TOPICS="*"
        ),
        lambda bootstrap, port: serve(
            KAFKASSE_BOOTSTRAP_SERVERS=bootstrap, PORT=str(port), KAFKASSE_ALLOWED_TOPICS="*"
        ),
    ],
    ids=["options", "variables"],
)
def test_it_serves(start: Callable[[str, int], subprocess.Popen[str]], broker: EmbeddedBroker) -> None:
    """By options, or by the variables of a platform, it reads that Kafka and listens where it is told to."""
    with start(broker.bootstrap_servers, 0) as process:
        said = ""
        while (listening := re.search(r"Listening at: \S+:(\d+)", said)) is None:
            said += _line(process)

        assert 404 == ask(int(listening[1]), "/missing").status
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=ANSWER_S_MAX)
    assert 0 == process.returncode


def test_a_port_that_is_taken() -> None:
    """It says which, and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"

        said = refusal("--bind", address, KAFKASSE_ALLOWED_TOPICS="*")

    assert 1 == said.count("\n")
    assert address in said
    assert "--bind" in said


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:99999", ":6917"])
def test_an_address_that_is_none(address: str) -> None:
    """One sentence with the address in it."""
    said = refusal("--bind", address, KAFKASSE_ALLOWED_TOPICS="*")

    assert (1, True) == (said.count("\n"), address in said)


def test_a_setting_that_is_wrong(tmp_path: Path) -> None:
    """What is wrong with the settings is said before gunicorn begins."""
    file = tmp_path / "kafkasse.yaml"
    file.write_text("heartbeat_s: 0")

    assert "heartbeat_s" in refusal("--config", str(file))
    assert "KAFKASSE_RETRY_MS" in refusal(KAFKASSE_RETRY_MS="soon")
    assert "missing.yaml" in refusal("--config", str(tmp_path / "missing.yaml"))
