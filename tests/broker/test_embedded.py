"""The embedded broker serves clients, keeps its data, cleans up and explains why it cannot start."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from kafka import KafkaAdminClient

from kafkasse.errors import CommandError
from kafkasse.tools.broker import EmbeddedBroker, embedded
from kafkasse.tools.supervised_process import SupervisedProcess
from tests.commands.run import process
from tests.support.kafka import Cluster
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes

EXIT_TIMEOUT_S = 60


@contextmanager
def child(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process without gevent's patches. It is killed when the block ends."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, *words], stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline()


@contextmanager
def exits(pid: int) -> Iterator[None]:
    """Wait at the end of the block until this process has exited. It need not be a child of the test."""
    if sys.platform != "linux":
        pytest.skip("only Linux can wait for a process that is not a child")
    descriptor = os.pidfd_open(pid)
    yield
    assert select.select([descriptor], [], [], EXIT_TIMEOUT_S)[0], "the process is still running"
    os.close(descriptor)


UNPATCHED = """
import sys
from kafkasse.tools.broker import EmbeddedBroker

with EmbeddedBroker() as broker:
    print(broker.bootstrap_servers, broker._process._supervisor.pid, broker._home(), flush=True)
    sys.stdin.read()
"""


def test_does_not_create_topics_automatically(broker, fresh_name):
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as admin:
        admin.describe_topics([fresh_name])

        assert fresh_name not in admin.list_topics()


def test_keeps_its_port_and_its_data(tmp_path, monkeypatch, fresh_name):
    """A broker that was killed restarts at the same address with all records.

    If the free port was taken before the broker could use it, the broker chooses another one at its first start. While it
    runs, no other broker can use its directory.
    """
    home = tmp_path / "größer, = kept"
    choose = embedded._free_ports
    with socket.create_server(("127.0.0.1", 0)) as taken:
        choices = iter([(taken.getsockname()[1], choose()[1])])
        monkeypatch.setattr(embedded, "_free_ports", lambda: next(choices, None) or choose())
        with EmbeddedBroker(directory=home) as broker:
            address = broker.bootstrap_servers
            assert f"127.0.0.1:{taken.getsockname()[1]}" != address
            with closing(Cluster(address)) as cluster:
                cluster.send(cluster.create(fresh_name), b"before")
            with pytest.raises(CommandError, match=r"another broker uses .*kept"):
                EmbeddedBroker(directory=home).start()

            os.kill(broker.pid, signal.SIGKILL)
            wait_until(broker.ended)
            broker.start()

            assert address == broker.bootstrap_servers
            with closing(Cluster(address)) as cluster:
                assert [b"before"] == [record.value for record in cluster.records(fresh_name)]
            broker.kill()


def test_the_indexes_of_a_partition_are_small(broker, cluster, fresh_name):
    """Linux may fill a mapped file with zeros, and all clients wait meanwhile. So an index maps 1 MiB instead of 10."""
    # The index gets entries after log.index.interval.bytes.
    cluster.send(cluster.create(fresh_name), *[b"x" * 5_000] * 3)

    files = (broker._home() / "data" / f"{fresh_name}-0").glob("*index")
    assert 2**20 == max(file.stat().st_size for file in files)


def test_runs_without_gevent_and_ends_with_a_killed_parent():
    """If SIGKILL ends the parent process, the broker stops, its port is free and its temporary directory is removed."""
    with child("-c", UNPATCHED) as process:
        address, supervisor, home = line(process).split()
        assert Path(home).exists()
        port = int(address.split(":")[1])

        with exits(int(supervisor)):
            process.kill()

        with socket.create_server(("127.0.0.1", port)):
            pass
        assert not Path(home).exists()


@pytest.mark.parametrize(
    ("end", "code"), [(signal.SIGTERM, 0), pytest.param(signal.SIGINT, 130, marks=pytest.mark.long)]
)
def test_the_command_prints_its_address_and_stops_cleanly_on_a_signal(tmp_path, monkeypatch, end, code):
    """`kafkasse broker` accepts connections at the address that it prints.

    SIGTERM ends it with exit code 0 and Ctrl-C with 130, and it removes its temporary directory.
    """
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with child("-m", "kafkasse", "broker", "--port", "0") as process:
        host, port = line(process).split()[-1].split(":")
        assert 1 == len(list(tmp_path.iterdir()))
        socket.create_connection((host, int(port))).close()

        process.send_signal(end)

        assert code == process.wait(EXIT_TIMEOUT_S)
        with socket.create_server(("127.0.0.1", int(port))):
            pass
    assert [] == list(tmp_path.iterdir())


def test_a_closed_terminal_leaves_no_files_of_a_broker_that_starts(tmp_path):
    """The terminal sends SIGHUP while Kafka's tool, which has no supervisor, formats the directory."""
    java, temporary = tmp_path / "java", tmp_path / "tmp"
    (java / "bin").mkdir(parents=True)
    temporary.mkdir()
    (java / "release").write_text('JAVA_VERSION="21"')
    (java / "bin" / "java").write_text("#!/bin/sh\necho >formatting\nexec sleep 600\n")
    (java / "bin" / "java").chmod(0o755)
    environ = os.environ | {"JAVA_HOME": str(java), "TMPDIR": str(temporary)}

    def handle_signal() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # it is ignored under `nohup make test`

    with process("broker", "--port", "0", env=environ, preexec_fn=handle_signal) as command:
        wait_until(lambda: list(temporary.glob("*/formatting")))

        command.send_signal(signal.SIGHUP)

        assert 0 == command.wait(EXIT_TIMEOUT_S)
    assert [] == list(temporary.iterdir())


