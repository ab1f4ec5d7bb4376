"""`kafkasse serve` starts gunicorn like the Procfile does, or prints in one sentence why it cannot."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Callable

import pytest

from tests.commands.run import ENVIRONMENT, TIMEOUT_S, Run, process
from tests.support.client import fetch


class Started(Exception):
    """Raised instead of starting gunicorn. Contains the environment that gunicorn would get."""

    def __init__(self, environ: dict[str, str]) -> None:
        super().__init__()
        self.environ = environ


@pytest.fixture
def serve(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `kafkasse serve` in this process. Raises Started instead of exec."""

    def execve(_: str, command: list[str], environ: dict[str, str]) -> None:
        raise Started(environ)

    monkeypatch.setattr(os, "execve", execve)
    return lambda *words, **variables: run("serve", *words, **{"KAFKASSE_PUBLIC": "true", **variables})


def test_serves_topics(broker):
    """The server uses --bootstrap-servers and --bind. After Ctrl-C, it exits with 130, without a traceback."""
    words = ["serve", "--bootstrap-servers", broker.bootstrap_servers, "--bind", "127.0.0.1:0"]
    variables = {"KAFKASSE_ALLOWED_TOPICS": "*", "KAFKASSE_PUBLIC": "true"}
    with process(*words, stdout=None, bufsize=1, env=ENVIRONMENT | variables, process_group=0) as serving:
        log = ""
        while (listening := re.search(r"Listening at: \S+:(\d+)", log)) is None:
            line = serving.stderr.readline()
            assert line, f"it exited before it listened: {log}"
            log += line

        assert 404 == fetch(int(listening[1]), "/missing").status
        os.killpg(serving.pid, signal.SIGINT)  # as a terminal does
        _, rest = serving.communicate(timeout=TIMEOUT_S)
    assert 130 == serving.returncode
    assert "Traceback" not in rest


def test_passes_the_options_to_gunicorn(serve, tmp_path):
    file = tmp_path / "kafkasse.yaml"
    file.write_text("allowed_topics: [orders]")

    with pytest.raises(Started) as started:
        serve("--bootstrap-servers", "kafka:9092", "--bind", "127.0.0.1:0", "--workers", "3", "--config", str(file))

    assert {
        "KAFKASSE_BOOTSTRAP_SERVERS": "kafka:9092",
        "KAFKASSE_BIND": "127.0.0.1:0",
        "KAFKASSE_PUBLIC": "true",
        "WEB_CONCURRENCY": "3",
        "KAFKASSE_CONFIG": str(file),
    } == {name: value for name, value in started.value.environ.items() if name not in ENVIRONMENT}


@pytest.mark.parametrize(
    ("variables", "bind"),
    [
        ({}, "127.0.0.1:6917"),
        ({"PORT": "", "KAFKASSE_BIND": ""}, "127.0.0.1:6917"),
        ({"PORT": "5000"}, None),
        ({"KAFKASSE_BIND": "127.0.0.1:0"}, "127.0.0.1:0"),
    ],
)
def test_keeps_the_variables_of_the_platform(serve, monkeypatch, variables, bind):
    """Without options, the environment decides. Without PORT and KAFKASSE_BIND, only this machine can connect."""
    monkeypatch.setattr("kafkasse.commands.serve._check_free", lambda *_: None)

    with pytest.raises(Started) as started:
        serve(KAFKASSE_ALLOWED_TOPICS="*", **variables)

    assert (bind, variables.get("PORT")) == tuple(map(started.value.environ.get, ("KAFKASSE_BIND", "PORT")))


@pytest.fixture
def startup_error(serve: Run) -> Callable[..., str]:
    """Returns the sentence that `kafkasse serve` prints when it does not start."""

    def startup_error(*words: str, **variables: str) -> str:
        code, _, err = serve(*words, **variables)
        assert (1, 1) == (code, len(err.splitlines()))
        return err

    return startup_error


@pytest.mark.parametrize("variable", ["KAFKASSE_BIND", "KAFKASSE_OPERATIONS_BIND"])
def test_names_an_address_that_is_in_use(startup_error, variable):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        sentence = startup_error(KAFKASSE_ALLOWED_TOPICS="*", **{"KAFKASSE_BIND": "127.0.0.1:0", variable: address})

    assert address in sentence
    assert {"KAFKASSE_BIND": "--bind"}.get(variable, variable) in sentence


def test_explains_what_to_use_instead_of_port(serve):
    """`kafkasse demo` and `kafkasse broker` have --port."""
    code, _, err = serve("--port", "7000")

    assert 2 == code
    assert "Use --bind HOST:7000 instead of --port" in err


def test_rejects_two_files(serve):
    code, _, err = serve("a.yaml", "--config", "b.yaml")

    assert 2 == code
    assert "Use either FILE or --config FILE." in err


WORKERS = "WEB_CONCURRENCY must be a whole number from 1 to 1000, not "


@pytest.mark.parametrize(("words", "variables", "expected"), [
    *((["--bind", bind], {"KAFKASSE_ALLOWED_TOPICS": "*"}, bind) for bind in (
        "nowhere", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:²", "127.0.0.1:99999", ":6917"
    )),
    (["--bind", "127.0.0.1:0"], {"KAFKASSE_ALLOWED_TOPICS": "*", "KAFKASSE_OPERATIONS_BIND": "9090"}, "needs HOST:PORT"),
    *(([], {"KAFKASSE_ALLOWED_TOPICS": "*", "WEB_CONCURRENCY": workers}, f"{WORKERS}{workers!r}") for workers in (
        "x", "0", "", "1.5"
    )),
    (["--config", "kafkasse.yaml"], {}, "heartbeat_s"),
    ([], {"KAFKASSE_RETRY_MS": "soon"}, "KAFKASSE_RETRY_MS"),
    (["kafkasse.yaml"], {}, "heartbeat_s"),
    (["--config", "missing.yaml"], {}, "missing.yaml"),
    ([], {}, "allowed_topics"),
])  # fmt: skip
def test_checks_the_settings_before_gunicorn_starts(startup_error, tmp_path, monkeypatch, words, variables, expected):
    """The command reports each mistake in one line; gunicorn would fail with a traceback."""
    (tmp_path / "kafkasse.yaml").write_text("heartbeat_s: 0")
    monkeypatch.chdir(tmp_path)

    assert expected in startup_error(*words, **variables)
