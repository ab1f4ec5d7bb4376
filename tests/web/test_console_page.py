"""The web console in real browsers: Chromium and Firefox."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import gevent
import pytest

from kafkasse.app import create_app
from kafkasse.config import Config
from kafkasse.log.memory import MemoryLog
from tests.chaos.network import Network
from tests.client.script import Raw, ScriptedServer, Sends, message
from tests.history import checker
from tests.history.cluster import Witness, Writer
from tests.history.payloads import StoredRecord, expected_event, expected_line
from tests.support.client import Client, fetch
from tests.support.docs import code
from tests.support.examples import first_of
from tests.support.firefox import Firefox
from tests.support.server import KILLED, ROOT, Server
from tests.support.waiting import wait_until
from tests.web.accessibility import violations
from tests.web.conftest import AnyBrowser
from tests.web.console import MAX_EVENTS, MAX_NODES, Console, change
from tests.web.console_app import MARKUP, ROUTES, SHORT_TOKEN, TIMESTAMP_MS, TOKEN
from tests.web.document import Document
from tests.web.serve import serve

KEY = b"\xff\x00"
BINARY_RECORDS = [
    StoredRecord("orders", 0, offset, TIMESTAMP_MS, key, value, [("<i>", header)])
    for offset, (key, value, header) in enumerate(
        [
            (KEY, b'{"n": 1}', b"paid"),
            (b"k", b64decode("null"), b"\xfe<i>"),
            (b"<b>\xff", b64decode("12e4"), None),
            (KEY, None, b"\xfe"),
            (MARKUP.encode(), json.dumps({"html": MARKUP}).encode(), MARKUP.encode()),
            (None, b"<b>\xff</b>", b""),
        ]
    )
]
BINARY_VALUES = {1, 2, 5}
# The keys in the list. In the formats `value` and `cloudevents`, only deletes have a key; `cloudevents` has a subject.
KEYS = {stream: {3: "base64 /wA="} for stream in ("values", "cloudevents")} | {
    "orders": {0: "base64 /wA=", 3: "base64 /wA=", 4: MARKUP},
    "envelopes": {0: "base64 /wA=", 1: "k", 2: "base64 PGI+/w==", 3: "base64 /wA=", 4: MARKUP},
}
TABS = 7  # A browser opens six connections to a server over HTTP/1.1.
SLOTS = 4  # streams of all windows; see kafkasse/assets/demo/assets/slots.js
PROGRAMS = {
    "curl": ["sh"],
    "chunks": ["sh"],
    "javascript": ["node", "--input-type=module", "-"],
    "python": [sys.executable, "-"],
}
ASSETS = ROOT / "kafkasse/assets/console/assets"
EMPTY_LINES = b"event: message\ndata: \ndata: b\nid: 1\n\nevent: message\ndata: \nid: 2\n\n"
OPERATOR = {"Authorization": f"Bearer {TOKEN}"}


def open_streams(server: Server) -> list[dict[str, Any]]:
    return list(fetch(server.port, "/-/streams", **OPERATOR).json["streams"])


def end_streams(server: Server) -> None:
    """End all streams, as an operator does. Their clients reconnect."""
    for stream in open_streams(server):
        fetch(server.port, f"/-/streams/{stream['id']}", "DELETE", **OPERATOR)


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
def console(any_browser: AnyBrowser, server: Server) -> Console:
    return Console(any_browser, server)


class TestSignIn:
    def test_shows_guarded_streams_after_the_sign_in(self, console):
        """The token is neither in the URL nor in the browser's storage, and a reload forgets it. Markup stays text."""
        public = ["/values", "/orders", "/envelopes", "/cloudevents"]
        console.open()
        assert public == console.texts(".card h2")
        assert MARKUP in console.text("#stream-orders")

        console.run(
            "window.shown = []; const state = document.querySelector('#session-state');"
            "new MutationObserver(() => shown.push(state.textContent)).observe(state, { childList: true })"
        )
        console.click("#sign-in")
        console.enter("wrong")
        console.wait_for("#sign-in-problem", "does not accept this token")
        assert [] == console.run("return shown")
        console.enter(TOKEN)
        console.wait_for("#session-state", "Signed in")
        assert ["Signed in"] == console.run("return shown")

        assert [*public, "/pipelines", "/mine/{customer}"] == console.texts(".card h2")
        assert "guarded: staff" in console.text("#stream-mine")
        console.click("#stream-mine details:last-child summary")
        assert "curl" in console.text("#stream-mine details")
        kept = console.run(
            "return [location.href, document.cookie, ...Object.values(localStorage), ...Object.values(sessionStorage),"
            " document.documentElement.outerHTML, document.querySelector('#token').value].join()"
        )
        assert TOKEN not in kept
        console.open()
        assert public == console.texts(".card h2")

    def test_a_server_without_guards_offers_no_sign_in(self, any_browser, console):
        """It has nothing that a token opens. A server with guards offers it."""
        log = MemoryLog()
        log.create("orders")
        server = serve(create_app(Config(allowed_topics=["orders"], public=True), log))
        document = Document(any_browser)

        any_browser.get(f"http://127.0.0.1:{server.server_port}/#/streams")
        document.wait_for(".card h2", "/{topics}")

        assert "" == document.text("#sign-in") == document.text("#sign-in-hint")
        console.open()
        assert "Sign in" == document.text("#sign-in")
        assert "sign in to see more" in document.text("#sign-in-hint")
        server.shutdown()
        server.server_close()

    @pytest.mark.parametrize("with_ticket", [False, True])
    def test_reads_a_guarded_stream(self, console, with_ticket):
        """No URL contains the token. A ticket opens one stream, so the page requests another one when it reconnects."""
        console.open("explore?stream=mine&p.customer=k1", TOKEN)
        console.run(
            "window.sent = []; const original = fetch; window.fetch = (url, options) => {"
            " sent.push([String(url), JSON.stringify(options.headers)]); return original(url, options); }"
        )
        console.change(append=[0, 6])
        if with_ticket:
            console.click("#ticket")

        console.read(2)

        sent = console.run("return sent")
        url, headers = next(request for request in sent if "/mine/" in request[0].partition("?")[0])
        assert (with_ticket, not with_ticket) == ("ticket=" in url, TOKEN in headers)
        assert TOKEN not in "".join(url for url, _ in sent)
        end_streams(console.server)
        console.change(append=[6, 3])
        console.wait_for_number("#messages", 3)
        console.click("#code-open")
        assert "Bearer $TOKEN" in console.text("#code")
        assert TOKEN not in console.text("#code")

    @pytest.mark.parametrize("format", first_of("sse", "ndjson"))
    @pytest.mark.parametrize("is_paused", first_of(True, False))
    def test_resumes_after_a_new_sign_in(self, console, format, is_paused):
        """A token expires while the page reads. The user signs in with another token. No event is lost or repeated."""
        console.open(f"explore?stream=mine&p.customer=k1&format={format}", SHORT_TOKEN)
        console.change(append_slowly=[0, 600, 200])
        console.click("#read")
        if is_paused:
            console.click("#pause")

        console.wait_for("#state", "Stopped")
        console.wait_for("#reason", "expired")
        console.click("#sign-in")
        console.enter("wrong")
        console.wait_for("#sign-in-problem", "does not accept this token")
        console.enter(TOKEN)

        console.wait_for_number("#messages", 200)
        if is_paused:
            console.click("#pause")
        console.wait_for_number("#kept", 200)
        assert [str(n) for n in range(1, 600, 3)] == re.findall(r'"n": (\d+)', console.export())

    def test_signs_out_without_a_network(self, console):
        """If the server cannot be reached, the page still forgets the token, and shows that the user has signed out."""
        with closing(Network(console.server.port)) as network:
            console.port = network.port
            console.open("", TOKEN)
            network.refuse()

            console.click("#sign-out")

            console.wait_for("#streams-problem", "The server cannot be reached.")
            assert ("", "Sign in") == (console.text("#session-state"), console.text("#sign-in"))

    def test_finds_a_stream_among_many(self, console):
        """The page shows a part of a long catalog. A search finds all streams with a name, path, topic or description."""
        console.open()
        show = (
            "const { showStreams } = await import(new URL('-/console/streams.js', location.href.split('#')[0]));"
            "const names = [...Array(10_000).keys()].map((n) => `topic-${n}.`);"
            "const other = { access: [], fields: [], parameters: [], groups: {}, filters: {}, events: [], schemas: {} };"
            "showStreams(names.map((name, n) =>"
            " ({ ...other, examples: {}, name, path: `/${n}`, topics: n ? [name] : names })))"
        )
        assert "" == console.text("#find")

        console.run(f"return (async () => {{ {show} }})()")

        assert "10,000 of 10,000 streams. The page shows the first 200." == console.text("#find-count")
        assert "and 9,950 more" in console.text(".card")
        console.type("#find-text", "Topic-9999.")
        assert "2 of 10,000 streams" == console.text("#find-count")
        assert ["/0", "/9999"] == console.texts(".card h2")


