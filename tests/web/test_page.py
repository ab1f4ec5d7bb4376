"""The page in a real browser, beside a stream that says, refuses and breaks off as each test tells it to."""

from __future__ import annotations

import json
import queue
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from flask import Flask, Response, request
from flask.testing import FlaskClient
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait
from werkzeug.exceptions import NotFound
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from kafkasse.web.pages import pages

SEEN_S_MAX = 30  # for anything that a test waits to see: a hang becomes a failure
POLL_S = 0.05  # how often the server looks whether it is to stop
SOON = "retry: 50\n\n"


class StreamRequest(NamedTuple):
    """Where a request for the stream wanted to go on, and as whom."""

    header: str | None = None
    query: str | None = None
    authorization: str | None = None


class Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        pass


class Site:
    """The pages, with a stream of the test's own beside them, on a port of 127.0.0.1."""

    def __init__(self, prefix: str = "", script_name: str = "") -> None:
        self.asked: list[StreamRequest] = []
        self.greeting = ":ok\n\n"  # what each stream begins with
        self.refusal: Callable[[], Response] | None = None  # in place of a stream
        self._streams: list[queue.SimpleQueue[str | None]] = []
        app = Flask("site")
        app.register_blueprint(pages(), url_prefix=prefix or None)
        app.add_url_rule(f"{prefix}/topn/updates", "updates", self._updates)
        self._app = DispatcherMiddleware(NotFound(), {script_name: app}) if script_name else app
        self._port = 0
        self.start()
        self.url = f"http://127.0.0.1:{self._port}{script_name}{prefix}"

    def start(self) -> None:
        """Listen; the second time on the same port."""
        self._server: BaseWSGIServer = make_server(
            "127.0.0.1", self._port, self._app, threaded=True, request_handler=Quiet
        )
        self._port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(POLL_S,), daemon=True).start()

    def stop(self) -> None:
        """End all streams and listen no more."""
        self._server.shutdown()
        self._server.server_close()
        self.end()

    def send(self, *texts: str) -> None:
        """Send to all that read the stream."""
        for stream in self._streams:
            for text in texts:
                stream.put(text)

    def end(self) -> None:
        """End the streams that are open."""
        streams, self._streams = self._streams, []
        for stream in streams:
            stream.put(None)

    def _updates(self) -> Response:
        fields = request.headers
        asked = StreamRequest(fields.get("Last-Event-ID"), request.args.get("lastEventId"), fields.get("Authorization"))
        if self.refusal:
            self.asked.append(asked)
            return self.refusal()
        stream: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        stream.put(self.greeting)
        self._streams.append(stream)
        self.asked.append(asked)  # last: who sees it may send
        return Response(iter(stream.get, None), content_type="text/event-stream; charset=utf-8")


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.stop()


class Page:
    """The page in the browser, as a person would describe it."""

    def __init__(self, browser: webdriver.Chrome, site: Site) -> None:
        self.browser = browser
        self.site = site

    def open(self, path: str = "/", state: str = "Live") -> None:
        """Go there from a page without scripts, and wait until the page says `state`."""
        self.browser.get("about:blank")
        self.complaints()  # forgets those of another page
        self.browser.get(self.site.url + path)
        self.sees("#state", state)

    def run(self, script: str, *arguments: object) -> Any:
        return self.browser.execute_script(script, *arguments)

    def text(self, selector: str) -> str:
        """What can be seen of the first element, "" when it is hidden or not there."""
        script = "const e = document.querySelector(arguments[0]); return e?.checkVisibility() ? e.innerText : '';"
        return str(self.run(script, selector))

    def board(self) -> dict[str, list[list[str]]]:
        """Continent -> its rows, as the texts of their cells, in the order of the page."""
        cards = self.run(
            """
            return [...document.querySelectorAll(".continent")].map((card) => [
              card.querySelector("h2").innerText,
              [...card.querySelectorAll("tbody tr")].map((row) => [...row.cells].map((cell) => cell.innerText)),
            ]);
            """
        )
        return dict(cards)

    def until(self, condition: Callable[[], object]) -> None:
        WebDriverWait(self.browser, SEEN_S_MAX, poll_frequency=0.02).until(lambda _: condition())

    def sees(self, selector: str, text: str) -> None:
        self.until(lambda: text in self.text(selector))

    def shows(self, *continents: str) -> None:
        """Wait until these continents are shown, in this order and no others."""
        self.until(lambda: list(continents) == list(self.board()))

    def emulate(self, **features: str) -> None:
        """Media features such as prefers_color_scheme="dark"; none for what the machine has."""
        named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": named})

    def resize(self, width_px: int, height_px: int = 900) -> None:
        size = {"width": width_px, "height": height_px, "deviceScaleFactor": 1, "mobile": False}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def complaints(self) -> list[str]:
        """What the browser's console holds, with its level."""
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


