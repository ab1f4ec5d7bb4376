"""The demo page in a real browser, next to a stream that each test controls."""

from __future__ import annotations

import json
import queue
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, Response, request
from flask.testing import FlaskClient
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait
from werkzeug.exceptions import NotFound
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.serving import BaseWSGIServer, make_server

from kafkasse.web.pages import CLIENT, pages
from tests.support.firefox import Firefox
from tests.support.waiting import wait_until
from tests.web.accessibility import violations
from tests.web.files import check_headers
from tests.web.quiet import SHUTDOWN_POLL_S, Quiet

WAIT_TIMEOUT_S = 30  # for anything that a test waits to see, so that a hang becomes a failure
SHORT_RETRY = "retry: 50\n\n"
STATUS = '{"pipeline":"topn","state":"running","records_per_s":9.2,"commit_s":"1","restarts":0}'
PAGE = "/-/demo"


class Site:
    """The pages and a stream that the test controls, on a port of 127.0.0.1."""

    def __init__(self, prefix: str = "", script_name: str = "") -> None:
        self.requests: list[str | None] = []  # the Last-Event-ID of each request for the stream
        self.status_requests = 0  # for the status of the pipelines
        self.catalog: list[dict[str, object]] = []
        self.preamble = ":ok\n\n"  # the start of each stream
        self.rejection: Callable[[], Response] | None = None  # creates the response to send instead of a stream
        self._streams: list[queue.SimpleQueue[str | None]] = []
        app = Flask("site")
        app.register_blueprint(pages(), url_prefix=prefix or None)
        app.add_url_rule(f"{prefix}/topn/updates", "updates", self._updates)
        app.add_url_rule(f"{prefix}/-/catalog", "catalog", lambda: {"streams": self.catalog})
        app.add_url_rule(f"{prefix}/pipelines", "pipelines", self._pipelines)
        self._app = DispatcherMiddleware(NotFound(), {script_name: app}) if script_name else app
        self._port = 0
        self.start()
        self.url = f"http://127.0.0.1:{self._port}{script_name}{prefix}"

    def start(self) -> None:
        """Start listening. A second call listens on the same port."""
        self._server: BaseWSGIServer = make_server(
            "127.0.0.1", self._port, self._app, threaded=True, request_handler=Quiet
        )
        self._port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(SHUTDOWN_POLL_S,), daemon=True).start()

    def stop(self) -> None:
        """Stop listening and end all streams."""
        self._server.shutdown()
        self._server.server_close()
        self.end_streams()

    def send(self, *texts: str) -> None:
        """Send texts to all open streams."""
        for stream in self._streams:
            for text in texts:
                stream.put(text)

    def end_streams(self) -> None:
        streams, self._streams = self._streams, []
        for stream in streams:
            stream.put(None)

    def _pipelines(self) -> Response:
        self.status_requests += 1
        stream: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        stream.put(event(STATUS))
        self._streams.append(stream)
        return Response(iter(stream.get, None), content_type="text/event-stream")

    def _updates(self) -> Response:
        received = request.headers.get("Last-Event-ID")
        if self.rejection:
            self.requests.append(received)
            return self.rejection()
        stream: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        stream.put(self.preamble)
        self._streams.append(stream)
        self.requests.append(received)  # last, because a test that sees the request may call send()
        return Response(iter(stream.get, None), content_type="text/event-stream; charset=utf-8")


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.stop()


