"""Firefox, driven with WebDriver BiDi, because Debian has no driver for it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import websocket

from tests.support.waiting import TIMEOUT_S

FIREFOX = Path("/usr/bin/firefox-esr")


class Firefox:
    """A headless Firefox with a new profile. Its methods for windows have the names of Selenium's."""

    def __init__(self, profile: Path) -> None:
        # A page would otherwise wait for services of Mozilla.
        (profile / "user.js").write_text(
            'user_pref("app.normandy.enabled", false);\n'
            'user_pref("network.proxy.type", 0);\n'
            'user_pref("browser.shell.checkDefaultBrowser", false);\n'
        )
        options = ["--headless", "--no-remote", "--profile", str(profile), "--remote-debugging-port", "0"]
        words = [str(FIREFOX), *options, "about:blank"]
        self._process = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self._socket = websocket.create_connection(
            f"{self._address()}/session", timeout=TIMEOUT_S, suppress_origin=True
        )
        self._last_id = 0
        self._call("session.new", capabilities={})
        self._tab: str = self.window_handles[0]

    def get(self, url: str) -> None:
        """Open a page and wait until it has loaded."""
        self._call("browsingContext.navigate", context=self._tab, url=url, wait="complete")

    def execute_script(self, script: str, *arguments: object) -> Any:
        """Run the body of a function with these arguments, and return its result. Both are JSON."""
        result = self._call(
            "script.callFunction",
            functionDeclaration=f"""async (text) => {{
                const body = async function () {{ {script} }};
                return JSON.stringify((await body.apply(null, JSON.parse(text))) ?? null);
            }}""",
            arguments=[{"type": "string", "value": json.dumps(arguments)}],
            target={"context": self._tab},
            awaitPromise=True,
        )
        if result["type"] != "success":
            raise AssertionError(result["exceptionDetails"]["text"])
        return json.loads(result["result"]["value"])

    def resize(self, width_px: int, height_px: int) -> None:
        """Change the size of the current window's content."""
        self._call("browsingContext.setViewport", context=self._tab, viewport={"width": width_px, "height": height_px})

    @property
    def current_window_handle(self) -> str:
        return self._tab

    @property
    def window_handles(self) -> list[str]:
        return [context["context"] for context in self._call("browsingContext.getTree", maxDepth=0)["contexts"]]

    @property
    def switch_to(self) -> Firefox:
        return self

    def window(self, handle: str) -> None:
        """Use another window or tab, and show it."""
        self._tab = handle
        self._call("browsingContext.activate", context=handle)

    def new_window(self, kind: str) -> None:
        """Open a "window" or a "tab", and use it."""
        self.window(self._call("browsingContext.create", type=kind)["context"])

    def close(self) -> None:
        """Close the current window or tab."""
        self._call("browsingContext.close", context=self._tab)

    def delete_cookies(self) -> None:
        """Delete the cookies of all sites."""
        self._call("storage.deleteCookies")
        assert [] == self._call("storage.getCookies")["cookies"]

    def quit(self) -> None:
        """End Firefox."""
        self._socket.close()
        self._process.terminate()
        self._process.wait(TIMEOUT_S)

    def _address(self) -> str:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if match := re.search(r"BiDi listening on (\S+)", line):
                return match[1]
        raise AssertionError("Firefox exited before it listened.")

    def _call(self, method: str, **parameters: Any) -> Any:
        self._last_id += 1
        self._socket.send(json.dumps({"id": self._last_id, "method": method, "params": parameters}))
        while (answer := json.loads(self._socket.recv())).get("id") != self._last_id:
            pass  # an event
        if answer["type"] == "error":
            raise AssertionError(f"{method}: {answer['message']}")
        return answer["result"]
