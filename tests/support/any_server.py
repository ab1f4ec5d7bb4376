"""A server that a command starts, for tests of other servers than gunicorn with the project's configuration."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
from pathlib import Path

from tests.support.ports import reserve_port
from tests.support.process_group import end_group
from tests.support.server import ROOT, check_errors
from tests.support.waiting import TIMEOUT_S, wait_until


class AnyServer:
    """A server that a command starts.

    Args:
        command: contains `{port}`.
    """

    def __init__(self, command: str, log: Path, limits: tuple[int, int] | None = None, **variables: str) -> None:
        self._reserved = reserve_port()
        self.port: int = self._reserved.getsockname()[1]
        self._expected_errors: tuple[str, ...] = ()
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

    def expect(self, *errors: str) -> None:
        """See Server.expect()."""
        self._expected_errors += errors

    def stop(self) -> None:
        """Send SIGTERM unless the server has stopped, and check its log and its exit code."""
        try:
            self.process.terminate()
            code = self.process.wait(TIMEOUT_S)
        finally:
            end_group(self.process)
            self._reserved.close()
            print(self.log)
        check_errors(self.log, self._expected_errors)
        assert code in (0, -signal.SIGTERM)  # some servers do not handle the signal

    def _is_listening(self) -> bool:
        assert self.process.poll() is None, self.log
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0