class Page:
    """The page in the browser, as a user sees it."""

    def __init__(self, browser: webdriver.Chrome, site: Site) -> None:
        self.browser = browser
        self.site = site

    def open(self, path: str = PAGE, state: str = "Live") -> None:
        """Open a path and wait until the page shows the connection state `state`."""
        self.browser.get("about:blank")
        self.console()  # discards the messages of the previous page
        self.browser.get(self.site.url + path)
        self.wait_for_text("#state", state)

    def press_retry(self) -> None:
        """Click the button, even if the automatic retry has just hidden it."""
        self.run("document.getElementById('retry').click()")

    def run(self, script: str, *arguments: object) -> Any:
        return self.browser.execute_script(script, *arguments)

    def text(self, selector: str) -> str:
        """Return the visible text of the first matching element, or "" if it is hidden or missing."""
        script = "const e = document.querySelector(arguments[0]); return e?.checkVisibility() ? e.innerText : '';"
        return str(self.run(script, selector))

    def board(self) -> dict[str, list[list[str]]]:
        """Return the rows of each continent as lists of cell texts, in the order of the page."""
        cards = self.run(
            """
            return [...document.querySelectorAll(".continent")].map((card) => [
              card.querySelector("h2").innerText,
              [...card.querySelectorAll("tbody tr")].map((row) => [...row.cells].map((cell) => cell.innerText)),
            ]);
            """
        )
        return dict(cards)

    def highlights(self) -> list[int]:
        """Return the number of running highlights of each row."""
        return list(self.run("return [...document.querySelectorAll('tbody tr')].map((r) => r.getAnimations().length)"))

    def wait_until(self, condition: Callable[[], object]) -> None:
        WebDriverWait(self.browser, WAIT_TIMEOUT_S, poll_frequency=0.02).until(lambda _: condition())

    def wait_for_text(self, selector: str, text: str) -> None:
        self.wait_until(lambda: text in self.text(selector))

    def wait_for_board(self, *continents: str) -> None:
        """Wait until the page shows exactly these continents, in this order."""
        self.wait_until(lambda: list(continents) == list(self.board()))

    def wait_for_requests(self, count: int) -> None:
        """Wait until the site has received `count` requests for the stream."""
        self.wait_until(lambda: count == len(self.site.requests))

    def wait_for_requests_in(self, tab: str, count: int) -> None:
        """Switch to a tab, then wait until the site has received `count` requests for the stream."""
        self.browser.switch_to.window(tab)
        self.wait_for_requests(count)

    def emulate(self, **features: str) -> None:
        """Emulate media features, such as prefers_color_scheme="dark". Others keep the values of the machine."""
        named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": named})

    def resize(self, width_px: int, height_px: int = 900) -> None:
        size = {"width": width_px, "height": height_px, "deviceScaleFactor": 1, "mobile": False}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def needs_no_sideways_scrolling(self) -> bool:
        return bool(self.run("return document.documentElement.scrollWidth <= document.documentElement.clientWidth"))

    def console(self) -> list[str]:
        """Return and discard the messages in the browser's console, with their levels."""
        entries = self.browser.get_log("browser")  # type: ignore[no-untyped-call]
        return [f"{entry['level']} {entry['message']}" for entry in entries]


@pytest.fixture
def page(browser: webdriver.Chrome, site: Site) -> Iterator[Page]:
    page = Page(browser, site)
    page.emulate(prefers_color_scheme="light")
    page.resize(1280)
    yield page
    browser.get("about:blank")


def country(name: str, size: object, population: object = 1000, code: object = "XX") -> dict[str, object]:
    return {"code": code, "name": name, "population": population, "size": size}


def event(data: str, event_id: str = "", type: str = "message") -> str:
    return f"event: {type}\n" + (f"id: {event_id}\n" if event_id else "") + f"data: {data}\n\n"


def update(continent: object, *countries: object, event_id: str = "") -> str:
    return event(json.dumps({"continent": continent, "nrs": countries}), event_id)


def reject(status: int, body: str, **headers: str) -> Callable[[], Response]:
    return lambda: Response(body, status, {name.replace("_", "-"): value for name, value in headers.items()})


RUSSIA = country("Russia", 17_100_000, 144_478_050, "RU")
UKRAINE = country("Ukraine", 603_700, 44_622_516, "UA")
FRANCE = country("France", 547_030, 66_987_244, "FR")
EUROPE = update("Europe", RUSSIA, UKRAINE, FRANCE, event_id="7")
ASIA = update("Asia", country("China", 9_596_960))


