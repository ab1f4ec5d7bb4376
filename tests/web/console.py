"""The console in a browser, as a user sees it."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from typing import Any

from selenium import webdriver

from tests.support.firefox import Firefox
from tests.support.server import Server
from tests.support.waiting import wait_until
from tests.web.document import Document

MAX_EVENTS = 10_000  # of kafkasse/assets/console/assets/store.js
MAX_NODES = 3_000
# Keeps what the page saves as a file.
SPY = (
    "window.blobs = []; const create = URL.createObjectURL;"
    "URL.createObjectURL = (blob) => { blobs.push(blob); return create.call(URL, blob); };"
)


class Console(Document):
    def __init__(self, browser: webdriver.Chrome | Firefox, server: Server) -> None:
        super().__init__(browser)
        self.server = server
        self.port = server.port

    def open(self, fragment: str = "", token: str = "") -> None:
        """Open a view of the console in a new document, and wait until it is ready. With a token, sign in first."""
        self.browser.get("about:blank")
        self.browser.get(f"http://127.0.0.1:{self.port}/#/{'' if token else fragment}")
        wait_until(lambda: self.run("return document.documentElement.dataset.ready !== undefined"))
        if token:
            self.click("#sign-in")
            self.enter(token)
            self.wait_for("#session-state", "Signed in")
            self.go_to(fragment)

    def enter(self, token: str) -> None:
        self.type("#token", token)
        self.click("#sign-in-form [type=submit]")

    def go_to(self, fragment: str) -> None:
        """Open a view of the console in the same document, and wait until it shows the stream that the fragment names."""
        self.run("location.hash = arguments[0]", f"#/{fragment}")
        if "stream=" in fragment:
            stream = fragment.partition("stream=")[2].partition("&")[0]
            wait_until(lambda: stream == self.run("return document.querySelector('#stream').value"))

    def explore(self, query: str) -> None:
        """Open the explorer with these parameters, and read until the stream is live."""
        self.open(f"explore?{query}")
        self.read()

    def read(self, count: int | None = None) -> None:
        """Read until the stream is live, and until it has received this many messages."""
        self.click("#read")
        self.wait_for("#state", "Live")
        if count is not None:
            self.wait_for_number("#messages", count)

    def export(self) -> str:
        """Return the text of the file that the page saves."""
        self.run(SPY)
        self.click("#export")
        return str(self.run("return blobs[0].text()"))

    def type(self, selector: str, text: str) -> None:
        """Replace the text of a field, as a user who types does."""
        self.run(
            "const e = document.querySelector(arguments[0]); e.value = arguments[1];"
            "for (const type of ['input', 'change']) e.dispatchEvent(new Event(type, { bubbles: true }))",
            selector,
            text,
        )

    def number(self, selector: str) -> int:
        return int(self.text(selector).replace(",", "") or -1)

    def wait_for_number(self, selector: str, number: int) -> None:
        wait_until(lambda: number == self.number(selector))

    def rows(self) -> list[list[str]]:
        """Return the texts of the rows in view: number, kind, place, key and preview, without the time."""
        script = (
            "return [...document.querySelectorAll('.row')].map((r) =>"
            " [...r.querySelectorAll(':not(.time)')].map((c) => c.textContent))"
        )
        return list(self.run(script))

    def places(self) -> list[str]:
        """Return the partitions and offsets of the rows in view."""
        return [row[2] for row in self.rows()]

    def select(self, text: str) -> None:
        """Select the first row in view that contains a text."""
        self.run(
            "[...document.querySelectorAll('.row')].find((r) => r.textContent.includes(arguments[0])).click()", text
        )

    def change(self, **changes: Any) -> None:
        """Change the topic; see console_app.py."""
        change(self.server, **changes)


def change(server: Server, **changes: Any) -> None:
    connection = HTTPConnection("127.0.0.1", server.port)
    connection.request("POST", "/test", json.dumps(changes), {"Content-Type": "application/json"})
    assert 204 == connection.getresponse().status
    connection.close()
