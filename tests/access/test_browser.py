"""The script of docs/access.md in a real browser: a page of another origin reads a guarded stream with tickets."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from selenium import webdriver

from tests.access.conftest import environment, signed
from tests.support.server import ROOT, Server
from tests.web.conftest import browser as browser

SCRIPT_TIMEOUT_S = 120
LIFETIMES_S = (3, 15, 60, 300)  # of the tokens; on a busy machine, the first one may expire before the first event
APP = "tests.support.apps:ticking()"


@pytest.fixture(scope="module")
def page(processes: None) -> Iterator[str]:
    """A document of another origin."""
    with Server(APP) as server:
        yield f"http://127.0.0.1:{server.port}/-/health"


@pytest.fixture(scope="module")
def streams(page: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server whose stream /orders is guarded, and allows the page's origin."""
    variables = environment(
        tmp_path_factory.mktemp("streams"),
        routes={"orders": {"path": "/orders", "topics": ["t"], "access": ["customers"]}},
        cors_origins=[page.removesuffix("/-/health")],
    )
    with Server(APP, **variables) as server:
        yield f"http://127.0.0.1:{server.port}"


def script() -> str:
    """The function connect() of docs/access.md."""
    (text,) = re.findall(r"^```js\n(.*?)^```", (Path(ROOT) / "docs/access.md").read_text(), re.MULTILINE | re.DOTALL)
    return str(text)


def test_the_script_of_the_docs_reads_a_stream_with_tickets(browser: webdriver.Chrome, page: str, streams: str) -> None:
    """When the token expires, the page gets a new ticket with a new token, and misses no event."""
    browser.set_script_timeout(SCRIPT_TIMEOUT_S)
    browser.get(page)
    now = int(time.time())
    tokens = [signed(exp=now + lifetime_s) for lifetime_s in LIFETIMES_S]

    received = browser.execute_async_script(
        f"""const done = arguments[arguments.length - 1], tokens = arguments[0];
        const received = tokens.map(() => []);
        let used = 0;
        const getToken = async () => tokens[used++];
        const show = (value) => {{
          received[used - 1].push(value.n);
          const streams = received.filter((each) => each.length);
          if (streams.length === 2 && received[used - 1].length === 20) done(streams);
        }};
        {script().replace("/streams/", f"{streams}/")}
        connect();""",
        tokens,
    )

    first, second = received
    assert all(after == before + 1 for before, after in pairwise([*first, *second]))