class TestBoard:
    """The tables of countries."""

    def test_waits_for_the_first_country(self, page: Page) -> None:
        """Before the first update, the page is connected, says that it waits, and shows no empty table."""
        page.open()

        assert "Waiting for the first country…" in page.text("#waiting")
        assert "No updates yet" == page.text(".figures")
        assert {} == page.board()

    def test_shows_the_countries_of_an_update(self, page: Page) -> None:
        """An update becomes a table with rank, name, code, size and people; a counter and a time show the update."""
        page.open()

        page.site.send(EUROPE)
        page.wait_for_board("Europe")

        rows = [["1", "Russia\u00a0RU", "17,100,000", "144M"], ["2", "Ukraine\u00a0UA", "603,700", "44.6M"]]
        assert [*rows, ["3", "France\u00a0FR", "547,030", "67M"]] == page.board()["Europe"]
        assert "" == page.text("#waiting")
        assert re.fullmatch(r"1 update\s*last at \d+:\d\d:\d\d\D*", page.text(".figures"))

    def test_bars_share_one_scale(self, page: Page) -> None:
        """The largest country of all continents has the longest bar, even if its update arrives after others."""
        page.open()
        page.site.send(ASIA, EUROPE)
        page.wait_for_board("Asia", "Europe")

        shares = page.run(
            "return [...document.querySelectorAll('tbody tr')].map((r) => r.style.getPropertyValue('--share'))"
        )

        assert [9_596_960 / 17_100_000, 1.0] == pytest.approx([float(share) for share in shares[:2]])

    def test_an_update_replaces_the_previous_one(self, page: Page) -> None:
        """If an update has fewer countries, the extra rows disappear. Only rows that changed are highlighted."""
        page.open()
        page.site.send(EUROPE)
        page.wait_for_board("Europe")
        assert [0, 0, 0] == page.highlights()

        page.site.send(update("Europe", RUSSIA, FRANCE))
        page.wait_until(lambda: 2 == len(page.board()["Europe"]))

        assert ["Russia\u00a0RU", "France\u00a0FR"] == [row[1] for row in page.board()["Europe"]]
        assert [0, 1] == page.highlights()

    def test_a_row_slides_to_its_new_rank(self, page: Page) -> None:
        """It remains the same row, starts where it was, and is not highlighted. The rows that it passes slide, too."""
        page.open()
        page.site.send(EUROPE)
        page.wait_for_board("Europe")
        page.run("document.querySelectorAll('tbody tr')[2].marked = true")

        page.site.send(update("Europe", RUSSIA, FRANCE, UKRAINE))
        page.wait_until(lambda: "France" in page.board()["Europe"][1][1])

        moves = page.run(
            "return [...document.querySelectorAll('tbody tr')].map((row) => [row.marked ?? false,"
            " row.getAnimations().map((a) => parseInt(a.effect.getKeyframes()[0].transform.slice(11)))])"
        )
        assert [False, []] == moves[0]
        assert (True, False) == (moves[1][0], moves[2][0])
        assert moves[1][1][0] > 0 > moves[2][1][0]

    def test_shows_the_countries_on_the_map(self, page: Page) -> None:
        """Each country has the color of its rank, until it leaves the board. Codes that are not on the map are ignored."""
        ranks = (
            "return [...document.querySelectorAll('#map [class]')].map((p) => [p.textContent, p.getAttribute('class')])"
        )
        page.open()
        page.site.send(EUROPE, update("Oceania", country("Nauru", 21, code="NR"), country("X", 5, code="__proto__")))
        page.wait_for_board("Europe", "Oceania")

        shown = page.run(ranks)
        page.site.send(update("Europe", FRANCE))
        page.wait_until(lambda: 1 == len(page.board()["Europe"]))

        assert [
            ["France: number 3 in Europe", "rank-3"],
            ["Russia: number 1 in Europe", "rank-1"],
            ["Ukraine: number 2 in Europe", "rank-2"],
        ] == sorted(shown)
        assert [["France: number 1 in Europe", "rank-1"]] == page.run(ranks)

    def test_shows_the_state_of_the_pipeline(self, page: Page) -> None:
        """If the server has a stream of the status topic, the page shows the health of the pipeline."""
        page.site.catalog = [{"path": "/pipelines", "topics": ["_pipelines"], "parameters": []}]

        page.open()

        page.wait_for_text("#pipeline", "Pipeline: running, 9 records/s")
        health = page.run("return [...document.querySelectorAll('#health dd')].map((e) => e.textContent)")
        assert ["running", "9/s", "\u2013", "0"] == health

    @pytest.mark.parametrize(("scheme", "width_px"), [("light", 1280), ("dark", 320)])
    def test_is_accessible(self, page: Page, scheme: str, width_px: int) -> None:
        """axe-core finds no violation of WCAG 2.2 AA."""
        page.emulate(prefers_color_scheme=scheme)
        page.resize(width_px)
        page.open()
        page.site.send(EUROPE)
        page.wait_for_board("Europe")

        assert [] == violations(page.browser)

    def test_works_in_firefox(self, firefox: Firefox, site: Site) -> None:
        """The page shows an update on the board and on the map, explains its origin, and resumes after a break."""

        def text(selector: str) -> str:
            return str(firefox.execute_script("return document.querySelector(arguments[0]).innerText", selector))

        site.preamble = SHORT_RETRY
        firefox.get(site.url + PAGE)
        wait_until(lambda: "Live" in text("#state"))
        site.send(EUROPE)
        wait_until(lambda: "Ukraine" in text("#board"))

        site.end_streams()
        wait_until(lambda: 2 == len(site.requests))
        site.send(update("Europe", FRANCE))
        wait_until(lambda: "Ukraine" not in text("#board"))

        assert [None, "7"] == site.requests
        assert ["France: number 1 in Europe"] == firefox.execute_script(
            "return [...document.querySelectorAll('#map [class]')].map((path) => path.textContent)"
        )
        assert "Spark pipeline topn" in text("#how")
        firefox.get("about:blank")

    def test_windows_share_the_stream_of_the_pipeline(self, page: Page) -> None:
        """The second window shows the status that the first one has received."""
        page.site.catalog = [{"path": "/pipelines", "topics": ["_pipelines"], "parameters": []}]
        first = page.browser.current_window_handle
        page.open()
        page.wait_for_text("#pipeline", "Pipeline: running, 9 records/s")
        page.browser.switch_to.new_window("window")
        try:
            page.open()
            page.wait_for_text("#pipeline", "Pipeline: running, 9 records/s")
        finally:
            page.browser.close()
            page.browser.switch_to.window(first)

        assert 1 == page.site.status_requests

    def test_figures_do_not_wrap(self, page: Page) -> None:
        """A figure of eight digits has one line at every width."""
        page.site.preamble = update("Antarctica", country("Antarctica", 14_000_000, 8_888_888))
        page.open()
        page.wait_for_board("Antarctica")
        for width_px in (320, 360, 420, 700, 768, 1024, 1280, 1600, 1920):
            page.resize(width_px)

            lines = page.run("return [...document.querySelectorAll('data')].map((e) => e.getClientRects().length)")
            assert [1, 1] == lines, f"{width_px} px"
            assert page.needs_no_sideways_scrolling(), f"{width_px} px"

    def test_sorts_continents_alphabetically(self, page: Page) -> None:
        """The order of the continents does not depend on the order of the updates, and first updates are not highlighted."""
        page.site.preamble = ":ok\n\nid: 1\n\n" + ASIA + update("South America", FRANCE) + update("Africa", FRANCE)
        page.open()

        page.site.send(EUROPE)
        page.wait_for_board("Africa", "Asia", "Europe", "South America")

        assert {0} == set(page.highlights())

    def test_delete_removes_a_continent(self, page: Page) -> None:
        """An unknown continent is ignored. After the last continent is deleted, the page waits for countries again."""
        page.open()
        page.site.send(EUROPE, ASIA, event('{"key":"Mu"}', type="delete"), event('{"key":"Asia"}', type="delete"))
        page.wait_for_board("Europe")

        page.site.send(event('{"key":"Europe"}', type="delete"))

        page.wait_for_text("#waiting", "Waiting for the first country…")
        assert {} == page.board()

    def test_shows_markup_as_text(self, page: Page) -> None:
        """Markup in an update is not executed, and names such as __proto__ are ordinary names."""
        markup = "<img src=x onerror=\"document.title='caught'\"><script>document.title='caught'</script>"
        page.open()
        title = page.browser.title

        updates = [update(name, country(markup, 5, code=markup)) for name in (markup, "__proto__", "constructor")]
        page.site.send(*updates)
        page.wait_for_board("__proto__", markup, "constructor")

        assert f"{markup}\u00a0{markup}" == page.board()["__proto__"][0][1]
        assert (title, 0) == (page.browser.title, page.run("return document.querySelectorAll('main img').length"))
        page.site.send(event('{"key":"__proto__"}', type="delete"))
        page.wait_for_board(markup, "constructor")

    def test_breaks_very_long_words(self, page: Page) -> None:
        """A name without spaces is broken inside its card and does not widen the page."""
        page.resize(320)
        page.open()

        page.site.send(update("C" * 200, country("N" * 200, 10**300, 10**300, "Q" * 50)))
        page.wait_for_board("C" * 200)

        assert page.needs_no_sideways_scrolling()

    def test_counts_invalid_events(self, page: Page) -> None:
        """Invalid events change nothing except a visible count, and the page shows the valid update after them."""
        page.open()

        invalid = ["{", "null", "[]", '"a"', "{}", '{"continent":1,"nrs":[{"name":"a"}]}', '{"continent":"a","nrs":[]}']
        invalid += [
            '{"continent":"a","nrs":{}}',
            '{"continent":"a","nrs":[null]}',
            '{"continent":"a","nrs":[{"name":1}]}',
        ]
        page.site.send(*map(event, invalid), event("?", type="delete"), event("{}", type="delete"), EUROPE)
        page.wait_for_board("Europe")

        page.wait_for_text(".figures", "12 invalid")
        assert [] == page.console()

    def test_shows_a_dash_for_an_invalid_number(self, page: Page) -> None:
        """A size or population that is not a number becomes a dash."""
        page.open()

        page.site.send(update("Europe", country("A", "5", None), country("B", 5, -1)))
        page.wait_for_board("Europe")

        assert [["1", "A\u00a0XX", "\u2013", "\u2013"], ["2", "B\u00a0XX", "5", "-1"]] == page.board()["Europe"]

    def test_limits_the_number_of_tables_and_rows(self, page: Page) -> None:
        """The page shows at most three rows and fifty continents, and counts the rest, whatever the stream sends."""
        page.open()

        page.site.send(*[update(f"{number:02}", *[country(str(n), n) for n in range(9)]) for number in range(60)])
        page.wait_for_text(".figures", "10 invalid")

        assert [3] * 50 == [len(rows) for rows in page.board().values()]


