"""The clients: how to build each one, and the command that reads a stream and prints each event as one line of JSON."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from tests.support.docs import example
from tests.support.server import ROOT

SOURCES = Path(__file__).parent / "programs"
BUILD = ROOT / "build" / "clients"
JAVASCRIPT = ROOT / "kafkasse" / "assets" / "javascript"
BUILD_TIMEOUT_S = 900.0
PRINTED = re.compile(r"EVENT ([\w%.!~*'()-]+)")  # an event in a browser's log
CHROMIUM_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --no-proxy-server --enable-logging=stderr"
)


class Printed(NamedTuple):
    """An event that a client printed."""

    event: str
    id: str
    data: str


class Toolchain(NamedTuple):
    """What is needed to build and run the programs of one language, or a browser.

    Attributes:
        build: the command that builds the programs in a copy of the folder; "" if there is nothing to build.
    """

    folder: str
    version: str
    oldest: tuple[int, int]
    build: str = ""


NODE = Toolchain("node", "node --version", (20, 0), "npm ci --no-audit --no-fund --loglevel=error")
GO = Toolchain("go", "go version", (1, 23), "go build -o client .")
JAVA = Toolchain("java", "java --version", (11, 0), "mvn -q -B dependency:copy-dependencies -DoutputDirectory=lib")
RUST = Toolchain("rust", "cargo --version", (1, 95), "cargo build --locked --quiet")
# On Debian, the packages mono-mcs and libmono-system-net-http4.0-cil.
MONO = Toolchain("csharp", "mono --version", (6, 8), "mcs -r:System.Net.Http.dll -out:client.exe Client.cs")
CURL = Toolchain("", "curl --version", (7, 76))
PYTHON = Toolchain("python", f"{sys.executable} --version", (3, 11))
CHROMIUM = Toolchain("browser", "chromium --version", (100, 0))
FIREFOX = Toolchain("browser", "firefox-esr --version", (100, 0))


class Program(NamedTuple):
    """A client.

    Attributes:
        command: returns the command for the folder with the built program, an empty folder and the URL of the stream.
        has_token: whether the stream needs a token. The program gets one at `/-/token`; it expires soon.
        end: the signal that ends the program, before the scenario starts it again with the position that it has stored;
            None if it stores none.
    """

    name: str
    toolchain: Toolchain
    command: Callable[[Path, Path, str], Sequence[str]]
    has_token: bool = False
    end: signal.Signals | None = None


def _node(library: str) -> Callable[[Path, Path, str], Sequence[str]]:
    return lambda built, _, url: ["node", str(built / "client.mjs"), library, url]


def _go(library: str) -> Callable[[Path, Path, str], Sequence[str]]:
    return lambda built, _, url: [str(built / "client"), library, url]


def _rust(library: str) -> Callable[[Path, Path, str], Sequence[str]]:
    return lambda built, _, url: [str(built / "target" / "debug" / "client"), library, url]


def _python(file: str) -> Callable[[Path, Path, str], Sequence[str]]:
    return lambda built, _, url: [sys.executable, str(built / file), url]


def _browser(browser: Callable[[Path, str], Sequence[str]], page: str) -> Callable[[Path, Path, str], Sequence[str]]:
    """Return a function that returns the command which opens a page of app.py."""

    def command(_: Path, profile: Path, url: str) -> Sequence[str]:
        scheme_and_host, path = re.fullmatch(r"(http://[^/]+)(/.*)", url).groups()  # type: ignore[union-attr]
        return browser(profile, f"{scheme_and_host}/-/{page}?stream={path}")

    return command


def _chromium(profile: Path, url: str) -> Sequence[str]:
    return ["chromium", *CHROMIUM_FLAGS.split(), f"--user-data-dir={profile}", url]


def _firefox(profile: Path, url: str) -> Sequence[str]:
    (profile / "user.js").write_text('user_pref("devtools.console.stdout.content", true);\n')
    return ["firefox-esr", "--headless", "--no-remote", "--profile", str(profile), url]


def _cat(_: Path, directory: Path, url: str) -> Sequence[str]:
    options = ["--output", "json", "--position-file", str(directory / "position")]
    return [sys.executable, "-m", "kafkasse", "cat", url, *options]


def _curl(_: Path, directory: Path, url: str) -> Sequence[str]:
    record = '''[ "$event" = message ] && printf '%s\\n' "${data#?}"'''
    quoted = r'''"${id//\"/\\\"}" "${data//\"/\\\"}"'''
    printed = (
        f"""data=${{data#?}}; [ "$data" ] && printf '{{"event":"%s","id":"%s","data":"%s"}}\\n' "$event" {quoted}"""
    )
    script = docs_example("while IFS= read -r line")
    assert record in script
    script = script.replace("curl -sSN", "curl -sN")  # an error message could end up in the middle of an event
    return ["bash", "-c", script.replace(record, printed), "bash", url, str(directory / "position")]


PROGRAMS = [
    Program("kafkasse.js in Node", NODE, _node("kafkasse"), True, signal.SIGKILL),
    Program("kafkasse.js in Chromium", CHROMIUM, _browser(_chromium, "read"), has_token=True),
    Program("kafkasse.js in Chromium, shared", CHROMIUM, _browser(_chromium, "share"), has_token=True),
    Program("kafkasse.js in Firefox", FIREFOX, _browser(_firefox, "read"), has_token=True),
    Program("kafkasse-client on requests", PYTHON, _python("with_kafkasse.py"), True, signal.SIGKILL),
    Program("kafkasse-client on aiohttp", PYTHON, _python("with_kafkasse_async.py"), True, signal.SIGKILL),
    Program("kafkasse cat", PYTHON, _cat, end=signal.SIGTERM),
    Program("EventSource in Chromium", CHROMIUM, _browser(_chromium, "follow")),
    Program("EventSource in Firefox", FIREFOX, _browser(_firefox, "follow")),
    Program("eventsource 2.0.2", NODE, _node("eventsource-2")),
    Program("eventsource 4.1.1", NODE, _node("eventsource")),
    Program("@microsoft/fetch-event-source 2.0.1", NODE, _node("fetch-event-source")),
    Program("launchdarkly-eventsource 2.2.0", NODE, _node("launchdarkly-eventsource")),
    Program("httpx-sse 0.4.3", PYTHON, _python("with_httpx_sse.py")),
    Program("aiohttp-sse-client 0.2.1", PYTHON, _python("with_aiohttp_sse_client.py")),
    Program("r3labs/sse 2.10.0", GO, _go("r3labs-sse")),
    Program("tmaxmax/go-sse 0.11.0", GO, _go("go-sse")),
    Program(
        "okhttp-eventsource 4.1.1",
        JAVA,
        lambda built, _, url: ["java", "-cp", str(built / "lib" / "*"), str(built / "Client.java"), url],
    ),
    Program("bash and curl", CURL, _curl, end=signal.SIGKILL),
    Program("HttpClient on Mono", MONO, lambda built, _, url: ["mono", str(built / "client.exe"), url]),
    Program("reqwest-eventsource 0.6.0", RUST, _rust("reqwest-eventsource")),
    Program("eventsource-client 0.18.0", RUST, _rust("eventsource-client")),
]

# `make test` runs these clients: ours, and what browsers provide. tests/web has kafkasse.js in Chromium.
IN_GATE = {
    "kafkasse.js in Node",
    "kafkasse-client on requests",
    "kafkasse-client on aiohttp",
    "EventSource in Chromium",
}


def docs_example(part: str, page: str = "docs/clients.md") -> str:
    return example(page, part)


@cache
def missing(toolchain: Toolchain) -> str | None:
    """Return why a toolchain cannot be used, or None."""
    names = [command.split()[0] for command in (toolchain.version, toolchain.build) if command]
    for name in names:
        if shutil.which(name) is None:
            return f"{name} is not installed"
    done = subprocess.run(toolchain.version.split(), capture_output=True, text=True, check=False)
    match = re.search(r"(\d+)(?:\.(\d+))?", done.stdout)
    if match is None or (int(match[1]), int(match[2] or 0)) < toolchain.oldest:
        return f"{names[0]} is older than {'.'.join(map(str, toolchain.oldest))}"
    return None


@cache
def build(toolchain: Toolchain) -> Path:
    """Build the programs of a toolchain in `build/clients/`, and return the folder."""
    if not toolchain.build:
        return SOURCES / toolchain.folder
    folder = BUILD / toolchain.folder
    shutil.copytree(SOURCES / toolchain.folder, folder, dirs_exist_ok=True)
    done = subprocess.run(
        toolchain.build.split(), cwd=folder, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{toolchain.build} failed:\n{done.stdout}{done.stderr}"
    return folder


def printed(line: str) -> Printed | None:
    """Return the event in a line of output, or None."""
    text = unquote(match[1]) if (match := PRINTED.search(line)) else line
    try:
        event: dict[str, Any] = json.loads(text)
    except ValueError:
        return None
    if "type" in event:  # of `kafkasse cat`, which copies data that is JSON
        return Printed(event["type"], event["id"], text.rstrip().partition(',"data":')[2][:-1])
    return Printed(event["event"] or "message", event["id"] or "", event["data"])


def environment() -> dict[str, str]:
    """Return the environment variables of the clients: those of this process without proxy settings, and KAFKASSE_JS."""
    own = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    return own | {"KAFKASSE_JS": (JAVASCRIPT / "kafkasse.js").as_uri()}
