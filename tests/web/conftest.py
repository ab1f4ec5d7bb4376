"""Real headless browsers, and a log with a client for tests of requests.

A browser takes seconds to start, so all tests of a process share it. Each test gets a tab without the windows, cookies,
stored data and emulated features of earlier tests. It is the tab of the last test, unless that test has opened others,
because a new tab takes as long as a page.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from selenium import webdriver

from kafkasse.log.memory import MemoryLog
from kafkasse.web import finite_reads
from tests.support.examples import first_of
from tests.support.firefox import FIREFOX, Firefox
from tests.web.clients import client_of

SCRIPT_TIMEOUT_S = 120
CHROMIUM, CHROMEDRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --no-proxy-server "
    "--ignore-certificate-errors --disable-extensions --disable-features=SpareRendererForSitePerProcess "
    "--renderer-process-limit=1"
)


AnyBrowser = webdriver.Chrome | Firefox
CHROMIUM_KEY, FIREFOX_KEY = pytest.StashKey[webdriver.Chrome](), pytest.StashKey[Firefox]()


@pytest.fixture
def browser(
    processes: None, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[webdriver.Chrome]:
    """Debian's Chromium. Without it, the tests are skipped, which fails in CI."""
    if not (CHROMIUM.exists() and CHROMEDRIVER.exists()):
        pytest.skip("Chromium is not installed: apt-get install chromium chromium-driver")
    if CHROMIUM_KEY not in pytestconfig.stash:
        pytestconfig.stash[CHROMIUM_KEY] = start_chromium(tmp_path_factory.mktemp("chromium"))
        pytestconfig.add_cleanup(pytestconfig.stash[CHROMIUM_KEY].quit)
    driver = pytestconfig.stash[CHROMIUM_KEY]
    if len(driver.window_handles) > 1:
        use_new_tab(driver)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
    driver.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": "*", "storageTypes": "all"})
    assert [] == driver.execute_cdp_cmd("Network.getAllCookies", {})["cookies"]
    yield driver
    driver.get("about:blank")  # ends the streams of the page before their server stops


@pytest.fixture
def firefox(
    processes: None, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Firefox]:
    if not FIREFOX.exists():
        pytest.skip("Firefox is not installed: apt-get install firefox-esr")
    if FIREFOX_KEY not in pytestconfig.stash:
        pytestconfig.stash[FIREFOX_KEY] = Firefox(tmp_path_factory.mktemp("firefox"))
        pytestconfig.add_cleanup(pytestconfig.stash[FIREFOX_KEY].quit)
    firefox = pytestconfig.stash[FIREFOX_KEY]
    use_new_tab(firefox)
    firefox.delete_cookies()
    yield firefox
    firefox.get("about:blank")


def start_chromium(profile: Path) -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS.split(), f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options, webdriver.ChromeService(str(CHROMEDRIVER)))


def use_new_tab(browser: AnyBrowser) -> None:
    """Open a tab and close all other windows and tabs, with their session storage."""
    used = browser.window_handles
    browser.switch_to.new_window("tab")
    tab = browser.current_window_handle
    for handle in used:
        browser.switch_to.window(handle)
        browser.close()
    browser.switch_to.window(tab)
    assert [tab] == browser.window_handles
    assert "about:blank" == browser.execute_script("return location.href")


@pytest.fixture(params=first_of("browser", "firefox"), ids=["chromium", "firefox"])
def any_browser(request: pytest.FixtureRequest) -> AnyBrowser:
    browser: AnyBrowser = request.getfixturevalue(request.param)
    return browser


def run_in_page(browser: webdriver.Chrome, origin: str, script: str, *arguments: Any) -> Any:
    """Run an asynchronous script in a page of an origin, and return what it passes to done()."""
    browser.set_script_timeout(SCRIPT_TIMEOUT_S)
    browser.get(f"{origin}/-/health")
    return browser.execute_async_script(f"const done = arguments[arguments.length - 1]; {script}", *arguments)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long poll ends soon."""
    monkeypatch.setattr(finite_reads, "LONG_POLL_S", 0.1)


@pytest.fixture
def log() -> MemoryLog:
    """A topic with three records."""
    log = MemoryLog()
    log.create("t")
    for n in range(3):
        log.append("t", b'{"n":%d}' % n, key=b"k%d" % n)
    return log


@pytest.fixture
def client(log: MemoryLog) -> FlaskClient:
    return client_of(log, None)
