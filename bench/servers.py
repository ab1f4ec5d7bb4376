"""The measured servers, each started as its users start it, and the resources that their processes use."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from bench.clients import Request

ROOT = Path(__file__).parents[1]
RIVALS = Path(__file__).with_name("rivals")
KAFKA_SSE_FOLDER = RIVALS / ".kafka-sse"
FRANZ = RIVALS / "franz/.build"
KAFKASSE, STARLETTE, GO = "kafkasse", "Starlette", "Go"
CONFLUENT, KAFKA_SSE = "confluent-kafka", "KafkaSSE"
FLASK_VIEW = "a Flask view"
MAX_CONFLUENT_CLIENTS = 200  # each takes one of gthread's threads
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
BUILD_TIMEOUT_S = 600.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_LISTENING = re.compile(r"(?:Listening at:|running on) https?://127\.0\.0\.1:(\d+)")
_BOOTED = re.compile(r"Booting worker with pid: (\d+)")


@dataclass(frozen=True, slots=True)
class Server:
    """A running server.

    Attributes:
        name: its name in the tables.
        port: its port on 127.0.0.1.
        pids: the processes that serve clients.
        opened: a stream is open when the response contains these bytes.
        tls: the server expects TLS.
    """

    name: str
    port: int
    pids: tuple[int, ...]
    opened: bytes
    tls: bool = False

    def request(self, path: str, headers: str = "") -> Request:
        """Return the request for a stream of this server."""
        return Request(self.port, path, self.opened, headers, self.tls)

    def cpu_s(self) -> float:
        """Return the CPU time of its processes so far: user and system, all threads."""
        return sum(time.clock_gettime(_cpu_clock(pid)) for pid in self.pids)

    def memory_bytes(self) -> int:
        """Return the resident memory of its processes."""
        return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES for pid in self.pids)

    def sockets_to(self, port: int) -> int:
        """Return the number of its connections to `port` on this machine."""
        rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
        inodes = {row[9] for row in rows if row[2].endswith(f":{port:04X}")}
        held = [_target(link) for pid in self.pids for link in Path(f"/proc/{pid}/fd").iterdir()]
        return sum(target.startswith("socket:[") and target[8:-1] in inodes for target in held)


def _target(link: Path) -> str:
    """Return the target of a link, or "" if the link no longer exists."""
    try:
        return str(link.readlink())
    except OSError:
        return ""


@contextmanager
def kafkasse(bootstrap_servers: str, workers: int = 1, gunicorn_options: str = "", **settings: str) -> Iterator[Server]:
    """`kafkasse serve`. Settings are those of the schema, as text."""
    words = ["-m", "kafkasse", "serve", "--bind", "127.0.0.1:0", "--workers", str(workers)]
    settings = {"allowed_topics": "*", "public": "true", "max_streams_per_client": "1000000", **settings}
    environment = {f"KAFKASSE_{name.upper()}": text for name, text in settings.items()}
    environment["GUNICORN_CMD_ARGS"] = gunicorn_options
    with _running([sys.executable, *words, "--bootstrap-servers", bootstrap_servers], environment) as output:
        port, pids = output.wait_for(_LISTENING, 1), output.wait_for(_BOOTED, workers)
        yield Server(KAFKASSE, port[0], tuple(pids), b"\nid: ", "--certfile" in gunicorn_options)


@contextmanager
def starlette(bootstrap_servers: str, topics: Sequence[str]) -> Iterator[Server]:
    """bench.rivals.starlette_app: one consumer of aiokafka for all clients."""
    options = ["--loop", "uvloop", "--http", "httptools", "--no-access-log", "--host", "127.0.0.1", "--port", "0"]
    environment = {"BENCH_BOOTSTRAP_SERVERS": bootstrap_servers, "BENCH_TOPICS": ",".join(topics)}
    command = [sys.executable, "-m", "uvicorn", *options, "bench.rivals.starlette_app:app"]
    with _running(command, environment) as output:
        yield Server(STARLETTE, output.wait_for(_LISTENING, 1)[0], (output.pid,), b":ok")


@contextmanager
def go(bootstrap_servers: str, topics: Sequence[str]) -> Iterator[Server]:
    """bench/rivals/franz: one consumer of franz-go for all clients, on one core."""
    with _running([str(FRANZ), bootstrap_servers, ",".join(topics)], {"GOMAXPROCS": "1"}) as output:
        yield Server(GO, output.wait_for(_LISTENING, 1)[0], (output.pid,), b":ok")


@contextmanager
def confluent(bootstrap_servers: str, _topics: Sequence[str]) -> Iterator[Server]:
    """bench.rivals.confluent_app: one consumer of confluent-kafka for each client."""
    words = ["-c", os.devnull, "-k", "gthread", "--threads", str(MAX_CONFLUENT_CLIENTS), "-b", "127.0.0.1:0"]
    command = [sys.executable, "-m", "gunicorn", *words, "--no-control-socket", "bench.rivals.confluent_app:app"]
    with _running(command, {"BENCH_BOOTSTRAP_SERVERS": bootstrap_servers}) as output:
        port, pids = output.wait_for(_LISTENING, 1), output.wait_for(_BOOTED, 1)
        yield Server(CONFLUENT, port[0], tuple(pids), b":ok")


@contextmanager
def kafka_sse(bootstrap_servers: str, _topics: Sequence[str]) -> Iterator[Server]:
    """KafkaSSE, as npm has installed it."""
    command = ["node", str(RIVALS / "kafka_sse.js"), str(KAFKA_SSE_FOLDER), bootstrap_servers]
    # Each consumer of node-rdkafka blocks a thread of libuv's pool. KafkaSSE's own tests enlarge the pool too.
    with _running(command, {"UV_THREADPOOL_SIZE": "128"}) as output:
        yield Server(KAFKA_SSE, output.wait_for(_LISTENING, 1)[0], (output.pid,), b":ok")


@contextmanager
def flask_view(_bootstrap_servers: str, _topics: Sequence[str]) -> Iterator[Server]:
    """bench.rivals.flask_app, under the same worker of gunicorn as kafkasse."""
    words = ["-c", "python:kafkasse.server.gunicorn_conf", "-b", "127.0.0.1:0", "bench.rivals.flask_app:app"]
    with _running([sys.executable, "-m", "gunicorn", *words], {}) as output:
        port, pids = output.wait_for(_LISTENING, 1), output.wait_for(_BOOTED, 1)
        yield Server(FLASK_VIEW, port[0], tuple(pids), b":ok")


BASELINES: dict[str, Callable[[str, Sequence[str]], AbstractContextManager[Server]]] = {
    GO: go,
    STARLETTE: starlette,
    CONFLUENT: confluent,
    KAFKA_SSE: kafka_sse,
    FLASK_VIEW: flask_view,
}


def missing(build: bool) -> dict[str, str]:
    """Build the Go server, and with `build`, KafkaSSE. Returns why baselines cannot be measured, by name."""
    npm = ["npm", "install", "--no-audit", "--no-fund", "--prefix"]
    modules = KAFKA_SSE_FOLDER / "node_modules/kafka-sse"
    found = {
        GO: _unbuilt(
            FRANZ, ["go", "build", "-C", str(FRANZ.parent), "-o", str(FRANZ), "."], build or not FRANZ.exists()
        ),
        STARLETTE: _not_installed("starlette", "uvicorn", "uvloop", "httptools", "aiokafka"),
        CONFLUENT: _not_installed("confluent_kafka"),
        KAFKA_SSE: _unbuilt(  # takes minutes
            modules, [*npm, str(KAFKA_SSE_FOLDER), "kafka-sse@0.4.2"], build and not modules.exists()
        ),
    }
    return {name: reason for name, reason in found.items() if reason}


def _not_installed(*modules: str) -> str:
    missing = [module for module in modules if find_spec(module) is None]
    return f"{', '.join(missing)} not found. Run: pip install -r bench/requirements.txt" if missing else ""


def _unbuilt(result: Path, command: list[str], build: bool) -> str:
    if build and shutil.which(command[0]):
        result.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
        return done.stderr[-500:] if done.returncode else ""
    return "" if result.exists() else f"{result.name} is not built. `make bench` builds it if {command[0]} is installed"


class _Output:
    """The output of a process. A thread reads it continuously, so that the process never blocks on a full pipe."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.pid = process.pid
        self._process = process
        self._text = ""
        self._more = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def wait_for(self, pattern: re.Pattern[str], count: int) -> list[int]:
        """Wait until `pattern` has matched `count` times. Returns the matched numbers."""
        with self._more:
            if not self._more.wait_for(lambda: len(pattern.findall(self._text)) >= count, START_TIMEOUT_S):
                raise RuntimeError(
                    f"{self._process.args!r} did not start within {START_TIMEOUT_S:.0f} s:\n{self._text}"
                )
            return [int(found) for found in pattern.findall(self._text)]

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            with self._more:
                self._text = (self._text + line)[-10_000:]
                self._more.notify_all()


@contextmanager
def _running(command: list[str], environment: Mapping[str, str]) -> Iterator[_Output]:
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield _Output(process)
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _cpu_clock(pid: int) -> int:
    """Return the ID of the clock of a process's CPU time. It counts nanoseconds; /proc counts hundredths of a second.

    Source: Linux, include/linux/posix-timers.h, CPUCLOCK_SCHED of a whole process.
    """
    return (~pid << 3) | 2
