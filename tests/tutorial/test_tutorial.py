"""Readers who follow the tutorials literally, with a real Kafka broker, gunicorn, and Chromium or Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from tests.support.examples import first_of
from tests.support.ports import reserved_ports
from tests.support.server import ROOT
from tests.tutorial.walk import LIMIT_S, Walk
from tests.web.conftest import browser as browser

EXAMPLE = ROOT / "examples/tutorial"


@pytest.fixture
def walk(processes: None, tmp_path: Path, is_full: bool, page: str) -> Iterator[Walk]:
    home = tmp_path / "home"
    home.mkdir()
    # The path of a Unix socket must be short.
    with reserved_ports("app", "kafka") as ports, TemporaryDirectory() as runtime:
        walk = Walk(home, runtime, ports["app"], ports["kafka"], is_full, page)
        yield walk
        walk.stop()


@pytest.fixture
def own_browser(browser: webdriver.Chrome) -> Iterator[webdriver.Chrome]:
    """The browser, which keeps no page and no login for other tests."""
    yield browser
    browser.get("about:blank")
    browser.execute_cdp_cmd("Network.clearBrowserCookies", {})


class Visitor:
    """A person who uses the shop in a browser."""

    def __init__(self, browser: webdriver.Chrome, url: str) -> None:
        self.browser = browser
        browser.get(url)

    def sign_in(self, name: str, password: str) -> None:
        self._find(By.NAME, "name").send_keys(name)
        self._find(By.NAME, "password").send_keys(password)
        self.press("Sign in")

    def press(self, button: str) -> None:
        self._find(By.XPATH, f"//button[.='{button}']").click()

    def wait_for_orders(self, **statuses: str) -> None:
        """Wait until the page shows exactly these orders with their statuses."""
        script = """return Object.fromEntries([...document.querySelectorAll(".card[id]")].map(
            (card) => [card.id.replace("-", "_"), card.querySelector(".status").innerText]));"""
        self._wait_until(lambda: self.browser.execute_script(script), statuses)

    def wait_for_state(self, state: str) -> None:
        script = "return document.querySelector('#state')?.dataset.name"
        self._wait_until(lambda: self.browser.execute_script(script), state)

    def _find(self, by: str, value: str) -> WebElement:
        """Wait for an element, because a click returns before the next page is complete."""
        return WebDriverWait(self.browser, LIMIT_S).until(lambda browser: browser.find_element(by, value))

    def _wait_until(self, read: Callable[[], object], expected: object) -> None:
        with suppress(TimeoutException):
            WebDriverWait(self.browser, LIMIT_S, poll_frequency=0.05).until(lambda _: read() == expected)
        assert expected == read()


@pytest.mark.long
@pytest.mark.parametrize("page", ["docs/pipeline-tutorial.md"])
@pytest.mark.parametrize("is_full", [False, True])
def test_a_reader_who_follows_the_tutorial_gets_the_pipeline(walk):
    walk.to_the_end()


@pytest.mark.parametrize("page", ["docs/tutorial.md"])
@pytest.mark.parametrize("is_full", first_of(False, True))
def test_a_reader_who_follows_the_tutorial_gets_the_app(walk, own_browser):
    walk.until("Open http://127.0.0.1")
    visitor = Visitor(own_browser, walk.url)
    visitor.wait_for_orders(order_1001="delivered", order_1002="shipped", order_1003="paid", order_1004="paid")
    walk.until("## 6.")
    visitor.wait_for_orders(order_1001="delivered", order_1002="shipped", order_1003="paid", order_1004="shipped")

    walk.until("Reload the page, and sign in")
    own_browser.refresh()
    visitor.sign_in("grace", "compiler")
    visitor.wait_for_orders(order_1001="delivered", order_1002="shipped", order_1003="paid", order_1004="shipped")

    walk.until("`grace` sees one order")
    own_browser.refresh()
    visitor.wait_for_orders(order_1003="paid")
    visitor.press("Sign out")
    visitor.sign_in("ada", "analytical")
    visitor.wait_for_orders(order_1001="delivered", order_1002="shipped", order_1004="shipped")

    walk.until("The page now says that it is reconnecting")
    visitor.wait_for_state("retrying")
    walk.until("the page shows the new order")
    visitor.wait_for_orders(order_1001="delivered", order_1002="shipped", order_1004="shipped", order_1005="paid")

    walk.until("To see the open streams")
    own_browser.refresh()
    visitor.wait_for_state("open")
    walk.to_the_end()
    files = [file.relative_to(EXAMPLE) for file in EXAMPLE.rglob("*") if file.is_file() and file.suffix != ".pyc"]
    assert {file: (EXAMPLE / file).read_text() for file in files} == {
        file: (walk.folder / file).read_text() for file in files
    }
