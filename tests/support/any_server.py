"""A server that a command starts, for tests of other servers than gunicorn with the project's configuration."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.support.server import ROOT
from tests.support.waiting import wait_until


class AnyServer:
    """A server that a command starts.

    Args:
        command: contains `{port}`.
        limits: the soft and the hard limit of open files.
        variables: environment variables.
    """

    def __init__(self, command: str, log: Path, limits: tuple[int, int] | None = None, **variables: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        words = shlex.split(command.format(port=self.port))
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **variables}
        if limits:
            words = ["sh", "-c", f'ulimit -Sn {limits[0]}; ulimit -Hn {limits[1]}; exec "$@"', "sh", *words]
        self._log = log
        with log.open("w") as output:
            self.process = subprocess.Popen(
                words, cwd=log.parent, env=environment, stdout=output, stderr=output, start_new_session=True
            )
        wait_until(self._is_listening)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def stop(self) -> None:
        """Kill the server and its workers, some of which would not respond to SIGTERM."""
        with suppress(ProcessLookupError):  # it has stopped by itself
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        print(self.log)

    def _is_listening(self) -> bool:
        assert self.process.poll() is None, self.log
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0
