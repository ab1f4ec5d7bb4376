"""The web console in real browsers: Chromium and Firefox."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import gevent
import pytest
from selenium import webdriver

from kafkasse.broker import EmbeddedBroker
from tests.chaos.network import Network
from tests.support.client import Client, fetch
from tests.support.firefox import Firefox
from tests.support.kafka import Cluster
from tests.support.server import Server
from tests.support.waiting import wait_until
from tests.web.console_app import MARKUP, TOKEN

AXE = Path(__file__).with_name("axe-core-4.14.1.min.js.gz")
MAX_EVENTS = 10_000  # of kafkasse/web/console/assets/store.js
MAX_NODES = 3_000
# `make console` runs all tests in Firefox, too. `make test` runs these, so that it stays short.
ALWAYS_IN_FIREFOX = (
    "test_shows_guarded_streams_after_the_sign_in",
    "test_shows_an_event_in_three_ways",
    "test_a_pause_loses_nothing",
    "test_shows_and_ends_streams",
)
# Keeps what the page saves as a file.
SPY = (
    "window.blobs = []; const create = URL.createObjectURL;"
    "URL.createObjectURL = (blob) => { blobs.push(blob); return create.call(URL, blob); };"
)


class Console:
    """The console in a browser, as a user sees it."""

    def __init__(self, browser: webdriver.Chrome | Firefox, server: Server) -> None:
        self.browser = browser
        self.server = server
        self.port = server.port

    def open(self, fragment: str = "", path: str = "/") -> None:
        """Open a view of the console in a new document, and wait until it is ready."""
        self.browser.get("about:blank")
        self.browser.get(f"http://127.0.0.1:{self.port}{path}#/{fragment}")
        wait_until(lambda: self.run("return document.documentElement.dataset.ready !== undefined"))

    def explore(self, query: str) -> None:
        """Open the explorer with these parameters, and read until the stream is live."""
        self.open(f"explore?{query}")
        self.read()

    def read(self) -> None:
        self.click("#read")
        self.wait_for("#state", "Live")

    def run(self, script: str, *arguments: object) -> Any:
        return self.browser.execute_script(script, *arguments)

    def click(self, selector: str) -> None:
        click = "const e = document.querySelector(arguments[0]), seen = e.checkVisibility(); e.click(); return seen"
        assert self.run(click, selector)

    def type(self, selector: str, text: str) -> None:
        """Replace the text of a field, as a user who types does."""
        self.run(
            "const e = document.querySelector(arguments[0]); e.value = arguments[1];"
            "for (const type of ['input', 'change']) e.dispatchEvent(new Event(type, { bubbles: true }))",
            selector,
            text,
        )

    def text(self, selector: str) -> str:
        """Return the visible text of the first matching element, or "" if it is hidden or missing."""
        script = "const e = document.querySelector(arguments[0]); return e?.checkVisibility() ? e.innerText : '';"
        return str(self.run(script, selector))

    def number(self, selector: str) -> int:
        return int(self.text(selector).replace(",", "") or -1)

    def wait_for(self, selector: str, text: str) -> None:
        wait_until(lambda: text in self.text(selector))

    def wait_for_number(self, selector: str, number: int) -> None:
        wait_until(lambda: number == self.number(selector))

    def rows(self) -> list[list[str]]:
        """Return the texts of the rows in view: number, kind, place, key and preview, without the time."""
        script = (
            "return [...document.querySelectorAll('.row')].map((r) =>"
            " [...r.querySelectorAll(':not(.time)')].map((c) => c.textContent))"
        )
        return list(self.run(script))

    def select(self, text: str) -> None:
        """Select the first row in view that contains a text."""
        self.run(
            "[...document.querySelectorAll('.row')].find((r) => r.textContent.includes(arguments[0])).click()", text
        )

    def sign_in(self, token: str) -> None:
        self.click("#sign-in")
        self.type("#token", token)
        self.click("#sign-in-form [type=submit]")

    def change(self, **changes: Any) -> None:
        """Change the topic; see console_app.py."""
        change(self.server, **changes)


def change(server: Server, **changes: Any) -> None:
    connection = HTTPConnection("127.0.0.1", server.port)
    connection.request("POST", "/test", json.dumps(changes), {"Content-Type": "application/json"})
    assert 204 == connection.getresponse().status
    connection.close()


TABS = 7  # A browser opens six connections to a server over HTTP/1.1.
PROGRAMS = {"curl": ["sh"], "javascript": ["node", "--input-type=module", "-"], "python": [sys.executable, "-"]}
OPERATOR = {"Authorization": f"Bearer {TOKEN}"}


def open_streams(server: Server) -> list[dict[str, Any]]:
    return list(fetch(server.port, "/-/streams", **OPERATOR).json["streams"])


def end_streams(server: Server) -> None:
    """End all streams, as an operator does. Their clients reconnect."""
    for stream in open_streams(server):
        fetch(server.port, f"/-/streams/{stream['id']}", "DELETE", **OPERATOR)


@pytest.fixture(params=["chromium", "firefox"])
def any_browser(request: pytest.FixtureRequest) -> webdriver.Chrome | Firefox:
    test = request.node.originalname
    if request.param == "firefox" and test not in ALWAYS_IN_FIREFOX and "CONSOLE_SECONDS" not in os.environ:
        pytest.skip("run by make console")
    browser: webdriver.Chrome | Firefox = request.getfixturevalue(
        "browser" if request.param == "chromium" else "firefox"
    )
    return browser


@pytest.fixture(scope="module")
def running(processes: None) -> Iterator[Server]:
    with Server("tests.web.console_app:create()") as server:
        yield server


@pytest.fixture
def server(running: Server) -> Server:
    """A server whose topic is empty."""
    change(running, recreate=True)
    return running


@pytest.fixture
def console(any_browser: webdriver.Chrome | Firefox, server: Server) -> Iterator[Console]:
    yield Console(any_browser, server)
    any_browser.get("about:blank")


@pytest.fixture
def chromium(browser: webdriver.Chrome, server: Server) -> Iterator[Console]:
    """The console in Chromium alone, for tests of the layout and for long tests."""
    yield Console(browser, server)
    browser.get("about:blank")


class TestSignIn:
    """Which streams a visitor sees."""

    def test_shows_guarded_streams_after_the_sign_in(self, console: Console) -> None:
        """The token is neither in the URL nor in the browser's storage, and a reload forgets it. Markup stays text."""
        paths = "return [...document.querySelectorAll('.card h2')].map((e) => e.textContent)"
        console.open()
        assert ["/orders", "/values"] == console.run(paths)
        assert MARKUP in console.text("#stream-orders")

        console.sign_in("wrong")
        console.wait_for("#sign-in-problem", "does not accept this token")
        console.type("#token", TOKEN)
        console.click("#sign-in-form [type=submit]")
        console.wait_for("#session-state", "Signed in")

        assert ["/orders", "/values", "/pipelines", "/mine/{customer}"] == console.run(paths)
        kept = console.run(
            "return [location.href, document.cookie, ...Object.values(localStorage), ...Object.values(sessionStorage),"
            " document.documentElement.outerHTML, document.querySelector('#token').value].join()"
        )
        assert TOKEN not in kept
        console.open()
        assert ["/orders", "/values"] == console.run(paths)

    @pytest.mark.parametrize("with_ticket", [False, True])
    def test_reads_a_guarded_stream(self, chromium: Console, with_ticket: bool) -> None:
        """The token is in a header, or is exchanged for a ticket; no URL contains it, and neither does the copied code."""
        chromium.open("explore")
        chromium.run(
            "window.sent = []; const original = fetch; window.fetch = (url, options) => {"
            " sent.push([String(url), JSON.stringify(options.headers)]); return original(url, options); }"
        )
        chromium.sign_in(TOKEN)
        chromium.wait_for("#session-state", "Signed in")
        chromium.type("#stream", "mine")
        chromium.type("[data-name=customer]", "k1")
        chromium.change(append=[0, 6])
        if with_ticket:
            chromium.click("#ticket")

        chromium.read()

        chromium.wait_for_number("#messages", 2)
        sent = chromium.run("return sent")
        assert (with_ticket, not with_ticket) == ("ticket=" in sent[-1][0], TOKEN in sent[-1][1])
        assert TOKEN not in "".join(url for url, _ in sent)
        chromium.click("#code-open")
        assert "Bearer $TOKEN" in chromium.text("#code")
        assert TOKEN not in chromium.text("#code")


