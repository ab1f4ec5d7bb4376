"""README.md and docs/: the examples run, the tables are complete, and the links have targets.

TABLE names the test that runs or checks each code block. Blocks that no test can run are parsed.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any

import gevent
import pytest
import yaml
from flask import Flask
from gunicorn.config import Config as GunicornConfig
from kafka import KafkaAdminClient

import kafkasse
from docs.site import metrics, tables
from kafkasse import errors, schemas
from kafkasse.commands import main
from kafkasse.config.hooks import Hooks
from kafkasse.log.memory import MemoryLog
from kafkasse.process.open_streams import EndReason
from kafkasse.records.filter import language
from kafkasse.records.filter.expression import compile_expression
from kafkasse.records.position import parse
from tests.project.conftest import alerts
from tests.support.client import Client
from tests.support.docs import PAGES, Block, blocks, code, example, read
from tests.support.process_group import end_group
from tests.support.report import EVIDENCE, named_tests
from tests.support.server import ROOT, Server
from tests.support.sse import read_until
from tests.support.waiting import wait_until
from tests.web.conftest import browser as browser

QUOTED = re.compile(r"[A-Z][a-z]* .+|the keys cannot be|cannot serve")  # a message, or its start
OTHER_NAMES = {
    "client_ip_connection_limit", "allowed_streams", "mediawiki_redacted_pages", "num_workers", "stream_aliases",
    "default_topic_config", "stream_config_ttl", "stream_config_uri", "stream_ui_enabled", "eventstreams_connected_clients",
    "eventstreams_client_connections_total",  # KafkaSSE and EventStreams
    "after_request", "max_requests", "TopicAuthorizationFailedError",  # Flask, gunicorn and kafka-python
    "catching_up", "duration_s", "key_encoding", "request_id",  # kafkasse: in the log, the list of streams, and records
}  # fmt: skip
GUIDES = ["access", "archive", "cdn", "operate-pipelines", "routes", "schemas"]  # their samples in YAML are settings
DOCS = ROOT / "docs"
LIMIT_S = 120.0
MAX_WORDS = 1_500  # of a path on the start page
MAX_TOTAL_WORDS = 38_000  # of all pages for users, including tables and code, but not comments

TOPN = """
from gevent import monkey; monkey.patch_all()
from kafkasse.app import create_app
from kafkasse.config import Config
from kafkasse.log.memory import MemoryLog

