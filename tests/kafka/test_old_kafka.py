"""A real Kafka 2.6: Fetch version 11, no topic IDs, and no reports of truncated logs. `make old-kafka` runs this test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import gevent
import pytest
from gevent import socket

from kafkasse.broker.supervisor import SupervisedProcess
from kafkasse.java import jars, runtime
from kafkasse.log import OffsetOutOfRange, OffsetRange, Partition
from tests.kafka.logs import open_log
from tests.kafka.test_log_contract import KafkaWriter, take, values
from tests.support.kafka import retry
from tests.support.secured_broker import HOST, free_ports
from tests.support.waiting import wait_until

FETCH_VERSION = 11
STOP_TIMEOUT_S = 10.0
JVM_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

pytestmark = pytest.mark.skipif("OLD_KAFKA" not in os.environ, reason="run by `make old-kafka`")


@pytest.fixture
def bootstrap_servers(processes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(jars, "LOCK_FILE", Path(__file__).with_name("old_kafka.lock.json"))
    java = [str(runtime.java_executable()), *JVM_OPTIONS, "-cp", ":".join(map(str, jars.fetch("kafka-2.6")))]
    ports = free_ports(("zookeeper", "kafka"))
    (tmp_path / "zookeeper.properties").write_text(
        f"dataDir={tmp_path / 'zookeeper'}\nclientPort={ports['zookeeper']}\nadmin.enableServer=false\n"
    )
    (tmp_path / "server.properties").write_text(
        f"broker.id=0\nlisteners=PLAINTEXT://{HOST}:{ports['kafka']}\nzookeeper.connect={HOST}:{ports['zookeeper']}\n"
        f"log.dirs={tmp_path / 'kafka'}\noffsets.topic.replication.factor=1\n"
        "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n"
    )
    servers = []
    with (tmp_path / "out").open("wb") as out:
        for name, words in {
            "zookeeper": ["org.apache.zookeeper.server.ZooKeeperServerMain", "zookeeper.properties"],
            "kafka": ["kafka.Kafka", "server.properties"],
        }.items():
            servers.append(SupervisedProcess([*java, *words], cwd=tmp_path, stdout=out, stderr=out))
            wait_until(lambda port=ports[name]: accepts_connections(port))
        yield f"{HOST}:{ports['kafka']}"
        for server in reversed(servers):
            server.stop(STOP_TIMEOUT_S)


def accepts_connections(port: int) -> bool:
    with suppress(ConnectionRefusedError), closing(socket.create_connection((HOST, port))):
        return True
    gevent.sleep(0)
    return False


def test_reads_from_kafka_2_6(bootstrap_servers: str) -> None:
    """Records, transactions, compression, sessions, offsets outside the log, and a truncated log."""
    one, other = Partition("t", 0), Partition("t", 1)
    with closing(retry(lambda: KafkaWriter(bootstrap_servers))) as writer, closing(open_log(bootstrap_servers)) as log:
        writer.create("t", 2)
        writer.send("t", b"a", b"b")
        writer.compressed("t", "zstd", b"c" * 1000)
        writer.skip("t")
        writer.send("t", b"x", partition=1)

        described, ranges = log.describe(["t", "missing"]), log.offset_ranges([one, other])
        with closing(log.cursor({one: 0, other: 0}, tail=True)) as cursor:
            batches = take(cursor, 4)
            writer.send("t", b"d")
            batches += take(cursor, 1)
        epoch = batches[-1].leader_epoch
        end = batches[-1].next_offset

        assert ["t"] == list(described)
        assert (2, "") == described["t"][:2]
        assert OffsetRange(0, 1) == ranges[other]
        assert [b"a", b"b", b"c" * 1000, b"d"] == values(batches)
        assert [b"x"] == values(batches, 1)
        assert {one: end} == log.epoch_ends({one: epoch})
        with closing(log.cursor({one: end + 9}, epochs={one: epoch})) as cursor:
            with pytest.raises(OffsetOutOfRange) as truncated:
                take(cursor, 1)
            versions = {connection.version for connection in log.pool.idle()}
        assert {one: end} == truncated.value.diverged_at
        assert {FETCH_VERSION} == versions
        writer.drop_before("t", 2)
        with closing(log.cursor({one: 1})) as cursor, pytest.raises(OffsetOutOfRange):
            take(cursor, 1)
