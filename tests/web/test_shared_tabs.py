"""kafkasse.js in Chromium and Firefox: frames of a page share one connection, as tabs do, and are closed and reloaded."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from flask import Flask, Response, request, send_from_directory

from kafkasse.web.pages import CLIENT
from tests.support.waiting import wait_until
from tests.web.serve import serve

pytestmark = pytest.mark.processes

FRAMES = ["a", "b", "c"]
INTERVAL_S = 0.01

PAGE = "<!doctype html><title>tabs</title>" + "".join(
    f'<iframe src="frame?{frame}" id="{frame}"></iframe>' for frame in FRAMES
)

# Each frame keeps its position and the numbers that it has received, also when it is reloaded.
FRAME = """<!doctype html>
<script type="module">
import { Stream } from "./kafkasse.js";
const name = location.search.slice(1);
const store = {
  load: () => sessionStorage.getItem("position " + name),
  save: (id) => sessionStorage.setItem("position " + name, id),
};
const add = (text) => sessionStorage.setItem(name, `${sessionStorage.getItem(name) ?? ""} ${text}`);
new Stream("stream", { shared: true, store }).run({ message: ({ id }) => add(id), gap: () => add("gap") });
</script>
"""

LOCKS = "return navigator.locks.query().then(({ held, pending }) => held.length + pending.length)"


class Site:
    """The page, and a stream of numbers from 1 that continues after the number in Last-Event-ID.

    Attributes:
        streams: how many streams are open.
        end: the last number; None while there is none.
    """

    def __init__(self) -> None:
        self.streams = 0
        self.end: int | None = None
        self._responds = threading.Event()
        self._responds.set()
        self._began_s = time.monotonic()
        app = Flask("tabs")
        app.add_url_rule("/", "page", lambda: PAGE)
        app.add_url_rule("/other", "other", lambda: "<!doctype html><title>other</title>")
        app.add_url_rule("/frame", "frame", lambda: FRAME)
        app.add_url_rule("/kafkasse.js", "client", partial(send_from_directory, CLIENT.parent, CLIENT.name))
        app.add_url_rule("/stream", "stream", self._stream)
        self._server = serve(app)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    @property
    def newest(self) -> int:
        """The newest number: one more every INTERVAL_S seconds."""
        return int((time.monotonic() - self._began_s) / INTERVAL_S)

    def stall(self) -> None:
        self._responds.clear()

    def resume(self, newest: int) -> None:
        """Respond to all requests. From now on, this is the newest number."""
        self._began_s = time.monotonic() - newest * INTERVAL_S
        self._responds.set()

    def close(self) -> None:
        self.end = self.end or 0  # ends all streams
        self._server.shutdown()
        self._server.server_close()

    def _stream(self) -> Response:
        self._responds.wait()
        start = int(request.headers.get("Last-Event-ID") or self.newest)
        return Response(self._events(start), content_type="text/event-stream")

    def _events(self, start: int) -> Iterator[str]:
        self.streams += 1
        try:
            yield f"retry: 10\n\nevent: position\ndata: {{}}\nid: {start}\n\n"
            for number in itertools.count(start + 1):
                while number > self.newest or (self.end is not None and number > self.end):
                    if self.end == 0:
                        return
                    yield ":heartbeat\n\n"
                    time.sleep(INTERVAL_S)
                yield f"data: {number}\nid: {number}\n\n"
        finally:
            self.streams -= 1


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


def seen(browser: Any, name: str) -> list[str]:
    return str(browser.execute_script("return sessionStorage.getItem(arguments[0]) ?? ''", name)).split()


def wait_for_more(browser: Any, count: int = 5) -> None:
    wanted = {name: len(seen(browser, name)) + count for name in FRAMES}
    wait_until(lambda: all(len(seen(browser, name)) >= wanted[name] for name in FRAMES))


def add_frame(browser: Any, name: str, position: int) -> None:
    """Add a frame to a page, at a position. Wait until it has the lock of the leader or waits for it."""
    browser.execute_script("sessionStorage.setItem(`position ${arguments[0]}`, arguments[1])", name, str(position))
    before = browser.execute_script(LOCKS)
    browser.execute_script(
        "const [id, src] = arguments; document.body.append(Object.assign(document.createElement('iframe'), { id, src }))",
        name,
        f"frame?{name}",
    )
    wait_until(lambda: browser.execute_script(LOCKS) > before)


def check(browser: Any, site: Site) -> None:
    """Check that each frame received every number once, from its first one to the end, over one connection."""
    wait_for_more(browser)
    wait_until(lambda: site.streams == 1)
    site.end = site.newest + 20
    last = str(site.end)
    wait_until(lambda: all(seen(browser, name)[-1] == last for name in FRAMES))
    for name in FRAMES:
        numbers = seen(browser, name)
        assert list(map(str, range(int(numbers[0]), site.end + 1))) == numbers, name


@pytest.mark.parametrize("action", ["frame.contentWindow.location.reload()", "frame.replaceWith(frame.cloneNode())"])
def test_frames_that_come_and_go_receive_each_event_once(any_browser, site, action):
    """Each frame in turn is reloaded, or closed and opened again, whether or not it has the connection."""
    any_browser.get(site.url)
    wait_for_more(any_browser)

    for name in FRAMES:
        any_browser.execute_script(f"const frame = document.getElementById(arguments[0]); {action}", name)
        wait_for_more(any_browser)

    check(any_browser, site)


def test_a_page_that_was_left_resumes_when_the_user_goes_back(any_browser, site):
    """This is exact with and without the back/forward cache. While the user is away, the page has no connection."""
    any_browser.get(site.url)
    wait_for_more(any_browser)

    any_browser.execute_script("location.href = 'other'")
    wait_until(lambda: any_browser.execute_script("return document.title") == "other")
    wait_until(lambda: site.streams == 0)
    any_browser.execute_script("history.back()")
    wait_until(lambda: any_browser.execute_script("return document.title") == "tabs")

    check(any_browser, site)


def test_a_frame_that_is_ahead_of_the_leader_receives_each_event_once(any_browser, site):
    """If all frames are loaded again, the one that connects may have received fewer events than the others."""
    any_browser.get(site.url + "other")
    site.stall()
    for name, position in zip(FRAMES, (10, 20, 30), strict=True):
        add_frame(any_browser, name, position)
    site.resume(30)

    check(any_browser, site)
    assert ["11", "21", "31"] == [seen(any_browser, name)[0] for name in FRAMES]


@pytest.mark.parametrize("next_leader", ["b", "c"])
def test_the_next_leader_may_be_ahead_of_other_frames(any_browser, site, next_leader):
    """The leader is closed before it has caught up. No frame loses events without a gap, or receives them again."""
    positions = {"b": 30, "c": 10}
    any_browser.get(site.url + "other")
    site.stall()
    add_frame(any_browser, "a", 10)
    for name in sorted(positions, key=lambda name: name != next_leader):
        add_frame(any_browser, name, positions[name])
    any_browser.execute_script("document.getElementById('a').remove()")
    site.resume(30)

    wait_until(lambda: seen(any_browser, "c"))
    site.end = site.newest + 20
    wait_until(lambda: all(seen(any_browser, name)[-1:] == [str(site.end)] for name in positions))
    received = {name: seen(any_browser, name) for name in positions}
    first = 11
    if next_leader == "b":
        assert "gap" == received["c"].pop(0)
        first = int(received["c"][0])
    assert [str(number) for number in range(31, site.end + 1)] == received["b"]
    assert [str(number) for number in range(first, site.end + 1)] == received["c"]
