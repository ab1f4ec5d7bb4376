"""Pages of another origin in a real browser: which requests need a CORS preflight."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server import Server
from tests.support.waiting import wait_until
from tests.web.conftest import run_in_page

APP = "tests.support.apps:in_memory()"


@pytest.fixture(scope="module")
def page(processes: None) -> Iterator[str]:
    """A document of another origin."""
    with Server(APP) as server:
        yield f"http://127.0.0.1:{server.port}"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "access.log"


@pytest.fixture(scope="module")
def server(page: str, log: Path) -> Iterator[Server]:
    """A server that allows pages of the origin to send credentials, and ends each stream soon."""
    settings = {"CORS_ORIGINS": page, "CORS_CREDENTIALS": "true", "MAX_STREAM_AGE_S": "0.2", "RETRY_MS": "50"}
    variables = {f"KAFKASSE_{name}": value for name, value in settings.items()}
    with Server(APP, KAFKASSE_ACCESS_LOG=str(log), **variables) as server:
        yield server


def methods(log: Path, path: str) -> list[str]:
    """Return the methods of the requests for a path, in the order in which they ended."""
    return re.findall(rf'"(\w+) {re.escape(path)} HTTP', log.read_text())


def test_an_event_source_resumes_without_a_preflight(browser, page, server, log):
    """This is true even with credentials, and with event IDs in JSON."""
    path = "/t?event-source"
    run_in_page(
        browser,
        page,
        """const source = new EventSource(arguments[0], {withCredentials: true}); let opened = 0;
        source.onopen = () => { if (++opened === 3) { source.close(); done(); } };""",
        f"http://127.0.0.1:{server.port}{path}",
    )

    wait_until(lambda: len(methods(log, path)) == 3)
    assert {"GET"} == set(methods(log, path))


def test_fetch_sends_one_preflight_for_many_event_ids(browser, page, server, log):
    """The browser caches the response to the preflight. The form of the ID makes no difference."""
    run_in_page(
        browser,
        page,
        """const read = (id) => fetch(arguments[0], {headers: {"Last-Event-ID": id}}).then((each) => each.text());
        read("~~dCA6MCAg~").then(() => read('["t"]')).then(done);""",
        f"http://127.0.0.1:{server.port}/t?fetch",
    )

    wait_until(lambda: len(methods(log, "/t?fetch")) == 3)
    assert ["OPTIONS", "GET", "GET"] == methods(log, "/t?fetch")
