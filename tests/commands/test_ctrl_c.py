"""Commands that wait for a server: each shows on a terminal what it waits for, and Ctrl-C ends it.

`serve`, `load`, `broker`, `demo` and `pipeline run` have tests of their own, because Ctrl-C ends their work, too.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.commands.run import process
from tests.support.server import ROOT
from tests.support.waiting import TIMEOUT_S, wait_until

pytestmark = pytest.mark.processes

KAFKA = "connecting to Kafka at 127.0.0.1"
COMMANDS = {
    "topics": KAFKA,
    "check": KAFKA,
    "init kafkasse.yaml": KAFKA,
    f"load {ROOT}/kafkasse/assets/data/countries.csv --topic t": KAFKA,
    "pipeline status": KAFKA,
    "pipeline replay-dead-letters t": KAFKA,
    "streams": "waiting for the server's workers",
    "streams end 1-1": "waiting for the server's workers",
    "cat http://127.0.0.1:{port}/t": "connecting to http://127.0.0.1",
}


class Terminal:
    """A command whose stderr is a terminal."""

    def __init__(self, words: list[str], cwd: Path, variables: dict[str, str], stack: ExitStack) -> None:
        self._screen, terminal = os.openpty()
        stack.callback(os.close, self._screen)
        os.set_blocking(self._screen, False)
        self._shown = b""
        with os.fdopen(terminal) as stderr:
            pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": stderr}
            self.process = stack.enter_context(process(*words, **pipes, cwd=cwd, env=os.environ | variables))

    def shown(self) -> str:
        with suppress(OSError):  # nothing now, or the command has ended
            while data := os.read(self._screen, 4096):
                self._shown += data
        return self._shown.decode()


@pytest.fixture
def silent_server(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The variables of a Kafka and a worker that accept connections and never answer."""
    folder = tmp_path / "runtime" / "server"
    folder.mkdir(parents=True, mode=0o700)
    with ExitStack() as stack:
        fcntl.flock(stack.enter_context((folder / "lock").open("w")), fcntl.LOCK_EX)
        worker = stack.enter_context(socket.socket(socket.AF_UNIX))
        worker.bind(str(folder / "worker-1.sock"))
        worker.listen()
        kafka = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        yield {
            "KAFKASSE_BOOTSTRAP_SERVERS": f"127.0.0.1:{kafka.getsockname()[1]}",
            "KAFKASSE_ALLOWED_TOPICS": "a",
            "KAFKASSE_PUBLIC": "true",
            "KAFKASSE_RUNTIME_DIR": str(folder.parent),
        }


def test_a_command_that_waits_shows_it_and_ends_after_ctrl_c(silent_server, tmp_path):
    """The exit code is 130, and there is no traceback."""
    port = silent_server["KAFKASSE_BOOTSTRAP_SERVERS"].partition(":")[2]
    with ExitStack() as stack:
        started = {line: Terminal(line.format(port=port).split(), tmp_path, silent_server, stack) for line in COMMANDS}
        waiting = dict(started)

        def interrupt() -> bool:
            """Interrupt each command as soon as it shows what it waits for, because it does not wait forever."""
            for line in [line for line, terminal in waiting.items() if COMMANDS[line] in terminal.shown()]:
                waiting.pop(line).process.send_signal(signal.SIGINT)
            return not waiting

        wait_until(interrupt)

        for line, terminal in started.items():
            assert 130 == terminal.process.wait(TIMEOUT_S), line
            assert "Traceback" not in terminal.shown()