log = MemoryLog()
log.create("topn")
log.append("topn", b'{"continent": "Europe"}', key=b"Europe")
route = {"path": "/topn/updates", "topics": ["topn"], "format": "value", "start": "snapshot", "access": "public"}
app = create_app(Config.load(routes={"topn": route}), log)
"""


# Tests that several pages need.
COMMANDS = "project/test_docs.py::test_the_commands_in_the_docs_are_valid"
STREAMS = "project/test_docs.py::test_the_commands_in_the_docs_that_read_streams_print_records"
MAKE = "project/test_docs.py::test_the_docs_name_only_make_commands_that_exist"
SETTINGS = "project/test_docs.py::test_the_settings_in_a_guide_are_valid"
CONFIGURATIONS = "project/test_docs.py::test_the_examples_are_valid_configurations"
PIPELINES = "pipelines/test_definitions.py::test_the_samples_in_the_docs_are_valid"
VARIABLES = "project/test_docs.py::test_the_variables_are_settings"
GUNICORN = "project/test_docs.py::test_the_app_in_the_readme_streams_from_kafka"
GUIDE_FOR_FLASK = "project/test_docs.py::test_the_streams_of_the_guide_contain_only_the_records_of_their_users"
DEPLOY = "project/test_deployment.py::test_the_procfile_needs_three_variables"
TROUBLES = "commands/test_troubleshooting.py::test_the_commands_show_the_topic_the_streams_and_the_records"

PAGE = "project/test_docs.py::test_the_page_of_the_guide_shows_the_rows_of_a_stream"
CLIENT = "project/test_packaging.py::test_the_installed_client_needs_only_its_library"
CAT = "project/test_packaging.py::test_cat_needs_only_the_client_click_and_requests"

# Reasons why a block is only parsed.
DIAGRAM = "a diagram"
OUTPUT = "the output of a program"
OTHER_PROGRAM = "needs another program"

# Page -> text in the block, including its fences -> the test that runs or checks the block, or why no test can run it.
# A text may select several blocks if the test reads all of them. checks() adds what applies to all pages.
TABLE = {
    "README.md": {
        "my_orders": GUNICORN,
        "shop:app": GUNICORN,
        "event: message": OUTPUT,
        "kafkasse broker": STREAMS,
        'new EventSource("/streams/orders/ada")': "javascript/test_javascript.py::test_the_examples_with_eventsource",
    },
    "ARCHITECTURE.md": {
        "─▶": DIAGRAM,
        "config_file": "project/test_docs.py::test_the_architecture_shows_the_layers_that_make_lint_checks",
    },
    "docs/access.md": {
        "API key, for the client": OUTPUT,
        "Bearer kafkasse_": "needs a key",
        "```js": "access/test_browser.py::test_the_script_of_the_docs_reads_a_stream_with_tickets",
    },
    "docs/archive.md": {"kafkasse-archive.json": "names of files"},
    "docs/clients.md": {
        "```sh": STREAMS,
        "```bash": "clients/test_clients.py::test_a_client_receives_each_record_once",
    },
    "docs/command-line.md": {
        "_KAFKASSE_COMPLETE": "commands/test_commands.py::test_completes_commands_and_options",
        "kafkasse cat": STREAMS,
    },
    "docs/configuration.md": {
        "```yaml": CONFIGURATIONS,
        "SCRAM-SHA-512": VARIABLES,
    },
    "docs/deployment.md": {
        "```sh": "platforms/test_page.py::test_the_commands_are_valid_shell",
        "```yaml": "platforms/test_page.py::test_the_variables_are_valid_settings",
        "```toml": "platforms/test_page.py::test_fly_sends_requests_to_the_port_of_the_server",
    },
    "docs/extensions.md": {
        "class Middleware": "extensions/test_extensions.py::test_the_example_of_middleware_leaves_streams_alone",
        "def log_body": "extensions/test_extensions.py::test_the_example_of_a_hook_skips_streams",
        "limiter.exempt": "extensions/test_extensions.py::test_the_example_of_rate_limits_exempts_the_streams",
        "ddtrace-run": "extensions/test_extensions.py::test_ddtrace_ends_its_span_when_the_stream_ends",
    },
    "docs/flask.md": {
        "2 rows": OUTPUT,
        "def add_streams": "project/test_docs.py::test_the_guard_names_the_user_of_the_session",
        "def require_login": "project/test_docs.py::test_the_guard_names_the_user_of_the_session",
        '/streams/orders/ada?timestamp=0"\n': GUIDE_FOR_FLASK,
        "event: position": GUIDE_FOR_FLASK,
        "current_user.is_authenticated": "extensions/test_extensions.py::test_the_example_of_a_login_protects_the_streams",
        "--worker-class": "server/test_wsgi_servers.py::test_streams_and_pages_work",
        "from shop import app": "server/test_wsgi_servers.py::test_flask_run_streams_with_the_module_of_the_guide",
        "gunicorn -c python:": "server/test_wsgi_servers.py::test_streams_and_pages_work",
        "keepalive = 75": "server/test_wsgi_servers.py::test_sigusr2_starts_a_second_master",
        "import pytest": "extensions/test_extensions.py::test_the_example_of_a_unit_test_passes",
        "service.observer.render()": "project/test_docs.py::test_the_view_returns_metrics",
        "<tenant>": "extensions/test_extensions.py::test_the_example_of_prefixes_mounts_the_streams",
    },
    "docs/finite-reads.md": {"jq -c": "project/test_docs.py::test_the_loop_of_finite_reads_ends_at_the_end_of_the_log"},
    "docs/hooks.md": {
        "def deserialize": "project/test_docs.py::test_the_hooks_work_as_described",
        "open_kafka_log": "project/test_docs.py::test_the_wrapper_of_a_log_hides_topics",
    },
    "docs/install.md": {
        "pip install ../kafkasse": "tutorial/test_tutorial.py::test_a_reader_who_follows_the_tutorial_gets_the_app",
        "pip wheel": "project/test_packaging.py::test_the_wheel_contains_the_whole_package",
        "./wheels/": "project/test_packaging.py::test_the_docs_name_the_wheel",
        'pip install "../kafkasse/kafkasse_client': CLIENT,
        'pip install ../kafkasse "../kafkasse/kafkasse_client': CAT,
        "pip install --no-deps ../kafkasse ../": CAT,
        "pip install --no-deps ../kafkasse\n": "project/test_packaging.py::test_pipelines_need_only_the_listed_packages",
    },
    "docs/javascript.md": {
        "npm pack": "javascript/test_javascript.py::test_the_npm_package_contains_the_modules_and_their_types",
        "<!doctype html>": PAGE,
        "python3 -m http.server": PAGE,
        "orders of ${user.id}": "javascript/test_javascript.py::test_the_examples_for_a_page_handle_each_event",
        "fileStore(": "javascript/test_javascript.py::test_the_example_for_node_resumes_after_a_restart",
        "shared: user.id": "javascript/test_javascript.py::test_the_examples_for_a_page_handle_each_event",
        "function follow(": "clients/test_clients.py::test_a_client_receives_each_record_once",
        'follow("/topn/updates"': "javascript/test_javascript.py::test_the_examples_with_eventsource",
    },
    "docs/kafka-services.md": {
        "```yaml": "config/test_kafka_services.py::test_the_settings_of_a_service_are_valid",
        "```sh": "config/test_kafka_services.py::test_the_settings_of_a_service_are_valid",
        "```python": "config/test_kafka_services.py::test_the_token_provider_of_msk_is_valid",
    },
    "docs/migrating.md": {"```python": "project/test_docs.py::test_the_app_in_the_guide_to_migration_streams"},
    "docs/operations.md": {
        "/-/metrics\n```": VARIABLES,
        "A stream ended": OUTPUT,
        "A request was rejected": OUTPUT,
        "opentelemetry-instrument": "extensions/test_extensions.py::test_opentelemetry_exports_the_span_of_an_open_stream",
        "scrape_configs": OTHER_PROGRAM,
    },
    "docs/pipeline-tutorial.md": {
        "": "tutorial/test_tutorial.py::test_a_reader_who_follows_the_tutorial_gets_the_pipeline"
    },
    "docs/operate-pipelines.md": {
        "spark-submit": "pipelines/test_cluster.py::test_runs_with_spark_submit",
    },
    "docs/pipelines.md": {
        "pipelines:\n  large-orders": PIPELINES,
        "pipelines:\n  orders-per-minute": PIPELINES,
    },
    "docs/pipelines-python.md": {
        "def large(": "commands/test_pipeline.py::test_runs_the_pipeline_in_the_docs",
        "shop.pipelines:large_orders\n": "commands/test_pipeline.py::test_runs_the_pipeline_in_the_docs",
        "entry-points": "pipelines/test_pipeline.py::test_finds_a_pipeline_of_an_installed_package",
        "def paid(": "pipelines/spark/test_records.py::test_the_query_that_rejects_records",
        "def count(": "pipelines/spark/test_records.py::test_the_pipeline_that_counts",
        "def largest_orders(": "pipelines/spark/test_records.py::test_the_query_with_an_operator",
    },
    "docs/proxies.md": {
        "KAFKASSE_TRUSTED_PROXIES": VARIABLES,
        "upstream kafkasse": OTHER_PROGRAM,
    },
    "docs/python.md": {
        "FileStore": "client/test_client.py::test_the_examples_of_the_docs",
        "import requests": "project/test_docs.py::test_the_client_of_the_parser_reads_a_stream",
    },
    "docs/routes.md": {
        "kafkasse cat": STREAMS,
        "curl -N": STREAMS,
        "value.customer": "project/test_docs.py::test_the_filter_expressions_are_valid",
        "[ERROR]": "server/test_reload.py::test_an_invalid_file_changes_nothing",
    },
    "docs/security.md": {
        "```python": "attacks/test_table.py::test_the_guard_of_the_example",
        "kafka-acls.sh": OTHER_PROGRAM,
    },
    "docs/troubleshooting.md": {"```sh": TROUBLES},
    "docs/tutorial.md": {"": "tutorial/test_tutorial.py::test_a_reader_who_follows_the_tutorial_gets_the_app"},
    "docs/wire.md": {
        "```json\n{": "project/test_docs.py::test_the_ids_and_the_error_in_the_docs_are_valid",
        '"leader_epoch":5': "project/test_docs.py::test_the_ids_and_the_error_in_the_docs_are_valid",
        '"topic":"orders"': "project/test_docs.py::test_the_ids_and_the_error_in_the_docs_are_valid",
    },
    "docs/wsgi-servers.md": {
        "monkey.patch_all()\n```": "server/test_wsgi_servers.py::test_streams_and_pages_work",
        "post_worker_init": "server/test_wsgi_servers.py::test_sigterm_drains_the_streams",
        "WSGIServer": "server/test_wsgi_servers.py::test_sigterm_drains_the_streams",
    },
    "kafkasse_client/README.md": {
        "pip install": CLIENT,
        "FileStore": "client/test_client.py::test_the_examples_of_the_docs",
        "urlopen": "client/test_client.py::test_the_example_of_the_parser",
    },
}


BLOCKS = [block for page in PAGES if page != "CHANGELOG.md" for block in blocks(page)]
COMMAND = re.compile(r"^ *(?:\w+=\S* )*kafkasse ([a-z].*)", re.M)
MAKE_COMMAND = re.compile(r"(?:`|^ *)make ([a-z-]+)", re.M)


def checks(block: Block) -> list[str]:
    """Return the tests that run or check a block, and the reasons why no test can run it."""
    found = [check for part, check in TABLE.get(block.page, {}).items() if part in block.text]
    if block.language == "yaml" and block.page in [f"docs/{page}.md" for page in GUIDES]:
        found.append(SETTINGS)
    if block.language == "sh" and COMMAND.search(block.code):
        found.append(COMMANDS)
    if block.language == "sh" and MAKE_COMMAND.search(block.code):
        found.append(MAKE)
    return found


# Code blocks.


def test_each_block_is_checked():
    """Each block has an entry, and each entry has a block."""
    entries = [(page, part) for page, parts in TABLE.items() for part in parts]

    unchecked = [f"{block.page}: {block.text}" for block in BLOCKS if not checks(block)]
    assert [] == unchecked, "Add them to TABLE in this module."
    assert [] == [(page, part) for page, part in entries if not any(part in block.text for block in blocks(page))]


def test_the_architecture_shows_the_layers_that_make_lint_checks():
    """ARCHITECTURE.md omits __main__, which only calls the commands."""
    [shown] = [block.code for block in blocks("ARCHITECTURE.md") if "config_file" in block.code]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")

    assert ["__main__", *(" | ".join(line.split()) for line in shown.splitlines())] == layers


def test_every_test_that_the_docs_name_exists():
    """Finds a wrong name in seconds; only a run of the whole suite finds a test that did not run."""
    checked = {check for block in BLOCKS for check in checks(block) if "::" in check}

    for name in checked | named_tests(EVIDENCE):
        file, test = name.split("::")
        assert f"def {test}(" in (ROOT / "tests" / file).read_text(), name


def test_pages_for_users_name_no_tests():
    """Evidence stands beside the tests, such as in tests/evidence.md. The promises link to it."""
    assert set() == named_tests(DOCS.glob("*.md"))


@pytest.mark.processes
def test_blocks_that_no_test_runs_are_valid():
    """If the table gives only a reason for a block, the parser of its language accepts the block."""
    for block in BLOCKS:
        if not any("::" in check for check in checks(block)):
            PARSERS[block.language](block.code)


def _parse_sh(code: str) -> None:
    done = subprocess.run(["bash", "-n"], input=code, capture_output=True, text=True, check=False)
    assert (0, "") == (done.returncode, done.stderr)


PARSERS: dict[str, Callable[[str], object]] = {
    "": str,  # text
    "text": str,
    "json": json.loads,
    "sh": _parse_sh,
    "yaml": yaml.safe_load,
}


def test_the_variables_are_settings():
    samples = [block for block in BLOCKS if VARIABLES in checks(block)]
    assert len(samples) > 2
    for block in samples:
        variables = dict(re.findall(r"\b(KAFKASSE_\w+)=(\S+)", block.code))

        assert variables
        kafkasse.Config.load({"KAFKASSE_ALLOWED_TOPICS": "orders", "KAFKASSE_PUBLIC": "true", **variables})


def test_the_filter_expressions_are_valid():
    for expression in example("docs/routes.md", "value.customer").splitlines():
        compile_expression(expression)


def test_the_guard_names_the_user_of_the_session(guide):
    """The code in docs/flask.md: a user can read a stream from the login to the logout. Otherwise, the answer is 401."""
    client, _ = guide

    assert 401 == client.get("/streams/orders/ada").status_code
    with client.session_transaction() as stored:
        stored["user"] = "ada"
    assert 200 == client.get("/streams/orders/ada").status_code
    assert 302 == client.post("/logout").status_code
    assert 401 == client.get("/streams/orders/ada").status_code


def test_the_streams_of_the_guide_contain_only_the_records_of_their_users(guide):
    """The records and the request of docs/flask.md have the output that the page shows."""
    client, log = guide
    page = read("docs/flask.md")
    for record in re.findall(r'^\{"id": "\d+".*\}$', page, re.MULTILINE):
        log.append("orders", record.encode())
    with client.session_transaction() as stored:
        stored["user"] = "ada"
    [path] = re.findall(r'"http://127\.0\.0\.1:8000(/\S+)"', page)

    text = client.get(path).text

    shown = re.escape(example("docs/flask.md", "event: position")).replace("…", ".*")
    assert re.search(f"^{shown}$", text, re.MULTILINE)
    assert (1, 0) == (text.count("ada"), text.count("grace"))


@pytest.fixture
def guide(monkeypatch):
    """Return a client of an app with the code of docs/flask.md, and its log in memory."""
    log = MemoryLog()
    log.create("orders")
    app = Flask(__name__)
    app.testing = True
    app.secret_key = "for a test"  # noqa: S105
    streams = ModuleType("streams")
    exec(example("docs/flask.md", "def add_streams"), streams.__dict__)  # noqa: S102 - our own docs
    monkeypatch.setitem(sys.modules, "streams", streams)
    _run(
        example("docs/flask.md", "def require_login").replace("add_streams(app)", "add_streams(app, log)"),
        app=app,
        log=log,
    )
    return app.test_client(), log


def test_the_view_returns_metrics():
    app = _app(kafkasse.Config.load(allowed_topics=["orders"], public=True))
    _run(example("docs/flask.md", "service.observer.render()"), app=app)

    response = app.test_client().get("/internal/kafkasse-metrics")

    assert "text/plain; version=0.0.4" == response.headers["Content-Type"]
    assert "# TYPE kafkasse_" in response.text


def test_the_examples_are_valid_configurations(tmp_path):
    file = tmp_path / "kafkasse.yaml"
    paths = []
    for block in code("docs/configuration.md", "yaml"):
        file.write_text(block)
        config = kafkasse.Config.load({}, file)
        paths += [route.path for route in config.routes[:-1]]

    assert {"/prices", "/audit", "/eu/prices"} <= set(paths)


@pytest.mark.parametrize("page", GUIDES)
def test_the_settings_in_a_guide_are_valid(page, tmp_path):
    """Each sample in YAML is valid together with the guards that it names, which another sample defines."""
    jwt = {"jwks_url": "https://id.example/jwks.json", "issuer": "i", "audience": "a", "algorithms": ["RS256"]}
    guards = {name: {"jwt": jwt} for name in ("customers", "staff")}
    text = "\n---\n".join(code(f"docs/{page}.md", "yaml"))
    for name in re.findall(r"/run/secrets/([\w.-]+)", text):
        (tmp_path / name).write_text("secret")
    blocks = [*yaml.safe_load_all(text.replace("/run/secrets", str(tmp_path)))]
    blocks = [block for block in blocks if "pipelines" not in block]  # see pipelines/test_definitions.py
    assert blocks
    for block in blocks:
        if "access" in block:  # of a route
            block = {"routes": {"orders": {"path": "/orders/{customer}", "topics": ["orders"], **block}}}
        clusters = {"eu": {"bootstrap_servers": ["kafka.eu.example:9093"]}} if "archives" in block else {}
        defaults = {"allowed_topics": ["*"], "public": True, "guards": guards, "clusters": clusters}
        (tmp_path / "kafkasse.yaml").write_text(yaml.safe_dump(defaults | block))
        password = {"KAFKASSE_CLUSTERS_EU_SASL_PLAIN_PASSWORD": "secret"} if "sasl_mechanism" in str(block) else {}

        kafkasse.Config.load(password, tmp_path / "kafkasse.yaml")


def test_the_hooks_work_as_described(tmp_path, caplog):
    """The example of docs/hooks.md. Of a small country, text that is not JSON and a large country, it sends one.

    The response of on_connect_error replaces the default one. The log goes to the logger that the example configures.
    """
    values = [text.encode("utf-16") for text in ('{"size": 5}', "not JSON", '{"size": 9000000}')]
    (tmp_path / "hooks.py").write_text(example("docs/hooks.md", "def deserialize"))
    app = _app(runpy.run_path(str(tmp_path / "hooks.py"))["config"], countries=values)
    caplog.set_level("INFO", "shop.streams")

    stream = app.test_client().get("/countries?timestamp=0")
    sent = read_until(stream.response, b"9000000")
    stream.close()
    messages = [record.message.partition(":")[0] for record in caplog.records if record.name == "shop.streams"]
    rejected = app.test_client().get("/secrets")

    assert b'data: {"size":9000000,"_kafka":' in sent
    assert ["opened", "Skipped countries/0 offset 1", "A stream ended", "ended"] == messages
    assert (404, "We do not have that.") == (rejected.status_code, rejected.text)


def test_the_wrapper_of_a_log_hides_topics(monkeypatch):
    """The example of docs/hooks.md: a pattern does not match a hidden topic. A log in memory replaces Kafka."""
    log, app = MemoryLog(), Flask(__name__)
    for topic in ("orders.paid", "orders.paid.draft"):
        log.create(topic)
        log.append(topic, b"{}")
    monkeypatch.setattr("kafkasse.app.open_kafka_log", lambda config: log)
    app.testing = True
    app.register_blueprint(_run(example("docs/hooks.md", "open_kafka_log"))["streams"])

    body = app.test_client().get("/orders?timestamp=0").data

    assert b'"topic":"orders.paid"' in body
    assert b"draft" not in body


def test_the_options_of_gunicorn_in_the_docs_exist():
    options = {option for action in GunicornConfig().parser()._actions for option in action.option_strings}
    used = {
        option
        for page in PAGES
        for option in re.findall(r"--(?:graceful-|keep-|limit-|preload|worker-)[\w-]*", read(page))
    }

    assert "--worker-class" in used
    assert used <= options


def test_the_app_in_the_readme_streams_from_kafka(tree, web_venv, start, cluster, fresh_name, tmp_path):
    """The README's app, saved as shop.py and started by the README's command, sends a customer only their own record."""
    (mount,) = code("README.md", "python")
    command = re.findall(r"^gunicorn .*", read("README.md"), re.MULTILINE)[0]
    topic = cluster.create(fresh_name)
    (tmp_path / "shop.py").write_text(mount.replace('"topics": ["orders"]', f'"topics": ["{topic}"]'))
    cluster.send(topic, b'{"customer": "grace"}', b'{"customer": "ada"}')
    variables = {
        "PYTHONPATH": str(tree),
        "KAFKASSE_BOOTSTRAP_SERVERS": cluster.bootstrap_servers,
        "FLASK_SECRET_KEY": "s",
        "SECRET_KEY": "s",
    }
    server = start(f"{command} --bind 127.0.0.1:0", tmp_path, web_venv, **variables)
    app = Flask(__name__)
    app.secret_key = "s"  # noqa: S105
    cookie = app.session_interface.get_signing_serializer(app).dumps({"user": "ada"})

    with Client(server.port, "/streams/orders/ada?timestamp=0") as rejected:
        assert 401 == rejected.status
    with Client(server.port, "/streams/orders/ada?timestamp=0", Cookie=f"session={cookie}") as stream:
        (event,) = stream.events(1)

    assert "ada" == json.loads(event.data)["customer"]


def test_the_client_of_the_parser_reads_a_stream(tree, web_venv, start, tmp_path, capsys):
    """The program in docs/python.md prints each event, and the event ID to resume from when the stream ends."""
    client = example("docs/python.md", "import requests")
    (tmp_path / "topn.py").write_text(TOPN)
    variables = {"PYTHONPATH": str(tree), "KAFKASSE_MAX_STREAM_AGE_S": "0.5"}
    server = start(f"gunicorn -c {tree / 'gunicorn.conf.py'} topn:app", tmp_path, web_venv, **variables)

    (tmp_path / "client.py").write_text(client.replace("127.0.0.1:6917", f"127.0.0.1:{server.port}"))

    runpy.run_path(str(tmp_path / "client.py"))

    first, last = capsys.readouterr().out.splitlines()
    assert "{'continent': 'Europe'}" == first
    assert last.startswith('resume with Last-Event-ID: [{"topic":"topn","partition":0,"offset":1')


def test_the_page_of_the_guide_shows_the_rows_of_a_stream(browser, tmp_path):
    """The page and the commands in docs/javascript.md, with any free ports, and the setting for pages of other origins."""
    text = read("docs/javascript.md")
    copy, serve = example("docs/javascript.md", "http.server 8000").splitlines()
    (tmp_path / "kafkasse").symlink_to(ROOT)
    (tmp_path / "topn.py").write_text(TOPN)
    folder = tmp_path / "page"
    folder.mkdir()
    subprocess.run(shlex.split(copy), cwd=folder, check=True)
    with ExitStack() as running:
        command = [sys.executable, "-u", *shlex.split(serve.replace("8000", "0"))[1:]]
        files = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        running.enter_context(files)
        running.callback(files.terminate)
        assert files.stdout
        (port,) = re.findall(r"port (\d+)", files.stdout.readline())
        name, origin = re.findall(r"`(KAFKASSE_CORS_ORIGINS)=(\S+) make demo`", text)[0]
        url = origin.replace("8000", port)
        server = running.enter_context(Server("topn:app", PYTHONPATH=str(tmp_path), **{name: url}))
        page = example("docs/javascript.md", "<!doctype html>").replace("127.0.0.1:6917", f"127.0.0.1:{server.port}")
        (folder / "index.html").write_text(page)

        browser.get(url)

        wait_until(lambda: browser.find_element("tag name", "pre").text == '{"continent": "Europe"}')
        browser.get("about:blank")


def test_the_ids_and_the_error_in_the_docs_are_valid():
    ids = re.findall(r'^(?:id: )?(\[\{"topic".*\])$', read("docs/wire.md"), re.MULTILINE)
    (problem,) = [value for value in map(json.loads, code("docs/wire.md", "json")) if isinstance(value, dict)]

    assert len(ids) == 3
    assert all(parse(event_id).starts for event_id in ids)
    assert schemas.first_error("problem", problem) is None


def test_the_app_in_the_guide_to_migration_streams(tmp_path):
    """Its URL and its events are those of EventStreams, and IDs of EventStreams resume."""
    (block,) = code("docs/migrating.md", "python")
    (tmp_path / "app.py").write_text(block)
    example = runpy.run_path(str(tmp_path / "app.py"))
    changes = [b'{"meta":{"domain":"%b"}}' % domain for domain in (b"canary", b"en.wikipedia.org")]
    topics = {"eqiad.mediawiki.recentchange": changes, "codfw.mediawiki.recentchange": []}
    app = _app(example["config"], "/v2/stream", **topics)
    last_id = '[{"topic":"eqiad.mediawiki.recentchange","partition":0,"offset":1},"codfw.mediawiki.recentchange"]'

    response = app.test_client().get("/v2/stream/recentchange", headers={"Last-Event-ID": last_id})
    sent = read_until(response.response, b"_kafka")
    response.close()

    assert (
        b'"meta":{"domain":"en.wikipedia.org","topic":"eqiad.mediawiki.recentchange","partition":0,"offset":1}' in sent
    )
    assert b"canary" not in sent
    assert "/v2/stream/-/openapi.json" == example["app"].test_client().get("/?spec").location
    assert 200 == app.test_client().get("/v2/stream/-/openapi.json").status_code


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])
def test_the_commands_in_the_docs_are_valid(page, monkeypatch, capsys):
    """Each `kafkasse` command in a sample has an existing name, existing options and valid values."""
    samples = COMMAND.findall("\n".join(code(page, "sh")).replace("\\\n", " "))
    for sample in samples:
        lexer = shlex.shlex(sample, posix=True, punctuation_chars="|<>&;")
        lexer.whitespace_split = True
        words = list(takewhile(lambda word: not set(word) <= set("|<>&;"), lexer))  # up to a pipe or a redirection
        command = import_module(f"kafkasse.commands.{words[0]}").command
        for entry in [command, *getattr(command, "commands", {}).values()]:
            monkeypatch.setattr(entry, "callback", lambda **_: None)

        assert 0 == main(words), f"{page}: kafkasse {sample}\n{capsys.readouterr().err}"


def test_the_docs_name_only_make_commands_that_exist():
    commands = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert set() == {name for page in PAGES for name in MAKE_COMMAND.findall(read(page))} - commands


def test_the_page_about_proxies_links_each_tested_file():
    linked = re.findall(r"\]\(\.\./deploy/proxies/(\S+?)\)", read("docs/proxies.md"))

    assert sorted(file.name for file in (ROOT / "deploy/proxies").iterdir()) == sorted(linked)


@pytest.mark.parametrize("part", ["For", "Host", "Proto", "Prefix"])
def test_each_file_of_a_proxy_replaces_the_headers_that_a_client_may_forge(part):
    files = {file.name: file.read_text() for file in (ROOT / "deploy/proxies").iterdir()}
    proxies = {name for name, text in files.items() if "6917" in text}
    # See test_the_server_knows_the_address_of_the_client and test_the_server_knows_its_public_url, which forge the headers.
    automatic = {
        "For": {"Caddyfile", "apache.conf", "varnish.vcl", "varnish-cdn.vcl"},
        "Host": {"Caddyfile"},
        "Proto": {"Caddyfile"},
    }

    setting = re.compile(rf"^[^#\n]*\bX-Forwarded-{part}\b", re.MULTILINE)
    assert proxies - automatic.get(part, set()) == {name for name, text in files.items() if setting.search(text)}


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_commands_in_the_docs_that_read_streams_print_records(tmp_path):
    """Each `kafkasse cat` and `curl` that reads a stream of http://127.0.0.1:6917. What follows a pipe does not run."""
    (tmp_path / "kafkasse").symlink_to(Path(sys.executable).with_name("kafkasse"))
    path = f"{tmp_path}:{os.environ['PATH']}"
    commands = [
        re.split(r" \| | >> ", line)[0]
        for page in TABLE
        if STREAMS in TABLE[page].values()
        for line in "\n".join(code(page, "sh")).splitlines()
        if re.search(r"^(\w+=\S+ )?(kafkasse cat|curl) .*\b(127\.0\.0\.1|localhost):6917/", line)
    ]
    lines = dict.fromkeys(commands)
    assert len(lines) > 12
    with Server("tests.support.apps:samples()", KAFKASSE_MAX_STREAMS_PER_CLIENT="100") as server, ExitStack() as stack:
        outputs = {line: tmp_path / f"output-{number}" for number, line in enumerate(lines)}
        for line, output in outputs.items():
            process = subprocess.Popen(
                ["bash", "-c", line.replace(":6917/", f":{server.port}/")],
                stdout=stack.enter_context(output.open("wb")),
                stderr=subprocess.STDOUT,
                cwd=tmp_path,
                env={**os.environ, "PATH": path, "no_proxy": "*"},
                start_new_session=True,
            )
            stack.callback(end_group, process)

        def silent() -> dict[str, bytes]:
            return {line: text for line, output in outputs.items() if b"France" not in (text := output.read_bytes())}

        with gevent.Timeout(LIMIT_S, False):
            while silent():
                gevent.sleep(0.1)
        assert {} == silent()


