"""docs/extensions.md: its examples run, and its table names the versions that are installed."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import flask_login
import pytest
from flask import Flask
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address

import kafkasse
from tests.support.server import ROOT

PAGE = (ROOT / "docs/extensions.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
BLUEPRINT = kafkasse.blueprint


def example(text: str) -> str:
    (code,) = [code for code in EXAMPLES if text in code]
    return str(code)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the examples do not define: an app, a configuration and, instead of Kafka, a log in memory."""
    log = kafkasse.MemoryLog()
    log.create("orders")
    log.append("orders", b'{"n":1}')
    monkeypatch.setattr(
        kafkasse, "blueprint", lambda config, **options: BLUEPRINT(config, log, **options), raising=False
    )
    app = Flask("shop")
    app.testing = True
    app.secret_key = "for a test"  # noqa: S105
    config = kafkasse.Config(allowed_topics=["orders"], public=True)
    limiter = Limiter(get_remote_address, app=app, default_limits=["1 per hour"], storage_uri="memory://")
    return {"app": app, "config": config, "kafkasse": kafkasse, "limiter": limiter}


def run(code: str, names: dict[str, Any]) -> None:
    exec(compile(code, "docs/extensions.md", "exec"), names)  # noqa: S102 - our own docs


def test_the_example_of_a_unit_test_passes(processes: None, tmp_path: Path) -> None:
    """It runs in a process of its own, in which gevent has not patched the standard library."""
    (tmp_path / "test_orders.py").write_text(example("def test_a_customer_sees_all_orders"))

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_orders.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_the_example_of_a_login_protects_the_streams(names: dict[str, Any]) -> None:
    """A logout ends the streams that are open."""
    app = names["app"]
    app.testing = False  # otherwise, each stream ends at the end of its topic
    flask_login.LoginManager(app).user_loader(lambda name: _User(name))
    names["limiter"].enabled = False
    app.add_url_rule("/login", view_func=lambda: str(flask_login.login_user(_User("ada"))))
    run(example("def member(request)"), names)
    app.register_blueprint(kafkasse.blueprint(names["config"]), url_prefix="/streams")
    client = app.test_client()

    answers = [client.get(path) for path in ("/streams/orders", "/login", "/streams/orders")]
    answers += [client.post("/logout"), client.get("/streams/orders")]
    answers[2].get_data()

    assert [401, 200, 200, 200, 401] == [answer.status_code for answer in answers]


class _User(flask_login.UserMixin):
    def __init__(self, name: str) -> None:
        self.id = name


def test_the_example_of_rate_limits_exempts_the_streams(names: dict[str, Any]) -> None:
    """The limit of one request per hour still applies to other paths."""
    run(example("limiter.exempt"), names)
    names["app"].add_url_rule("/page", view_func=lambda: "page")
    client = names["app"].test_client()

    answers = [client.get(path).status_code for path in ("/streams/orders", "/streams/orders", "/page", "/page")]

    assert [200, 200, 200, 429] == answers


def test_the_example_of_a_hook_skips_streams(names: dict[str, Any]) -> None:
    """Without the check, the client would get 500."""
    run(example("def log_body"), names)
    names["app"].register_blueprint(kafkasse.blueprint(names["config"]), url_prefix="/streams")

    assert '"n":1' in names["app"].test_client().get("/streams/orders?timestamp=0").text


def test_the_example_of_prefixes_mounts_the_streams(names: dict[str, Any]) -> None:
    """The first blueprint has a prefix with a parameter, and the second a subdomain."""
    app = names["app"]
    names["limiter"].enabled = False
    app.config["SERVER_NAME"] = "shop.example"
    app.subdomain_matching = True
    run(example("<tenant>"), names)
    client = app.test_client()

    urls = ("http://shop.example/acme/streams/orders", "http://live.shop.example/orders")

    assert [200, 200] == [client.get(url).status_code for url in urls]


def test_the_example_of_middleware_leaves_streams_alone(names: dict[str, Any]) -> None:
    body = [b"body"]
    names["change"] = lambda parts: [b"changed"]
    run(example("class Middleware"), names)
    middleware = names["Middleware"](lambda *_: body)

    assert body is middleware({"PATH_INFO": "/streams/orders"}, None)
    assert [b"changed"] == middleware({"PATH_INFO": "/page"}, None)


def test_the_table_names_the_installed_versions() -> None:
    rows = re.findall(r"^\| ([A-Za-z-]+)[^|]*\| ([\d.b]+) \|", PAGE, re.MULTILINE)
    special = {"OpenTelemetry": "opentelemetry-instrumentation-flask"}
    pins = dict(
        re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "tests/extensions/requirements.txt").read_text(), re.MULTILINE)
    )

    assert {name: pins.get(name) or metadata.version(special.get(name, name)) for name, _ in rows} == dict(rows)
    assert 13 == len(rows)
