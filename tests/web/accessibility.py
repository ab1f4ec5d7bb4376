"""Runs axe-core in Chromium."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

from selenium import webdriver

AXE = Path(__file__).with_name("axe-core-4.14.1.min.js.gz")


def violations(driver: webdriver.Chrome) -> list[Any]:
    """Return the rules of WCAG 2.2 AA, and axe-core's best practices, that the current page violates."""
    driver.execute_cdp_cmd("Runtime.evaluate", {"expression": gzip.decompress(AXE.read_bytes()).decode()})
    return list(
        driver.execute_script(
            "const tags = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'];"
            "return axe.run(document, { runOnly: tags }).then(({ violations }) => violations.map(({ id, nodes }) =>"
            " [id, nodes[0].html, nodes[0].failureSummary]))"
        )
    )