class TestExplorer:
    """The list of events."""

    def test_shows_an_event_in_three_ways(self, console: Console) -> None:
        """Large numbers stay as they are, and the frame is the text that the server sent."""
        console.explore("stream=orders")
        console.change(value='{"big": 9007199254740993, "price": 25.00, "empty": {}, "html": "<b>\\"</b>"}')
        console.wait_for_number("#messages", 1)
        frame = Client(console.server.port, "/orders?timestamp=0").events(1)[0]

        console.select("9007199254740993")

        assert ["1", "message", "orders 0:0", "k"] == console.rows()[0][:4]
        assert "Event 1: message" == console.text("#details-title")
        pretty = console.text("#content")
        assert pretty.startswith(
            '{\n  "big": 9007199254740993,\n  "price": 25.00,\n  "empty": {},\n  "html": "<b>\\"</b>",\n  "_kafka": {\n'
        )
        console.click("#tab-raw")
        assert frame.data == console.text("#content")
        console.click("#tab-wire")
        wire = console.run("return document.querySelector('#content').textContent")
        assert f"event: message\ndata: {frame.data}\nid: {frame.id}\n\n" == wire

    def test_marks_deletes_gaps_and_errors(self, console: Console) -> None:
        """Each has a label besides its color, and is counted."""
        console.open("explore?stream=orders")
        console.change(append=[0, 5], drop_before=3)
        console.run(
            "location.hash = arguments[0]",
            '#/explore?stream=orders&start=id&id=[{"topic":"orders","partition":0,"offset":0}]',
        )
        wait_until(lambda: console.run("return document.querySelector('#event-id').value !== ''"))

        console.read()
        console.wait_for_number("#messages", 2)
        console.change(tombstone="k9")
        console.wait_for_number("#deletes", 1)
        console.change(delete=True)
        console.wait_for("#state", "Stopped")
        console.wait_for_number("#errors", 1)

        assert ["gap", "message", "message", "delete", "error"] == [row[1] for row in console.rows()]
        assert "orders 0:0\u20133" == console.rows()[0][2]
        assert [2, 1, 1, 1] == [console.number(each) for each in ("#messages", "#deletes", "#gaps", "#errors")]
        assert "orders" in console.text("#reason")

    def test_keeps_a_bounded_number_of_events_and_elements(self, console: Console) -> None:
        """The counter counts all events; the list keeps the newest, and has elements only for the rows in view."""
        console.open("explore?stream=orders&start=earliest")
        console.change(append=[0, MAX_EVENTS + 2000])
        console.read()
        console.wait_for_number("#messages", MAX_EVENTS + 2000)

        wait_until(lambda: '"n": 11999' in console.rows()[-1][4])

        assert MAX_EVENTS == console.number("#kept")
        assert len(console.rows()) < 100
        assert MAX_NODES > console.run("return document.querySelectorAll('*').length")

    def test_a_pause_loses_nothing(self, console: Console) -> None:
        """At its bound, the page closes the connection. It resumes after the last event that it kept."""
        console.explore("stream=orders&start=earliest")
        console.change(append=[0, 10])
        console.wait_for_number("#messages", 10)
        console.click("#pause")

        console.change(append=[10, MAX_EVENTS + 500])
        console.wait_for("#paused", "The connection is closed.")
        assert (10, 10) == (console.number("#kept"), len(console.rows()))
        console.click("#pause")

        console.wait_for_number("#messages", 10 + MAX_EVENTS + 500)
        numbers = console.run("return [...document.querySelectorAll('.row .n')].map((e) => Number(e.textContent))")
        wait_until(lambda: str(MAX_EVENTS + 510) == console.rows()[-1][0])
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))

    def test_searches_clears_and_exports(self, console: Console) -> None:
        """The file has one line per event in the list, with its ID and its data as the server sent it."""
        console.explore("stream=orders&start=earliest")
        console.run(SPY)
        console.change(append=[0, 30], value='{"price": 25.00}')
        console.wait_for_number("#kept", 31)

        console.type("#search", "25.00")
        console.wait_for("#found", "1 found")
        console.click("#export")
        (line,) = console.run("return blobs[0].text()").splitlines()

        assert ["31"] == [row[0] for row in console.rows()]
        assert '"data":{"price": 25.00,' in line
        exported = json.loads(line)
        assert ("message", 31) == (exported["event"], json.loads(exported["id"])[0]["offset"])
        console.type("#search", "")
        wait_until(lambda: len(console.rows()) > 1)
        console.click("#clear")
        console.wait_for("#empty", "No events yet.")
        assert 0 == console.number("#messages")

    def test_resumes_from_an_event(self, console: Console) -> None:
        """The first event is the one after the selected event."""
        console.explore("stream=orders&start=earliest")
        console.change(append=[0, 9])
        console.wait_for_number("#messages", 9)

        console.select('"n": 6')
        console.click("#resume")

        console.wait_for_number("#messages", 2)
        assert ["orders 0:7", "orders 0:8"] == [row[2] for row in console.rows()]
        assert "start=id" in console.run("return location.hash")

    def test_resumes_json_lines_at_their_offsets(self, console: Console) -> None:
        """JSON lines have no IDs, so the page writes an ID from the offsets. It loses and repeats nothing."""
        console.explore("stream=orders&start=earliest&format=ndjson")
        console.change(append=[0, 5])
        console.wait_for_number("#messages", 5)

        end_streams(console.server)
        console.change(append=[5, 5])

        console.wait_for_number("#messages", 10)
        assert [f"orders 0:{n}" for n in range(10)] == [row[2] for row in console.rows()]

    def test_the_server_checks_filters_while_the_user_types(self, console: Console) -> None:
        """The page shows where an expression is wrong, and reads the events that a valid one selects."""
        console.open("explore?stream=orders&start=earliest")
        console.change(append=[0, 9])

        console.type("[name='f.filter']", "value.n > ")
        console.wait_for("#problem", "invalid at line 1")
        assert "^" in console.text("#problem pre")
        console.type("[name='f.filter']", "value.n > 4")
        wait_until(lambda: console.text("#problem") == "")
        console.type("[name='f.key']", "k2")
        console.read()

        console.wait_for_number("#messages", 2)
        assert ["orders 0:5", "orders 0:8"] == [row[2] for row in console.rows()]

    def test_can_be_used_with_the_keyboard(self, chromium: Console) -> None:
        """The arrow keys select an event, and Enter opens it. Escape returns to the list."""
        press = (
            "const at = document.activeElement; for (const key of arguments)"
            " document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }))"
        )
        chromium.explore("stream=orders&start=earliest")
        chromium.change(append=[0, 500])
        chromium.wait_for_number("#messages", 500)
        chromium.run("document.querySelector('#list').focus()")

        chromium.run(press, "Home", "ArrowDown", "PageDown", "PageUp", "Enter")

        assert "Event 2: message" == chromium.text("#details-title")
        active = chromium.run("return document.querySelector('#list').getAttribute('aria-activedescendant')")
        assert ("event-2", "false") == (active, chromium.run("return document.querySelector('#follow').ariaPressed"))
        chromium.run("document.querySelector('#close').focus()")
        chromium.run(press, "Escape")
        assert ("", "list") == (chromium.text("#details"), chromium.run("return document.activeElement.id"))

    def test_a_hidden_page_has_no_connection(self, chromium: Console) -> None:
        """A page in the back/forward cache resumes where it stopped when the user returns."""
        chromium.explore("stream=orders&start=earliest")
        chromium.change(append=[0, 5])
        chromium.wait_for_number("#messages", 5)

        chromium.run("window.dispatchEvent(new PageTransitionEvent('pagehide', { persisted: true }))")
        wait_until(lambda: [] == open_streams(chromium.server))
        chromium.change(append=[5, 5])
        chromium.run("window.dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))")

        chromium.wait_for_number("#messages", 10)


