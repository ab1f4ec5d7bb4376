"""Which pages of a real browser can open a guarded stream over TLS: with a `__Host-` cookie, or with tickets."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from selenium import webdriver

from tests.access.conftest import environment, signed
from tests.support.certificates import Authority
from tests.support.server import ROOT, Server
from tests.support.waiting import wait_until
from tests.web.conftest import browser as browser
from tests.web.conftest import run_in_page

LIFETIMES_S = (3, 15, 60, 300)  # of the tokens; on a busy machine, the first one may expire before the first event
APP = "tests.support.apps:with_login()"
# Passes the type of the first event to done(), or "closed" if the browser gives up.
FIRST_EVENT = """
const source = new EventSource(arguments[0], {withCredentials: arguments[1]});
const end = (result) => { source.close(); done(result); };
source.onmessage = (event) => end(event.type);
source.onerror = () => { if (source.readyState === EventSource.CLOSED) end("closed"); };
"""


class Site(NamedTuple):
    """A server with guarded streams, and an address of another origin.

    Attributes:
        url: the URL of the server. Its stream /own is for its own pages; /shared allows pages of the other origin.
        other: the URL of another origin on the same host, to whose requests the browser adds the cookie.
        log: the access log of the server.
    """

    url: str
    other: str
    log: Path

    def statuses(self, path: str) -> list[str]:
        lines = self.log.read_text().splitlines()
        return [line.split('" ')[1].split()[0] for line in lines if f'"GET {path} HTTP' in line]


@pytest.fixture(scope="module")
def site(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    for name, text in zip(("certificate", "key"), Authority().issue("127.0.0.1"), strict=True):
        (folder / name).write_text(text)
    tls = {"GUNICORN_CMD_ARGS": f"--certfile {folder}/certificate --keyfile {folder}/key", "TMPDIR": str(folder)}
    with Server(APP, **tls) as elsewhere:
        other = f"https://127.0.0.1:{elsewhere.port}"
        route = {"topics": ["t"], "access": ["customers"]}
        routes = {
            "own": route | {"path": "/own"},
            "shared": route | {"path": "/shared", "cors_origins": [other], "cors_credentials": True},
            "orders": route | {"path": "/orders", "cors_origins": [other]},
        }
        variables = environment(folder, customers={"cookie": "__Host-token"}, routes=routes)
        log = folder / "access.log"
        with Server(APP, **variables | tls, KAFKASSE_ACCESS_LOG=str(log)) as server:
            yield Site(f"https://127.0.0.1:{server.port}", other, log)


@pytest.fixture
def logged_in(browser: webdriver.Chrome, site: Site) -> webdriver.Chrome:
    browser.get("about:blank")
    run_in_page(
        browser, site.url, "fetch('/login', {headers: {Authorization: arguments[0]}}).then(done);", f"Bearer {signed()}"
    )
    return browser


def test_a_page_of_the_same_origin_opens_a_stream_with_the_cookie(logged_in, site):
    """Scripts cannot read the cookie, and EventSource sends it."""
    assert "message" == run_in_page(logged_in, site.url, FIRST_EVENT, "/own", False)
    assert "" == logged_in.execute_script("return document.cookie")


def test_a_page_of_another_origin_needs_a_route_that_allows_the_cookie(logged_in, site):
    """The browser sends the cookie, but /own responds with 403. `cors_origins` and `cors_credentials` allow it."""
    seen = [
        run_in_page(logged_in, site.other, FIRST_EVENT, f"{site.url}{path}", credentials)
        for path, credentials in (("/own?other", True), ("/shared", True), ("/shared?without", False))
    ]

    assert ["closed", "message", "closed"] == seen
    wait_until(lambda: site.statuses("/own?other") == ["403"])
    wait_until(lambda: site.statuses("/shared?without") == ["401"])


def script() -> str:
    """The function connect() of docs/access.md."""
    (text,) = re.findall(r"^```js\n(.*?)^```", (Path(ROOT) / "docs/access.md").read_text(), re.MULTILINE | re.DOTALL)
    return str(text)


def test_the_script_of_the_docs_reads_a_stream_with_tickets(browser, site):
    """The page has another origin. When the token expires, it gets a new ticket with a new token, and misses no event."""
    now = int(time.time())
    tokens = [signed(exp=now + lifetime_s) for lifetime_s in LIFETIMES_S]

    first, second = run_in_page(
        browser,
        site.other,
        f"""const tokens = arguments[0];
        const received = tokens.map(() => []);
        let used = 0;
        const getToken = async () => tokens[used++];
        const show = (value) => {{
          received[used - 1].push(value.n);
          const streams = received.filter((each) => each.length);
          if (streams.length === 2 && received[used - 1].length === 20) done(streams);
        }};
        {script().replace("/streams/", f"{site.url}/")}
        connect();""",
        tokens,
    )

    assert all(after == before + 1 for before, after in pairwise([*first, *second]))
