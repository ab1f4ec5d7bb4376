"""How soon a web process serves, and how much memory it takes: what counts where a platform starts one for each visitor.

    python bench/coldstart.py [--runs N]

Runs the Procfile's command against one embedded broker. Time counts from exec to the first bytes that a client sees;
memory is that of gunicorn's two processes, before any client has come and after the first one has left.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
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
from statistics import median

from kafka import KafkaAdminClient

from kafkasse.broker import EmbeddedBroker

ROOT = Path(__file__).parents[1]
TOPIC = "coldstart"
SILENCE_S_MAX = 30.0
LOOKS_MAX = 1000  # each is a whole request, so the first finds that the client has left
SOURCES = ("kafkasse", "schemas", "wsgi.py", "gunicorn.conf.py")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    with EmbeddedBroker() as broker:
        admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        admin.create_topics({TOPIC: {"num_partitions": 3, "replication_factor": 1}}, wait_for_metadata=True)
        admin.close()
        figures = [measure(broker.bootstrap_servers) for _ in range(args.runs)]
    print(f"{machine()}; commit {commit()}; {args.runs} runs\n\n| figure | median | worst |\n| --- | --- | --- |")
    for name in figures[0]:
        values = [each[name] for each in figures]
        print(f"| {name} | {median(values):.2f} | {max(values):.2f} |")


def measure(bootstrap_servers: str) -> dict[str, float]:
    """Two starts: one that is asked whether it is healthy, one that is asked for a stream at once."""
    with serving(bootstrap_servers) as (pid, port, began):
        ask(port, "/-/health")
        healthy_s = time.monotonic() - began
        before = memory(pid)
    with serving(bootstrap_servers) as (pid, port, began):
        ask(port, f"/{TOPIC}")
        stream_s, cpu = time.monotonic() - began, cpu_s(pid)
        assert any(not json.loads(ask(port, "/-/health"))["streams"] for _ in range(LOOKS_MAX)), (
            "its end went unnoticed"
        )
        after = memory(pid)
    return {
        "exec to first health answer, s": healthy_s,
        "exec to first stream accepted, s (target 1)": stream_s,
        "CPU time of both processes up to then, s": cpu,
        "memory before any client, MB (target 80)": before,
        "memory after the first client has left, MB (target 80)": after,
    }


@contextmanager
def serving(bootstrap_servers: str) -> Iterator[tuple[int, int, float]]:
    """The Procfile's command. Yields its process id, its port, and when it was started."""
    command = shlex.split((ROOT / "Procfile").read_text().partition(":")[2])
    command[0] = str(Path(sys.executable).with_name(command[0]))
    environment = {
        "PATH": os.defpath,
        "PORT": "0",
        "KAFKASSE_BOOTSTRAP_SERVERS": bootstrap_servers,
        "KAFKASSE_ALLOWED_TOPICS": TOPIC,
    }
    environment["KAFKASSE_ALLOWED_TOPICS"] = "*"
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


def ask(port: int, path: str) -> bytes:
    """The first bytes of an answer; then the connection is closed."""
    connection = HTTPConnection("127.0.0.1", port, timeout=SILENCE_S_MAX)
    connection.request("GET", path)
    response = connection.getresponse()
    assert response.status == 200, response.read()
    first = response.read1()
    response.close()
    connection.close()
    return first


def memory(pid: int) -> float:
    """Megabytes that a container with this process and its children is charged: what they share counts once."""
    each = [dict(re.findall(r"(\w+): +(\d+) kB", Path(f"/proc/{one}/smaps_rollup").read_text())) for one in family(pid)]
    anonymous_kib = sum(int(sizes["Pss_Anon"]) for sizes in each)
    files_kib = max(int(sizes["Rss"]) - int(sizes["Anonymous"]) for sizes in each)
    return (anonymous_kib + files_kib) * 1024 / 1e6


def cpu_s(pid: int) -> float:
    """Seconds of CPU that a process and its children have used: less at the mercy of what else runs than a clock is."""
    fields = [Path(f"/proc/{one}/stat").read_text().rpartition(") ")[2].split() for one in family(pid)]
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[str]:
    """The process ids of a process and its children."""
    return [str(pid), *Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def machine() -> str:
    """What the figures hold for."""
    model = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    return f"{os.cpu_count()} cores ({model[1] if model else platform.machine()}), Python {platform.python_version()}"


def commit() -> str:
    """The commit that was measured, with a + where files of the web process differ from it."""
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", *SOURCES], cwd=ROOT, check=False).returncode
    return head.stdout.strip() + "+" * changed


if __name__ == "__main__":
    main()