@pytest.mark.processes
@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="curl or jq is not installed")
def test_the_loop_of_finite_reads_ends_at_the_end_of_the_log(tmp_path):
    """It prints the records of each chunk. Then the long poll returns the next records."""
    script = example("docs/finite-reads.md", "jq -c")
    with Server("tests.support.apps:samples()") as server:
        output = subprocess.run(
            ["bash", "-c", script.replace(":6917/", f":{server.port}/")],
            cwd=tmp_path,
            env={**os.environ, "no_proxy": "*"},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=True,
        ).stdout

    chunks, _, body = output.rpartition("\n\n")  # after the headers
    printed = [json.loads(line) for line in takewhile(lambda line: line.startswith("{"), chunks.splitlines())]
    offsets = [record["_kafka"]["offset"] for record in [*printed, *json.loads(body)]]
    assert len(printed) >= 20
    assert list(range(len(offsets))) == offsets
    assert len(offsets) > len(printed)


# Names, tables and links.


@pytest.mark.parametrize("page", tables.PAGES)
def test_the_tables_are_generated(page):
    """The tables agree with the code. Run `python -m docs.site.tables`."""
    assert tables.updated(page) == read(page)


def test_the_table_of_a_route_has_all_of_its_settings():
    table = re.search(r"^\| setting of a route \|(?:.*\n)(?:\|.*\n)+", read("docs/configuration.md"), re.MULTILINE)
    assert table is not None
    names = re.findall(r"`(\w+)`", " ".join(row.split(" | ")[0] for row in table[0].splitlines()))
    assert sorted(schemas.read("config")["$defs"]["route"]["properties"]) == sorted(names)


