"""TABLE names the test that runs or checks each code block in the docs. Blocks that no test can run are parsed."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import yaml
from flask import Flask, redirect, session

import kafkasse
from kafkasse.filter.expression import compile_expression
from tests.support.server import ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "ARCHITECTURE.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
]
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.M | re.S)

# Tests that several pages need.
COMMANDS = "project/test_docs.py::test_the_commands_in_the_docs_are_valid"
STREAMS = "project/test_docs.py::test_the_commands_in_the_docs_that_read_streams_print_records"
MAKE = "project/test_release.py::test_the_docs_name_only_commands_that_exist"
SETTINGS = "project/test_docs.py::test_the_settings_in_a_guide_are_valid"
CONFIGURATIONS = "project/test_docs.py::test_the_examples_are_valid_configurations"
PIPELINES = "pipelines/test_definitions.py::test_the_samples_in_the_docs_are_valid"
VARIABLES = "project/test_samples.py::test_the_variables_are_settings"
GUNICORN = "project/test_docs.py::test_the_app_in_the_readme_streams_from_kafka"
DEPLOY = "project/test_deployment.py::test_the_procfile_needs_three_variables"
PROXIES = "proxies/test_files.py::test_the_docs_show_the_tested_files"
TROUBLES = "commands/test_troubleshooting.py::test_the_commands_show_the_topic_the_streams_and_the_records"

# Reasons why a block is only parsed.
DIAGRAM = "a diagram"
OUTPUT = "the output of a program"
INSTALLS = "installs packages of an index"
OTHER_PROGRAM = "needs another program"

# Page -> text in the block, including its fences -> the test that runs or checks the block, or why no test can run it.
# A text may select several blocks if the test reads all of them.
TABLE = {
    "README.md": {
        "make demo": MAKE,
        'allowed_topics=["orders", "events.*"]': GUNICORN,
        "shop:app": GUNICORN,
        "kafkasse cat": STREAMS,
        'new EventSource("/topn/updates")': "javascript/test_javascript.py::test_the_examples_with_eventsource",
        "import requests": "project/test_docs.py::test_the_client_in_the_readme_reads_a_stream",
    },
    "ARCHITECTURE.md": {"─▶": DIAGRAM},
    "docs/access.md": {
        "```yaml": SETTINGS,
        "kafkasse key create": COMMANDS,
        "```js": "access/test_browser.py::test_the_script_of_the_docs_reads_a_stream_with_tickets",
        "def logout(": "project/test_samples.py::test_the_guard_names_the_user_of_the_session",
        "def login(": "project/test_samples.py::test_the_guard_names_the_user_of_the_session",
    },
    "docs/archive.md": {
        "kafkasse archive": COMMANDS,
        "```yaml": SETTINGS,
        "kafkasse-archive.json": "names of files",
    },
    "docs/clients.md": {
        "```sh": STREAMS,
        "```bash": "clients/test_clients.py::test_a_client_receives_each_record_once",
        "session.token()": "javascript/test_javascript.py::test_the_examples_for_a_page_handle_each_event",
        "fileStore(": "javascript/test_javascript.py::test_the_example_for_node_resumes_after_a_restart",
        "shared: user.id": "javascript/test_javascript.py::test_the_examples_for_a_page_handle_each_event",
        "function follow(": "clients/test_clients.py::test_a_client_receives_each_record_once",
        'follow("/topn/updates"': "javascript/test_javascript.py::test_the_examples_with_eventsource",
        "```python": "client/test_client.py::test_the_examples_of_the_docs",
    },
    "docs/command-line.md": {
        "kafkasse cat": COMMANDS,
        "kafkasse init": COMMANDS,
        "_KAFKASSE_COMPLETE": "commands/test_commands.py::test_completes_commands_and_options",
    },
    "docs/configuration.md": {
        "kafkasse serve": COMMANDS,
        "```yaml": CONFIGURATIONS,
        "SCRAM-SHA-512": VARIABLES,
        "def deserialize": "project/test_docs.py::test_sends_records_that_pass_the_hooks",
    },
    "docs/deployment.md": {
        "wsgi:app": DEPLOY,
        "--worker-class": GUNICORN,
        "gunicorn -c python:": "server/test_wsgi_servers.py::test_streams_and_pages_work",
        "keepalive = 75": "server/test_wsgi_servers.py::test_sigusr2_starts_a_second_master",
        "monkey.patch_all()\n```": "server/test_wsgi_servers.py::test_streams_and_pages_work",
        "post_worker_init": "server/test_wsgi_servers.py::test_sigterm_drains_the_streams",
        "WSGIServer": "server/test_wsgi_servers.py::test_sigterm_drains_the_streams",
    },
    "docs/extensions.md": {
        "class Middleware": "extensions/test_examples.py::test_the_example_of_middleware_leaves_streams_alone",
        "def log_body": "extensions/test_examples.py::test_the_example_of_a_hook_skips_streams",
        "<tenant>": "extensions/test_examples.py::test_the_example_of_prefixes_mounts_the_streams",
        "def member": "extensions/test_examples.py::test_the_example_of_a_login_protects_the_streams",
        "limiter.exempt": "extensions/test_examples.py::test_the_example_of_rate_limits_exempts_the_streams",
        "ddtrace-run": "extensions/test_extensions.py::test_ddtrace_ends_its_span_when_the_stream_ends",
        "import pytest": "extensions/test_examples.py::test_the_example_of_a_unit_test_passes",
    },
    "docs/faults.md": {"make chaos": MAKE},
    "docs/filters.md": {
        "```yaml": SETTINGS,
        "```python": "project/test_docs.py::test_the_example_of_personal_streams_sends_each_visitor_its_own_records",
        "curl -N": STREAMS,
        "value.customer": "project/test_samples.py::test_the_filter_expressions_are_valid",
    },
    "docs/install.md": {
        "pip install ../kafkasse": "tutorial/test_tutorial.py::test_a_reader_who_follows_the_tutorial_gets_the_app",
        "pip wheel": "project/test_packaging.py::test_the_wheel_contains_the_whole_package",
        "./wheels/": "project/test_packaging.py::test_the_docs_name_the_wheel",
        "pip install --no-deps": "project/test_packaging.py::test_the_client_side_needs_only_click",
    },
    "docs/kafka-services.md": {
        "```yaml": "config/test_kafka_services.py::test_the_settings_of_a_service_are_valid",
        "```sh": "config/test_kafka_services.py::test_the_settings_of_a_service_are_valid",
        "```python": "config/test_kafka_services.py::test_the_token_provider_of_msk_is_valid",
    },
    "docs/migrating.md": {"```python": "project/test_docs.py::test_the_app_in_the_guide_to_migration_streams"},
    "docs/operations.md": {
        "/-/metrics\n```": VARIABLES,
        "kafkasse streams": COMMANDS,
        "A stream ended": OUTPUT,
        "A request was rejected": OUTPUT,
        "opentelemetry-instrument": INSTALLS,
        "scrape_configs": OTHER_PROGRAM,
        "service.observer.render()": "project/test_samples.py::test_the_view_returns_metrics",
    },
    "docs/pipeline-tutorial.md": {
        "": "tutorial/test_pipeline_tutorial.py::test_a_reader_who_follows_the_tutorial_gets_the_pipeline"
    },
    "docs/pipelines.md": {
        "pipeline list": COMMANDS,
        "pipelines:\n  large-orders": PIPELINES,
        "pipelines:\n  orders-per-minute": PIPELINES,
        "def large(": "commands/test_pipeline.py::test_runs_the_pipeline_in_the_docs",
        "shop.pipelines:large_orders\n": "commands/test_pipeline.py::test_runs_the_pipeline_in_the_docs",
        "entry-points": "pipelines/test_catalog.py::test_finds_a_pipeline_of_an_installed_package",
        '"France"': "a record",
        '"nrs"': "a record",
        "def paid(": "pipelines/test_samples.py::test_the_query_that_rejects_records",
        "replay-dead-letters": COMMANDS,
        "--rebuild": COMMANDS,
        "routes:\n  pipelines": SETTINGS,
        "def largest_orders(": "pipelines/test_samples.py::test_the_query_with_an_operator",
        "spark-submit": "pipelines/test_cluster.py::test_runs_with_spark_submit",
    },
    "docs/platforms.md": {
        "```sh": "platforms/test_page.py::test_the_commands_are_valid_shell",
        "```yaml": "platforms/test_page.py::test_the_variables_are_valid_settings",
        "```toml": "platforms/test_page.py::test_fly_sends_requests_to_the_port_of_the_server",
    },
    "docs/proxies.md": {
        "KAFKASSE_TRUSTED_PROXIES": VARIABLES,
        "kafkasse. This file": PROXIES,
        "retry: 3000": PROXIES,
        "Varnish's parameters": PROXIES,
    },
    "docs/releasing.md": {"make release": MAKE},
    "docs/routes.md": {
        "```yaml": CONFIGURATIONS,
        "kafkasse cat": STREAMS,
        "kafkasse check": COMMANDS,
        "[ERROR]": "server/test_reload.py::test_an_invalid_file_changes_nothing",
    },
    "docs/schemas.md": {"pip install": INSTALLS, "```yaml": SETTINGS},
    "docs/security.md": {
        "```python": "attacks/test_table.py::test_the_guard_of_the_example",
        "kafka-acls.sh": OTHER_PROGRAM,
    },
    "docs/troubleshooting.md": {"```sh": TROUBLES},
    "docs/tutorial.md": {"": "tutorial/test_tutorial.py::test_a_reader_who_follows_the_tutorial_gets_the_app"},
    "docs/wire.md": {
        "```json\n{": "project/test_docs.py::test_the_example_of_an_error_matches_the_schema",
        '"leader_epoch":5': "project/test_docs.py::test_the_ids_in_the_docs_are_valid",
        '"topic":"orders"': "project/test_docs.py::test_the_ids_in_the_docs_are_valid",
    },
}


class Block(NamedTuple):
    """A fenced code block: its page, its language and code, the block with its fences, and its entries in TABLE."""

    page: str
    language: str
    code: str
    text: str
    checks: list[str]


def _blocks() -> list[Block]:
    found = []
    for page in PAGES:
        name = page.relative_to(ROOT).as_posix()
        entries = TABLE.get(name, {})
        for match in BLOCK.finditer(page.read_text()):
            checks = [check for part, check in entries.items() if part in match[0]]
            found.append(Block(name, match[1], match[2], match[0], checks))
    return found


BLOCKS = _blocks()


def test_each_block_is_in_the_table() -> None:
    """Each block has an entry, and each entry has a block."""
    texts = {page: [block.text for block in BLOCKS if block.page == page] for page in TABLE}

    assert [] == [block.text for block in BLOCKS if not block.checks]
    assert [] == [
        (page, part) for page in TABLE for part in TABLE[page] if not any(part in text for text in texts[page])
    ]


def test_the_tests_in_the_table_exist() -> None:
    """An entry with `::` names a test."""
    tests = {check for entries in TABLE.values() for check in entries.values() if "::" in check}

    for file, name in (test.split("::") for test in tests):
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(), f"{file} has no test {name}"


@pytest.mark.processes
def test_blocks_that_no_test_runs_are_valid() -> None:
    """If the table gives only a reason for a block, the parser of its language accepts the block."""
    for block in BLOCKS:
        if not any("::" in check for check in block.checks):
            PARSERS[block.language](block.code)


def _parse_sh(code: str) -> None:
    done = subprocess.run(["bash", "-n"], input=code, capture_output=True, text=True, check=False)
    assert (0, "") == (done.returncode, done.stderr)


PARSERS: dict[str, Callable[[str], object]] = {
    "": str,  # text
    "json": json.loads,
    "sh": _parse_sh,
    "yaml": yaml.safe_load,
}


def test_the_variables_are_settings() -> None:
    """The server accepts the variables that each of these blocks sets."""
    blocks = [block for block in BLOCKS if VARIABLES in block.checks]
    assert len(blocks) > 2
    for block in blocks:
        variables = dict(re.findall(r"\b(KAFKASSE_\w+)=(\S+)", block.code))

        assert variables
        kafkasse.Config.load({"KAFKASSE_ALLOWED_TOPICS": "orders", "KAFKASSE_PUBLIC": "true", **variables})


def test_the_filter_expressions_are_valid() -> None:
    """Each line of the examples of expressions in docs/filters.md is one expression."""
    for expression in _code("docs/filters.md", "value.customer").splitlines():
        compile_expression(expression)


def test_the_guard_names_the_user_of_the_session() -> None:
    """The code in docs/access.md: after the login, a user can read a stream. After the logout, everyone gets 401."""
    names = _run(_code("docs/access.md", "def login("))
    log = kafkasse.MemoryLog()
    log.create("orders")
    app = Flask(__name__)
    app.testing = True
    app.secret_key = "for a test"  # noqa: S105
    app.register_blueprint(kafkasse.blueprint(names["config"], log))
    _run(_code("docs/access.md", "def logout("), app=app, kafkasse=kafkasse, session=session, redirect=redirect)
    client = app.test_client()

    assert 401 == client.get("/orders").status_code
    with client.session_transaction() as stored:
        stored["user"] = "ada"
    assert 200 == client.get("/orders").status_code
    assert 302 == client.post("/logout").status_code
    assert 401 == client.get("/orders").status_code


def test_the_view_returns_metrics() -> None:
    """The view in docs/operations.md adds kafkasse's metrics to an app."""
    app = Flask(__name__)
    app.register_blueprint(
        kafkasse.blueprint(kafkasse.Config.load(allowed_topics=["orders"], public=True), kafkasse.MemoryLog())
    )
    _run(_code("docs/operations.md", "service.observer"), app=app)

    response = app.test_client().get("/internal/kafkasse-metrics")

    assert "text/plain; version=0.0.4" == response.headers["Content-Type"]
    assert "# TYPE kafkasse_" in response.text


def _code(page: str, part: str) -> str:
    (code,) = [block.code for block in BLOCKS if block.page == page and part in block.code]
    return code


def _run(code: str, **names: object) -> dict[str, Any]:
    exec(code, names)  # noqa: S102 - our own docs
    return names
