"""Three Kafkas that are one cluster, on loopback, with ways to harm it. Knows nothing of kafkasse but its embedded broker.

Tests and their writers reach the nodes directly and may do everything. kafkasse goes through a network of its own to each
node, with a password, as the user `kafkasse` who may read: what is done to that network or to that user is done to kafkasse
alone.
"""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Any

import gevent
from gevent import socket
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ResourcePattern,
    ResourceType,
)
from kafka.admin._partitions import ElectionType
from kafka.errors import ElectionNotNeededError

from kafkasse.broker import EmbeddedBroker
from kafkasse.broker.embedded import new_cluster_id
from tests.chaos.network import HOST, Network
from tests.support.kafka import patiently
from tests.support.waiting import eventually

NODES = (1, 2, 3)
USER, PASSWORD = "kafkasse", "12345"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
REQUEST_TIMEOUT_MS = 20_000

SETTINGS = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,ILL:SASL_PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.ill.plain.sasl.jaas.config": f'{LOGIN} user_{USER}="{PASSWORD}";',
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",  # whoever comes without a password: the nodes themselves, and tests
    "min.insync.replicas": "2",
    "broker.session.timeout.ms": "2000",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "auto.leader.rebalance.enable": "false",  # leaders move when a test wants it
    # Compaction and retention at once in partition of within minutes.
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "200",
    "log.cleaner.backoff.ms": "200",
    "file.delete.delay.ms": "1000",
}


class EmbeddedCluster:
    """Three nodes, each broker and controller, for as long as a `with` block lasts.

    Attributes:
        nodes: by node id; all may be stopped, killed and started again.
        networks: by node id, what lies between kafkasse and that node.
        admin: as a super user. Its calls are passed on by whichever nodes live.
    """

    nodes: dict[int, EmbeddedBroker]
    networks: dict[int, Network]
    admin: KafkaAdminClient

    def __enter__(self) -> EmbeddedCluster:
        # Bound, but nobody listens: no connection is given such a port while the node that has it is dead.
        self._held = [[_hold() for _ in range(3)] for _ in NODES]
        ports = {node: [each.getsockname()[1] for each in held] for node, held in zip(NODES, self._held, strict=True)}
        voters = ",".join(f"{node}@{HOST}:{controller}" for node, (_, _, controller) in ports.items())
        self.networks = {node: Network(ill) for node, (_, ill, _) in ports.items()}
        cluster_id = new_cluster_id()
        self.nodes = {}
        for node, (plain, ill, controller) in ports.items():
            own = {
                "node.id": str(node),
                "controller.quorum.voters": voters,
                "listeners": f"PLAINTEXT://{HOST}:{plain},ILL://{HOST}:{ill},CONTROLLER://{HOST}:{controller}",
                "advertised.listeners": f"PLAINTEXT://{HOST}:{plain},ILL://{HOST}:{self.networks[node].port}",
            }
            self.nodes[node] = EmbeddedBroker(plain, settings=SETTINGS | own, cluster_id=cluster_id)
        try:
            self.start(*NODES)
            self.admin = KafkaAdminClient(
                bootstrap_servers=self.bootstrap_servers, request_timeout_ms=REQUEST_TIMEOUT_MS
            )
            self.allow()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if hasattr(self, "admin"):
            self.admin.close()
        for node in self.nodes.values():
            node.kill()  # nobody needs its data any more
            node.__exit__(None, None, None)
        for network in self.networks.values():
            network.close()
        for held in self._held:
            for each in held:
                each.close()

    @property
    def bootstrap_servers(self) -> list[str]:
        """Where tests connect."""
        return [node.bootstrap_servers for node in self.nodes.values()]

    @property
    def settings(self) -> dict[str, Any]:
        """kafkasse's settings `kafka`, to get here through the networks."""
        return {
            "bootstrap_servers": [f"{HOST}:{network.port}" for network in self.networks.values()],
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": USER,
            "sasl_plain_password": PASSWORD,
        }

    def start(self, *nodes: int) -> None:
        """Start these nodes together; returns when all that live know each other."""
        for each in gevent.joinall([gevent.spawn(self.nodes[node].start) for node in nodes]):
            each.get()

    def heal(self) -> None:
        """Undo all harm: networks are clear, and all nodes run."""
        for network in self.networks.values():
            network.heal()
        self.start(*self.nodes)

    def leader(self, topic: str, partition: int = 0) -> int:
        """The node that leads a partition, or -1."""
        return int(self._partition(topic, partition)["leader_id"])

    def in_sync(self, topic: str, partition: int = 0) -> set[int]:
        """The nodes that hold all of a partition."""
        return set(self._partition(topic, partition)["isr_nodes"])

    def controller(self) -> int:
        """The node that is the active controller."""
        [topic] = patiently(self.admin.describe_metadata_quorum)["topics"]
        return int(topic["partitions"][0]["leader_id"])

    def move_leader(self, topic: str, partition: int = 0) -> int:
        """Let another replica lead a partition. Returns its node."""
        described = self._partition(topic, partition)
        new = next(each for each in described["isr_nodes"] if each != described["leader_id"])
        after = [new, *(each for each in described["replica_nodes"] if each != new)]
        patiently(lambda: self.admin.alter_partition_reassignments({TopicPartition(topic, partition): after}))
        eventually(lambda: self._partition(topic, partition)["replica_nodes"] == after)
        patiently(lambda: self._elect(topic, partition))
        eventually(lambda: self.leader(topic, partition) == new)
        return new

    def _elect(self, topic: str, partition: int) -> None:
        with suppress(ElectionNotNeededError):  # a call that failed may have been heard
            self.admin.elect_leaders(ElectionType.PREFERRED, {topic: [partition]})

    def allow(self, topic: str = "*") -> None:
        """Let kafkasse read a topic, by default all."""
        done = patiently(lambda: self.admin.create_acls([ACL(*_reads(topic, ACLPermissionType.ALLOW))]))
        assert not done["failed"], done

    def forbid(self, topic: str) -> None:
        """From now on kafkasse may not read a topic, nor know that it is there."""
        done = patiently(lambda: self.admin.create_acls([ACL(*_reads(topic, ACLPermissionType.DENY))]))
        assert not done["failed"], done

    def forgive(self, topic: str) -> None:
        """Take back what forbid() did."""
        patiently(lambda: self.admin.delete_acls([ACLFilter(*_reads(topic, ACLPermissionType.DENY))]))

    def _partition(self, topic: str, partition: int) -> dict[str, Any]:
        [described] = patiently(lambda: self.admin.describe_topics([topic]))
        return next(each for each in described["partitions"] if each["partition_index"] == partition)


def _hold() -> socket.socket:
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((HOST, 0))
    return held


def _reads(topic: str, permission: ACLPermissionType) -> tuple[Any, ...]:
    operation = ACLOperation.READ if permission is ACLPermissionType.ALLOW else ACLOperation.ALL
    return f"User:{USER}", "*", operation, permission, ResourcePattern(ResourceType.TOPIC, topic)