def event(continent: object, *countries: object, identity: str = "", kind: str = "message") -> str:
    return said(json.dumps({"continent": continent, "nrs": countries}), identity, kind)


def said(data: str, identity: str = "", kind: str = "message") -> str:
    return f"event: {kind}\n" + (f"id: {identity}\n" if identity else "") + f"data: {data}\n\n"


RUSSIA = country("Russia", 17_100_000, 144_478_050, "RU")
UKRAINE = country("Ukraine", 603_700, 44_622_516, "UA")
FRANCE = country("France", 547_030, 66_987_244, "FR")
EUROPE = event("Europe", RUSSIA, UKRAINE, FRANCE, identity="7")
ASIA = event("Asia", country("China", 9_596_960))

# What the table shows


def test_says_that_it_waits(page: Page) -> None:
    """Before any data, the page is connected, says what it waits for, and has no empty table."""
    page.open()

    assert "Waiting for the first country…" in page.text("#waiting")
    assert "No updates yet" == page.text(".figures")
    assert {} == page.board()


def test_shows_the_largest_countries(page: Page) -> None:
    """An update becomes a table: rank, name and code, size, people; with how many there were, and when."""
    page.open()

    page.site.send(EUROPE)
    page.shows("Europe")

    rows = [["1", "Russia\u00a0RU", "17,100,000", "144M"], ["2", "Ukraine\u00a0UA", "603,700", "44.6M"]]
    assert [*rows, ["3", "France\u00a0FR", "547,030", "67M"]] == page.board()["Europe"]
    assert "" == page.text("#waiting")
    assert re.fullmatch(r"1 update\s*last at \d+:\d\d:\d\d\D*", page.text(".figures"))


def test_bars_share_one_scale(page: Page) -> None:
    """The largest country of all has the longest bar, also where the one next to it came later."""
    page.open()
    page.site.send(ASIA, EUROPE)
    page.shows("Asia", "Europe")

    shares = page.run(
        "return [...document.querySelectorAll('tbody tr')].map((r) => r.style.getPropertyValue('--share'))"
    )

    assert [9_596_960 / 17_100_000, 1.0] == pytest.approx([float(share) for share in shares[:2]])


def test_an_update_takes_the_place_of_the_one_before(page: Page) -> None:
    """Fewer countries than before leave no row behind, and only rows that changed are tinted."""
    page.open()
    page.site.send(EUROPE)
    page.shows("Europe")
    assert 0 == page.run("return document.getAnimations().filter((a) => !(a instanceof CSSTransition)).length")

    page.site.send(event("Europe", RUSSIA, FRANCE))
    page.until(lambda: 2 == len(page.board()["Europe"]))

    assert ["Russia\u00a0RU", "France\u00a0FR"] == [row[1] for row in page.board()["Europe"]]
    rows = "[...document.querySelectorAll('tbody tr')]"
    assert [0, 1] == page.run(f"return {rows}.map((row) => row.getAnimations().length)")


def test_continents_keep_their_order(page: Page) -> None:
    """Whatever order they come in, continents stand in alphabetical order."""
    page.open()

    page.site.send(ASIA, event("South America", FRANCE), event("Africa", FRANCE), EUROPE)

    page.shows("Africa", "Asia", "Europe", "South America")