def test_every_member_of_a_route_is_in_the_docs():
    text = read("docs/configuration.md")

    members = schemas.read("config")["$defs"]["route"]["properties"].items()
    words = [word for name, member in members for word in [name, *member.get("enum", ())]]
    assert [] == [word for word in words if f"`{word}`" not in text], "Add them to docs/configuration.md."


def test_every_kind_of_guard_and_every_function_of_an_expression_is_in_the_docs():
    kinds = schemas.read("config")["$defs"]["guard"]["properties"]
    functions = [name for name in (*language.FUNCTIONS, *language.METHODS) if not name.startswith("get")]

    for page, words in {"access": kinds, "configuration": kinds, "routes": functions}.items():
        text = read(f"docs/{page}.md")
        missing = [word for word in words if not re.search(rf"`[^`]*\b{word}\b", text)]
        assert [] == missing, f"Add them to docs/{page}.md."


def test_every_reason_of_an_end_is_in_the_docs():
    table = read("docs/operations.md").partition("| reason | meaning |")[2].partition("\n\n")[0]

    cells = [row.split(" | ")[0] for row in table.splitlines()]
    assert {reason.value for reason in EndReason} == set(re.findall(r"`(\w+)`", "".join(cells)))


@pytest.mark.parametrize("page", ["docs/comparison.md", "docs/migrating.md", "docs/troubleshooting.md"])
def test_the_names_in_a_guide_exist(page):
    """Every metric, setting, error and alert in code spans is kafkasse's, or one of the listed names of other programs."""
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", read(page), flags=re.M | re.S))
    words = {
        word
        for span in spans
        for word in re.findall(r"(?<![\w.-])[A-Za-z]+(?:_[a-z0-9]+)+|\w+Error\b|Kafkasse\w+", span)
    }
    known = {*re.findall(r"\w+", json.dumps(schemas.read("config"))), *Hooks.__dataclass_fields__, *OTHER_NAMES}
    known |= {rule["alert"] for rule in alerts()} | metrics.names()
    known |= {reason.value for reason in EndReason} | {error.name for error in errors.documented()}
    known |= KafkaAdminClient.DEFAULT_CONFIG.keys()

    assert set() == words - known


