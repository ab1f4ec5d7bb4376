"""`kafkasse serve` starts gunicorn like the Procfile does, or prints in one sentence why it cannot."""

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
from kafkasse.commands import main
from tests.support.client import fetch

TIMEOUT_S = 30
ENVIRONMENT = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
ENVIRONMENT["KAFKASSE_PUBLIC"] = "true"


class Started(Exception):
    """Raised instead of starting gunicorn. Contains the command and the environment that gunicorn would get."""

    def __init__(self, command: list[str], environ: dict[str, str]) -> None:
        super().__init__(command)
        self.command, self.environ = command, environ


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs `kafkasse serve` in this process, with only these environment variables. Raises Started instead of exec."""

    def execve(_: str, command: list[str], environ: dict[str, str]) -> None:
        raise Started(command, environ)

    def serve(*args: str, **variables: str) -> int:
        monkeypatch.setattr(os, "environ", ENVIRONMENT | variables)
        return main(["serve", *args])

    monkeypatch.setattr(os, "execve", execve)
    return serve


@pytest.fixture
def startup_error(serve: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Returns the sentence that `kafkasse serve` prints when it does not start."""

    def startup_error(*args: str, **variables: str) -> str:
        assert 1 == serve(*args, **variables)
        (sentence,) = capsys.readouterr().err.splitlines()
        return sentence

    return startup_error


@pytest.mark.parametrize(("end", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_serves_topics(broker: EmbeddedBroker, end: signal.Signals, code: int) -> None:
    """The server uses --bootstrap-servers and --bind. Its exit code is 0 after SIGTERM and 130 after Ctrl-C."""
    command = ["serve", "--bootstrap-servers", broker.bootstrap_servers, "--bind", "127.0.0.1:0"]
    with subprocess.Popen(
        [sys.executable, "-m", "kafkasse", *command],
        env=ENVIRONMENT | {"KAFKASSE_ALLOWED_TOPICS": "*"},
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as process:
        assert process.stderr
        log = ""
        while (listening := re.search(r"Listening at: \S+:(\d+)", log)) is None:
            line = process.stderr.readline()
            assert line, f"it exited before it listened: {log}"
            log += line

        assert 404 == fetch(int(listening[1]), "/missing").status
        process.send_signal(end)
        process.communicate(timeout=TIMEOUT_S)
    assert code == process.returncode


def test_passes_the_options_to_gunicorn(serve: Callable[..., int], tmp_path: Path) -> None:
    """gunicorn and its workers get the options as environment variables."""
    file = tmp_path / "kafkasse.yaml"
    file.write_text("allowed_topics: [orders]")

    with pytest.raises(Started) as started:
        serve("--bootstrap-servers", "kafka:9092", "--bind", "127.0.0.1:0", "--workers", "3", "--config", str(file))

    assert {
        "KAFKASSE_BOOTSTRAP_SERVERS": "kafka:9092",
        "KAFKASSE_BIND": "127.0.0.1:0",
        "WEB_CONCURRENCY": "3",
        "KAFKASSE_CONFIG": str(file),
    } == {name: value for name, value in started.value.environ.items() if name not in ENVIRONMENT}


@pytest.mark.parametrize(
    ("variables", "bind"),
    [({}, "127.0.0.1:6917"), ({"PORT": "5000"}, None), ({"KAFKASSE_BIND": "127.0.0.1:0"}, "127.0.0.1:0")],
)
def test_keeps_the_variables_of_the_platform(
    serve: Callable[..., int], monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], bind: str | None
) -> None:
    """Without options, the environment decides. Without PORT and KAFKASSE_BIND, only this machine can connect."""
    monkeypatch.setattr("kafkasse.commands.serve._check_free", lambda bind: None)

    with pytest.raises(Started) as started:
        serve(KAFKASSE_ALLOWED_TOPICS="*", **variables)

    assert (bind, variables.get("PORT")) == tuple(map(started.value.environ.get, ("KAFKASSE_BIND", "PORT")))


def test_names_an_address_that_is_in_use(startup_error: Callable[..., str]) -> None:
    """The error contains the address and the option that chooses another."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        sentence = startup_error("--bind", address, KAFKASSE_ALLOWED_TOPICS="*")

    assert address in sentence
    assert "--bind" in sentence


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:99999", ":6917"])
def test_rejects_an_invalid_address(startup_error: Callable[..., str], address: str) -> None:
    """The error contains the address."""
    assert address in startup_error("--bind", address, KAFKASSE_ALLOWED_TOPICS="*")


@pytest.mark.parametrize("workers", ["x", "0", "", "1.5"])
def test_rejects_an_invalid_number_of_workers(startup_error: Callable[..., str], workers: str) -> None:
    """The command reports the variable in one line; gunicorn would fail with a traceback."""
    sentence = startup_error(KAFKASSE_ALLOWED_TOPICS="*", WEB_CONCURRENCY=workers)

    assert f"WEB_CONCURRENCY must be a whole number from 1 to 1000, not {workers!r}" in sentence


def test_checks_the_settings_before_gunicorn_starts(startup_error: Callable[..., str], tmp_path: Path) -> None:
    """An invalid setting, an unreadable file and an empty configuration are errors of the command itself."""
    file = tmp_path / "kafkasse.yaml"
    file.write_text("heartbeat_s: 0")

    assert "heartbeat_s" in startup_error("--config", str(file))
    assert "KAFKASSE_RETRY_MS" in startup_error(KAFKASSE_RETRY_MS="soon")
    assert "missing.yaml" in startup_error("--config", str(tmp_path / "missing.yaml"))
    assert "allowed_topics" in startup_error()
