"""The demo page in a real browser, next to a stream that each test controls."""

from __future__ import annotations

import json
import queue
import re
from collections.abc import Callable, Iterator

import pytest
from flask import Flask, Response, request
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from werkzeug.exceptions import NotFound
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from kafkasse.web.pages import pages
from tests.support.firefox import Firefox
from tests.support.server import ROOT
from tests.support.waiting import wait_until
from tests.web.accessibility import violations
from tests.web.document import Document
from tests.web.serve import serve

RETRY_CONTRACT = json.loads((ROOT / "tests/client/retry_contract.json").read_text())
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
        self._server = serve(self._app, self._port)
        self._port = self._server.server_port

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.end_streams()

    def send(self, *texts: str) -> None:
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


HOLDS_LOCK = """
    const [done] = arguments;
    navigator.locks.request("me", async () => {
        const { held } = await navigator.locks.query();
        const { clientId } = held.find((lock) => lock.name === "me");
        done(held.some((lock) => lock.name.endsWith("/updates") && lock.clientId === clientId));
    });
"""


class Page(Document):
    def __init__(self, browser: webdriver.Chrome | Firefox, site: Site) -> None:
        super().__init__(browser)
        self.site = site

    def open(self, path: str = PAGE, state: str = "Live") -> None:
        """Open a path and wait until the page shows the connection state `state`."""
        self.messages()  # discards those of the previous page
        self.browser.get(self.site.url + path)
        self.wait_for("#state", state)

    def press_retry(self) -> None:
        """Click the button, even if the automatic retry has just hidden it."""
        self.run("document.getElementById('retry').click()")

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

    def map(self) -> list[list[str]]:
        """Return the titles of the countries on the map and their classes, in alphabetical order."""
        colored = "return [...document.querySelectorAll('#map [class]')]"
        return sorted(self.run(f"{colored}.map((path) => [path.textContent, path.getAttribute('class')])"))

    def highlights(self) -> list[int]:
        return list(self.run("return [...document.querySelectorAll('tbody tr')].map((r) => r.getAnimations().length)"))

    def update(self, *updates: str) -> None:
        """Send updates, and wait until the page has received one more event for each."""
        count = self.run("return parseInt(document.getElementById('count').textContent) || 0") + len(updates)
        self.site.send(*updates)
        self.wait_for("#count", f"{count} update")

    def wait_for_board(self, *continents: str) -> None:
        """Wait until the page shows exactly these continents, in this order."""
        wait_until(lambda: list(continents) == list(self.board()))

    def wait_for_requests(self, count: int) -> None:
        """Wait until the site has received `count` requests for the stream."""
        wait_until(lambda: count == len(self.site.requests))

    def use(self, tab: str) -> None:
        self.browser.switch_to.window(tab)

    def leads(self, tab: str) -> bool:
        """Whether this tab has the connection. It then holds the lock of the stream."""
        self.use(tab)
        return bool(self.browser.execute_async_script(HOLDS_LOCK))