class TestConnection:
    """When the connection breaks, the page shows the reason, and reconnects or stops."""

    def test_resumes_when_the_stream_ends(self, page: Page) -> None:
        """The browser reconnects with the ID of the last event."""
        page.site.preamble = SHORT_RETRY
        page.open()
        page.site.send(EUROPE)
        page.wait_for_board("Europe")

        page.site.end_streams()
        page.wait_for_requests(2)
        page.wait_for_text("#state", "Live")

        assert "7" == page.site.requests[1]

    def test_reconnects_when_the_server_restarts(self, page: Page) -> None:
        """While the server is down, the page says so and keeps its data."""
        page.site.preamble = SHORT_RETRY
        page.open()
        page.site.send(EUROPE)
        page.wait_for_board("Europe")

        page.site.stop()
        page.wait_for_text("#state", "Reconnecting")
        page.wait_for_text("#reason", "The server cannot be reached")
        assert ["Europe"] == list(page.board())
        page.site.start()
        page.wait_for_text("#state", "Live")
        page.site.send(ASIA)

        page.wait_for_board("Asia", "Europe")

    def test_retries_after_a_temporary_rejection(self, page: Page) -> None:
        """If the response is not a stream, the page shows the reason, counts down, and resumes with the last ID."""
        rejections = [
            (503, '{"detail":"Kafka cannot be reached."}', "Kafka cannot be reached."),
            (502, "<h1>Bad gateway</h1>", "The server responded with status 502."),
            (404, '{"title":"Topic not available"}', "Topic not available"),
            (200, "<p>hello", "/topn/updates is not an event stream."),
        ]
        page.site.preamble = SHORT_RETRY
        page.open()
        for number, (status, body, reason) in enumerate(rejections):
            page.site.send(update("Europe", RUSSIA, event_id=str(number)))
            page.wait_for_text("#count", f"{number + 1} update")

            page.site.rejection = reject(status, body)
            page.site.end_streams()
            page.wait_for_text("#reason", reason)
            page.wait_for_text("#countdown", "Retrying in ")
            page.wait_for_text("#state", "Reconnecting")
            page.site.rejection = None
            if number > 0:  # the first case waits for the automatic retry
                page.press_retry()
            page.wait_for_text("#state", "Live")

            shown = page.site.requests[-1], page.text("#reason"), page.text("#countdown")
            assert (str(number), "", "") == shown

    def test_resumes_at_a_position(self, page: Page) -> None:
        """A page that has received no record resumes with the ID of the `position` event."""
        page.site.preamble = SHORT_RETRY + event("{}", "5", "position")
        page.open()

        page.site.rejection = reject(503, "")
        page.site.end_streams()
        page.wait_for_text("#countdown", "Retrying in ")
        page.site.rejection = None
        page.press_retry()
        page.wait_for_text("#state", "Live")

        assert "5" == page.site.requests[-1]
        assert "invalid" not in page.text(".figures")

    def test_keeps_the_id_of_the_previous_stream(self, page: Page) -> None:
        """If a stream ends with an error before its first ID, the page resumes with the last ID that it received."""
        page.site.preamble = SHORT_RETRY
        page.open()
        page.site.send(EUROPE)
        page.wait_for_board("Europe")

        for number in (2, 3):
            page.site.send(event('{"status":503}', type="error"))
            page.wait_for_requests(number)
            page.wait_for_text("#state", "Live")

        assert [None, "7", "7"] == [*page.site.requests]

    def test_backs_off_if_streams_contain_only_positions(self, page: Page) -> None:
        """The second wait is longer than the first: a `position` event does not show that the stream works."""
        page.site.preamble = SHORT_RETRY + event("{}", "5", "position") + event('{"status":503}', type="error")

        page.open(state="Reconnecting")

        page.wait_for_text("#countdown", "Retrying in 3 s")

    def test_waits_as_long_as_retry_after_says(self, page: Page) -> None:
        """The retry button can be reached with the keyboard and retries immediately."""
        page.site.rejection = reject(503, "", Retry_After="120")
        page.open(state="Reconnecting")
        page.wait_until(lambda: re.fullmatch(r"Retrying in 1[2-8]\d s", page.text("#countdown")))
        page.site.rejection = None

        page.browser.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
        focused = page.browser.switch_to.active_element
        assert "Retry now" == focused.text
        focused.send_keys(Keys.ENTER)

        page.wait_for_text("#state", "Live")
        assert "" == page.text("#retry")

    def test_stops_at_a_permanent_error_event(self, page: Page) -> None:
        """The page shows the reason of an `error` event with status 500 or 4xx. The restart button discards data and ID."""
        page.site.preamble = ASIA
        page.open()
        for status in (410, 400, 403, 500):
            page.site.send(EUROPE, event(f'{{"status":{status},"detail":"Reason {status}."}}', "8", "error"))
            page.wait_for_text("#state", "Stopped")
            assert f"Reason {status}." in page.text("#reason")
            page.wait_for_board("Asia", "Europe")

            page.press_retry()

            page.wait_for_board("Asia")
            assert page.site.requests[-1] is None
            assert "Live" == page.text("#state")

    @pytest.mark.parametrize("status", [400, 500])
    def test_stops_at_a_permanent_rejection(self, page: Page, status: int) -> None:
        """A response with a 4xx status, or with status 500 and no Retry-After, stops the page, too."""
        page.site.rejection = reject(status, '{"detail":"Last-Event-ID is invalid."}')

        page.open(state="Stopped")

        assert "Last-Event-ID is invalid." in page.text("#reason")
        assert "Restart" == page.text("#retry")

    @pytest.mark.parametrize("retry_after", ["120", "0"])
    def test_retries_after_a_500_with_retry_after(self, page: Page, retry_after: str) -> None:
        """With Retry-After, an internal error is temporary."""
        page.site.rejection = reject(500, "", Retry_After=retry_after)

        page.open(state="Reconnecting")

    def test_retries_after_a_temporary_error_event(self, page: Page) -> None:
        """After an `error` event with status 503 or invalid data, the page resumes with the ID of that event."""
        page.open()
        for number, data in enumerate(['{"status":503,"detail":"stopping"}', "?", "null", '{"status":"x"}'], start=1):
            page.site.send(EUROPE, event(data, f"8.{number}", "error"))
            if number > 1:  # the first case waits for the automatic retry
                page.wait_for_text("#countdown", "Retrying in ")
                page.press_retry()
            page.wait_for_requests(number + 1)
            page.wait_for_text("#state", "Live")

            assert f"8.{number}" == page.site.requests[-1]

    def test_retries_when_the_browser_is_online_again(self, page: Page) -> None:
        """When the network returns, the page retries immediately instead of waiting for the scheduled retry."""
        page.site.rejection = reject(503, "", Retry_After="120")
        page.open(state="Reconnecting")
        page.wait_for_text("#countdown", "Retrying in 1")
        page.site.rejection = None

        page.run("window.dispatchEvent(new Event('online'))")

        page.wait_for_text("#state", "Live")