def test_the_messages_in_the_guide_to_problems_exist():
    """Each log line, detail and reason of a gap that docs/troubleshooting.md quotes is in the code."""
    source = "".join(file.read_text() for file in ROOT.glob("kafkasse/**/*.py"))
    page = read("docs/troubleshooting.md")
    gaps = re.findall(r"^\| `([^`]+)` \|", page.partition("# Gaps\n")[2].partition("\n#")[0], re.M)
    quoted = [text for text in re.findall(r"`([^`\n]+)`", page) if QUOTED.match(text)] + gaps

    assert len(quoted) > 15
    assert [] == [text for text in quoted if text not in source]


def test_the_places_that_a_contributor_is_sent_to_exist():
    """CONTRIBUTING.md names files and folders without links."""
    named = re.findall(r"`((?:kafkasse|tests|docs|schemas)/[\w./-]*)`", read("CONTRIBUTING.md"))

    assert len(named) > 30
    assert [] == [place for place in named if not (ROOT / place).exists()]


PATHS = re.findall(r"^\| [^|]+ \| (\[.+\)) \| [^|]+ \|$", read("docs/index.md"), re.MULTILINE)


@pytest.mark.parametrize("path", PATHS)
def test_each_path_of_the_start_page_is_short(path):
    """A reader reaches a result after 1,500 words. A link with a heading counts the text up to the next heading."""
    words = sum(
        len((_section(read(f"docs/{page}"), heading) if heading else read(f"docs/{page}")).split())
        for page, heading in re.findall(r"\]\(([\w.-]+)#?([\w-]*)\)", path)
    )

    assert 300 < words
    assert words <= MAX_WORDS, f"Shorten these pages by {words - MAX_WORDS} words."


