"""The measured servers, each started as its users start it, and the resources that their processes use."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from bench.clients import Request

ROOT = Path(__file__).parents[1]
KAFKA_SSE = Path(__file__).with_name(".kafka-sse")
CONSUMER_PER_CLIENT = "consumer-per-client"
CONFLUENT = "confluent-kafka"
NODE = "KafkaSSE"
GUNICORN = ("-m", "gunicorn", "-c", os.devnull)  # otherwise gunicorn reads the gunicorn.conf.py of kafkasse
MAX_CONFLUENT_CLIENTS = 200  # each takes one of gthread's threads
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
NPM_TIMEOUT_S = 600.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_LISTENING = re.compile(r"Listening at: http://127\.0\.0\.1:(\d+)")
_BOOTED = re.compile(r"Booting worker with pid: (\d+)")


@dataclass(frozen=True, slots=True)
class Server:
    """A running server.

    Attributes:
        name: its name in the tables.
        port: its port on 127.0.0.1.
        pids: the processes that serve clients.
        opened: a stream is open when the response contains these bytes.
    """

    name: str
    port: int
    pids: tuple[int, ...]
    opened: bytes

    def request(self, path: str, headers: str = "") -> Request:
        """Return the request for a stream of this server."""
        return Request(self.port, path, self.opened, headers)

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
def kafkasse(bootstrap_servers: str, workers: int = 1, **settings: str) -> Iterator[Server]:
    """`kafkasse serve`. Settings are those of the schema, as text."""
    words = ["-m", "kafkasse", "serve", "--bind", "127.0.0.1:0", "--workers", str(workers)]
    environment = {
        f"KAFKASSE_{name.upper()}": text for name, text in {"allowed_topics": "*", "public": "true", **settings}.items()
    }
    with _running([sys.executable, *words, "--bootstrap-servers", bootstrap_servers], environment) as output:
        port, pids = output.wait_for(_LISTENING, 1), output.wait_for(_BOOTED, workers)
        yield Server("kafkasse", port[0], tuple(pids), b"\nid: ")


@contextmanager
def consumer_per_client(bootstrap_servers: str) -> Iterator[Server]:
    """bench.consumer_per_client: one KafkaConsumer for each client."""
    words = [*GUNICORN, "-k", "gevent", "--worker-connections", "10000", "-b", "127.0.0.1:0"]
    environment = {"BENCH_BOOTSTRAP_SERVERS": bootstrap_servers}
    with _running(
        [sys.executable, *words, "--no-control-socket", "bench.consumer_per_client:app"], environment
    ) as output:
        port, pids = output.wait_for(_LISTENING, 1), output.wait_for(_BOOTED, 1)
        yield Server(CONSUMER_PER_CLIENT, port[0], tuple(pids), b":ok")


@contextmanager
def confluent(bootstrap_servers: str) -> Iterator[Server]:
    """bench.confluent_server: one consumer of confluent-kafka for each client."""
    require("confluent_kafka")
    words = [*GUNICORN, "-k", "gthread", "--threads", str(MAX_CONFLUENT_CLIENTS), "-b", "127.0.0.1:0"]
    environment = {"BENCH_BOOTSTRAP_SERVERS": bootstrap_servers}
    with _running([sys.executable, *words, "--no-control-socket", "bench.confluent_server:app"], environment) as output:
        port, pids = output.wait_for(_LISTENING, 1), output.wait_for(_BOOTED, 1)
        yield Server(CONFLUENT, port[0], tuple(pids), b":ok")


@contextmanager
def kafka_sse(bootstrap_servers: str, modules: Path) -> Iterator[Server]:
    """KafkaSSE, from `modules`/node_modules."""
    script = Path(__file__).with_name("kafka_sse_server.js")
    # Each consumer of node-rdkafka blocks a thread of libuv's pool. KafkaSSE's own tests enlarge the pool too.
    with _running(["node", str(script), str(modules), bootstrap_servers], {"UV_THREADPOOL_SIZE": "128"}) as output:
        port = output.wait_for(_LISTENING, 1)
        yield Server(NODE, port[0], (output.pid,), b":ok")


def require(*modules: str) -> None:
    """Exit if one of these modules is not installed, and print how to install it."""
    if missing := [each for each in modules if find_spec(each) is None]:
        sys.exit(f"python -m bench: {', '.join(missing)} not found. Run: pip install -r bench/requirements.txt")


def kafka_sse_missing(modules: Path, install: bool) -> str:
    """Build KafkaSSE with npm in `modules` if it is missing and `install`. Returns why it cannot be measured, or ""."""
    if not shutil.which("node") or not shutil.which("npm"):
        return "node and npm are not installed"
    if (modules / "node_modules" / "kafka-sse").exists():
        return ""
    if not install:
        return "a full run builds it"
    modules.mkdir(parents=True, exist_ok=True)
    try:
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(modules), "kafka-sse@0.4.2"]
        subprocess.run(command, check=True, capture_output=True, timeout=NPM_TIMEOUT_S)
    except (subprocess.SubprocessError, OSError) as error:
        return f"npm failed to build it ({type(error).__name__})"
    return ""


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
