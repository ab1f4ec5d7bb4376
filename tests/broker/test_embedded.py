"""The embedded broker: it serves, it comes back, it leaves nothing, and it says what is in its way."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from kafkasse.broker import EmbeddedBroker
from kafkasse.broker.keeper import Kept
from kafkasse.errors import CommandError

UNPATCHED = """
import sys
from kafkasse.broker import EmbeddedBroker

with EmbeddedBroker() as broker:
    print(broker.bootstrap_servers, broker.pid, broker._home(), flush=True)
    sys.stdin.read()
"""


@contextmanager
def child(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A Python of its own, without gevent, that is gone after the test."""
    process = subprocess.Popen(
        [sys.executable, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # A run that was started in the background ignores SIGINT, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    """The next line that it says."""
    assert process.stdout
    return process.stdout.readline()


@contextmanager
def end_of(pid: int) -> Iterator[None]:
    """Wait, at the end of the block, until that process has ended; it need not be a child."""
    if sys.platform != "linux":
        pytest.skip("only Linux tells about processes that are not one's children")
    descriptor = os.pidfd_open(pid)
    yield
    assert select.select([descriptor], [], [], 60)[0], "it still runs"
    os.close(descriptor)


def create(broker: EmbeddedBroker, topic: str) -> None:
    """Make a topic of one partition, and wait until it can be used."""
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
    admin.close()


def append(broker: EmbeddedBroker, topic: str, value: bytes) -> int:
    """Put a record into a topic. Returns its offset."""
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, allow_auto_create_topics=False)
    offset: int = producer.send(topic, value).get(timeout=60).offset
    producer.close()
    return offset


def values(broker: EmbeddedBroker, topic: str, number: int) -> list[bytes]:
    """The first records of a topic."""
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(topic, 0)])
    read = [next(consumer).value for _ in range(number)]
    consumer.close()
    return read


def test_serves(broker: EmbeddedBroker, fresh_name: str) -> None:
    """As soon as `with` is entered, a topic can be made, written and read."""
    create(broker, fresh_name)

    append(broker, fresh_name, b"a")

    assert values(broker, fresh_name, 1) == [b"a"]


def test_makes_no_topic_by_itself(broker: EmbeddedBroker, fresh_name: str) -> None:
    """Asking for a topic that does not exist does not create it."""
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    admin.describe_topics([fresh_name])

    topics = admin.list_topics()
    admin.close()

    assert fresh_name not in topics


def test_comes_back_with_its_port_and_data(fresh_name: str) -> None:
    """Stopped or killed, `start` brings back the same address and every record; in the end nothing is left."""
    with EmbeddedBroker() as broker:
        home, address = broker._home(), broker.bootstrap_servers
        create(broker, fresh_name)
        append(broker, fresh_name, b"before")

        broker.stop()
        broker.start()
        append(broker, fresh_name, b"between")
        broker.kill()
        broker.start()
        append(broker, fresh_name, b"after")

        assert address == broker.bootstrap_servers
        assert values(broker, fresh_name, 3) == [b"before", b"between", b"after"]
    assert not home.exists()


def test_keeps_what_is_in_its_directory(tmp_path: Path, fresh_name: str) -> None:
    """A directory that is given outlives the broker, serves another, and only one at a time."""
    home = tmp_path / "größer, = kept"
    with EmbeddedBroker(directory=home) as broker:
        create(broker, fresh_name)
        with pytest.raises(CommandError, match=r"another broker uses .*kept"):
            EmbeddedBroker(directory=home).start()
        append(broker, fresh_name, b"a")

    with EmbeddedBroker(directory=home) as broker:
        assert values(broker, fresh_name, 1) == [b"a"]


def test_unpatched_and_with_a_killed_parent() -> None:
    """Without gevent it works too; and when its parent is killed by SIGKILL, the broker and its data go as well."""
    with child("-c", UNPATCHED) as process:
        address, pid, home = line(process).split()
        assert Path(home).exists()
        port = int(address.split(":")[1])

        with end_of(int(pid)):
            process.kill()

        with socket.create_server(("127.0.0.1", port)):
            pass


