"""Record docs/images/restart.png: `make animation`. Needs Chromium and its driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic
from selenium import webdriver

import kafkasse
from docs.site.animation.apng import animated

ROOT = Path(__file__).parents[3]
PICTURE = ROOT / "docs/images/restart.png"
ORDERS = 36
KILLED_AFTER = 12
PAUSE_S = 0.2
END_S = 2.5
TIMEOUT_S = 30.0
PORT = 8077
URL = f"http://127.0.0.1:{PORT}"
COMMAND = ["gunicorn", "--worker-class", "kafkasse.server.worker.Worker", "docs.site.animation.app:app"]
RECEIVED = "return document.querySelectorAll('.received').length"


def main() -> int:
    """Record the run. Returns the exit code: 1 if the page misses or repeats an order."""
    with kafkasse.EmbeddedBroker() as broker, tempfile.TemporaryDirectory() as folder:
        admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        admin.create_topics([NewTopic("orders", 1, 1)])
        admin.close()
        environment = {**os.environ, "KAFKASSE_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
        server = subprocess.Popen(  # noqa: S603 - a constant command
            [sys.executable, "-m", *COMMAND, "--bind", f"127.0.0.1:{PORT}"], cwd=ROOT, env=environment
        )
        browser = _start_browser(folder)
        try:
            _wait_for_server()
            browser.get(URL)
            producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
            frames = _record(browser, producer)
            counts = browser.execute_script("return document.querySelector('#counts').textContent")
        finally:
            browser.quit()
            server.terminate()
            server.wait()
    if f"received: {ORDERS}   repeated: 0   missing: 0" not in counts:
        sys.stderr.write(f"The page shows: {counts}\n")
        return 1
    PICTURE.write_bytes(animated(frames, PAUSE_S, END_S))
    sys.stdout.write(
        f"{PICTURE.relative_to(ROOT)}: {len(frames)} frames, {PICTURE.stat().st_size // 1000} kB. {counts}\n"
    )
    return 0


def _record(browser: webdriver.Chrome, producer: KafkaProducer) -> list[bytes]:
    """Write the orders, kill the worker, and return the screenshots."""
    frames = []
    number = 0
    deadline = time.monotonic() + TIMEOUT_S
    while browser.execute_script(RECEIVED) < ORDERS and time.monotonic() < deadline:
        next_frame = time.monotonic() + PAUSE_S
        if number < ORDERS:
            number += 1
            producer.send("orders", json.dumps({"number": number}).encode()).get(timeout=TIMEOUT_S)
            browser.execute_script("write(arguments[0])", number)
            if number == KILLED_AFTER:
                _kill_worker(browser)
        frames.append(browser.get_screenshot_as_png())
        time.sleep(max(0.0, next_frame - time.monotonic()))
    return [*frames, browser.get_screenshot_as_png()]


def _kill_worker(browser: webdriver.Chrome) -> None:
    with urlopen(f"{URL}/pid", timeout=TIMEOUT_S) as response:  # noqa: S310 - a constant URL
        pid = int(response.read())
    browser.execute_script("log(arguments[0])", f"$ kill -9 {pid}    # the worker")
    os.kill(pid, signal.SIGKILL)


def _start_browser(folder: str) -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--no-proxy-server", f"--user-data-dir={folder}"):
        options.add_argument(flag)
    browser = webdriver.Chrome(options)
    metrics = {"width": 640, "height": 212, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    return browser


def _wait_for_server() -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            urlopen(URL, timeout=TIMEOUT_S).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


if __name__ == "__main__":
    sys.exit(main())