@pytest.fixture
def page(site: Site, browser: webdriver.Chrome) -> Page:
    page = Page(browser, site)
    page.emulate(prefers_color_scheme="light")
    page.resize(1280)
    return page


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
    def test_shows_the_newest_update_of_each_continent(self, page):
        """The page has a table and a map. Only rows that changed are highlighted, and a row slides to its new rank."""
        finish = "document.getAnimations().forEach((animation) => animation.finish())"
        page.open()
        assert "Waiting for the first country…" in page.text("#waiting")
        assert ("No updates yet", {}) == (page.text(".figures"), page.board())

        page.update(EUROPE)
        rows = [["1", "Russia\u00a0RU", "17,100,000", "144M"], ["2", "Ukraine\u00a0UA", "603,700", "44.6M"]]
        assert [*rows, ["3", "France\u00a0FR", "547,030", "67M"]] == page.board()["Europe"]
        assert "" == page.text("#waiting")
        assert "Spark pipeline topn" in page.text("#how")
        assert re.fullmatch(r"1 update\s*last at \d+:\d\d:\d\d\D*", page.text(".figures"))
        assert [0, 0, 0] == page.highlights()

        page.run("document.querySelectorAll('tbody tr')[2].marked = true")
        page.update(update("Europe", RUSSIA, FRANCE, UKRAINE))
        moves = page.run(
            "return [...document.querySelectorAll('tbody tr')].map((row) => [row.marked ?? false,"
            " row.getAnimations().map((a) => parseInt(a.effect.getKeyframes()[0].transform.slice(11)))])"
        )
        assert [False, []] == moves[0]
        assert (True, False) == (moves[1][0], moves[2][0])
        assert moves[1][1][0] > 0 > moves[2][1][0]
        page.run(finish)

        page.update(update("Europe", RUSSIA, UKRAINE))
        assert ["Russia\u00a0RU", "Ukraine\u00a0UA"] == [row[1] for row in page.board()["Europe"]]
        assert [0, 1] == page.highlights()

        page.update(EUROPE, update("Oceania", country("Nauru", 21, code="NR"), country("X", 5, code="__proto__")))
        assert [
            ["France: number 3 in Europe", "rank-3"],
            ["Russia: number 1 in Europe", "rank-1"],
            ["Ukraine: number 2 in Europe", "rank-2"],
        ] == page.map()
        page.update(update("Europe", FRANCE))
        assert [["France: number 1 in Europe", "rank-1"]] == page.map()

        page.update(*[event(json.dumps({"key": name}), type="delete") for name in ("Mu", "Oceania")])
        assert ["Europe"] == list(page.board())
        page.update(event('{"key":"Europe"}', type="delete"))
        assert "Waiting for the first country…" in page.text("#waiting")
        assert {} == page.board()

    def test_the_order_of_the_updates_makes_no_difference(self, page):
        """Continents are in alphabetical order, and the largest country has the longest bar. No row is highlighted."""
        page.site.preamble = ":ok\n\nid: 1\n\n" + ASIA + update("South America", FRANCE) + update("Africa", FRANCE)
        page.open()

        page.site.send(EUROPE)
        page.wait_for_board("Africa", "Asia", "Europe", "South America")

        bars = "return [...document.querySelectorAll('tbody tr')].map((r) => r.style.getPropertyValue('--share'))"
        shares = [547_030 / 17_100_000, 9_596_960 / 17_100_000, 1.0]
        assert shares == pytest.approx([float(share) for share in page.run(bars)[:3]])
        assert {0} == set(page.highlights())

    def test_shows_the_state_of_the_pipeline(self, page):
        """This needs a stream of the status topic. A second window shows the status that the first one has received."""
        page.site.catalog = [{"path": "/pipelines", "topics": ["_pipelines"], "parameters": []}]
        page.open()
        page.wait_for("#pipeline", "Pipeline: running, 9 records/s")
        assert ["running", "9/s", "\u2013", "0"] == page.texts("#health dd")

        page.browser.switch_to.new_window("window")
        page.open()
        page.wait_for("#pipeline", "Pipeline: running, 9 records/s")

        assert 1 == page.site.status_requests

    @pytest.mark.long
    def test_works_in_firefox(self, firefox, site):
        """The page shows an update on the board and on the map, explains its origin, and resumes after a break."""
        site.preamble = SHORT_RETRY
        page = Page(firefox, site)
        page.open()
        page.update(EUROPE)

        site.end_streams()
        page.wait_for_requests(2)
        page.update(update("Europe", FRANCE))

        assert [None, "7"] == site.requests
        assert [["1", "France\u00a0FR", "547,030", "67M"]] == page.board()["Europe"]
        assert [["France: number 1 in Europe", "rank-1"]] == page.map()
        assert "Spark pipeline topn" in page.text("#how")

    def test_shows_markup_as_text(self, page):
        """Markup in an update is not executed, and names such as __proto__ are ordinary names."""
        markup = "<img src=x onerror=\"document.title='caught'\"><script>document.title='caught'</script>"
        page.open()
        title = page.chromium.title

        updates = [update(name, country(markup, 5, code=markup)) for name in (markup, "__proto__", "constructor")]
        page.site.send(*updates)
        page.wait_for_board("__proto__", markup, "constructor")

        assert f"{markup}\u00a0{markup}" == page.board()["__proto__"][0][1]
        assert (title, 0) == (page.chromium.title, page.run("return document.querySelectorAll('main img').length"))
        page.site.send(event('{"key":"__proto__"}', type="delete"))
        page.wait_for_board(markup, "constructor")

    def test_is_robust_against_any_event(self, page):
        """Invalid events are counted. The page shows at most three rows and fifty continents, and counts the rest."""
        page.open()
        invalid = ["{", "null", "[]", '"a"', "{}", '{"continent":1,"nrs":[{"name":"a"}]}', '{"continent":"a","nrs":[]}']
        invalid += [f'{{"continent":"a","nrs":{numbers}}}' for numbers in ("{}", "[null]", '[{"name":1}]')]
        page.site.send(*map(event, invalid), event("?", type="delete"), event("{}", type="delete"))
        page.update(update("00", country("A", "5", None), country("B", 5, -1)))

        assert {"00": [["1", "A\u00a0XX", "\u2013", "\u2013"], ["2", "B\u00a0XX", "5", "-1"]]} == page.board()
        page.wait_for(".figures", "12 invalid")
        page.site.send(*[update(f"{number:02}", *[country(str(n), n) for n in range(9)]) for number in range(60)])
        page.wait_for(".figures", "22 invalid")
        assert [3] * 50 == [len(rows) for rows in page.board().values()]
        assert [] == page.messages()