class TestConnection:
    """Tabs, and a network that fails."""

    @pytest.fixture(params=["window"])
    def windows(self, chromium: Console, request: pytest.FixtureRequest) -> Iterator[list[str]]:
        """Windows, which are all visible, or tabs of one window."""
        driver = chromium.browser
        assert isinstance(driver, webdriver.Chrome)
        first = driver.current_window_handle
        for _ in range(TABS - 1):
            driver.switch_to.new_window(request.param)
        yield driver.window_handles
        for window in driver.window_handles:
            driver.switch_to.window(window)
            if window != first:
                driver.close()
        driver.switch_to.window(first)

    def test_seven_tabs_share_one_connection(self, chromium: Console, windows: list[str]) -> None:
        """Each tab receives each event once, even if it opened later than the others. Other pages still load."""
        chromium.change(append=[0, 20])
        for window in windows:
            chromium.browser.switch_to.window(window)
            chromium.explore("stream=orders&start=earliest")
            chromium.wait_for_number("#messages", 20)

        wait_until(lambda: 1 == len(open_streams(chromium.server)))
        chromium.change(append=[20, 5])

        for window in windows:
            chromium.browser.switch_to.window(window)
            chromium.wait_for_number("#messages", 25)
            assert [f"orders 0:{n}" for n in range(25)][-5:] == [row[2] for row in chromium.rows()][-5:]

    @pytest.mark.parametrize("windows", ["tab"], indirect=True)
    def test_pages_load_while_seven_tabs_read_guarded_streams(self, chromium: Console, windows: list[str]) -> None:
        """Tabs do not share a guarded stream. A tab that is not visible has no connection."""
        chromium.change(append=[0, 3])

        for window in windows:
            chromium.browser.switch_to.window(window)
            chromium.open("explore")
            chromium.sign_in(TOKEN)
            chromium.wait_for("#session-state", "Signed in")
            chromium.type("#stream", "mine")
            chromium.type("[data-name=customer]", "k1")
            chromium.read()
            chromium.wait_for_number("#messages", 1)

    @pytest.fixture
    def network(self, console: Console) -> Iterator[Network]:
        """The network between the browser and the server. The page has received five records over it."""
        with closing(Network(console.server.port)) as network:
            console.port = network.port
            console.explore("stream=orders&start=earliest")
            console.change(append=[0, 5])
            console.wait_for_number("#messages", 5)
            yield network

    def test_resumes_when_the_browser_is_online_again(self, console: Console, network: Network) -> None:
        """Without a network, the page shows that it is reconnecting. It resumes when the network is back."""
        network.refuse()
        console.wait_for("#state", "Reconnecting")
        console.wait_for("#reason", "The server cannot be reached")
        console.change(append=[5, 5])
        network.heal()
        console.run("dispatchEvent(new Event('online'))")

        console.wait_for_number("#messages", 10)
        assert [f"orders 0:{n}" for n in range(10)] == [row[2] for row in console.rows()]

    def test_resumes_after_sleep(self, console: Console, network: Network) -> None:
        """After sleep, the clock has jumped forward, and the connection is dead, but neither side has closed it."""
        network.forget()
        console.change(append=[5, 5])
        console.run("const now = Date.now; Date.now = () => now() + 3_600_000")

        console.wait_for_number("#messages", 10)
        assert [f"orders 0:{n}" for n in range(10)] == [row[2] for row in console.rows()]


