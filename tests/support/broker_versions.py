"""Real Kafka brokers of older versions, from the jars in tests/kafka/old_kafka.lock.json."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from unittest import mock

import gevent
from gevent import socket

from kafkasse.tools.broker import EmbeddedBroker
from kafkasse.tools.java import jars, runtime
from kafkasse.tools.supervised_process import SupervisedProcess
from tests.support.ports import HOST, reserved_ports
from tests.support.waiting import wait_until

LOCK_FILE = Path(__file__).parents[1] / "kafka/old_kafka.lock.json"
EMBEDDED = "4.3"  # the version in kafkasse/tools/java/jars.lock.json
WITH_ZOOKEEPER = ("2.6", "2.7", "2.8")
WITHOUT_TOPIC_IDS = ("2.6", "2.7")
JARS_OF = {"2.7": "2.8"}  # as after an upgrade to 2.8 without its inter.broker.protocol.version
SETTINGS = {
    "log.retention.ms": "-1",  # the tests write records with old timestamps
    "log.cleaner.backoff.ms": "50",  # some tests wait for compaction
}
STOP_TIMEOUT_S = 10.0
JVM_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class RunningBroker(NamedTuple):
    """A broker of another version than the embedded one."""

    bootstrap_servers: str


@contextmanager
def running_broker(version: str) -> Iterator[RunningBroker]:
    """Run a broker of this version while a `with` block runs."""
    if version == EMBEDDED:
        files = jars.fetch("kafka")
    else:
        with mock.patch.object(jars, "LOCK_FILE", LOCK_FILE):
            files = jars.fetch(f"kafka-{JARS_OF.get(version, version)}")
    if version in WITH_ZOOKEEPER:
        with _with_zookeeper(files, version) as address:
            yield RunningBroker(address)
    else:
        with (
            mock.patch("kafkasse.tools.broker.embedded.jars.fetch", return_value=files),
            EmbeddedBroker(settings=SETTINGS) as broker,
        ):
            yield RunningBroker(broker.bootstrap_servers)


@contextmanager
def _with_zookeeper(files: list[Path], version: str) -> Iterator[str]:
    with ExitStack() as servers:
        ports = servers.enter_context(reserved_ports("zookeeper", "kafka"))
        home = Path(servers.enter_context(TemporaryDirectory(prefix="kafkasse-broker-", ignore_cleanup_errors=True)))
        (home / "zookeeper.properties").write_text(
            f"dataDir={home / 'zookeeper'}\nclientPort={ports['zookeeper']}\nadmin.enableServer=false\n"
        )
        (home / "server.properties").write_text(
            f"broker.id=0\nlisteners=PLAINTEXT://{HOST}:{ports['kafka']}\nzookeeper.connect={HOST}:{ports['zookeeper']}\n"
            f"log.dirs={home / 'kafka'}\noffsets.topic.replication.factor=1\nauto.create.topics.enable=false\n"
            "log.retention.ms=-1\n"
            "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n"
            f"inter.broker.protocol.version={version}\n"
        )
        out = servers.enter_context((home / "out").open("wb"))
        java = [str(runtime.java_executable()), *JVM_OPTIONS, "-cp", ":".join(map(str, files))]
        for service, words in {
            "zookeeper": ["org.apache.zookeeper.server.ZooKeeperServerMain", "zookeeper.properties"],
            "kafka": ["kafka.Kafka", "server.properties"],
        }.items():
            server = SupervisedProcess([*java, *words], cwd=home, stdout=out, stderr=out)
            servers.callback(server.stop, STOP_TIMEOUT_S)
            wait_until(partial(_accepts_connections, ports[service]))
        yield f"{HOST}:{ports['kafka']}"


def _accepts_connections(port: int) -> bool:
    with suppress(ConnectionRefusedError), closing(socket.create_connection((HOST, port))):
        return True
    gevent.sleep(0)
    return False