class TestConnection:
    """When the connection breaks, the page shows the reason, and reconnects or stops.

    javascript/kafkasse.test.mjs proves where and when it resumes.
    """

    def test_retries_as_the_contract_says(self, page):
        """It also retries a 404, because the pipeline may not have created the topic yet."""
        page.open()

        def check_next_stream(is_retried: bool) -> None:
            count = len(page.site.requests)
            page.press_retry()
            state = "Reconnecting" if is_retried else "Stopped"
            wait_until(lambda: len(page.site.requests) > count and state == page.text("#state"))

        page.site.preamble = event("oops", type="error")
        page.site.end_streams()
        page.wait_for("#state", "Reconnecting")
        for error in RETRY_CONTRACT["error_events"]:
            page.site.preamble = event(error["data"], type="error")
            check_next_stream(error["is_retried"])
        for response in RETRY_CONTRACT["responses"]:
            status, retry_after = response["status"], response["retry_after"]
            page.site.rejection = reject(status, "", **({} if retry_after is None else {"Retry_After": retry_after}))
            check_next_stream(response["is_retried"] or status == 404)

    def test_shows_why_it_reconnects(self, page):
        """The page keeps its data, counts down, and resumes with the last ID, which may be that of a position event."""
        rejections = [
            (503, '{"detail":"Kafka cannot be reached."}', "Kafka cannot be reached."),
            (502, "<h1>Bad gateway</h1>", "The server responded with status 502."),
            (404, '{"title":"Topic not available"}', "Topic not available"),
            (200, "<p>hello", "/topn/updates is not an event stream."),
        ]
        page.site.preamble = SHORT_RETRY
        page.open()
        page.update(EUROPE)
        page.site.stop()
        page.wait_for("#reason", "The server cannot be reached")
        page.wait_for("#state", "Reconnecting")
        assert ["Europe"] == list(page.board())
        page.site.start()
        page.wait_for("#state", "Live")
        page.site.send(EUROPE, ASIA)
        page.wait_for_board("Asia", "Europe")
        for number, (status, body, reason) in enumerate(rejections):
            page.site.preamble = SHORT_RETRY + event("{}", str(number), "position")
            page.site.rejection = reject(status, body)
            page.site.end_streams()
            page.wait_for("#reason", reason)
            page.wait_for("#countdown", "Retrying in ")
            page.wait_for("#state", "Reconnecting")
            page.site.rejection = None
            if number > 0:  # the first case waits for the automatic retry
                page.press_retry()
            page.wait_for("#state", "Live")

            shown = page.site.requests[-1], page.text("#reason"), page.text("#countdown")
            assert ("7" if number == 0 else str(number - 1), "", "") == shown
        assert "3 updates" == page.text("#count")
        assert "" == page.text("#invalid")

    def test_can_retry_before_retry_after(self, page):
        """The button can be reached with the keyboard, and retries at once. So does the page when it is online again."""
        page.site.rejection = reject(503, "", Retry_After="120")
        page.open(state="Reconnecting")
        wait_until(lambda: re.fullmatch(r"Retrying in 1[2-8]\d s", page.text("#countdown")))

        page.chromium.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
        focused = page.chromium.switch_to.active_element
        assert "Retry now" == focused.text
        focused.send_keys(Keys.ENTER)
        page.wait_for_requests(2)
        page.wait_for("#countdown", "Retrying in 1")
        page.site.rejection = None
        page.run("window.dispatchEvent(new Event('online'))")

        page.wait_for("#state", "Live")
        assert "" == page.text("#retry")

    def test_stops_at_a_permanent_error(self, page):
        """The page shows the reason and keeps its data. The restart button discards the data and the ID."""
        page.site.preamble = ASIA
        page.open()
        page.site.send(EUROPE, event('{"status":410,"detail":"A reason."}', "8", "error"))
        page.wait_for("#state", "Stopped")
        assert ("A reason.", "Restart") == (page.text("#reason"), page.text("#retry"))
        page.wait_for_board("Asia", "Europe")

        page.press_retry()

        page.wait_for_board("Asia")
        assert page.site.requests[-1] is None
        assert "Live" == page.text("#state")