class TestCode:
    """The programs that a user can copy."""

    @pytest.mark.parametrize("language", PROGRAMS)
    def test_each_program_resumes_exactly(self, chromium: Console, tmp_path: Path, language: str) -> None:
        """The program receives each event of the query once, although its stream ends and the test kills it."""
        chromium.open("explore")
        chromium.sign_in(TOKEN)
        chromium.wait_for("#session-state", "Signed in")
        chromium.run("location.hash = arguments[0]", "#/explore?stream=mine&p.customer=k0&f.filter=value.n >= 1")
        wait_until(lambda: "mine" == chromium.run("return document.querySelector('#stream').value"))
        chromium.click("#code-open")
        chromium.click(f"#tab-{language}")
        code = chromium.run("return document.querySelector('#code').textContent")
        if language == "javascript":
            client = fetch(chromium.server.port, "/-/console/kafkasse.js").body
            (tmp_path / "kafkasse.mjs").write_bytes(client)
        output = tmp_path / "output"
        position = tmp_path / re.search(r"\S+\.position", code)[0]  # type: ignore[index]
        selected = [3, 6, 9, 12]

        def received() -> list[int]:
            return [int(n) for n in re.findall(r'^message .*"n": (\d+)', output.read_text(), re.MULTILINE)]

        chromium.change(append=[0, 4])
        with running_program(PROGRAMS[language], code, output):
            wait_until(lambda: received() == [n for n in selected if n < 4])
            end_streams(chromium.server)
            chromium.change(append=[4, 6])
            wait_until(lambda: received() == [n for n in selected if n < 10])
            wait_until(lambda: '"offset":10' in position.read_text())
        chromium.change(append=[10, 3])
        with running_program(PROGRAMS[language], code, output):
            wait_until(lambda: len(received()) >= len(selected))

        assert selected == received()


