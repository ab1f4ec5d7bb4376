"""Compressed streams over real sockets, as HTTP clients and a browser read them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import httpx
import pytest
from selenium import webdriver

from kafkasse.sse import Parser
from tests.support.kafka import Cluster
from tests.support.server import Server
from tests.support.waiting import TIMEOUT_S
from tests.web.conftest import browser  # noqa: F401 - a fixture

READ = """
const [path, done] = arguments, seen = [], source = new EventSource(path);
source.onmessage = (e) => { seen.push(JSON.parse(e.data).n); if (seen.length === 3) { source.close(); done(seen); } };
"""


@pytest.fixture(scope="module")
def server(serve: Callable[..., Server]) -> Server:
    return serve(compression=["zstd", "gzip"])


@pytest.fixture
def written(cluster: Cluster, topic: str) -> str:
    """A topic whose first partition contains three records."""
    cluster.send(topic, *(b'{"n":%d}' % n for n in range(3)))
    return topic


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_an_http_client_reads_each_event_at_once(server: Server, cluster: Cluster, written: str, coding: str) -> None:
    """Stored records, and one that is written while the client waits."""
    address = f"http://127.0.0.1:{server.port}/{written}?timestamp=0"
    with httpx.stream("GET", address, headers={"Accept-Encoding": coding}, timeout=TIMEOUT_S) as response:
        seen = _numbers(response)
        first = [next(seen) for _ in range(3)]
        cluster.send(written, b'{"n":3}')
        last = next(seen)

    assert (coding, "Accept-Encoding") == (response.headers["Content-Encoding"], response.headers["Vary"])
    assert [0, 1, 2, 3] == [*first, last]


def test_a_browser_reads_a_compressed_stream(
    server: Server,
    written: str,
    browser: webdriver.Chrome,  # noqa: F811
) -> None:
    """EventSource offers all codings, and receives zstd."""
    browser.get(f"http://127.0.0.1:{server.port}/-/health")
    browser.set_script_timeout(TIMEOUT_S)

    assert [0, 1, 2] == browser.execute_async_script(READ, f"/{written}?timestamp=0")


def _numbers(response: httpx.Response) -> Iterator[int]:
    parser = Parser()
    for chunk in response.iter_bytes():
        for event in parser.receive(chunk):
            if event.type == "message":
                yield json.loads(event.data)["n"]
