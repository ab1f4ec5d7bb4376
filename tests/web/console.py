"""The console in a browser, as a user sees it."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from typing import Any

from selenium import webdriver

from tests.support.firefox import Firefox
from tests.support.server import Server
from tests.support.waiting import wait_until

MAX_EVENTS = 10_000  # of kafkasse/web/console/assets/store.js
MAX_NODES = 3_000


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
