"""Kafka behind the contract of a log: kafka-python 3 for metadata, offsets and connections, fetches of our own for records.

No group, no commits. kafka-python's one client in a worker runs its I/O on a thread of its own, a greenlet once gevent has
patched; so gevent must have patched before this module is imported.
"""

from __future__ import annotations

import base64
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from threading import BoundedSemaphore, Lock
from typing import Any
from uuid import UUID

import gevent
from kafka import KafkaAdminClient, TopicPartition
from kafka import errors as kafka_errors
from kafka.admin import OffsetSpec
from kafka.protocol.consumer import IsolationLevel

from kafkasse.errors import ConfigurationError, ServerFull
from kafkasse.kafka import fetch_protocol
from kafkasse.kafka.connection import Broker, Connections, bound_handshakes
from kafkasse.kafka.cursor import KafkaCursor, Leader
from kafkasse.kafka.errors import SETTINGS_DO_NOT_WORK, translate_errors
from kafkasse.kafka.fetch_protocol import Terms
from kafkasse.log import OffsetRange, Partition, Topic

log = logging.getLogger(__name__)

TOPIC_ID_CHARS = 8  # of the 22 that a topic id has in base64url: 48 bits tell any two creations apart
FOLLOW_WAIT_MS = 500  # how long Kafka may hold an empty answer to one who follows the end
CATCH_UP_WAIT_MS = 20  # and to one who catches up: if it leaves, its connection is of no use to the next until then
PARTITION_BYTES_MAX = 1_048_576
OWN_SHARE = 0.75  # of the places, for readers of one client each
QUESTIONS_AT_ONCE_MAX = 1_000  # of 5 by default, past which kafka-python claims that there is no node
NOT_READY_S = 2.0
NOT_READY_PAUSE_S = 0.02
RECONNECT_BACKOFF_MAX_MS = 1_000
RETRY_BACKOFF_MS = 10  # of 100 by default

# While a connection is made, and when it has enough requests under way, kafka-python has no node; leaders change.
_PASSING = (
    kafka_errors.NodeNotReadyError,
    kafka_errors.UnknownBrokerIdError,
    kafka_errors.LeaderNotAvailableError,
    kafka_errors.NotLeaderForPartitionError,
)


