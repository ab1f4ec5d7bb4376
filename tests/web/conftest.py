"""A real headless browser."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver

CHROMIUM, CHROMEDRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --no-proxy-server "
    "--ignore-certificate-errors"
)


@pytest.fixture(scope="session")
def browser(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """Debian's Chromium with a new profile. In CI it must be installed; elsewhere its tests are skipped."""
    if not (CHROMIUM.exists() and CHROMEDRIVER.exists()):
        missing = "CHROMIUM IS MISSING: the page is NOT tested. Install the packages chromium and chromium-driver."
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(str(CHROMEDRIVER)))
    yield driver
    driver.quit()
