"""The time until a new web process serves, and its memory. Some platforms start a process only when a visitor comes.

Runs the Procfile's command. Times are from exec to the first bytes that a client receives.
Memory is that of gunicorn's two processes, before the first client connects and after the first client has left.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

from bench.figures import Figures, Row
from bench.machine import ROOT
from bench.servers import KAFKASSE
from bench.testbed import Testbed

RESPONSE_TIMEOUT_S = 30.0
MAX_HEALTH_CHECKS = 1000
LIMIT = "importing Python modules"
# key, name, unit and goal of each figure, in the order in which runs() returns the values
FIGURES = (
    ("cold_start.health", "exec to first health response", "s", math.nan),
    ("cold_start.stream", "exec to first accepted stream", "s", 1.0),
    ("cold_start.cpu", "CPU time of both processes until then", "s", math.nan),
    ("cold_start.memory.before", "memory before the first client connects", "MB", 80.0),
    ("cold_start.memory.after", "memory after the first client has left", "MB", 80.0),
)


def measure(testbed: Testbed) -> Figures:
    """Measure one start."""
    with testbed.topics(1) as (topic,):
        values = run(testbed.bootstrap_servers, topic)
    return [
        Row(key, KAFKASSE, name, value, unit, goal, LIMIT)
        for (key, name, unit, goal), value in zip(FIGURES, values, strict=True)
    ]


def run(bootstrap_servers: str, topic: str) -> tuple[float, ...]:
    """Start the server twice: once for a health check, and once for a stream. Returns the values of FIGURES."""
    with serving(bootstrap_servers, topic) as (pid, port, began):
        request(port, "/-/health")
        healthy_s = time.monotonic() - began
        memory_before = memory_mb(pid)
    with serving(bootstrap_servers, topic) as (pid, port, began):
        request(port, f"/{topic}")
        stream_s, cpu = time.monotonic() - began, cpu_s(pid)
        no_streams = (json.loads(request(port, "/-/health"))["streams"] == 0 for _ in range(MAX_HEALTH_CHECKS))
        assert any(no_streams), "the server did not notice that the client has left"
        memory_after = memory_mb(pid)
    return healthy_s, stream_s, cpu, memory_before, memory_after


@contextmanager
def serving(bootstrap_servers: str, topic: str) -> Iterator[tuple[int, int, float]]:
    """Run the Procfile's command. Yields its process ID, its port and its start time."""
    command = shlex.split((ROOT / "Procfile").read_text().partition(":")[2])
    command[0] = str(Path(sys.executable).with_name(command[0]))
    environment = {
        "PATH": os.defpath,
        "PORT": "0",
        "KAFKASSE_BOOTSTRAP_SERVERS": bootstrap_servers,
        "KAFKASSE_ALLOWED_TOPICS": topic,
        "KAFKASSE_PUBLIC": "true",
    }
    began = time.monotonic()
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr
            port = next(
                int(found[1]) for line in server.stderr if (found := re.search(r"Listening at: \S+:(\d+)", line))
            )
            yield server.pid, port, began
        finally:
            server.send_signal(signal.SIGTERM)
            server.communicate()


def request(port: int, path: str) -> bytes:
    """Return the first bytes of the response, and close the connection."""
    connection = HTTPConnection("127.0.0.1", port, timeout=RESPONSE_TIMEOUT_S)
    connection.request("GET", path)
    response = connection.getresponse()
    assert response.status == 200, response.read()
    first = response.read1()
    response.close()
    connection.close()
    return first


def memory_mb(pid: int) -> float:
    """Return the memory of a process and its children, in MB, as a container counts it: shared pages count once."""
    each = [dict(re.findall(r"(\w+): +(\d+) kB", Path(f"/proc/{one}/smaps_rollup").read_text())) for one in family(pid)]
    anonymous_kib = sum(int(sizes["Pss_Anon"]) for sizes in each)
    files_kib = max(int(sizes["Rss"]) - int(sizes["Anonymous"]) for sizes in each)
    return (anonymous_kib + files_kib) * 1024 / 1e6


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process and its children. Other load on the machine affects it less than elapsed time."""
    fields = [Path(f"/proc/{one}/stat").read_text().rpartition(") ")[2].split() for one in family(pid)]
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[str]:
    """Return the process IDs of a process and its children."""
    return [str(pid), *Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