@contextmanager
def running_program(words: list[str], code: str, output: Path) -> Iterator[None]:
    """Run a program that it reads from stdin. Kill it, and its child processes, at the end."""
    environ = {"PATH": os.environ["PATH"], "TOKEN": TOKEN}
    with (
        output.open("ab") as stdout,
        subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=stdout, cwd=output.parent, env=environ, start_new_session=True
        ) as program,
    ):
        assert program.stdin is not None
        program.stdin.write(code.encode())
        program.stdin.close()
        try:
            yield
        finally:
            os.killpg(program.pid, signal.SIGKILL)


class TestOperations:
    """The state of the server, for operators."""

    def test_shows_the_pipelines(self, console: Console) -> None:
        """The status topic has the newest status of each pipeline. A value of the wrong type is a dash."""
        status = {"pipeline": "topn", "state": "waiting", "reason": "no Kafka", "lag_records": 7, "lag_s": 2.5}
        console.change(pipeline=status | {"state": "running"})
        console.change(pipeline=status | {"restarts": MARKUP})
        console.open()
        console.sign_in(TOKEN)
        console.wait_for("#session-state", "Signed in")

        console.run("location.hash = '#/operations'")
        console.wait_for("#pipelines", "waiting no Kafka")

        cells = console.run(
            "return [...document.querySelectorAll('#pipelines tbody tr > *')].map((e) => e.textContent)"
        )
        assert ["topn", "waiting no Kafka", "\u2013", "7 records, 2.5 s"] == cells[:4]
        assert {"\u2013"} == set(cells[4:])

    def test_shows_and_ends_streams(self, console: Console) -> None:
        """The page shows the workers, Kafka, the routes and the streams. A stream that ends reconnects."""
        console.open("operations")
        console.wait_for("#operations-problem", "Sign in as an operator.")
        console.sign_in(TOKEN)
        console.wait_for("#kafka", "Reachable")
        reader = Client(console.server.port, "/orders")
        wait_until(lambda: "orders" in console.text("#open-streams"))
        assert str(console.server.worker) in console.text("#tiles")
        assert {"orders", "values", "mine"} <= set(console.text("#routes").split())

        console.click("#open-streams button[aria-label$='of orders']")

        reader.rest()
        wait_until(lambda: "orders" not in console.text("#open-streams"))