class TestTabs:
    """Several tabs with the page share one stream."""

    @pytest.fixture
    def tabs(self, page: Page) -> Iterator[list[str]]:
        """Three tabs with the page. The first one has received an update before the others opened."""
        page.site.preamble = SHORT_RETRY
        page.open()
        page.site.send(EUROPE, ASIA, event('{"key":"Asia"}', "8", "delete"))
        page.wait_for_board("Europe")
        first = page.browser.current_window_handle
        tabs = [first]
        for _ in range(2):
            page.browser.switch_to.new_window("tab")
            page.browser.get(page.site.url + PAGE)
            page.wait_for_text("#state", "Live")
            tabs.append(page.browser.current_window_handle)
        page.browser.switch_to.window(first)
        yield tabs
        for tab in page.browser.window_handles[1:]:
            page.browser.switch_to.window(tab)
            page.browser.close()
        page.browser.switch_to.window(page.browser.window_handles[0])

    def test_share_one_connection(self, page: Page, tabs: list[str]) -> None:
        """A tab that opens later shows what the others show, and all of them receive each update."""
        boards = []
        for tab in tabs:
            page.browser.switch_to.window(tab)
            boards.append(list(page.board()))

        page.site.send(ASIA)

        for tab in tabs:
            page.browser.switch_to.window(tab)
            page.wait_for_board("Asia", "Europe")
        assert [["Europe"]] * 3 == boards
        assert 1 == len(page.site.requests)

    def test_another_tab_takes_over(self, page: Page, tabs: list[str]) -> None:
        """When the tab with the connection closes, one other tab resumes at the last event for all others."""
        page.browser.close()

        page.wait_for_requests_in(tabs[1], 2)
        page.site.send(ASIA)

        for tab in tabs[1:]:
            page.browser.switch_to.window(tab)
            page.wait_for_board("Asia", "Europe")
        assert [None, "8"] == page.site.requests

    def test_a_tab_without_the_connection_may_close(self, page: Page, tabs: list[str]) -> None:
        """The others keep their connection."""
        page.browser.switch_to.window(tabs[2])
        page.browser.close()
        page.browser.switch_to.window(tabs[1])

        page.site.send(ASIA)

        page.wait_for_board("Asia", "Europe")
        assert 1 == len(page.site.requests)

    def test_every_tab_can_restart_the_stream(self, page: Page, tabs: list[str]) -> None:
        """After a permanent error, each tab shows the reason, and the button of any tab restarts all of them."""
        page.site.send(event('{"status":410,"detail":"Gone."}', "9", "error"))
        for tab in tabs:
            page.browser.switch_to.window(tab)
            page.wait_for_text("#state", "Stopped")
        page.site.preamble = ASIA

        page.press_retry()

        for tab in tabs:
            page.browser.switch_to.window(tab)
            page.wait_for_board("Asia")
            page.wait_for_text("#state", "Live")
        assert [None, None] == page.site.requests

    def test_without_locks_each_tab_has_its_own_stream(self, page: Page) -> None:
        """Browsers have no Web Locks for pages over HTTP from another machine. The page works there, too."""
        hide = {"source": "Object.defineProperty(navigator, 'locks', {value: undefined})"}
        script = page.browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", hide)
        page.open()

        page.site.send(EUROPE)
        page.wait_for_board("Europe")

        assert page.run("return navigator.locks === undefined")
        page.browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)