def test_somebody_who_comes_late_sees_all_at_once(page: Page) -> None:
    """What the stream begins with is on the page, without every row being tinted as a change."""
    page.site.greeting = ":ok\n\nid: 1\n\n" + ASIA + EUROPE + event("Africa", FRANCE)

    page.open()
    page.shows("Africa", "Asia", "Europe")

    assert 0 == page.run("return document.getAnimations().filter((a) => !(a instanceof CSSTransition)).length")


def test_a_continent_that_is_no_more(page: Page) -> None:
    """`delete` takes a continent away; one that is not there is no trouble; the last one brings the waiting back."""
    page.open()
    page.site.send(EUROPE, ASIA, said('{"key":"Mu"}', kind="delete"), said('{"key":"Asia"}', kind="delete"))
    page.shows("Europe")

    page.site.send(said('{"key":"Europe"}', kind="delete"))

    page.sees("#waiting", "Waiting for the first country…")
    assert {} == page.board()


def test_strangers_words_stay_words(page: Page) -> None:
    """Markup is shown as text and runs nothing; names that mean something to JavaScript are names."""
    markup = "<img src=x onerror=\"document.title='caught'\"><script>document.title='caught'</script>"
    page.open()
    title = page.browser.title

    page.site.send(*[event(name, country(markup, 5, code=markup)) for name in (markup, "__proto__", "constructor")])
    page.shows("__proto__", markup, "constructor")

    assert f"{markup}\u00a0{markup}" == page.board()["__proto__"][0][1]
    assert (title, 0) == (page.browser.title, page.run("return document.querySelectorAll('main img').length"))
    page.site.send(said('{"key":"__proto__"}', kind="delete"))
    page.shows(markup, "constructor")


def test_a_very_long_word_does_not_widen_the_page(page: Page) -> None:
    """A name without a space is broken within its card."""
    page.resize(320)
    page.open()

    page.site.send(event("C" * 200, country("N" * 200, 10**300, 10**300, "Q" * 50)))
    page.shows("C" * 200)

    assert fits(page)


def test_what_cannot_be_read_is_counted(page: Page) -> None:
    """Garbage changes nothing, is counted in sight, and what follows it is shown."""
    page.open()

    garbage = ["{", "null", "[]", '"a"', "{}", '{"continent":1,"nrs":[{"name":"a"}]}', '{"continent":"a","nrs":[]}']
    garbage += ['{"continent":"a","nrs":{}}', '{"continent":"a","nrs":[null]}', '{"continent":"a","nrs":[{"name":1}]}']
    page.site.send(*map(said, garbage), said("?", kind="delete"), said("{}", kind="delete"), EUROPE)
    page.shows("Europe")

    page.sees(".figures", "12 not understood")
    assert [] == page.complaints()


def test_figures_that_are_none(page: Page) -> None:
    """A size or population that is no number is a dash, and its bar the shortest."""
    page.open()

    page.site.send(event("Europe", country("A", "5", None), country("B", 5, -1)))
    page.shows("Europe")

    assert [["1", "A\u00a0XX", "\u2013", "\u2013"], ["2", "B\u00a0XX", "5", "-1"]] == page.board()["Europe"]


def test_not_more_than_can_be_shown(page: Page) -> None:
    """A stream of something else cannot fill the page: three rows, fifty continents, and a count of the rest."""
    page.open()

    page.site.send(*[event(f"{number:02}", *[country(str(n), n) for n in range(9)]) for number in range(60)])
    page.sees(".figures", "10 not understood")

    assert [3] * 50 == [len(rows) for rows in page.board().values()]


# What becomes of the connection


def test_goes_on_when_the_stream_ends(page: Page) -> None:
    """A stream that ends is opened again by the browser, with the id of the last event."""
    page.site.greeting = SOON
    page.open()
    page.site.send(EUROPE)
    page.shows("Europe")

    page.site.end()
    page.until(lambda: 2 == len(page.site.asked))
    page.sees("#state", "Live")

    assert StreamRequest(header="7") == page.site.asked[1]