def test_keeper_removes_what_a_killed_parent_left(tmp_path: Path) -> None:
    """The scratch directory goes after the command."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    script = tmp_path / "parent.py"
    script.write_text(
        "import sys\n"
        "from kafkasse.broker.keeper import Kept\n"
        f"kept = Kept(['sleep', '600'], scratch={str(scratch)!r})\n"
        "print(kept._keeper.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with child(str(script)) as process, end_of(int(line(process))):
        process.kill()

    assert not scratch.exists()


def test_keeper_tells_how_it_ended() -> None:
    """The exit code of a kept command is that of its keeper; a signal counts as shells count it."""
    assert Kept([sys.executable, "-c", "raise SystemExit(7)"]).wait(60) == 7

    process = Kept(["sleep", "600"])
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(60) == 128 + signal.SIGKILL


def test_keeper_takes_grandchildren_along() -> None:
    """What a killed command has started goes with it."""
    parent = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True); input()"
    process = Kept([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process._keeper.stdout

    with end_of(int(process._keeper.stdout.readline())):
        process.kill()


def test_keeper_is_patient_only_for_a_while() -> None:
    """A command that does not listen to SIGTERM is killed when the time is up."""
    deaf = "import signal; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); signal.pause()"
    process = Kept([sys.executable, "-c", deaf], stdout=subprocess.PIPE)
    assert process._keeper.stdout
    process._keeper.stdout.readline()

    process.stop(0.1)

    assert process.wait() == 128 + signal.SIGKILL


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_command(end: signal.Signals) -> None:
    """`kafkasse broker` says where it is, and SIGTERM or Ctrl-C ends it cleanly."""
    with child("-m", "kafkasse", "broker", "--port", "0") as process:
        address = line(process).split()[-1]
        host, port = address.split(":")
        socket.create_connection((host, int(port))).close()

        process.send_signal(end)

        assert process.wait(60) == 0
        with socket.create_server(("127.0.0.1", int(port))):
            pass


def test_busy_port() -> None:
    """A port that somebody has is named at once."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        with pytest.raises(CommandError, match=f"port {port} is in use"):
            EmbeddedBroker(port).start()


def test_a_port_that_is_taken_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A free port that somebody takes before the broker does is not the user's trouble: it takes another."""
    from kafkasse.broker import embedded

    choose = embedded._free_ports
    with socket.create_server(("127.0.0.1", 0)) as taken:
        choices = iter([(taken.getsockname()[1], choose()[1])])
        monkeypatch.setattr(embedded, "_free_ports", lambda: next(choices, None) or choose())

        with EmbeddedBroker() as broker:
            assert broker.bootstrap_servers != f"127.0.0.1:{taken.getsockname()[1]}"


def test_directory_that_cannot_be_one(tmp_path: Path) -> None:
    """A file where the directory should be."""
    (tmp_path / "file").touch()

    with pytest.raises(CommandError, match=r"cannot use its directory .*file"):
        EmbeddedBroker(directory=tmp_path / "file").start()


def test_full_disk(tmp_path: Path) -> None:
    """A disk of 16 KiB is too small, and that is what it says."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", disk], capture_output=True).returncode:
        pytest.skip("may not mount a small disk here")
    try:
        with pytest.raises(CommandError, match="no space is left"):
            EmbeddedBroker(directory=disk).start()
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def test_settings_that_kafka_refuses() -> None:
    """What Kafka says about a setting reaches whoever wrote it."""
    with pytest.raises(CommandError, match=r"does not take its settings: .*num\.io\.threads"):
        EmbeddedBroker(settings={"num.io.threads": "none"}).start()


def test_death_at_start(tmp_path: Path) -> None:
    """A broker that dies as it starts shows the end of its log, without a stack trace."""
    home = tmp_path / "broken"
    (home / "data").mkdir(parents=True)
    (home / "data" / "meta.properties").write_text("version=1\nnode.id=7\ncluster.id=x\n")

    with pytest.raises(CommandError, match=r"Stored node id 7 doesn't match") as failure:
        EmbeddedBroker(directory=home).start()

    assert "\tat " not in failure.value.detail
    shutil.rmtree(home)