class TestAppearance:
    """Layout and accessibility."""

    VIEWS = ("streams", "explore?stream=orders&start=earliest", "operations")

    def prepare(self, console: Console, view: str) -> None:
        console.open("explore")
        console.sign_in(TOKEN)
        console.wait_for("#session-state", "Signed in")
        console.run("location.hash = arguments[0]", f"#/{view}")
        if view.startswith("explore"):
            console.change(append=[0, 50], tombstone="k")
            console.read()
            console.wait_for_number("#deletes", 1)
            console.select("message")
        elif view == "operations":
            console.wait_for("#kafka", "Reachable")

    @pytest.mark.parametrize("view", VIEWS)
    def test_is_accessible(self, chromium: Console, view: str) -> None:
        """axe-core finds no violation of WCAG 2.2 AA in light and in dark colors, and on a small screen."""
        driver = chromium.browser
        assert isinstance(driver, webdriver.Chrome)
        self.prepare(chromium, view)
        driver.execute_cdp_cmd("Runtime.evaluate", {"expression": gzip.decompress(AXE.read_bytes()).decode()})
        for scheme, width_px in [("light", 1280), ("dark", 1280), ("light", 320)]:
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            resize(driver, width_px)

            violations = chromium.run(
                "const tags = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'];"
                "return axe.run(document, { runOnly: tags }).then(({ violations }) => violations.map(({ id, nodes }) =>"
                " [id, nodes[0].html, nodes[0].failureSummary]))"
            )

            assert [] == violations, f"{scheme}, {width_px} px"

    def test_the_list_shows_the_newest_events_after_a_resize(self, chromium: Console) -> None:
        """While the list follows the stream, its end stays in view when the window becomes smaller."""
        driver = chromium.browser
        assert isinstance(driver, webdriver.Chrome)
        resize(driver, 1280, 1600)
        chromium.explore("stream=orders&start=earliest")
        chromium.change(append=[0, 200])
        chromium.wait_for_number("#messages", 200)

        resize(driver, 1280, 700)

        in_view = (
            "const list = document.querySelector('#list').getBoundingClientRect();"
            "const last = [...document.querySelectorAll('.row')].at(-1).getBoundingClientRect();"
            "return innerHeight === 700 && Math.abs(last.bottom - list.bottom) < 3"
        )
        wait_until(lambda: chromium.run(in_view))

    @pytest.mark.parametrize("view", VIEWS)
    def test_fits_every_window_width(self, chromium: Console, view: str) -> None:
        """No view needs sideways scrolling at any width, and the browser reports no errors."""
        driver = chromium.browser
        assert isinstance(driver, webdriver.Chrome)
        driver.get("about:blank")
        driver.get_log("browser")  # type: ignore[no-untyped-call]  # discards earlier messages
        self.prepare(chromium, view)
        for width_px in (320, 768, 1280, 3840):
            resize(driver, width_px)

            assert chromium.run(
                "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
            ), f"{width_px} px"
        assert [] == driver.get_log("browser")  # type: ignore[no-untyped-call]


def resize(driver: webdriver.Chrome, width_px: int, height_px: int = 900) -> None:
    size = {"width": width_px, "height": height_px, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def test_counts_each_event_once_while_workers_are_killed(
    any_browser: webdriver.Chrome | Firefox, broker: EmbeddedBroker, cluster: Cluster, fresh_name: str
) -> None:
    """The page reconnects to another worker at its last event, so its count is the number of records."""
    topic = cluster.create(fresh_name, partitions=3)
    written = 0
    with Server(KAFKASSE_BOOTSTRAP_SERVERS=broker.bootstrap_servers, KAFKASSE_ALLOWED_TOPICS=topic) as server:
        console = Console(any_browser, server)
        console.explore(f"stream=topics&p.topics={topic}&start=earliest")
        for _ in range(2):
            os.kill(server.workers()[0], signal.SIGKILL)
            for _ in range(100):
                cluster.send(topic, json.dumps({"n": written}).encode())
                written += 1
                gevent.sleep(0.001)
            console.wait_for_number("#messages", written)

        assert written == console.number("#kept")
        any_browser.get("about:blank")