def test_comes_back_with_the_server(page: Page) -> None:
    """While the server is away the page says so and keeps what it has; when it is back, so is the page."""
    page.site.greeting = SOON
    page.open()
    page.site.send(EUROPE)
    page.shows("Europe")

    page.site.stop()
    page.sees("#state", "Reconnecting")
    assert "The connection was lost." in page.text("#reason")
    assert ["Europe"] == list(page.board())
    page.site.start()
    page.sees("#state", "Live")
    page.site.send(ASIA)

    page.shows("Asia", "Europe")


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (503, '{"detail":"Kafka cannot be reached."}', "Kafka cannot be reached."),
        (502, "<h1>Bad gateway</h1>", "The server answered 502."),
        (404, '{"title":"Topic not available"}', "Topic not available"),
        (200, "<p>hello", "The server answered with something that is no stream."),
    ],
)
def test_comes_back_after_a_refusal(page: Page, status: int, body: str, reason: str) -> None:
    """The browser gives up on any answer but a stream; the page says why, counts down, and goes on after the last id."""
    page.site.greeting = SOON
    page.open()
    page.site.send(EUROPE)
    page.shows("Europe")

    page.site.refusal = lambda: Response(body, status, content_type="text/html")
    page.site.end()
    page.sees("#reason", reason)
    page.sees("#countdown", "Next try in ")
    assert "Reconnecting" == page.text("#state")
    page.site.refusal = None

    page.sees("#state", "Live")
    assert ("7", "", "") == (page.site.asked[-1].query, page.text("#reason"), page.text("#countdown"))


def test_waits_as_long_as_it_is_asked_to(page: Page) -> None:
    """Retry-After decides how long; the button, which the keyboard reaches, does not wait."""
    page.site.refusal = lambda: Response("", 503, {"Retry-After": "120"})
    page.open(state="Reconnecting")
    page.until(lambda: re.fullmatch(r"Next try in 1[2-8]\d s", page.text("#countdown")))
    page.site.refusal = None

    page.browser.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    focused = page.browser.switch_to.active_element
    assert "Try now" == focused.text
    focused.send_keys(Keys.ENTER)

    page.sees("#state", "Live")
    assert "" == page.text("#again")


@pytest.mark.parametrize("status", [410, 400, 403])
def test_stops_when_waiting_does_not_help(page: Page, status: int) -> None:
    """An `error` event with the client's status stops the page: it says why, and starts afresh when it is told to."""
    page.open()
    page.site.send(EUROPE, said(f'{{"status":{status},"detail":"The topic was deleted."}}', "8", "error"))
    page.sees("#state", "Stopped")
    assert "The topic was deleted." in page.text("#reason")
    page.shows("Europe")

    page.site.greeting = ASIA
    page.browser.find_element(By.ID, "again").click()

    page.shows("Asia")
    assert StreamRequest() == page.site.asked[-1]
    assert "Live" == page.text("#state")


def test_stops_at_an_answer_that_it_must_mend(page: Page) -> None:
    """A refusal with the client's status stops the page too."""
    page.site.refusal = lambda: Response('{"detail":"Your id is no position."}', 400)

    page.open(state="Stopped")

    assert "Your id is no position." in page.text("#reason")
    assert "Start again" == page.text("#again")


@pytest.mark.parametrize("data", ['{"status":503,"detail":"The server is stopping."}', "?", "null", '{"status":"x"}'])
def test_goes_on_after_an_error_that_passes(page: Page, data: str) -> None:
    """An `error` event that is the server's trouble, or says nothing, is followed by another try, from where it says."""
    page.open()

    page.site.send(EUROPE, said(data, "8", "error"))
    page.until(lambda: 2 == len(page.site.asked))
    page.sees("#state", "Live")

    assert "8" == page.site.asked[1].query


# How it looks, and to whom

SCHEMES = ("light", "dark")


def fits(page: Page) -> bool:
    return bool(page.run("return document.documentElement.scrollWidth <= document.documentElement.clientWidth"))