# Returns the lowest contrast between a text and its background, by the formula of WCAG 2, and the element.
CONTRAST = """
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const rgba = (color) => {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = color;
  canvas.fillRect(0, 0, 1, 1);
  return canvas.getImageData(0, 0, 1, 1).data;
};
const luminance = (color) => {
  const [r, g, b] = [...rgba(color)].map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const opaque = (e) => (!e || rgba(getComputedStyle(e).backgroundColor)[3] ? e : opaque(e.parentElement));
const contrast = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
const texts = [...document.body.querySelectorAll("*")].filter((e) => e.checkVisibility()
  && [...e.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.data.trim()));
const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
return texts.map((e) => {
  const style = getComputedStyle(e);
  const text = luminance(e instanceof SVGElement ? style.fill : style.color);
  const backgrounds = [e instanceof SVGElement ? variable("--card") : getComputedStyle(opaque(e)).backgroundColor];
  if (e.closest("tbody")) backgrounds.push(variable("--highlight"));
  return [Math.min(...backgrounds.map((background) => contrast(text, luminance(background)))), e.outerHTML];
}).sort((one, other) => one[0] - other[0])[0];
"""
BACKGROUND = "return getComputedStyle(document.documentElement).backgroundColor"


class TestAppearance:
    """Layout, colors and accessibility."""

    def test_fits_every_window_width(self, page: Page) -> None:
        """The page needs no sideways scrolling at any width, and the console stays empty."""
        long_name = country("South Georgia and the South Sandwich Islands", 14_000_000)
        page.site.preamble = EUROPE + update("Antarctica", long_name)
        page.open()
        page.wait_for_board("Antarctica", "Europe")
        for width_px in (320, 768, 1280, 3840):
            page.resize(width_px)

            assert page.needs_no_sideways_scrolling(), f"{width_px} px"
        assert [] == page.console()

    @pytest.mark.parametrize("state", ["Live", "Reconnecting", "Stopped"])
    def test_text_has_enough_contrast(self, page: Page, state: str) -> None:
        """In both color schemes, all text has a contrast of at least 4.5 (WCAG AA), also in highlighted rows."""
        errors = {
            "Reconnecting": event('{"status":503}', type="error"),
            "Stopped": event('{"status":410}', type="error"),
        }
        page.site.preamble = EUROPE + errors.get(state, "")
        page.open(state=state)
        page.wait_for_board("Europe")
        backgrounds = set()
        for scheme in ("light", "dark"):
            page.emulate(prefers_color_scheme=scheme)
            backgrounds.add(page.run(BACKGROUND))

            lowest, element = page.run(CONTRAST)

            assert 4.5 <= lowest, f"{scheme}: {element}"
        assert 2 == len(backgrounds)  # the schemes differ

    def test_respects_reduced_motion(self, page: Page) -> None:
        """If the user prefers reduced motion, bars do not slide, and highlights do not fade."""
        page.emulate(prefers_reduced_motion="reduce")
        page.open()
        page.site.send(EUROPE)
        page.wait_for_board("Europe")

        page.site.send(update("Europe", UKRAINE))
        page.wait_until(lambda: 1 == len(page.board()["Europe"]))

        assert ["steps(1)"] == page.run("return document.getAnimations().map((a) => a.effect.getTiming().easing)")

    def test_is_a_table_for_a_screen_reader(self, page: Page) -> None:
        """The accessibility tree has a table named after the continent, with row headers and column headers."""
        page.site.preamble = EUROPE
        page.open()
        page.wait_for_board("Europe")

        nodes = page.browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        names = {
            (node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]
        }

        assert ("table", "Europe") in names
        assert {("columnheader", "Rank"), ("columnheader", "Country"), ("columnheader", "People")} <= names
        assert {("rowheader", "Russia RU"), ("cell", "17,100,000")} <= {
            (role, name.replace("\u00a0", " ")) for role, name in names
        }
        assert {"status"} <= {role for role, _ in names}

    def test_does_not_announce_every_update(self, page: Page) -> None:
        """A burst of updates does not change the live regions, so a screen reader does not announce each update."""
        page.open()
        page.run(
            """
            window.announced = [];
            const record = (changes) => changes.forEach((change) => announced.push(change.target.textContent));
            for (const region of document.querySelectorAll("[role=status]"))
              new MutationObserver(record).observe(region, { childList: true, characterData: true, subtree: true });
            """
        )

        page.site.send(*[update("Europe", country(str(size), size)) for size in range(100)])
        page.wait_for_text(".figures", "100 updates")

        assert [] == page.run("return announced")