class TestTabs:
    """Several tabs with the page share one stream. test_shared_tabs.py proves that each receives each event once."""

    @pytest.fixture
    def tabs(self, page: Page) -> list[str]:
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
            page.wait_for("#state", "Live")
            tabs.append(page.browser.current_window_handle)
        page.use(first)
        return tabs

    def test_share_one_connection(self, page, tabs):
        """Any tab can restart all after an error. When the tab with the connection closes, another one resumes."""
        for tab in tabs:
            page.use(tab)
            assert ["Europe"] == list(page.board())
        page.site.send(ASIA)
        for tab in reversed(tabs):
            page.use(tab)
            page.wait_for_board("Asia", "Europe")
        assert [None] == page.site.requests

        page.site.send(event('{"status":410,"detail":"Gone."}', "9", "error"))
        for tab in tabs:
            page.use(tab)
            page.wait_for("#state", "Stopped")
        page.site.preamble = SHORT_RETRY + EUROPE
        page.press_retry()
        for tab in tabs:
            page.use(tab)
            page.wait_for_board("Europe")
            page.wait_for("#state", "Live")
        assert [None, None] == page.site.requests

        leader = next(tab for tab in tabs if page.leads(tab))
        page.browser.close()

        tabs.remove(leader)
        page.use(tabs[0])
        page.wait_for_requests(3)
        page.site.send(update("Africa", FRANCE))
        for tab in tabs:
            page.use(tab)
            page.wait_for_board("Africa", "Europe")
        assert [None, None, "7"] == page.site.requests

    def test_without_locks_each_tab_has_its_own_stream(self, page):
        """Browsers have no Web Locks for pages over HTTP from another machine. The page works there, too."""
        page.browser.switch_to.new_window("tab")  # the script below stays in its tab
        hide = {"source": "Object.defineProperty(navigator, 'locks', {value: undefined})"}
        page.chromium.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", hide)
        page.open()

        page.update(EUROPE)

        assert ["Europe"] == list(page.board())
        assert page.run("return navigator.locks === undefined")


