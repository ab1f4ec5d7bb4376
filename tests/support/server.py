"""A real gunicorn with this project's configuration, and what one can see of its worker from outside."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

import gevent

ROOT = Path(__file__).parents[2]
STOP_S_MAX = 20.0
PLATFORM = ("PATH", "HOME", "LANG", "VIRTUAL_ENV")  # what a server is given of the test's own environment


class Server:
    """A gunicorn of WEB_CONCURRENCY workers (1) on a port that the system chose, started when this returns.

    Args:
        app: what gunicorn is to serve.
        environment: the variables that it is given, beside those of PLATFORM. Without a file, all topics are allowed.
    """

    def __init__(self, app: str = "wsgi:app", **environment: str) -> None:
        if "KAFKASSE_CONFIG" not in environment:
            environment.setdefault("KAFKASSE_ALLOWED_TOPICS", "*")
        inherited = {name: os.environ[name] for name in PLATFORM if name in os.environ}
        words = [sys.executable, "-m", "gunicorn", "-c", "gunicorn.conf.py", "--bind", "127.0.0.1:0", app]
        self.log = ""
        self._process = subprocess.Popen(
            words, cwd=ROOT, env=inherited | environment, stderr=subprocess.PIPE, text=True, bufsize=1
        )
        self.port = int(self._said(r"Listening at: \S+:(\d+)"))
        self.worker = int(self._said(r"Booting worker with pid: (\d+)"))
        self._reading = gevent.spawn(self._read)  # or a full pipe would hold up a server that has much to log

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def terminate(self) -> None:
        """What a platform does before it takes the machine away."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Wait for its end. Returns its exit code."""
        code = self._process.wait(STOP_S_MAX)
        self._reading.join()
        return code

    def stop(self) -> None:
        """End it, and show what it logged to whoever reads about a test that failed."""
        if self._process.returncode is None:
            self.terminate()
            self.wait()
        print(self.log)

    def workers(self) -> list[int]:
        """The process ids of its workers now, oldest first."""
        master = self._process.pid
        return [int(each) for each in Path(f"/proc/{master}/task/{master}/children").read_text().split()]

    def descriptors(self) -> list[str]:
        """What the worker has open: files, pipes and sockets."""
        return sorted(_link(each) for each in Path(f"/proc/{self.worker}/fd").iterdir())

    def sockets(self) -> int:
        """How many sockets the worker has open, to Kafka and to clients."""
        return sum(each.startswith("socket:") for each in self.descriptors())

    def memory_bytes(self) -> int:
        """What the worker holds in memory."""
        status = Path(f"/proc/{self.worker}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    def _said(self, pattern: str) -> str:
        assert self._process.stderr is not None
        while (found := re.search(pattern, self.log)) is None:
            line = self._process.stderr.readline()
            assert line, f"it ended before it listened:\n{self.log}"
            self.log += line
        return found[1]

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log += line


def _link(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except FileNotFoundError:  # closed since it was listed
        return ""