@pytest.mark.parametrize("location", [{"prefix": "/demo"}, {"script_name": "/mounted"}])
def test_works_under_a_prefix(browser: webdriver.Chrome, location: dict[str, str]) -> None:
    """The prefix can come from the blueprint or from the server."""
    site = Site(**location)
    site.preamble = EUROPE
    page = Page(browser, site)

    page.open()
    page.wait_for_board("Europe")

    assert f"curl -N '{site.url}/topn/updates'" == page.text("pre")
    assert [] == page.console()
    browser.get("about:blank")
    site.stop()


ASSETS = [*sorted(Path(__file__).parents[2].glob("kafkasse/web/page/assets/*")), CLIENT]


class TestFiles:
    """The HTTP responses, without a browser."""

    @pytest.fixture
    def client(self) -> FlaskClient:
        app = Flask("pages")
        app.register_blueprint(pages())
        return app.test_client()

    @pytest.mark.parametrize("path", [PAGE, *[f"/-/page/{asset.name}" for asset in ASSETS]])
    def test_security_and_cache_headers(self, client: FlaskClient, path: str) -> None:
        """Every file has a policy that forbids inline scripts and styles, forbids sniffing, and revalidates with a 304."""
        check_headers(client, path)

    def test_content_types(self, client: FlaskClient) -> None:
        """Because of nosniff, a browser runs a script only if its type is JavaScript."""
        types = {asset.suffix: client.get(f"/-/page/{asset.name}").mimetype for asset in ASSETS}

        assert {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"} == types

    @pytest.mark.parametrize(
        "path", ["/-/page/", "/-/page/index.html", "/-/page/../index.html", "/-/page/%2e%2e/index.html"]
    )
    def test_serves_only_assets_below_the_asset_path(self, client: FlaskClient, path: str) -> None:
        """The page has one URL. Files outside the asset folder have none."""
        assert 404 == client.get(path).status_code

    def test_credits_the_data(self, client: FlaskClient) -> None:
        """The page names GeoNames and its license, and Natural Earth, and loads nothing from other sites."""
        text = client.get(PAGE).text

        credited = {"https://www.geonames.org/", "https://www.naturalearthdata.com/"}
        assert credited | {"https://creativecommons.org/licenses/by/4.0/"} == set(re.findall(r"https://[^\"]+", text))
        assert re.search(r"<(script|link|img)[^>]+https?:", text) is None
