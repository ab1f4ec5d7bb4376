"""The servers that are measured, each as its users run it, and what the kernel knows of their processes."""

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
from pathlib import Path

from bench.clients import Place

ROOT = Path(__file__).parents[1]
START_S_MAX = 30.0
STOP_S_MAX = 15.0
NPM_S_MAX = 600.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_LISTENING = re.compile(r"Listening at: http://127\.0\.0\.1:(\d+)")
_BOOTED = re.compile(r"Booting worker with pid: (\d+)")


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs.

    Attributes:
        name: as the tables call it.
        port: where it listens on 127.0.0.1.
        pids: the processes that serve clients.
        opened: the bytes by which a client knows that its stream is open.
    """

    name: str
    port: int
    pids: tuple[int, ...]
    opened: bytes

    def place(self, path: str, headers: str = "") -> Place:
        """A stream of this server."""
        return Place(self.port, path, self.opened, headers)

    def cpu_s(self) -> float:
        """The CPU time that its processes have used so far, user and system, all threads."""
        return sum(time.clock_gettime(_cpu_clock(pid)) for pid in self.pids)

    def memory_bytes(self) -> int:
        """Resident memory of its processes."""
        return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES for pid in self.pids)

    def sockets_to(self, port: int) -> int:
        """How many connections it has to `port` on this machine."""
        rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
        inodes = {row[9] for row in rows if row[2].endswith(f":{port:04X}")}
        held = [_target(link) for pid in self.pids for link in Path(f"/proc/{pid}/fd").iterdir()]
        return sum(target.startswith("socket:[") and target[8:-1] in inodes for target in held)


def _target(link: Path) -> str:
    """Where it leads; "" where it has gone meanwhile."""
    try:
        return str(link.readlink())
    except OSError:
        return ""


@contextmanager
def kafkasse(bootstrap_servers: str, workers: int = 1, **settings: str) -> Iterator[Server]:
    """`kafkasse serve`. Settings are those of the schema, as text."""
    words = ["-m", "kafkasse", "serve", "--bind", "127.0.0.1:0", "--workers", str(workers)]
    environment = {f"KAFKASSE_{name.upper()}": text for name, text in {"allowed_topics": "*", **settings}.items()}
    with _running([sys.executable, *words, "--bootstrap-servers", bootstrap_servers], environment) as output:
        port, pids = output.wait_for(_LISTENING, 1), output.wait_for(_BOOTED, workers)
        yield Server("kafkasse", port[0], tuple(pids), b"\nid: ")


@contextmanager
def naive(bootstrap_servers: str) -> Iterator[Server]:
    """bench.naive, a consumer for each client."""
    words = ["-m", "gunicorn", "-k", "gevent", "--worker-connections", "10000", "-b", "127.0.0.1:0"]
    environment = {"BENCH_BOOTSTRAP_SERVERS": bootstrap_servers}
    with _running([sys.executable, *words, "--no-control-socket", "bench.naive:app"], environment) as output:
        port, pids = output.wait_for(_LISTENING, 1), output.wait_for(_BOOTED, 1)
        yield Server("naive", port[0], tuple(pids), b":ok")


@contextmanager
def kafka_sse(bootstrap_servers: str, modules: Path) -> Iterator[Server]:
    """KafkaSSE, from `modules`/node_modules."""
    script = Path(__file__).with_name("kafka_sse_server.js")
    # node-rdkafka blocks a thread of libuv's pool for each consumer; KafkaSSE's own tests raise their number too.
    with _running(["node", str(script), str(modules), bootstrap_servers], {"UV_THREADPOOL_SIZE": "128"}) as output:
        port = output.wait_for(_LISTENING, 1)
        yield Server("KafkaSSE", port[0], (output.pid,), b":ok")


def install_kafka_sse(modules: Path) -> str:
    """Have npm build KafkaSSE in `modules` unless it is there. Returns why it cannot be measured, or ""."""
    if not shutil.which("node") or not shutil.which("npm"):
        return "node and npm are not installed"
    if not (modules / "node_modules" / "kafka-sse").exists():
        modules.mkdir(parents=True, exist_ok=True)
        try:
            command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(modules), "kafka-sse@0.4.2"]
            subprocess.run(command, check=True, capture_output=True, timeout=NPM_S_MAX)
        except (subprocess.SubprocessError, OSError) as error:
            return f"npm could not build it ({type(error).__name__})"
    return ""


class _Output:
    """What a process prints, read all the time, so that it never waits for a full pipe."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.pid = process.pid
        self._process = process
        self._text = ""
        self._more = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def wait_for(self, pattern: re.Pattern[str], count: int) -> list[int]:
        """The numbers that `pattern` finds, once it has found `count`."""
        with self._more:
            if not self._more.wait_for(lambda: len(pattern.findall(self._text)) >= count, START_S_MAX):
                raise RuntimeError(f"{self._process.args!r} did not start:\n{self._text}")
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
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _cpu_clock(pid: int) -> int:
    """The clock of a process's CPU time, in nanoseconds where /proc counts hundredths of a second.

    Source: Linux, include/linux/posix-timers.h, CPUCLOCK_SCHED of a whole process.
    """
    return (~pid << 3) | 2
