"""Fixtures for guards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest
import yaml
from flask import Flask
from flask.testing import FlaskClient
from gevent.pywsgi import WSGIServer

from kafkasse.access.jwt_guard import JwtGuard
from kafkasse.access.keys import KeySetFile
from kafkasse.app import blueprint
from kafkasse.config import Config
from kafkasse.log.memory import MemoryLog
from tests.support.issuer import SECRET, SETTINGS, key_set, payload

LOGGER = logging.getLogger("test")


@pytest.fixture
def jwks_file(tmp_path: Path) -> Path:
    """A key set with one key of each type."""
    file = tmp_path / "jwks.json"
    file.write_bytes(key_set("rsa-1", "ec-1", "ed-1"))
    return file


@pytest.fixture
def guard(jwks_file: Path) -> JwtGuard:
    """A guard for the keys of the file, without leeway."""
    return JwtGuard("customers", {**SETTINGS, "leeway_s": 0}, KeySetFile("jwks_file", str(jwks_file), LOGGER))


@pytest.fixture
def client_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FlaskClient]:
    """Creates an app with the topic `t` below a prefix, with the given settings, and a folder of its own for tickets."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def client_of(prefix: str = "/streams", **settings: Any) -> FlaskClient:
        log = MemoryLog()
        log.create("t")
        app = Flask("host")
        app.register_blueprint(blueprint(Config(max_rejections_per_s=0, **settings), log), url_prefix=prefix)
        return app.test_client(use_cookies=False)  # so that tests can send any Cookie header

    return client_of


@contextmanager
def served(body: Iterable[bytes], status: str = "200 OK", headers: Sequence[tuple[str, str]] = ()) -> Iterator[str]:
    """Send this response to requests for a URL."""

    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response(status, list(headers))
        return body

    server = WSGIServer(("127.0.0.1", 0), app, log=None)
    server.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/jwks.json"
    finally:
        server.stop()


def environment(folder: Path, guards: dict[str, Any] | None = None, **settings: Any) -> dict[str, str]:
    """Write settings with the guard `customers`, for tokens with a shared secret. Returns the variables of the server.

    Args:
        folder: for the files of the server.
        guards: more guards.
        settings: the other settings, and in `customers`, further members of the guard `customers`.
    """
    (folder / "jwt-secret").write_bytes(SECRET)
    with_secret = {**SETTINGS, "algorithms": ["HS256"], "secret_file": str(folder / "jwt-secret"), "leeway_s": 0}
    customers = {"jwt": with_secret, **settings.pop("customers", {})}
    settings |= {"guards": {"customers": customers, **(guards or {})}, "tickets": True}
    (folder / "kafkasse.yaml").write_text(yaml.safe_dump(settings))
    return {"KAFKASSE_CONFIG": str(folder / "kafkasse.yaml"), "KAFKASSE_PUBLIC": "false", "TMPDIR": str(folder)}


def signed(**claims: Any) -> str:
    """Return a token for the guard of environment()."""
    return str(jwt.encode(payload(**claims), SECRET, "HS256"))