@pytest.mark.parametrize("path", ["/", "/about"])
@pytest.mark.parametrize("width_px", [320, 768, 1280, 1920])
def test_fits_the_window(page: Page, path: str, width_px: int) -> None:
    """No width needs scrolling sideways, and the console has nothing to say."""
    page.site.greeting = EUROPE + event(
        "Antarctica", country("South Georgia and the South Sandwich Islands", 14_000_000)
    )
    page.resize(width_px)
    page.open()
    page.shows("Antarctica", "Europe")
    page.browser.get(page.site.url + path)

    assert fits(page)
    assert [] == page.complaints()


# The lowest contrast of any text with what is behind it, by the formula of WCAG 2.
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
const behind = (e) => (!e || rgba(getComputedStyle(e).backgroundColor)[3] ? e : behind(e.parentElement));
const contrast = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
const texts = [...document.body.querySelectorAll("*")].filter((e) => e.checkVisibility()
  && [...e.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.data.trim()));
const named = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
return texts.map((e) => {
  const style = getComputedStyle(e);
  const text = luminance(e instanceof SVGElement ? style.fill : style.color);
  const grounds = [e instanceof SVGElement ? named("--card") : getComputedStyle(behind(e)).backgroundColor];
  if (e.closest("tbody")) grounds.push(named("--tint"));
  return [Math.min(...grounds.map((ground) => contrast(text, luminance(ground)))), e.outerHTML];
}).sort((one, other) => one[0] - other[0])[0];
"""


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("state", ["Live", "Reconnecting", "Stopped", "about"])
def test_can_be_read(page: Page, scheme: str, state: str) -> None:
    """Every text has a contrast of 4.5 to what is behind it (WCAG AA), tinted rows included, in either scheme."""
    page.emulate(prefers_color_scheme=scheme)
    page.site.greeting = EUROPE + {
        "Reconnecting": said('{"status":503}', kind="error"),
        "Stopped": said('{"status":410}', kind="error"),
    }.get(state, "")
    page.open(state="Live" if state == "about" else state)
    page.shows("Europe")
    if state == "about":
        page.browser.get(page.site.url + "/about")

    lowest, element = page.run(CONTRAST)

    assert 4.5 <= lowest, element


def test_schemes_differ(page: Page) -> None:
    """The page follows the colour scheme that is wished for."""
    page.open()
    grounds = []
    for scheme in SCHEMES:
        page.emulate(prefers_color_scheme=scheme)
        grounds.append(page.run("return getComputedStyle(document.documentElement).backgroundColor"))

    assert 2 == len(set(grounds))


def test_keeps_still_where_that_is_wished(page: Page) -> None:
    """With reduced motion bars do not slide, and a change is one step of colour."""
    page.emulate(prefers_reduced_motion="reduce")
    page.open()
    page.site.send(EUROPE)
    page.shows("Europe")

    page.site.send(event("Europe", UKRAINE))
    page.until(lambda: 1 == len(page.board()["Europe"]))

    assert ["steps(1)"] == page.run("return document.getAnimations().map((a) => a.effect.getTiming().easing)")


def test_is_a_table_for_a_screen_reader(page: Page) -> None:
    """The browser's accessibility tree has a table named after the continent, with row and column headers."""
    page.site.greeting = EUROPE
    page.open()
    page.shows("Europe")

    nodes = page.browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    names = {(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]}

    assert ("table", "Europe") in names
    assert {("columnheader", "Rank"), ("columnheader", "Country"), ("columnheader", "People")} <= names
    assert {("rowheader", "Russia RU"), ("cell", "17,100,000")} <= {
        (role, name.replace("\u00a0", " ")) for role, name in names
    }
    assert {"status"} <= {role for role, _ in names}


def test_does_not_chatter(page: Page) -> None:
    """A screen reader hears of the connection when it changes; a countdown and a burst of updates are not read out."""
    page.open()
    page.run(
        """
        window.heard = [];
        const hear = (changes) => changes.forEach((c) => heard.push(c.target.textContent));
        for (const region of document.querySelectorAll("[role=status]"))
          new MutationObserver(hear).observe(region, { childList: true, characterData: true, subtree: true });
        """
    )

    page.site.send(*[event("Europe", country(str(size), size)) for size in range(100)])
    page.sees(".figures", "100 updates")

    assert [] == page.run("return heard")


