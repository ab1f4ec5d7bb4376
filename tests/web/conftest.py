"""Real headless browsers. A browser takes seconds to start, so all tests of a process share it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver

from tests.support.examples import first_of
from tests.support.firefox import FIREFOX, Firefox

CHROMIUM, CHROMEDRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --no-proxy-server "
    "--ignore-certificate-errors"
)


@pytest.fixture(scope="session")
def browser(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """Debian's Chromium with a new profile. Without it, the tests are skipped, which fails in CI."""
    if not (CHROMIUM.exists() and CHROMEDRIVER.exists()):
        pytest.skip("Chromium is not installed: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(str(CHROMEDRIVER)))
    yield driver
    driver.quit()


@pytest.fixture(scope="session")
def firefox(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    if not FIREFOX.exists():
        pytest.skip("Firefox is not installed: apt-get install firefox-esr")
    firefox = Firefox(tmp_path_factory.mktemp("firefox"))
    yield firefox
    firefox.quit()


@pytest.fixture(params=first_of("browser", "firefox"), ids=["chromium", "firefox"])
def any_browser(request: pytest.FixtureRequest) -> webdriver.Chrome | Firefox:
    browser: webdriver.Chrome | Firefox = request.getfixturevalue(request.param)
    return browser