class TestExplorer:
    def test_opens_on_a_stream_whose_events_show_their_topic_and_time(self, console):
        """The format of the first stream of the catalog, `value`, has neither, so its list has no columns for them."""
        columns = (
            "return [...document.querySelectorAll('.columns span')].filter((e) => e.checkVisibility())"
            ".map((e) => e.textContent)"
        )
        console.resize(1600)
        console.open("explore")
        assert "orders" == console.run("return document.querySelector('#stream').value")
        assert ["#", "Time", "Event", "Topic and offset", "Key", "Value"] == console.run(columns)

        console.explore("stream=values")

        assert ["#", "Event", "Key", "Value"] == console.run(columns)

    def test_shows_an_event_in_three_ways(self, console):
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

    def test_shows_records_that_look_like_events(self, console):
        """A value may have any types, and the time of a producer that uses nanoseconds is too large for a date."""
        place = {"topic": "orders", "partition": 0, "offset": 1}
        odd = {"toString": 1}
        values = [
            *({**place, name: odd} for name in ("partition", "offset", "key")),
            *({"specversion": "1.0", name: odd} for name in ("id", "time", "key")),
            {**place, "timestamp": 1_790_000_000_000_000_000, "last": 1},
        ]
        for value in values:
            console.change(value=json.dumps(value))
        console.explore("stream=values&start=earliest")
        console.wait_for_number("#messages", len(values))

        console.select('"last": 1')

        assert json.dumps(values[-1]) == console.rows()[-1][-1]
        assert "Event 7: message" == console.text("#details-title")
        console.go_to("constructor")
        console.wait_for("h1", "Streams")

    def test_marks_deletes_gaps_and_errors(self, console):
        """Each has a label besides its color, and is counted."""
        console.open("explore?stream=orders")
        console.change(append=[0, 5], drop_before=3)
        console.go_to('explore?stream=orders&start=id&id=[{"topic":"orders","partition":0,"offset":0}]')
        wait_until(lambda: console.run("return document.querySelector('#event-id').value !== ''"))

        console.read(2)
        console.change(tombstone="k9")
        console.wait_for_number("#deletes", 1)
        console.change(delete=True)
        console.wait_for("#state", "Stopped")
        console.wait_for_number("#errors", 1)

        assert ["gap", "message", "message", "delete", "error"] == [row[1] for row in console.rows()]
        assert "orders 0:0\u20133" == console.rows()[0][2]
        assert [2, 1, 1, 1] == [console.number(selector) for selector in ("#messages", "#deletes", "#gaps", "#errors")]
        assert "orders" in console.text("#reason")

    def test_keeps_a_bounded_number_of_events_and_elements(self, console):
        """The counter counts all events. At its bound, a paused page closes the connection, and resumes later."""
        total = 10 + MAX_EVENTS + 500
        console.open("explore?stream=orders&start=earliest")
        console.change(append=[0, 10])
        console.read(10)
        console.click("#pause")

        console.change(append=[10, MAX_EVENTS + 500])
        console.wait_for("#paused", "The connection is closed.")
        assert (10, 10) == (console.number("#kept"), len(console.rows()))
        console.click("#pause")

        console.wait_for_number("#messages", total)
        wait_until(lambda: str(total) == console.rows()[-1][0])
        assert f'"n": {total - 1},' in console.rows()[-1][4]
        assert MAX_EVENTS == console.number("#kept")
        numbers = [int(text) for text in console.texts(".row .n")]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert len(numbers) < 100
        assert MAX_NODES > console.run("return document.querySelectorAll('*').length")

    def test_searches_exports_resumes_and_clears(self, console):
        """The file has one line per event in the list, with its ID and its data as the server sent it."""
        console.explore("stream=orders&start=earliest")
        console.change(append=[0, 30], value='{"price": 25.00}')
        console.wait_for_number("#kept", 31)

        console.type("#search", "25.00")
        console.wait_for("#found", "1 found")
        (line,) = console.export().splitlines()

        assert ["31"] == [row[0] for row in console.rows()]
        assert '"data":{"price": 25.00,' in line
        exported = json.loads(line)
        assert ("message", 31) == (exported["event"], json.loads(exported["id"])[0]["offset"])
        console.type("#search", "")
        wait_until(lambda: len(console.rows()) > 1)
        console.select('"n": 28')
        console.click("#resume")
        console.wait_for_number("#messages", 2)
        assert ["orders 0:29", "orders 0:30"] == console.places()
        assert "start=id" in console.run("return location.hash")
        console.click("#clear")
        console.wait_for("#empty", "No events yet.")
        assert 0 == console.number("#messages")

    @pytest.mark.parametrize("stream", first_of("orders", "envelopes", "cloudevents"))
    def test_resumes_json_lines_at_their_offsets(self, console, stream):
        """They have no IDs, so the page builds one from the offsets. The server wraps a record with a member `event`."""
        console.change(recreate=2, append_to=[0, [1, 2]])
        console.explore(f"stream={stream}&start=earliest&format=ndjson")
        console.change(append_to=[1, [3]])
        console.wait_for_number("#messages", 3)

        for partition, n in [(1, 4), (0, 5)]:
            end_streams(console.server)
            console.change(append_to=[partition, [n]])
            console.wait_for_number("#messages", n)
        console.change(value='{"event": "message"}')
        console.wait_for_number("#messages", 6)
        end_streams(console.server)
        console.change(append_to=[0, [6]])
        console.wait_for_number("#messages", 7)

        places = ["0:0", "0:1", "1:0", "1:1", "0:2", "0:3", "0:4"]
        assert [f"orders {place}" for place in places] == console.places()

    def test_the_server_checks_filters_while_the_user_types(self, console):
        """The page shows where an expression is wrong, and reads the events that a valid one selects."""
        console.open("explore?stream=orders&start=earliest")
        console.change(append=[0, 9])

        console.type("[name='f.filter']", "value.n > ")
        console.wait_for("#problem", "invalid at line 1")
        assert "^" in console.text("#problem pre")
        console.type("[name='f.filter']", "value.n > 4")
        wait_until(lambda: console.text("#problem") == "")
        console.type("[name='f.key']", "k2")
        console.read(2)

        assert ["orders 0:5", "orders 0:8"] == console.places()

    def test_shows_a_part_of_a_long_event(self, console):
        """A key and a value of 1 MiB. The list shows their topic and offset, and the file contains the whole event."""
        console.explore("stream=orders")
        console.change(keyed=["k" * 2**20, json.dumps({"html": MARKUP * (2**20 // len(MARKUP))})])
        console.wait_for_number("#messages", 1)

        console.select("message")

        assert ["orders 0:0", "k" * 100] == console.rows()[0][2:4]
        assert "The first 200,000 of " in console.text("#content-note")
        assert 200_001 == console.run("return document.querySelector('#content').textContent.length")
        assert len(console.export()) > 2**21
        assert "caught" not in console.run("return document.title")

    @pytest.mark.parametrize("stream", first_of("orders", "values", "envelopes", "cloudevents"))
    def test_binary_keys_and_values_are_marked_as_base64(self, console, stream):
        """The file contains each record as docs/wire.md promises. Base64 that looks like a number is a string."""
        for record in BINARY_RECORDS:
            given = [record.value, record.key, record.headers[0][1]]
            console.change(record=[None if part is None else b64encode(part).decode() for part in given])
        format = ROUTES[stream].get("format", "kafkasse")
        for wire, expect in [("sse", expected_event), ("ndjson", expected_line)]:
            pairs = [(each, expected) for each in BINARY_RECORDS if (expected := expect(each, format))]
            console.explore(f"stream={stream}&start=earliest&format={wire}")
            console.wait_for_number("#kept", len(pairs))

            lines = console.export().splitlines()
            console.run("document.querySelector('.row').click()")

            for (_, expected), line in zip(pairs, lines, strict=True):
                assert wire == "ndjson" or expected.event == json.loads(line)["event"]
                assert expected.matches(line if wire == "ndjson" else data_in(line)), line
            for (record, _), (_, kind, _, key, preview) in zip(pairs, console.rows(), strict=True):
                assert KEYS[stream].get(record.offset, "") == key
                assert record.offset not in BINARY_VALUES or "base64" in f"{kind} {preview}"
                assert record.offset > 0 or preview.startswith('{"n": 1')
            assert "\ufffd" not in console.run("return document.body.innerText")
            assert "caught" not in console.run("return document.title")
            assert 0 == console.run(
                "return document.querySelectorAll('#list :is(i, b, img), #details :is(i, b, img)').length"
            )

    def test_reads_from_a_time_and_with_filters(self, console):
        """The header filter has a field for the name of the header."""
        console.change(append=[0, 3], value='{"n": 3}')

        for query, offsets in {
            "start=time&time=2000-01-01T00:00:00": [0, 1, 2, 3],
            "start=earliest&f.header.*.name=type&f.header.*=paid": [3],
            "start=earliest&f.field.n=1": [1],
        }.items():
            console.explore(f"stream=orders&{query}")
            console.wait_for_number("#messages", len(offsets))
            assert [f"orders 0:{offset}" for offset in offsets] == console.places()

    def test_draws_the_rate_and_the_lag(self, console):
        """The page compares the browser's clock with the server's, which is in the header `Date`."""
        console.open("explore?stream=orders")
        console.run("const now = Date.now; Date.now = () => now() + 7_200_000")
        console.read()
        console.change(append_slowly=[0, 200, 50])

        wait_until(lambda: console.number("#rate") > 0 and re.search(r"\d+ m?s ago$", console.text("#lag")))
        wait_until(lambda: console.number("#messages") == 200)

        for chart in ("rate", "lag"):
            path = console.run(f"return document.querySelector('#{chart}-chart path').getAttribute('d')")
            assert re.fullmatch(r"M[-\d. ,]+L[-\d. ,ML]+", path), chart

    def test_follows_the_stream_until_the_user_selects_an_event(self, console):
        """The arrow keys select an event, Enter opens it, Escape returns. A smaller window still shows the end."""
        press = (
            "const at = document.activeElement; for (const key of arguments)"
            " document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }))"
        )
        in_view = (
            "const list = document.querySelector('#list').getBoundingClientRect();"
            "const last = [...document.querySelectorAll('.row')].at(-1).getBoundingClientRect();"
            "return innerHeight === 700 && Math.abs(last.bottom - list.bottom) < 3"
        )
        console.resize(1280, 1600)
        console.open("explore?stream=orders&start=earliest")
        console.change(append=[0, 500])
        console.read(500)

        console.resize(1280, 700)
        wait_until(lambda: console.run(in_view))
        console.run("document.querySelector('#list').focus()")
        console.run(press, "Home", "ArrowDown", "PageDown", "PageUp", "Enter")

        assert "Event 2: message" == console.text("#details-title")
        active = console.run("return document.querySelector('#list').getAttribute('aria-activedescendant')")
        assert ("event-2", "false") == (active, console.run("return document.querySelector('#follow').ariaPressed"))
        console.run("document.querySelector('#close').focus()")
        console.run(press, "Escape")
        assert ("", "list") == (console.text("#details"), console.run("return document.activeElement.id"))


class TestConnection:
    @pytest.fixture(params=["window"])
    def windows(self, console: Console, request: pytest.FixtureRequest) -> list[str]:
        for _ in range(TABS - 1):
            console.browser.switch_to.new_window(request.param)
        return list(console.browser.window_handles)

    @pytest.mark.long
    def test_seven_tabs_share_one_connection(self, console, windows):
        """Each tab receives each event once, even if it opened later than the others. Other pages still load."""
        console.change(append=[0, 20])
        for window in windows:
            console.browser.switch_to.window(window)
            console.open("explore?stream=orders&start=earliest")
            console.read(20)

        wait_until(lambda: 1 == len(open_streams(console.server)))
        console.change(append=[20, 5])

        for window in windows:
            console.browser.switch_to.window(window)
            console.wait_for_number("#messages", 25)
            assert [f"orders 0:{n}" for n in range(20, 25)] == console.places()[-5:]

    @pytest.mark.long
    @pytest.mark.parametrize("windows", ["tab"], indirect=True)
    def test_pages_load_while_seven_tabs_read_guarded_streams(self, console, windows):
        """Tabs do not share a guarded stream. A tab that is not visible has no connection."""
        console.change(append=[0, 3])

        for window in windows:
            console.browser.switch_to.window(window)
            console.open("explore?stream=mine&p.customer=k1", TOKEN)
            console.read(1)

    @pytest.mark.long
    def test_pages_load_while_windows_read_different_streams(self, console, windows):
        """At most four windows have a stream. The others wait for a stream to end, even if that takes an hour."""

        def use(number: int) -> None:
            console.browser.switch_to.window(windows[number])

        for number in range(TABS):
            use(number)
            console.open(f"explore?stream=orders&f.key=k{number}")
            console.click("#read")
            console.wait_for("#state", "Live" if number < SLOTS else "Waiting")
        assert "Four other tabs or windows" in console.text("#reason")
        wait_until(lambda: SLOTS == len(open_streams(console.server)))
        use(SLOTS)
        console.run("const now = Date.now; Date.now = () => now() + 3_600_000")
        use(0)

        console.click("#stop")
        use(1)
        console.browser.get("about:blank")

        for number in (SLOTS, SLOTS + 1):
            use(number)
            console.wait_for("#state", "Live")
        use(SLOTS + 2)
        assert "Waiting" == console.text("#state")
        wait_until(lambda: SLOTS == len(open_streams(console.server)))

    @pytest.mark.long
    def test_streams_do_not_wait_over_http_2(self, console, windows):
        """All streams share one connection."""
        over_http_2 = "performance.getEntriesByType = () => [{ nextHopProtocol: 'h2' }]"
        for number, window in enumerate(windows[: SLOTS + 1]):
            console.browser.switch_to.window(window)
            console.open(f"explore?stream=orders&f.key=k{number}")
            console.run(over_http_2)

            console.read()

    def test_resumes_exactly_after_each_break(self, console):
        """The network fails; the page is in the back/forward cache; the machine sleeps, and the connection dies."""
        console.change(append=[0, 5])
        with closing(Network(console.server.port)) as network:
            console.port = network.port
            console.explore("stream=orders&start=earliest")
            console.wait_for_number("#messages", 5)

            network.refuse()
            console.wait_for("#state", "Reconnecting")
            console.wait_for("#reason", "The server cannot be reached")
            console.change(append=[5, 5])
            network.heal()
            console.run("dispatchEvent(new Event('online'))")
            console.wait_for_number("#messages", 10)

            console.run("dispatchEvent(new PageTransitionEvent('pagehide', { persisted: true }))")
            wait_until(lambda: [] == open_streams(console.server))
            console.change(append=[10, 5])
            console.run("dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))")
            console.wait_for_number("#messages", 15)

            network.forget()
            console.change(append=[15, 5])
            console.run("const now = Date.now; Date.now = () => now() + 3_600_000")
            console.wait_for_number("#messages", 20)

        assert [str(n) for n in range(20)] == re.findall(r'"n": (\d+)', console.export())


class TestCode:
    @pytest.mark.parametrize("language", first_of(*PROGRAMS))
    def test_each_program_resumes_exactly(self, console, tmp_path, language):
        """The stream is guarded, it ends, and the test kills the program, which the user copies as the page says."""
        console.open("explore?stream=mine&p.customer=k0&f.filter=value.n >= 1", TOKEN)
        console.click("#code-open")
        console.click(f"#tab-{language}")
        assert "It reads your token from the environment variable TOKEN." == console.text("#code-note")
        console.run("navigator.clipboard.writeText = async (text) => { window.copied = text }")
        console.click("#code-copy")
        console.wait_for("#code-note", "Copied.")
        code = console.run("return copied")
        if preparation := re.search(r"Before you start it: (curl .*)", code):
            subprocess.run(preparation[1], shell=True, check=True, cwd=tmp_path)  # noqa: S602 - the page wrote it
        output = tmp_path / "output"
        position = tmp_path / re.search(r"\S+\.(position|offset)", code)[0]  # type: ignore[index]
        saved = "b11." if language == "chunks" else '"offset":10'  # the offset contains 10 and the number of partitions
        selected = [3, 6, 9, 12]

        def received() -> list[int]:
            return [int(n) for n in re.findall(r'^(?:message |[,\[]).*"n": (\d+)', output.read_text(), re.MULTILINE)]

        console.change(append=[0, 4])
        with running_program(PROGRAMS[language], code, output):
            wait_until(lambda: received() == [n for n in selected if n < 4])
            end_streams(console.server)
            console.change(append=[4, 6])
            wait_until(lambda: received() == [n for n in selected if n < 10])
            wait_until(lambda: saved in position.read_text())
        console.change(append=[10, 3])
        with running_program(PROGRAMS[language], code, output):
            wait_until(lambda: len(received()) >= len(selected))

        assert selected == received()

    def test_the_program_of_finite_reads_continues_after_lost_records(self, console, tmp_path):
        console.change(append=[0, 3])
        console.open("explore?stream=values")
        console.click("#code-open")
        console.click("#tab-chunks")
        code = console.text("#code")
        output = tmp_path / "output"

        with running_program(PROGRAMS["chunks"], code, output):
            wait_until(lambda: b'"n": 2' in output.read_bytes())
        console.change(recreate=True, append=[7, 1])
        with running_program(PROGRAMS["chunks"], code, output):
            wait_until(lambda: b'"n": 7' in output.read_bytes())

        assert 1 == output.read_bytes().count(b'"n": 7')


@pytest.mark.processes
class TestPrograms:
    """The programs of the console, without a browser, and that of the docs, against a server that follows a script."""

    @pytest.fixture
    def program(self, tmp_path):
        """Returns a function that runs a program for a script of responses while the block runs."""

        @contextmanager
        def program(language: str, *script: Raw, credentials: str = "") -> Iterator[tuple[ScriptedServer, Path]]:
            server = ScriptedServer(script)
            options = {
                "url": server.url,
                "file": "t.position",
                "lastEventId": "",
                "startsAtEnd": True,
                "credentials": credentials,
            }
            (tmp_path / "snippets.mjs").write_bytes((ASSETS / "snippets.js").read_bytes())
            words = (
                f'import {{ snippets }} from "./snippets.mjs"; console.log(snippets.{language}({json.dumps(options)}))'
            )
            command = ["node", "--input-type=module", "-e", words]
            code = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
            with closing(server), running_program(PROGRAMS[language], code, tmp_path / "output"):
                yield server, tmp_path / "output"

        return program

    @pytest.mark.parametrize("language", PROGRAMS)
    def test_sends_the_cookie_of_a_login(self, program, tmp_path, language):
        shutil.copy(ROOT / "kafkasse/assets/javascript/kafkasse.js", tmp_path / "kafkasse.mjs")
        with program(language, Raw(b"", "stays"), credentials="cookie") as (server, _):
            wait_until(lambda: server.requests)

        assert "session=s" == server.requests[0]["cookie"]

    def test_pages_of_a_proxy_do_not_move_the_position(self, program):
        """A redirect to a login page, and a page with the status 200."""

        def chunk(n: int) -> Raw:
            return response("200 OK", f"[{n}]", f"Stream-Next-Offset: b{n}.x", "Content-Type: application/json")

        pages = response("302 Found", "", "Location: /login"), response("200 OK", "<p>", "Content-Type: text/html")
        with program("chunks", chunk(1), *pages, chunk(2), Raw(b"", "stays")) as (server, output):
            wait_until(lambda: len(server.lines) == 5)

        offsets = [re.search("offset=(.*?)&", line)[1] for line in server.lines]  # type: ignore[index]
        assert ["now", "b1.x", "b1.x", "b1.x", "b2.x"] == offsets
        assert "[1]\n[2]\n" == output.read_text()

    def test_an_empty_line_is_a_part_of_the_data(self, program):
        with program("curl", Sends(EMPTY_LINES + message(3))) as (_, output):
            wait_until(lambda: b'"n"' in output.read_bytes())

        assert 'message \nb\nmessage \nmessage {"n":3}\n' == output.read_text()

    def test_an_empty_line_is_a_part_of_the_data_in_the_docs(self, tmp_path):
        output = tmp_path / "output"
        example = code("docs/clients.md", "bash")[0]
        with (
            closing(ScriptedServer([Sends(EMPTY_LINES + message(3))])) as server,
            running_program(["bash", "-s", server.url, "position"], example, output),
        ):
            wait_until(lambda: b'"n"' in output.read_bytes())

        assert '\nb\n\n{"n":3}\n' == output.read_text()


def response(status: str, body: str, *fields: str) -> Raw:
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *fields])
    return Raw(f"{head}\r\n\r\n{body}".encode())


@contextmanager
def running_program(words: list[str], code: str, output: Path) -> Iterator[None]:
    """Run a program that it reads from stdin. Kill it, and its child processes, at the end."""
    environ = {"PATH": os.environ["PATH"], "TOKEN": TOKEN, "COOKIE": "session=s"}
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
    def test_shows_the_pipelines(self, console):
        """A value of the wrong type is a dash. A hidden page has no stream, because a browser opens six connections."""
        show = (
            "Object.defineProperty(document, 'visibilityState', { value: arguments[0], configurable: true });"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
        status = {"pipeline": "topn", "state": "waiting", "reason": "no Kafka", "lag_records": 7, "lag_s": 2.5}
        console.change(pipeline={"pipeline": "a", "state": {"toString": 1}})
        console.change(pipeline=status | {"state": "running"})
        console.change(pipeline=status | {"restarts": MARKUP})
        console.open("operations", TOKEN)
        console.wait_for("#pipelines", "waiting no Kafka")

        cells = console.texts("#pipelines tbody tr > *")
        assert ["topn", "waiting no Kafka", "\u2013", "7 records, 2.5 s"] == cells[:4]
        assert {"\u2013"} == set(cells[4:])
        console.run(show, "hidden")
        wait_until(lambda: [] == open_streams(console.server))
        console.run(show, "visible")
        wait_until(lambda: ["pipelines"] == [stream["route"] for stream in open_streams(console.server)])

    def test_a_pipeline_that_was_killed_is_silent(self, console):
        """It leaves its last state in the topic."""
        now = datetime.now(UTC)
        for name, age_s in (("alive", 0), ("killed", 40)):
            updated = (now - timedelta(seconds=age_s)).isoformat()
            console.change(pipeline={"pipeline": name, "state": "running", "updated": updated})
        console.change(pipeline={"pipeline": "stopped", "state": "stopped", "updated": "2026-01-31T12:00:00Z"})
        console.open("operations", TOKEN)
        console.wait_for("#pipelines", "silent (was running)")

        names = console.texts("#pipelines tbody tr > :first-child")
        states = dict(zip(names, console.texts("#pipelines .badge"), strict=True))
        assert ["running", "silent (was running)", "stopped"] == [
            states[name] for name in ("alive", "killed", "stopped")
        ]

    @pytest.mark.parametrize("status", [503, 403])
    def test_shows_why_it_cannot_read_the_status_of_the_pipelines(self, console, status):
        reject = (
            "const send = fetch, [status] = arguments, detail = 'Kafka does not answer.';"
            "window.fetch = async (url, options) => String(url).includes('/pipelines?') && (window.fetch = send)"
            " ? Response.json({ detail }, { status }) : send(url, options)"
        )
        console.open("streams", TOKEN)
        console.run(reject, status)
        console.go_to("operations")
        console.wait_for("#pipelines-problem", "Kafka does not answer.")

        if status == 403:  # the visitor signs in again
            console.click("#sign-out")
            console.wait_for("#sign-in", "Sign in")  # shown when the server has answered without the token
            console.click("#sign-in")
            console.enter(TOKEN)
        wait_until(lambda: console.text("#pipelines-problem") == "")

    def test_refreshes_after_a_response_that_is_not_complete(self, console):
        """The connection may break while the browser reads the metrics or a list."""
        cut = (
            "const send = fetch, body = () => new ReadableStream({ start: (c) => c.error(new TypeError()) });"
            "window.fetch = async (url, options) => String(url).endsWith(arguments[0]) && (window.fetch = send)"
            " ? new Response(body()) : send(url, options)"
        )
        console.open("operations", TOKEN)
        console.wait_for("#tiles", "Workers")

        for file in ("metrics", "status"):
            console.run(cut, file)
            wait_until(lambda: console.text("#operations-problem") != "")
            wait_until(lambda: console.text("#operations-problem") == "")
        console.go_to("streams")
        console.run(cut, "catalog")
        console.click("#sign-out")
        console.wait_for("#streams-problem", "The server's response is not complete")
        console.click("#streams-problem button")
        wait_until(lambda: console.text("#streams-problem") == "")

    def test_shows_and_ends_streams(self, console):
        """The page shows the workers, Kafka, the routes, the streams and their rates. A stream that ends reconnects."""
        tiles = (
            "return Object.fromEntries([...document.querySelectorAll('.tile')].map((tile) =>"
            " [...tile.children].slice(0, 2).map((part) => part.textContent)))"
        )
        console.open("operations")
        console.wait_for("#operations-problem", "Sign in as an operator.")
        console.click("#sign-in")
        console.enter(TOKEN)
        console.wait_for("#kafka", "Reachable")
        reader = Client(console.server.port, "/orders")
        wait_until(lambda: "orders" in console.text("#open-streams"))
        assert str(console.server.worker) in console.text("#tiles")
        assert {"orders", "values", "mine"} <= set(console.text("#routes").split())

        def sends_events() -> bool:
            console.change(append=[0, 10])
            return console.run(tiles)["Events sent"] not in ("0/s", "\u2013")

        wait_until(sends_events)
        wait_until(lambda: console.run(tiles)["Rings"] != "0\u00a0B")
        figures = console.run(tiles)
        assert ("1", "2") == (figures["Workers"], figures["Open streams"])  # the second stream is the page's own
        assert all(re.match(r"\d", figures[name]) for name in ("Catching up", "Event loop stalls", "Rejections"))

        console.click("#open-streams button[aria-label$='of orders']")

        reader.rest()
        wait_until(lambda: "orders" not in console.text("#open-streams"))


class TestAppearance:
    VIEWS = ("streams", "explore?stream=orders&start=earliest", "operations")

    def prepare(self, console: Console, view: str) -> None:
        console.open(view, TOKEN)
        if view.startswith("explore"):
            console.change(append=[0, 50], tombstone="k")
            console.read()
            console.wait_for_number("#deletes", 1)
            console.select("message")
        elif view == "operations":
            console.wait_for("#kafka", "Reachable")

    @pytest.mark.parametrize("view", first_of(*VIEWS))
    def test_is_accessible(self, console, view):
        """Neither axe-core nor Chromium reports a problem, in light and in dark colors, at any width."""
        console.messages()  # discards earlier messages
        self.prepare(console, view)

        console.check_widths(320, 768, 1280, 3840)

        assert [] == console.messages()
        for scheme, width_px in [("light", 1280), ("dark", 1280), ("light", 320)]:
            if isinstance(console.browser, Firefox):
                break  # axe-core runs in Chromium
            console.emulate(prefers_color_scheme=scheme)
            console.resize(width_px)
            assert [] == violations(console.chromium), f"{scheme}, {width_px} px"

    def test_the_list_is_near_the_top_of_a_narrow_screen(self, console):
        """The filters are closed, and the page shows how many are active. The user can open them."""
        console.resize(320, 800)
        console.explore("stream=orders&f.key=k1&f.filter=value.n > 1")

        assert "Filters (2 active)" == console.text("#filters summary")
        assert console.run("return document.querySelector('#list').getBoundingClientRect().top") < 800
        assert "" == console.text("#filter-fields")
        console.click("#filters summary")
        assert "Expression" in console.text("#filter-fields")
        console.resize(1280)
        console.open("explore")
        assert "Expression" in console.text("#filter-fields")


@pytest.mark.long
@pytest.mark.parametrize("format", ["sse", "ndjson"])
def test_receives_each_event_once_while_workers_are_killed(any_browser, broker, cluster, fresh_name, format):
    """The worker that serves the page is killed four times during writes, the last time while the list is paused."""
    topic = cluster.create(fresh_name, partitions=3)
    environment = {"KAFKASSE_BOOTSTRAP_SERVERS": broker.bootstrap_servers, "KAFKASSE_ALLOWED_TOPICS": topic}
    with (
        Server(WEB_CONCURRENCY="2", **environment) as server,
        closing(Writer(broker.bootstrap_servers)) as writer,
        closing(Witness(broker.bootstrap_servers, [topic])) as witness,
    ):
        server.expect(KILLED)
        console = Console(any_browser, server)
        console.explore(f"stream=topics&p.topics={topic}&start=earliest&format={format}")
        writing = gevent.spawn(write_numbers, writer, topic, 0, MAX_EVENTS)
        for is_last in (False, False, False, True):
            received = console.number("#messages")
            wait_until(lambda before=received: console.number("#messages") > before)
            if is_last:
                console.click("#pause")
            os.kill(worker_with_stream(server), signal.SIGKILL)
        received = console.number("#messages")
        wait_until(lambda: console.number("#messages") > received)
        writing.kill()
        writer.flush()
        reached = witness.read()
        console.wait_for_number("#messages", len(witness.stored))
        console.click("#pause")
        console.wait_for_number("#kept", len(witness.stored))
        body = body_of(console.export(), format)
        any_browser.get("about:blank")  # the stream ends before the server stops

    start = json.dumps([topic, *({"topic": topic, "partition": partition, "offset": 0} for partition in range(3))])
    wire = "sse" if format == "sse" else "lines"
    history = checker.History("the page", [topic], [checker.Connection(start, 200, body)], wire=wire)
    assert [] == checker.violations([history], witness.stored, acknowledged=writer.acknowledged, reached=reached)


def write_numbers(writer: Writer, topic: str, first: int, end: int) -> None:
    """Write the records `[first, end)` to three partitions."""
    for n in range(first, end):
        writer.send(topic, n % 3, json.dumps({"n": n}).encode())
        if n % 10 == 0:
            writer.flush()
            gevent.sleep(0.05)
    writer.flush()


def worker_with_stream(server: Server) -> int:
    def pids() -> list[int]:
        streams = fetch(server.port, "/-/streams").json["streams"]
        return [pid for pid in server.workers() if any(stream["id"].startswith(f"{pid}-") for stream in streams)]

    wait_until(lambda: 1 == len(pids()))
    return pids()[0]


def body_of(export: str, format: str) -> bytes:
    """Return the body of a response that contains the exported events."""
    if format == "ndjson":
        return export.encode()
    events = [(json.loads(line), data_in(line)) for line in export.splitlines()]
    return "".join(f"event: {event['event']}\ndata: {data}\nid: {event['id']}\n\n" for event, data in events).encode()


def data_in(line: str) -> str:
    """Return the data of an event in an exported line. JSON is as the server sent it; all other data is a string."""
    data = line.partition(',"data":')[2][:-1]
    return json.loads(data) if data.startswith('"') else data