class KafkaLog:
    """See contract.Log.

    Args:
        settings: of kafka-python's KafkaAdminClient: servers, security, timeouts.
        timeout_s: how long any call but poll() may take.
        topic_prefix: put before every topic name on the way to Kafka, taken off on the way back.
        isolation_level: read_committed or read_uncommitted.
        max_fetch_bytes: what one fetch may bring.
        max_decompressed_bytes: how large a compressed batch of records may become; larger ones are not read.
        max_cursors: how many cursors may be open, three quarters of them for one reader each; the next waits `timeout_s`.

    Raises:
        ConfigurationError: a setting that KafkaAdminClient does not have.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        timeout_s: float = 5,
        topic_prefix: str = "",
        isolation_level: str = "read_committed",
        max_fetch_bytes: int = 1_048_576,
        max_decompressed_bytes: int = 16_777_216,
        max_cursors: int = 200,
    ) -> None:
        if unknown := sorted(settings.keys() - KafkaAdminClient.DEFAULT_CONFIG.keys()):
            log.error("kafka.%s is no setting of kafka-python's connections", unknown[0])
            raise ConfigurationError(SETTINGS_DO_NOT_WORK)
        timeout_ms = int(timeout_s * 1000)
        self._prefix = topic_prefix
        self._isolation = IsolationLevel.build_from(isolation_level)
        self._settings = {
            "request_timeout_ms": max(timeout_ms, FOLLOW_WAIT_MS * 4),
            "bootstrap_timeout_ms": timeout_ms,
            "reconnect_backoff_max_ms": RECONNECT_BACKOFF_MAX_MS,
            "client_id": "kafkasse",
            "retry_backoff_ms": RETRY_BACKOFF_MS,
            "max_in_flight_requests_per_connection": QUESTIONS_AT_ONCE_MAX,
            **settings,
        }
        self._terms = Terms(
            wait_ms=0,
            bytes_max=max_fetch_bytes,
            partition_bytes_max=min(max_fetch_bytes, PARTITION_BYTES_MAX),
            isolation_level=int(self._isolation),
        )
        self._timeout_s = timeout_s
        self._max_decompressed_bytes = max_decompressed_bytes
        self._places = BoundedSemaphore(max_cursors)
        # Clients that are slow to catch up must not keep others from what is read for all.
        self._own_places = BoundedSemaphore(max(1, int(max_cursors * OWN_SHARE)))
        self._known: dict[str, dict[int, Leader]] = {}  # of topics that were described, as they were then
        self.connections = Connections(self._connected, timeout_s)
        bound_handshakes()
        self._closed = False
        self._admin: KafkaAdminClient | None = None
        self._admin_lock = Lock()

    def describe(self, topics: Iterable[str]) -> dict[str, Topic]:
        names = {self._prefix + topic: topic for topic in topics}
        if not names:
            return {}
        found = self._ask(lambda admin: admin._manager.run(admin._get_cluster_metadata, list(names)))
        brokers = {each["node_id"]: Broker(each["node_id"], each["host"], each["port"]) for each in found["brokers"]}
        described = {}
        for each in found["topics"]:
            topic = names[each["name"]]
            known = self._known.pop(topic, {})
            if each["error_code"] == 0 and each["partitions"]:
                uuid = UUID(str(each.get("topic_id") or UUID(int=0)))
                self._known[topic] = _newest(known, _leaders_of(each, uuid, brokers))
                described[topic] = Topic(len(each["partitions"]), _short_topic_id(uuid))
        return described

    def offset_ranges(self, partitions: Iterable[Partition]) -> dict[Partition, OffsetRange]:
        wanted = list(partitions)
        firsts, ends = self._offsets(
            dict.fromkeys(wanted, OffsetSpec.EARLIEST), dict.fromkeys(wanted, OffsetSpec.LATEST)
        )
        return {each: OffsetRange(firsts[each], ends[each]) for each in wanted}

    def offsets_at(self, timestamps: Mapping[Partition, int]) -> dict[Partition, int]:
        # The ends first: what comes after them is found by its time, or was not asked for.
        (ends,) = self._offsets(dict.fromkeys(timestamps, OffsetSpec.LATEST))
        (found,) = self._offsets(timestamps)
        return {each: offset if offset >= 0 else ends[each] for each, offset in found.items()}

    def cursor(self, offsets: Mapping[Partition, int], tail: bool = False, shared: bool = False) -> KafkaCursor:
        places = [self._places] if shared else [self._own_places, self._places]
        with ExitStack() as taken:
            for each in places:
                if not each.acquire(timeout=self._timeout_s):
                    raise ServerFull(
                        "This server reads from Kafka for as many clients as it may. Come back in a moment."
                    )
                taken.callback(each.release)
            leaders = self._leaders(offsets)
            if len(leaders) < len(offsets):
                leaders = self.leaders(offsets)
            terms = self._terms._replace(wait_ms=FOLLOW_WAIT_MS if tail else CATCH_UP_WAIT_MS)
            limits = self._timeout_s, self._max_decompressed_bytes
            return KafkaCursor(self, offsets, leaders, terms, tail, *limits, taken.pop_all().close)

    def leaders(self, partitions: Iterable[Partition]) -> dict[Partition, Leader]:
        """See kafka_cursor.Cluster."""
        wanted = list(partitions)
        self.describe({each.topic for each in wanted})
        return self._leaders(wanted)

    def _leaders(self, partitions: Iterable[Partition]) -> dict[Partition, Leader]:
        found = {each: self._known.get(each.topic, {}).get(each.partition) for each in partitions}
        return {each: leader for each, leader in found.items() if leader is not None}

    def close(self) -> None:
        self._closed = True
        self.connections.close()
        with self._admin_lock:
            admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    def _offsets(self, *questions: Mapping[Partition, int]) -> list[dict[Partition, int]]:
        """For each question the offsets at its times, or OffsetSpecs; -1 where there is none."""
        if not questions[0]:
            return [{} for _ in questions]

        def ask(admin: KafkaAdminClient) -> list[dict[Partition, int]]:
            leaders = self._leaders(questions[0])
            if len(leaders) == len(questions[0]):
                try:
                    return self._listed(admin, questions, leaders)
                except kafka_errors.KafkaError as error:
                    if not (getattr(error, "invalid_metadata", False) or isinstance(error, _PASSING)):
                        raise
            return self._listed(admin, questions, self._looked_up(questions[0]))

        offsets: list[dict[Partition, int]] = self._ask(ask)
        return offsets

    def _listed(
        self, admin: KafkaAdminClient, questions: Iterable[Mapping[Partition, int]], leaders: Mapping[Partition, Leader]
    ) -> list[dict[Partition, int]]:
        """Ask all leaders at once."""
        requests = []
        for question in questions:
            of_nodes: defaultdict[int, dict[TopicPartition, int]] = defaultdict(dict)
            for each, spec in question.items():
                of_nodes[leaders[each].broker.node_id][TopicPartition(self._prefix + each.topic, each.partition)] = spec
            build = admin._list_partition_offsets_request
            requests.append([(node, build(specs, self._isolation.value)) for node, specs in of_nodes.items()])

        async def answers() -> list[Any]:
            sent = [[admin._manager.send(request, node_id=node) for node, request in each] for each in requests]
            return [[await future for future in each] for each in sent]

        return [
            {
                Partition(key.topic.removeprefix(self._prefix), key.partition): at.offset
                for response in responses
                for key, at in admin._list_partition_offsets_process_response(response).items()
            }
            for responses in admin._manager.run(answers)
        ]

    def _looked_up(self, partitions: Iterable[Partition]) -> dict[Partition, Leader]:
        """Their leaders as they are now, all of them."""
        wanted = list(partitions)
        topics = self.describe({each.topic for each in wanted})
        leaders = self._leaders(wanted)
        for each in wanted:
            if each.topic not in topics or each.partition >= topics[each.topic].partitions:
                raise kafka_errors.UnknownTopicOrPartitionError(f"{each.topic}/{each.partition}")
            if each not in leaders:
                raise kafka_errors.LeaderNotAvailableError(f"{each.topic}/{each.partition}")
        return leaders

    def _ask(self, question: Callable[[KafkaAdminClient], Any]) -> Any:
        deadline = time.monotonic() + NOT_READY_S
        with translate_errors():
            while True:
                try:
                    return question(self._connected())
                except _PASSING as error:
                    if isinstance(error, kafka_errors.UnknownBrokerIdError):
                        # It has come back since kafka-python looked.
                        admin = self._connected()
                        admin._manager.run(admin._manager.cluster.refresh_metadata)
                    if time.monotonic() > deadline:
                        raise
                    gevent.sleep(NOT_READY_PAUSE_S)

    def _connected(self) -> KafkaAdminClient:
        with self._admin_lock:
            if self._closed:
                raise kafka_errors.KafkaConnectionError("closed")
            if self._admin is None:
                self._admin = KafkaAdminClient(**self._settings)
                # No setting of the admin client's: 10 s by default, and 30 after some failures.
                within_ms = int(self._timeout_s * 1000)
                for name in ("socket_connection_setup_timeout_ms", "socket_connection_setup_timeout_max_ms"):
                    self._admin._manager.config[name] = within_ms
            return self._admin


def _leaders_of(topic: Mapping[str, Any], uuid: UUID, brokers: Mapping[int, Broker]) -> dict[int, Leader]:
    name, id = fetch_protocol.topic_name(topic["name"]), fetch_protocol.topic_id(uuid) if uuid.int else b""
    return {
        each["partition_index"]: Leader(brokers[each["leader_id"]], each["leader_epoch"], name, id)
        for each in topic["partitions"]
        if each["leader_id"] in brokers
    }


def _newest(known: Mapping[int, Leader], told: dict[int, Leader]) -> dict[int, Leader]:
    """A broker that lags behind may still tell of leaders that were deposed."""
    for partition, leader in told.items():
        before = known.get(partition, leader)
        if before.id == leader.id and before.epoch > leader.epoch:
            told[partition] = before
    return told


def _short_topic_id(uuid: UUID) -> str:
    """The first characters of a topic id as Kafka's own tools print it, or "" where the cluster has none."""
    if uuid.int == 0:
        return ""
    return base64.urlsafe_b64encode(uuid.bytes).decode("ascii")[:TOPIC_ID_CHARS]


def check_patched() -> None:
    """gevent must have patched before kafka-python picked its selector, or every poll would stop the whole process.

    Raises:
        ConfigurationError: with what to do.
    """
    with suppress(ImportError):
        from gevent import monkey

        if monkey.is_module_patched("socket") and monkey.is_module_patched("selectors"):
            return
    raise ConfigurationError(
        "kafkasse needs gevent to patch first: put `from gevent import monkey; monkey.patch_all()` at the very top of "
        "the module that makes your app, or run it under gunicorn with kafkasse's gunicorn.conf.py."
    )
