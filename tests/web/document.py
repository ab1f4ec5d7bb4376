"""A document in a browser, as a user sees it."""

from __future__ import annotations

from typing import Any

from selenium import webdriver

from tests.support.firefox import Firefox
from tests.support.waiting import wait_until


class Document:
    def __init__(self, browser: webdriver.Chrome | Firefox) -> None:
        self.browser = browser

    def run(self, script: str, *arguments: object) -> Any:
        return self.browser.execute_script(script, *arguments)

    def click(self, selector: str) -> None:
        click = "const e = document.querySelector(arguments[0]), seen = e.checkVisibility(); e.click(); return seen"
        assert self.run(click, selector)

    def text(self, selector: str) -> str:
        """Return the visible text of the first matching element, or "" if it is hidden or missing."""
        script = "const e = document.querySelector(arguments[0]); return e?.checkVisibility() ? e.innerText : '';"
        return str(self.run(script, selector))

    def texts(self, selector: str) -> list[str]:
        """Return the texts of all matching elements, visible or not."""
        return list(self.run("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector))

    def wait_for(self, selector: str, text: str) -> None:
        wait_until(lambda: text in self.text(selector))

    def emulate(self, **features: str) -> None:
        """Emulate media features in Chromium, such as prefers_color_scheme="dark". Others are as on the machine."""
        named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": named})

    def resize(self, width_px: int, height_px: int = 900) -> None:
        if isinstance(self.browser, Firefox):
            self.browser.resize(width_px, height_px)
            return
        size = {"width": width_px, "height": height_px, "deviceScaleFactor": 1, "mobile": False}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def check_widths(self, *widths_px: int) -> None:
        """Check that the document needs no sideways scrolling at any of these widths."""
        for width_px in widths_px:
            self.resize(width_px)
            fits = self.run("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")
            assert fits, f"{width_px} px"

    def messages(self) -> list[str]:
        """Return and discard the messages in Chromium's console, with their levels."""
        if isinstance(self.browser, Firefox):
            return []
        entries = self.browser.get_log("browser")  # type: ignore[no-untyped-call]
        return [f"{entry['level']} {entry['message']}" for entry in entries]

    @property
    def chromium(self) -> webdriver.Chrome:
        assert isinstance(self.browser, webdriver.Chrome)
        return self.browser