class TestAppearance:
    def test_fits_every_window_width(self, page):
        """The page needs no sideways scrolling, breaks very long words, and a figure of eight digits has one line."""
        long_name = country("South Georgia and the South Sandwich Islands", 14_000_000, 8_888_888)
        page.site.preamble = update("Antarctica", long_name)
        page.open()
        page.wait_for_board("Antarctica")
        for width_px in (320, 360, 420, 700, 768, 1024, 1280, 1600, 1920, 3840):
            page.check_widths(width_px)

            lines = page.run("return [...document.querySelectorAll('data')].map((e) => e.getClientRects().length)")
            assert [1, 1] == lines, f"{width_px} px"
        page.update(update("C" * 200, country("N" * 200, 10**300, 10**300, "Q" * 50)))
        page.check_widths(320)
        assert [] == page.messages()

    def test_is_accessible(self, page):
        """axe-core finds no violation of WCAG 2.2 AA, such as a low contrast, also in highlighted rows."""
        page.site.preamble = SHORT_RETRY + EUROPE
        page.open()
        page.wait_for_board("Europe")
        page.run("document.querySelector('tbody tr').style.background = 'var(--highlight)'")
        backgrounds = set()
        for state, status in [("Live", None), ("Reconnecting", 503), ("Stopped", 410)]:
            if status:
                page.site.rejection = reject(status, "", Retry_After="120")
                page.site.end_streams()
                page.press_retry()
            page.wait_for("#state", state)
            for scheme, width_px in [("light", 1280), ("dark", 320)]:
                page.emulate(prefers_color_scheme=scheme)
                page.resize(width_px)
                backgrounds.add(page.run("return getComputedStyle(document.documentElement).backgroundColor"))

                assert [] == violations(page.chromium), f"{state}, {scheme}"
        assert 2 == len(backgrounds)  # the schemes differ

    def test_respects_reduced_motion(self, page):
        """If the user prefers reduced motion, bars do not slide, and highlights do not fade."""
        page.emulate(prefers_reduced_motion="reduce")
        page.open()
        page.update(EUROPE)

        page.update(update("Europe", UKRAINE))

        assert ["steps(1)"] == page.run("return document.getAnimations().map((a) => a.effect.getTiming().easing)")

    def test_works_with_a_screen_reader(self, page):
        """The accessibility tree has a table with headers. A burst of updates does not change the live regions."""
        page.open()
        page.run(
            """
            window.announced = [];
            const record = (changes) => changes.forEach((change) => announced.push(change.target.textContent));
            for (const region of document.querySelectorAll("[role=status]"))
              new MutationObserver(record).observe(region, { childList: true, characterData: true, subtree: true });
            """
        )

        page.update(*[update("Europe", country(str(size), size)) for size in range(100)], EUROPE)

        assert [] == page.run("return announced")
        nodes = page.chromium.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        names = {
            (node["role"]["value"], node.get("name", {}).get("value", "").replace("\u00a0", " "))
            for node in nodes
            if not node["ignored"]
        }
        headers = {("columnheader", "Rank"), ("columnheader", "Country"), ("columnheader", "People")}
        assert headers | {("table", "Europe"), ("rowheader", "Russia RU"), ("cell", "17,100,000")} <= names
        assert "status" in {role for role, _ in names}


@pytest.mark.parametrize("location", [{"prefix": "/demo"}, {"script_name": "/mounted"}])
def test_works_under_a_prefix(browser, location):
    site = Site(**location)
    site.preamble = EUROPE
    page = Page(browser, site)

    page.open()
    page.wait_for_board("Europe")

    assert f"curl -N '{site.url}/topn/updates'" == page.text("pre")
    assert [] == page.messages()
    site.stop()