def test_a_port_in_use_is_reported():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        with pytest.raises(CommandError, match=f"port {port} is in use"):
            EmbeddedBroker(port).start()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"directory": Path(__file__)}, r"cannot use its directory .*test_embedded"),
        ({"settings": {"num.io.threads": "none"}}, r"rejects its settings: .*num\.io\.threads"),
    ],
)
def test_an_argument_that_cannot_work_is_reported(arguments, reason):
    """The error names the file, or contains Kafka's own explanation."""
    with pytest.raises(CommandError, match=reason):
        EmbeddedBroker(**arguments).start()


def test_a_full_disk_is_reported(tmp_path):
    """A disk of 16 KiB is too small for the broker's data."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", disk], capture_output=True).returncode:
        pytest.skip("no permission to mount a small disk")
    try:
        with pytest.raises(CommandError, match=r"the disk .* is full"):
            EmbeddedBroker(directory=disk).start()
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def test_the_log_of_a_broker_that_does_not_start_is_shown(tmp_path):
    """The error contains the end of the log without a stack trace."""
    home = tmp_path / "broken"
    (home / "data").mkdir(parents=True)
    (home / "data" / "meta.properties").write_text("version=1\nnode.id=7\ncluster.id=x\n")

    with pytest.raises(CommandError, match=r"Stored node id 7 doesn't match") as failure:
        EmbeddedBroker(directory=home).start()

    assert "\tat " not in failure.value.detail


def test_returns_the_exit_code_of_the_command():
    """The supervisor has the command's exit code; if a signal killed the command, 128 plus its number, as in a shell."""
    assert 7 == SupervisedProcess([sys.executable, "-c", "raise SystemExit(7)"]).wait(EXIT_TIMEOUT_S)

    process = SupervisedProcess(["sleep", "600"])
    os.kill(process.pid, signal.SIGKILL)
    assert 128 + signal.SIGKILL == process.wait(EXIT_TIMEOUT_S)


def test_kills_the_children_of_a_killed_command():
    """A process that the command started does not outlive it."""
    parent = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True); input()"
    process = SupervisedProcess([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process._supervisor.stdout

    with exits(int(process._supervisor.stdout.readline())):
        process.kill()


def test_kills_a_command_that_ignores_sigterm():
    """stop() sends SIGKILL after its timeout."""
    script = "import signal; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); signal.pause()"
    process = SupervisedProcess([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process._supervisor.stdout
    process._supervisor.stdout.readline()

    process.stop(0.1)

    assert 128 + signal.SIGKILL == process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="macOS has no signal for the death of a parent")
def test_a_command_ends_with_its_supervisor():
    """`pkill -9 -f kafkasse` kills the supervisor, too."""
    process = SupervisedProcess(["sleep", "600"])

    with exits(process.pid):
        process._supervisor.kill()
