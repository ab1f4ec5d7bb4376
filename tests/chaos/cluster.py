"""A Kafka cluster of three nodes on loopback, and ways to make it fail. Uses only the embedded broker of kafkasse.

Tests and their producers connect to the nodes directly and may do everything. kafkasse connects to each node through its own
Network, as the user `kafkasse`, who may only read. A fault of that network or that user affects kafkasse alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gevent
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.admin._partitions import ElectionType
from kafka.errors import ElectionNotNeededError, KafkaError, NoError, UnknownTopicOrPartitionError

from kafkasse.tools.broker import EmbeddedBroker
from kafkasse.tools.broker.embedded import new_cluster_id
from tests.chaos.network import HOST, Network
from tests.support.kafka import Admin, Result
from tests.support.ports import reserve_port
from tests.support.waiting import wait_until

NODES = (1, 2, 3)
USER, PASSWORD = "kafkasse", "12345"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
REQUEST_TIMEOUT_MS = 20_000

SETTINGS = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,FAULTY:SASL_PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.faulty.plain.sasl.jaas.config": f'{LOGIN} user_{USER}="{PASSWORD}";',
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",  # connections without a password: the nodes and the tests
    "min.insync.replicas": "2",
    "broker.session.timeout.ms": "2000",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "auto.leader.rebalance.enable": "false",  # only tests move leaders
    # Compaction and retention run immediately instead of every few minutes.
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "200",
    "log.cleaner.backoff.ms": "200",
    "file.delete.delay.ms": "1000",
}


def rack(node: int) -> str:
    return f"rack-{node}"


class EmbeddedCluster:
    """Three nodes, each broker and controller. The cluster runs until the `with` block ends."""

    nodes: dict[int, EmbeddedBroker]
    networks: dict[int, Network]

    def __enter__(self) -> EmbeddedCluster:
        self._reserved = [[reserve_port() for _ in range(3)] for _ in NODES]
        ports = {
            node: [sock.getsockname()[1] for sock in reserved]
            for node, reserved in zip(NODES, self._reserved, strict=True)
        }
        voters = ",".join(f"{node}@{HOST}:{controller}" for node, (_, _, controller) in ports.items())
        self.networks = {node: Network(faulty) for node, (_, faulty, _) in ports.items()}
        cluster_id = new_cluster_id()
        self.nodes = {}
        for node, (plain, faulty, controller) in ports.items():
            own = {
                "node.id": str(node),
                "broker.rack": rack(node),
                "controller.quorum.voters": voters,
                "listeners": f"PLAINTEXT://{HOST}:{plain},FAULTY://{HOST}:{faulty},CONTROLLER://{HOST}:{controller}",
                "advertised.listeners": f"PLAINTEXT://{HOST}:{plain},FAULTY://{HOST}:{self.networks[node].port}",
            }
            self.nodes[node] = EmbeddedBroker(plain, settings=SETTINGS | own, cluster_id=cluster_id)
        try:
            self.start(*NODES)
            self._admin = Admin(bootstrap_servers=self.bootstrap_servers, request_timeout_ms=REQUEST_TIMEOUT_MS)
            self.allow_access()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if hasattr(self, "_admin"):
            self._admin.close()
        for node in self.nodes.values():
            node.kill()  # its data is no longer needed
            node.__exit__(None, None, None)
        for network in self.networks.values():
            network.close()
        for reserved in self._reserved:
            for sock in reserved:
                sock.close()

    @property
    def bootstrap_servers(self) -> list[str]:
        """The addresses that tests connect to."""
        return [node.bootstrap_servers for node in self.nodes.values()]

    @property
    def settings(self) -> dict[str, Any]:
        """The `kafka` settings with which kafkasse connects through the networks."""
        return {
            "bootstrap_servers": [f"{HOST}:{network.port}" for network in self.networks.values()],
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": USER,
            "sasl_plain_password": PASSWORD,
        }

    def start(self, *nodes: int) -> None:
        """Start these nodes in parallel. Return when all running nodes know each other."""
        for greenlet in gevent.joinall([gevent.spawn(self.nodes[node].start) for node in nodes]):
            greenlet.get()

    def heal(self) -> None:
        """Undo all faults: restore networks and access, and start all nodes. Return when all replicas are in sync."""
        for network in self.networks.values():
            network.heal()
        self.start(*self.nodes)
        self.restore_access(None)
        wait_until(self._is_in_sync)

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the node that leads a partition, or -1."""
        return int(self._partition(topic, partition)["leader_id"])

    def in_sync(self, topic: str, partition: int = 0) -> set[int]:
        return set(self._partition(topic, partition)["isr_nodes"])

    def controller(self) -> int:
        [topic] = self.run(lambda admin: admin.describe_metadata_quorum())["topics"]
        return int(topic["partitions"][0]["leader_id"])

    def move_leader(self, topic: str, partition: int = 0) -> int:
        """Move the leadership of a partition to another replica. Return the new leader."""
        described = self._partition(topic, partition)
        new = next(node for node in described["isr_nodes"] if node != described["leader_id"])
        after = [new, *(node for node in described["replica_nodes"] if node != new)]
        self.run(lambda admin: admin.alter_partition_reassignments({TopicPartition(topic, partition): after}))
        wait_until(lambda: self._partition(topic, partition)["replica_nodes"] == after)
        self.run(lambda admin: _elect(admin, topic, partition))
        wait_until(lambda: self.leader(topic, partition) == new)
        return new

    def allow_access(self, topic: str = "*") -> None:
        """Allow kafkasse to read a topic; by default all topics."""
        done = self.run(lambda admin: admin.create_acls([ACL(*_reads(topic, ACLPermissionType.ALLOW))]))
        assert not done["failed"], done

    def deny_access(self, topic: str) -> None:
        done = self.run(lambda admin: admin.create_acls([ACL(*_reads(topic, ACLPermissionType.DENY))]))
        assert not done["failed"], done

    def restore_access(self, topic: str | None) -> None:
        """Undo deny_access() for a topic, or for all topics."""
        denied = ACLFilter(*_reads(topic, ACLPermissionType.DENY))
        [(_, _, error)] = self.run(lambda admin: admin.delete_acls([denied]))
        assert error is NoError

    def run(self, operation: Callable[[KafkaAdminClient], Result]) -> Result:
        """Call `operation` with a client that has all rights, until it succeeds. Any running node can serve its calls."""
        return self._admin.run(operation, KafkaError)

    def _is_in_sync(self) -> bool:
        topics = self.run(lambda admin: admin.describe_topics())
        return all(
            {*partition["isr_nodes"]} == {*partition["replica_nodes"]}
            for topic in topics
            for partition in topic["partitions"]
        )

    def _partition(self, topic: str, partition: int) -> dict[str, Any]:
        def find(admin: KafkaAdminClient) -> dict[str, Any]:
            for described in admin.describe_topics([topic]):
                for candidate in described["partitions"]:
                    if candidate["partition_index"] == partition:
                        return dict(candidate)
            raise UnknownTopicOrPartitionError(topic)  # a node may not know a new topic yet

        return self.run(find)


def _elect(admin: KafkaAdminClient, topic: str, partition: int) -> None:
    with suppress(ElectionNotNeededError):  # a call that failed may have taken effect
        admin.elect_leaders(ElectionType.PREFERRED, {topic: [partition]})


def _reads(topic: str | None, permission: ACLPermissionType) -> tuple[Any, ...]:
    operation = ACLOperation.READ if permission is ACLPermissionType.ALLOW else ACLOperation.ALL
    pattern = ResourcePattern if topic else ResourcePatternFilter  # only a filter can match all topics
    topics = pattern(ResourceType.TOPIC, topic, ACLResourcePatternType.LITERAL)
    return f"User:{USER}", "*", operation, permission, topics
