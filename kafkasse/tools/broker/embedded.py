"""A real Apache Kafka broker on this machine, as a context manager, for evaluation, tests and benchmarks.

The broker and its controller run in one JVM (KRaft), from the jars in jars.lock.json. Kafka's own tool formats the data
directory. The broker listens in plaintext on 127.0.0.1 only. It is tuned to start quickly and to use little memory, not to
keep data safe; production connects to a real cluster. This module uses no Kafka client, so it works with and without
gevent's patches.
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from kafkasse.errors import CommandError
from kafkasse.tools.java import jars, runtime
from kafkasse.tools.supervised_process import SupervisedProcess

HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
FORMAT_TIMEOUT_S = 60.0
PROBE_TIMEOUT_S = 5.0
PROBE_INTERVAL_S = 0.05
MAX_PORT_ATTEMPTS = 5
MAX_LOG_LINES = 12  # log lines of a broker that died, in the error message

# The optimizing compiler does not pay off for a short-lived broker.
SHORT_LIVED = "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"
JVM_OPTIONS = (
    "-Xms64m",
    "-Xmx256m",
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:-UsePerfData",  # a killed JVM would leave these files in /tmp
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
    # After SIGKILL, the broker can register again only after its previous session times out: 9 s by default.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # By default, the controller writes a record to its log twice a second: a third of the CPU time of an idle broker.
    "metadata.max.idle.interval.ms": "0",
    "log.cleaner.dedupe.buffer.size": "4194304",  # the default, 128 MB, is half the heap
    # The first index entry of a partition maps two files of this size, and Linux may fill them with zeros at once. With the
    # default, 10 MB, all clients wait for 20 ms, and for seconds if 150 partitions do so one after another.
    "log.index.size.max.bytes": "1048576",
}


class EmbeddedBroker:
    """A Kafka broker that runs while a `with` block runs, or from start() to stop().

    Args:
        port: the port for clients on 127.0.0.1. With 0, the system chooses a free port, which stays the same when the broker
            is restarted.
        directory: the directory for data, configuration and log. Without one, the broker uses a temporary directory, which
            is removed at the end of the `with` block.
        settings: Kafka's broker settings; they override SETTINGS.
        jvm_options: how the JVM compiles and collects garbage. The default starts quickly.
        cluster_id: for a node of a larger cluster, the cluster's ID, see new_cluster_id(). `settings` must then define the
            nodes (`node.id`, `controller.quorum.voters`, `listeners`). Without it, the broker is a cluster of one node.

    Raises:
        CommandError: start(), and thus `with`, failed; the message gives the reason in one sentence.
    """

    def __init__(
        self,
        port: int = 0,
        directory: Path | None = None,
        settings: Mapping[str, str] | None = None,
        cluster_id: str = "",
        jvm_options: Sequence[str] = SHORT_LIVED,
    ) -> None:
        self._port = port
        self._jvm_options = jvm_options
        self._directory = directory
        self._settings = dict(settings or {})
        self._cluster_id = cluster_id or new_cluster_id()
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._process: SupervisedProcess | None = None

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients: host:port."""
        return f"{HOST}:{self._port}"

    @property
    def pid(self) -> int:
        """The process ID of the broker's JVM; 0 if it is not running."""
        return self._process.pid if self._process else 0

    def __enter__(self) -> EmbeddedBroker:
        self.start()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.stop()
        if self._scratch:
            self._scratch.cleanup()
            self._scratch = None

    def start(self) -> None:
        """Start the broker, or restart it with the same port and data. Returns when it serves clients."""
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
        """Shut the broker down cleanly. Its data is kept for the next start()."""
        if self._process:
            self._process.stop(STOP_TIMEOUT_S)
            self._process = None

    def kill(self) -> None:
        """Kill the broker, as if the machine had failed. Its data is kept for the next start()."""
        if self._process:
            self._process.kill()
            self._process = None

    def wait(self) -> int:
        """Wait until the broker exits. Returns its exit code."""
        return self._process.wait() if self._process else 0

    def ended(self) -> bool:
        """Whether the broker exited although neither stop() nor kill() was called."""
        return self._process is not None and self._process.ended()

    def log(self) -> str:
        """Return the broker's log since its last start."""
        return _read_log(self._home())

    def _home(self) -> Path:
        """Return the directory, after creating it if necessary."""
        if self._directory:
            self._directory.mkdir(parents=True, exist_ok=True)
            return self._directory.absolute()
        if not self._scratch:
            self._scratch = tempfile.TemporaryDirectory(prefix="kafkasse-broker-", ignore_cleanup_errors=True)
        return Path(self._scratch.name)

    def _start(self, home: Path) -> None:
        fixed_port = self._port
        if fixed_port:
            require_free(fixed_port)
        with (home / "lock").open("w") as lock:
            _require_unused(home, lock)
            # Compression codecs extract their libraries to the temporary directory.
            options = *JVM_OPTIONS, *self._jvm_options, f"-Djava.io.tmpdir={home}"
            command = [str(runtime.java_executable()), *options, "-cp", ":".join(map(str, jars.fetch("kafka")))]
            for _ in range(1 if fixed_port else MAX_PORT_ATTEMPTS):
                client_port, controller_port = _free_ports()
                self._port = fixed_port or client_port
                _configure(home, self._port, controller_port, self._settings)
                _format(command, home, self._cluster_id)
                self._process = self._launch([*command, "kafka.Kafka", "server.properties"], home, lock)
                if self._wait_until_ready(self._process):
                    return
                self._process = None
                if "Address already in use" not in _read_log(home):
                    break
        raise CommandError(_explain(_read_log(home), home))

    def _launch(self, command: list[str], home: Path, lock: IO[str]) -> SupervisedProcess:
        (home / "broker.log").unlink(missing_ok=True)
        scratch = "" if self._directory else str(home)
        with (home / "broker.out").open("wb") as out:
            # The broker inherits the lock, so the directory stays locked exactly as long as the broker runs.
            return SupervisedProcess(
                command,
                scratch=scratch,
                cwd=home,
                pass_fds=[lock.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def _wait_until_ready(self, process: SupervisedProcess) -> bool:
        """Wait until the broker serves clients. Returns False if it exited instead."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not process.ended():
            if _serves(self._port):
                return True
            if time.monotonic() > deadline_s:
                raise CommandError(f"the broker did not become ready within {START_TIMEOUT_S:.0f} s; try again")
            time.sleep(PROBE_INTERVAL_S)
        return False


def require_free(port: int) -> None:
    """Raise CommandError if the port is already in use on 127.0.0.1."""
    try:
        with socket.create_server((HOST, port)):
            pass
    except (OSError, OverflowError) as error:
        busy = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        reason = "is in use; stop the program that uses it, or" if busy else f"cannot be used ({error});"
        raise CommandError(f"port {port} {reason} choose another port with --port") from None


def _free_ports() -> tuple[int, int]:
    """Return two free ports. If another process takes one before the broker does, the caller tries again."""
    with socket.create_server((HOST, 0)) as first, socket.create_server((HOST, 0)) as second:
        return first.getsockname()[1], second.getsockname()[1]


def _require_unused(home: Path, lock: IO[str]) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CommandError(f"another broker uses {home}; stop it, or choose another directory") from None


def _configure(home: Path, port: int, controller_port: int, settings: Mapping[str, str]) -> None:
    properties = {
        **SETTINGS,
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "log.dirs": "data",  # a relative path: an absolute one could contain a comma, which separates directories
        **settings,
    }
    lines = (f"{name}={value}\n" for name, value in properties.items())
    (home / "server.properties").write_text("".join(lines))


def _format(command: list[str], home: Path, cluster_id: str) -> None:
    """Format a new directory with its cluster ID. Kafka requires this before the first start."""
    if (home / "data" / "meta.properties").exists():
        return
    tool = "kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", cluster_id, "-c", "server.properties"
    done = subprocess.run(  # noqa: S603 - our own command
        [*command, *tool], cwd=home, capture_output=True, text=True, timeout=FORMAT_TIMEOUT_S
    )
    if done.returncode:
        raise CommandError(_explain(done.stdout + done.stderr, home))


def new_cluster_id() -> str:
    """Return a random UUID in Kafka's form: 22 characters of base64. It must not begin with `-`, like an option."""
    first, *rest = secrets.token_bytes(16)
    return base64.urlsafe_b64encode(bytes([first & 0x7F, *rest])).decode().rstrip("=")


def _serves(port: int) -> bool:
    """Whether the response to a Metadata request (version 1, no topics) lists a broker.

    An open port or a response to ApiVersions is not enough: topics can be created only after the controller has registered
    the broker, and only then the metadata lists it.
    """
    request = struct.pack(">hhihi", 3, 1, 0, -1, 0)
    try:
        with socket.create_connection((HOST, port), PROBE_TIMEOUT_S) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            response = connection.makefile("rb").read(12)  # size, correlation ID, number of brokers
    except OSError:
        return False
    return len(response) == 12 and struct.unpack(">iii", response)[2] > 0


def _read_log(home: Path) -> str:
    """Return the output of the last start: Kafka's log, then the output of the JVM itself."""
    files = (home / "broker.log", home / "broker.out")
    return "".join(file.read_text(errors="replace") for file in files if file.exists())


def _explain(log: str, home: Path) -> str:
    if "Address already in use" in log:
        return "another process took the broker's port while the broker started; try again"
    if "No space left on device" in log:
        return f"the disk with the broker's directory {home} is full; free some space, or choose another directory"
    if "Permission denied" in log or "Read-only file system" in log:
        return f"the broker has no permission to write to its directory {home}"
    if invalid := re.search(r"ConfigException: (.+)", log):
        return f"the broker rejects its settings: {invalid[1]}"
    return f"the broker exited while it started; its log ends with:\n{last_lines(log)}"


def last_lines(log: str) -> str:
    """Return the end of a log without Java stack traces."""
    lines = [line for line in log.splitlines() if line.strip() and not line.startswith("\tat ")]
    return "\n".join(lines[-MAX_LOG_LINES:])
