"""A real Apache Kafka of one node, as a context manager: for trying things out, for tests and for benchmarks.

It is Kafka's own broker and controller in one process (KRaft), from the jars of jars.lock.json, formatted by Kafka's own
tool. It speaks plaintext on 127.0.0.1 only and is tuned to start soon and stay small, not to keep data safe; production
points at a real cluster. No Kafka client is used here, so it works the same whether gevent has patched the process or not.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import re
import secrets
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO

from kafkasse.broker.keeper import Kept
from kafkasse.errors import CommandError
from kafkasse.java import jars, runtime

HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
FORMAT_TIMEOUT_S = 60.0
ASK_TIMEOUT_S = 5.0
ASK_AGAIN_AFTER_S = 0.05
PORT_ATTEMPTS_MAX = 5
LOG_LINES_MAX = 12  # of a broker that died, in the error

JVM_OPTIONS = (
    "-Xms64m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # the optimising compiler would cost more than a short-lived broker earns by it
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:-UsePerfData",  # files in /tmp that a killed JVM would leave
    "-Djava.awt.headless=true",
    f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}",
)

SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
    "num.recovery.threads.per.data.dir": "1",
    # After SIGKILL the broker comes back only when its earlier self's session has run out: 9 s by default.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "log.cleaner.dedupe.buffer.size": "4194304",  # 128 MB by default, half the heap
}


class EmbeddedBroker:
    """Kafka for as long as a `with` block lasts, or until `stop` and again from `start`.

    Args:
        port: where clients connect on 127.0.0.1; 0 lets the system choose, once for the life of this object.
        directory: where data, configuration and log are kept; without one they are thrown away at the end.
        settings: Kafka's broker settings, over those of SETTINGS.
        cluster_id: of the cluster whose node this is to be, as new_cluster_id() makes them; without one it is a cluster
            of its own. `settings` then say who the nodes are (`node.id`, `controller.quorum.voters`, `listeners`).

    Raises:
        CommandError: from `start` (and so from `with`): one sentence on what is in the way.
    """

    def __init__(
        self,
        port: int = 0,
        directory: Path | None = None,
        settings: Mapping[str, str] | None = None,
        cluster_id: str = "",
    ) -> None:
        self._port = port
        self._directory = directory
        self._settings = dict(settings or {})
        self._cluster_id = cluster_id or new_cluster_id()
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._process: Kept | None = None

    @property
    def bootstrap_servers(self) -> str:
        """What clients are given: host:port."""
        return f"{HOST}:{self._port}"

    @property
    def pid(self) -> int:
        """The process id of the broker's JVM, 0 when there is none."""
        return self._process.pid if self._process else 0

    def __enter__(self) -> EmbeddedBroker:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()
        if self._scratch:
            self._scratch.cleanup()
            self._scratch = None

    def start(self) -> None:
        """Start it, or start it again with the same port and data; returns when it answers clients."""
        if self._process and not self._process.ended():
            return
        try:
            self._start(self._home())
        except OSError as error:
            where = self._directory or tempfile.gettempdir()
            raise CommandError(f"the broker cannot use its directory {where} ({error.strerror or error})") from error
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """End it as an operator would: it closes its logs, and its data stays for the next `start`."""
        if self._process:
            self._process.stop(STOP_TIMEOUT_S)
            self._process = None

    def kill(self) -> None:
        """End it at once, as when a machine fails."""
        if self._process:
            self._process.kill()
            self._process = None

    def wait(self) -> int:
        """Wait until it ends by itself. Returns its exit code."""
        return self._process.wait() if self._process else 0

    def ended(self) -> bool:
        """Whether it is not running, although nobody has stopped it."""
        return self._process is not None and self._process.ended()

    def log(self) -> str:
        """What it has had to say since its last start."""
        return _log(self._home())

    def _home(self) -> Path:
        """The directory, made if need be."""
        if self._directory:
            self._directory.mkdir(parents=True, exist_ok=True)
            return self._directory.absolute()
        if not self._scratch:
            self._scratch = tempfile.TemporaryDirectory(prefix="kafkasse-broker-", ignore_cleanup_errors=True)
        return Path(self._scratch.name)

    def _start(self, home: Path) -> None:
        fixed = self._port
        if fixed:
            require_free(fixed)
        with (home / "lock").open("w") as lock:
            _require_unused(home, lock)
            options = *JVM_OPTIONS, f"-Djava.io.tmpdir={home}"  # codecs unpack libraries there
            command = [str(runtime.java()), *options, "-cp", ":".join(map(str, jars.fetch("kafka")))]
            for _ in range(1 if fixed else PORT_ATTEMPTS_MAX):
                client_port, controller_port = _free_ports()
                self._port = fixed or client_port
                _configure(home, self._port, controller_port, self._settings)
                _format(command, home, self._cluster_id)
                self._process = self._launch([*command, "kafka.Kafka", "server.properties"], home, lock)
                if self._until_ready(self._process):
                    return
                self._process = None
                if "Address already in use" not in _log(home):
                    break
        raise CommandError(_explain(_log(home), home))

    def _launch(self, command: list[str], home: Path, lock: IO[str]) -> Kept:
        (home / "broker.log").unlink(missing_ok=True)
        scratch = "" if self._directory else str(home)
        with (home / "broker.out").open("wb") as out:
            # The broker inherits the lock, so the directory is taken exactly as long as its process lives.
            return Kept(
                command,
                scratch=scratch,
                cwd=home,
                pass_fds=[lock.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def _until_ready(self, process: Kept) -> bool:
        """Wait until it serves. Returns False when it has ended instead."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not process.ended():
            if _serves(self._port):
                return True
            if time.monotonic() > deadline_s:
                raise CommandError(f"the broker did not answer within {START_TIMEOUT_S:.0f} s of its start; try again")
            time.sleep(ASK_AGAIN_AFTER_S)
        return False


def require_free(port: int) -> None:
    """Raise CommandError if somebody listens on this port of 127.0.0.1 already."""
    try:
        with socket.create_server((HOST, port)):
            pass
    except (OSError, OverflowError) as error:
        busy = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        what = "is in use; stop what uses it, or" if busy else f"cannot be used ({error}):"
        raise CommandError(f"port {port} {what} name another") from None


def _free_ports() -> tuple[int, int]:
    """Two ports that nobody has now. Somebody may have one before the broker does; then it is started anew."""
    with socket.create_server((HOST, 0)) as first, socket.create_server((HOST, 0)) as second:
        return first.getsockname()[1], second.getsockname()[1]


def _require_unused(home: Path, lock: IO[str]) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CommandError(f"another broker uses {home}; end it, or name another directory") from None


def _configure(home: Path, port: int, controller_port: int, settings: Mapping[str, str]) -> None:
    properties = {
        **SETTINGS,
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "log.dirs": "data",  # below the working directory, so that any path will do, even one with a comma
        **settings,
    }
    lines = (f"{name}={value}\n" for name, value in properties.items())
    (home / "server.properties").write_text("".join(lines))


def _format(command: list[str], home: Path, cluster_id: str) -> None:
    """Give a new directory its cluster id, as Kafka wants it done before its first start."""
    if (home / "data" / "meta.properties").exists():
        return
    tool = "kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", cluster_id, "-c", "server.properties"
    done = subprocess.run(  # noqa: S603 - our own words
        [*command, *tool], cwd=home, capture_output=True, text=True, timeout=FORMAT_TIMEOUT_S
    )
    if done.returncode:
        raise CommandError(_explain(done.stdout + done.stderr, home))


def new_cluster_id() -> str:
    """A random UUID as Kafka writes it: 22 letters of base64. It must not begin with the `-` of an option."""
    first, *rest = secrets.token_bytes(16)
    return base64.urlsafe_b64encode(bytes([first & 0x7F, *rest])).decode().rstrip("=")


def _serves(port: int) -> bool:
    """Whether a Metadata request (version 1, no topics) is answered with a broker in it.

    An open port is too little, and so is an answer to ApiVersions: topics can be created only once the controller has
    let the broker in, and from then on metadata lists it.
    """
    request = struct.pack(">hhihi", 3, 1, 0, -1, 0)
    try:
        with socket.create_connection((HOST, port), ASK_TIMEOUT_S) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = connection.makefile("rb").read(12)  # size, correlation id, number of brokers
    except OSError:
        return False
    return len(answer) == 12 and struct.unpack(">iii", answer)[2] > 0


def _log(home: Path) -> str:
    """All that the last start has left: Kafka's log, then what the JVM itself had to say."""
    files = (home / "broker.log", home / "broker.out")
    return "".join(file.read_text(errors="replace") for file in files if file.exists())


def _explain(log: str, home: Path) -> str:
    if "Address already in use" in log:
        return "a port that the broker wanted was taken while it started; try again"
    if "No space left on device" in log:
        return f"no space is left on the disk of the broker's directory {home}"
    if "Permission denied" in log or "Read-only file system" in log:
        return f"the broker may not write in its directory {home}"
    if invalid := re.search(r"ConfigException: (.+)", log):
        return f"the broker does not take its settings: {invalid[1]}"
    return f"the broker ended as it started; its log ends with:\n{last_lines(log)}"


def last_lines(log: str) -> str:
    """The end of a log, without the stack traces of Java."""
    lines = [line for line in log.splitlines() if line.strip() and not line.startswith("\tat ")]
    return "\n".join(lines[-LOG_LINES_MAX:])