def test_the_pages_for_users_are_short():
    pages = ["README.md", *(page for page in PAGES if page.startswith("docs/"))]

    assert 30 < len(pages)
    text = re.sub(r"<!--.*?-->", "", "\n".join(map(read, pages)), flags=re.DOTALL)
    words = sum(any(map(str.isalnum, word)) for word in text.split())
    excess = words - MAX_TOTAL_WORDS
    assert excess <= 0, f"The docs have {words} words of {MAX_TOTAL_WORDS}: shorten another passage by {excess} words."


def test_the_start_page_has_four_paths():
    assert 4 == len(PATHS)


def _section(text: str, heading: str) -> str:
    """Return the text below a heading, which is spelled as links spell it."""
    _, *parts = re.split(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return dict(zip(map(_anchor, parts[::2]), parts[1::2], strict=True))[heading]


@pytest.mark.parametrize("page", PAGES)
def test_links_are_valid(page):
    for target, heading in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", read(page)):
        file = (ROOT / page).parent / target if target else ROOT / page
        assert file.exists(), f"{page} links to {target}"
        assert not heading or heading in _headings(file), f"{page} links to {target}#{heading}"
        assert not (target and heading and file.resolve() == ROOT / "README.md"), (
            f"{page} links to {target}#{heading}, but on the site, docs/index.md replaces the README"
        )


def _headings(page: Path) -> set[str]:
    """Return the headings of a page as links spell them."""
    return {*map(_anchor, re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE))}


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _app(config: Any, url_prefix: str | None = None, **topics: Iterable[bytes]) -> Flask:
    """Return an app with the streams of a log in memory, which contains these topics with their values."""
    log = MemoryLog()
    for topic, values in topics.items():
        log.create(topic)
        for value in values:
            log.append(topic, value)
    app = Flask(__name__)
    app.testing = True
    app.secret_key = "for a test"  # noqa: S105
    app.register_blueprint(kafkasse.blueprint(config, log), url_prefix=url_prefix)
    return app


def _run(code: str, **names: object) -> dict[str, Any]:
    exec(code, names)  # noqa: S102 - our own docs
    return names
