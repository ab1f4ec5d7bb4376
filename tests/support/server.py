"""A real gunicorn with the project's configuration, and what the system knows about its worker."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import gevent

from tests.support.waiting import TIMEOUT_S

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".venv"  # `make tools` creates the virtual environments of tools there
# A line of the log in either format, or the last line of a traceback.
ERROR = re.compile(
    r'^(.*(?:\[(?:ERROR|CRITICAL)\]|"level": "(?:error|critical)"|"exception": ).*)$|^Traceback.*\n(?: .*\n|\n)*(.*)$',
    re.MULTILINE,
)
KILLED = r"Worker \(pid:\d+\) was sent SIGKILL"  # an expected error
PYTHON = os.environ.get("SERVER_PYTHON", sys.executable)  # `make compat` runs servers in other virtual environments
INHERITED = ("PATH", "HOME", "LANG", "VIRTUAL_ENV")  # the only variables of the test process that a server gets


class Checkout(NamedTuple):
    """A folder with a version of kafkasse, and a Python that has its packages."""

    root: Path
    python: str


CURRENT = Checkout(ROOT, PYTHON)


def check_errors(log: str, expected: Iterable[str]) -> None:
    """Check that the log of a server contains each expected error, given as a regular expression, and no other error."""
    errors = [error for match in ERROR.finditer(log) for error in match.groups() if error]
    unexpected = [error for error in errors if not any(re.search(pattern, error) for pattern in expected)]
    missing = [pattern for pattern in expected if not any(re.search(pattern, error) for error in errors)]
    assert ([], []) == (unexpected, missing)


class Server:
    """A gunicorn with one worker on a free port. The constructor returns when the worker has started.

    Args:
        checkout: the version of kafkasse, which also contains `app`.
        environment: its variables, in addition to those of INHERITED. WEB_CONCURRENCY sets the number of workers.
            Without KAFKASSE_CONFIG and KAFKASSE_ALLOWED_TOPICS, all topics are allowed. Without KAFKASSE_PUBLIC, routes
            without guards are public.

    Attributes:
        log: everything that gunicorn and its workers have written to stderr.
    """

    _expected_errors: tuple[str, ...] = ()
    _is_stopping = False

    def __init__(self, app: str = "wsgi:app", checkout: Checkout = CURRENT, **environment: str) -> None:
        if "KAFKASSE_CONFIG" not in environment:
            environment.setdefault("KAFKASSE_ALLOWED_TOPICS", "*")
        for name, value in (
            ("KAFKASSE_PUBLIC", "true"),
            ("KAFKASSE_OPERATIONS_ACCESS", "public"),
            ("KAFKASSE_BIND", "127.0.0.1:0"),
        ):
            environment.setdefault(name, value)
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        words = [checkout.python, "-m", "gunicorn", "-c", "gunicorn.conf.py", app]
        self.log = ""
        self._process = subprocess.Popen(
            words, cwd=checkout.root, env=inherited | environment, stderr=subprocess.PIPE, text=True, bufsize=1
        )
        self.port = int(self._wait_for_log(r"Listening at: \S+:(\d+)"))
        self.worker = int(self._wait_for_log(r"Booting worker with pid: (\d+)"))
        self._reading = gevent.spawn(self._read)  # a full pipe would block the server

    def __enter__(self) -> Server:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is None:
            self.stop()
        else:
            self._end()

    def expect(self, *errors: str) -> None:
        """Declare regular expressions for the errors that a test causes. stop() fails if the log has others or lacks one."""
        self._expected_errors += errors

    def terminate(self) -> None:
        """Send SIGTERM, as a platform does before it removes the machine."""
        self._is_stopping = True
        self._process.send_signal(signal.SIGTERM)

    def reload(self) -> None:
        """Send SIGHUP, so that gunicorn replaces all workers."""
        self._process.send_signal(signal.SIGHUP)

    def wait(self) -> int:
        """Wait until gunicorn exits, and return its exit code."""
        code = self._process.wait(TIMEOUT_S)
        self._reading.join()
        return code

    def stop(self) -> None:
        """Stop gunicorn and print its log, which pytest shows if the test failed.

        Raises:
            AssertionError: the log contains an unexpected error or lacks an expected one, or the exit code is not 0.
        """
        self._end()
        check_errors(self.log, self._expected_errors)
        assert 0 == self._process.returncode, f"gunicorn ended with exit code {self._process.returncode}"

    def _end(self) -> None:
        if self._process.returncode is None:
            if not self._is_stopping:
                self.terminate()
            self.wait()
        print(self.log)

    @property
    def pid(self) -> int:
        """The process ID of gunicorn's master."""
        return self._process.pid

    def workers(self) -> list[int]:
        """Return the process IDs of the current workers, oldest first."""
        master = self._process.pid
        return [int(pid) for pid in Path(f"/proc/{master}/task/{master}/children").read_text().split()]

    def descriptors(self) -> list[str]:
        """Return the open files, pipes and sockets of the worker."""
        return sorted(_link(path) for path in Path(f"/proc/{self.worker}/fd").iterdir())

    def sockets(self) -> int:
        """Return the number of open sockets of the worker: its listener, and its connections to Kafka and to clients."""
        return sum(descriptor.startswith("socket:") for descriptor in self.descriptors())

    def memory_bytes(self) -> int:
        """Return the resident memory of the worker."""
        status = Path(f"/proc/{self.worker}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    def _wait_for_log(self, pattern: str) -> str:
        assert self._process.stderr is not None
        while (match := re.search(pattern, self.log)) is None:
            line = self._process.stderr.readline()
            assert line, f"gunicorn exited before it listened:\n{self.log}"
            self.log += line
        return match[1]

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log += line


def _link(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except FileNotFoundError:  # closed after it was listed
        return ""