# The addresses


@pytest.mark.parametrize("where", [{"prefix": "/demo"}, {"script_name": "/mounted"}])
def test_works_under_a_prefix(browser: webdriver.Chrome, where: dict[str, str]) -> None:
    """Below a prefix of the blueprint's or the server's, also without the closing slash, everything finds its way."""
    site = Site(**where)
    site.greeting = EUROPE
    page = Page(browser, site)

    page.open("")
    page.shows("Europe")
    page.browser.find_element(By.LINK_TEXT, "How a country gets here").click()

    assert site.url + "/about" == browser.current_url
    assert f"curl -N '{site.url}/topn/updates'" == page.text("pre")
    assert [] == page.complaints()
    browser.get("about:blank")
    site.stop()


def test_the_example_for_fetch(page: Page) -> None:
    """docs/clients.md goes on after a break, sends its headers, and ends with the reason of the server."""
    text = (Path(__file__).parents[2] / "docs/clients.md").read_text()
    (example,) = re.findall(r"```js\n(/\*\*.*?)```", text, re.DOTALL)
    page.browser.get(page.site.url + "/about")
    page.site.greeting = SOON

    page.run(
        "window.shown = []; const show = (it) => shown.push(it.n); const token = 't';"
        f"(async () => {{ {example.replace('/countries', 'topn/updates').replace('2000', '50')} }})()"
        ".catch((error) => shown.push(error.message));"
    )
    page.until(lambda: page.site.asked)
    page.site.send(said('{"n":1}', "1"), "id: 1b\n\n", "event: message\nid: 2\nda")
    page.until(lambda: [1] == page.run("return shown"))
    page.site.end()
    page.until(lambda: 2 == len(page.site.asked))
    page.site.send(said('{"n":2}', "2"), said('{"status":410,"detail":"gone"}', kind="error"))

    page.until(lambda: [1, 2, "gone"] == page.run("return shown"))
    assert StreamRequest(header="1b", authorization="Bearer t") == page.site.asked[1]


@pytest.fixture
def client() -> FlaskClient:
    app = Flask("pages")
    app.register_blueprint(pages())
    return app.test_client()


ASSETS = sorted(Path(__file__).parents[2].glob("kafkasse/web/page/assets/*"))


@pytest.mark.parametrize("path", ["/", "/about", *[f"/-/page/{asset.name}" for asset in ASSETS]])
def test_every_answer_is_guarded(client: FlaskClient, path: str) -> None:
    """Each file comes with a policy that allows nothing inline, is what it says, and is asked for again for free."""
    answer = client.get(path)

    assert 200 == answer.status_code
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert ("nosniff", "no-cache") == (answer.headers["X-Content-Type-Options"], answer.headers["Cache-Control"])
    again = client.get(path, headers={"If-None-Match": answer.headers["ETag"]})
    assert (304, b"") == (again.status_code, again.data)


def test_scripts_are_scripts(client: FlaskClient) -> None:
    """With nosniff, a browser runs a module only if its type is JavaScript."""
    types = {asset.suffix: client.get(f"/-/page/{asset.name}").mimetype for asset in ASSETS}

    assert {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"} == types


@pytest.mark.parametrize(
    "path", ["/-/page/", "/-/page/index.html", "/-/page/../index.html", "/-/page/%2e%2e/about.html"]
)
def test_only_what_is_meant_for_it_is_served(client: FlaskClient, path: str) -> None:
    """The pages have one address each, and nothing outside the folder has one."""
    assert 404 == client.get(path).status_code


@pytest.mark.parametrize("path", ["/", "/about"])
def test_the_data_is_credited(client: FlaskClient, path: str) -> None:
    """Both pages name GeoNames and its licence, and load nothing from elsewhere."""
    text = client.get(path).text

    assert {"https://www.geonames.org/", "https://creativecommons.org/licenses/by/4.0/"} == set(
        re.findall(r"https://[^\"]+", text)
    )
    assert re.search(r"<(script|link|img)[^>]+https?:", text) is None
