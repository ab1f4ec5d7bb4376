"""KafkaLog implements log.Log for a Kafka cluster. kafka-python looks up metadata and offsets; cursors fetch the records.

KafkaLog uses no consumer group and commits no offsets. gevent must patch the standard library before this module is
imported, because kafka-python chooses its selector when it is imported.
"""

from __future__ import annotations

import base64
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from threading import BoundedSemaphore
from typing import Any, TypeVar
from uuid import UUID

import gevent
from kafka import TopicPartition
from kafka import errors as kafka_errors
from kafka.admin import OffsetSpec
from kafka.protocol.consumer import IsolationLevel

from kafkasse.config.settings import KafkaSettings
from kafkasse.errors import ConfigurationError, ServerFull
from kafkasse.kafka import fetch_protocol
from kafkasse.kafka.client import Client, PartitionMetadata, TopicMetadata, unknown_settings
from kafkasse.kafka.connection_pool import ConnectionPool
from kafkasse.kafka.cursor import CursorOptions, KafkaCursor
from kafkasse.kafka.errors import SETTINGS_DO_NOT_WORK, translate_errors
from kafkasse.kafka.fetch_protocol import FetchOptions
from kafkasse.kafka.partition_state import Leader
from kafkasse.log import OffsetRange, Partition, Topic

log = logging.getLogger(__name__)

TOPIC_ID_CHARS = 8  # of 22 in base64url; 48 bits are enough to distinguish a recreated topic from the old one
TAIL_MAX_WAIT_MS = 500
CATCH_UP_MAX_WAIT_MS = 20  # short, because a closed cursor's connection cannot be reused until the broker has responded
MAX_PARTITION_BYTES = 1_048_576
CLIENT_SLOT_SHARE = 0.75  # of the cursor slots, for cursors that serve one client each
RETRY_AFTER_S = 5
MAX_TRANSIENT_ERRORS_S = 2.0
TRANSIENT_ERROR_BACKOFF_S = 0.02

# kafka-python raises these while it connects to a broker, and brokers return them while leaders change.
_TRANSIENT_ERRORS = (
    kafka_errors.NodeNotReadyError,
    kafka_errors.UnknownBrokerIdError,
    kafka_errors.LeaderNotAvailableError,
    kafka_errors.NotLeaderForPartitionError,
)

Result = TypeVar("Result")


class KafkaLog:
    """Implements log.Log.

    Args:
        settings: the settings of the adapter.
        client_settings: the settings of kafka-python's client, such as servers, security and timeouts.

    Raises:
        ConfigurationError: kafka-python does not have one of `client_settings`.
    """

    def __init__(self, settings: KafkaSettings, client_settings: Mapping[str, Any]) -> None:
        if unknown := unknown_settings(client_settings):
            log.error("Unknown Kafka setting kafka.%s. Remove it, or check its spelling.", unknown[0])
            raise ConfigurationError(SETTINGS_DO_NOT_WORK)
        self._settings = settings
        self._isolation_level = int(IsolationLevel.build_from(settings.isolation_level))
        self._leaders: dict[str, dict[int, Leader]] = {}  # by topic, from the last metadata response
        self._slots = BoundedSemaphore(settings.max_cursors)
        # Clients that catch up slowly must leave slots for shared cursors.
        self._client_slots = BoundedSemaphore(max(1, int(settings.max_cursors * CLIENT_SLOT_SHARE)))
        self._client = Client(client_settings, settings.kafka_timeout_s)
        self.pool = ConnectionPool(self._client, settings.kafka_timeout_s)

    # log.Log

    def describe(self, topics: Iterable[str]) -> dict[str, Topic]:
        names = {self._settings.topic_prefix + topic: topic for topic in topics}
        if not names:
            return {}
        metadata = self._with_retries(lambda: self._client.metadata(names))
        described = {}
        for name, topic in names.items():
            known = self._leaders.pop(topic, {})
            if name in metadata:
                self._leaders[topic] = _newest(known, _leaders_of(name, metadata[name]))
                described[topic] = Topic(len(metadata[name].partitions), _short_topic_id(metadata[name].topic_id))
        return described

    def offset_ranges(self, partitions: Iterable[Partition]) -> dict[Partition, OffsetRange]:
        wanted = list(partitions)
        starts, ends = self._list_offsets(
            dict.fromkeys(wanted, OffsetSpec.EARLIEST), dict.fromkeys(wanted, OffsetSpec.LATEST)
        )
        return {each: OffsetRange(starts[each], ends[each]) for each in wanted}

    def offsets_at(self, timestamps: Mapping[Partition, int]) -> dict[Partition, int]:
        # Look up the ends first. Then a record that is written between the two lookups is found by its timestamp. In the
        # other order, it would be skipped, because it is before the end.
        (ends,) = self._list_offsets(dict.fromkeys(timestamps, OffsetSpec.LATEST))
        (found,) = self._list_offsets(timestamps)
        return {each: offset if offset >= 0 else ends[each] for each, offset in found.items()}

    def epoch_ends(self, epochs: Mapping[Partition, int]) -> dict[Partition, int]:
        return {}

    def cursor(
        self,
        offsets: Mapping[Partition, int],
        tail: bool = False,
        shared: bool = False,
        epochs: Mapping[Partition, int] | None = None,
    ) -> KafkaCursor:
        with ExitStack() as slots:
            for each in [self._slots] if shared else [self._client_slots, self._slots]:
                self._acquire(each)
                slots.callback(each.release)
            leaders = self._known_leaders(offsets)
            if len(leaders) < len(offsets):
                leaders = self._find_leaders(offsets)
            options = self._cursor_options(tail)
            return KafkaCursor(self._find_leaders, self.pool, offsets, leaders, options, slots.pop_all().close)

    def close(self) -> None:
        self.pool.close()
        self._client.close()

    # Cursors

    def _acquire(self, slots: BoundedSemaphore) -> None:
        if not slots.acquire(timeout=self._settings.kafka_timeout_s):
            raise ServerFull(
                f"Too many clients are reading from Kafka (max_cursors={self._settings.max_cursors})."
                f" Retry after {RETRY_AFTER_S} s.",
                retry_after_s=RETRY_AFTER_S,
            )

    def _cursor_options(self, tail: bool) -> CursorOptions:
        settings = self._settings
        fetch = FetchOptions(
            max_wait_ms=TAIL_MAX_WAIT_MS if tail else CATCH_UP_MAX_WAIT_MS,
            max_bytes=settings.max_fetch_bytes,
            max_partition_bytes=min(settings.max_fetch_bytes, MAX_PARTITION_BYTES),
            isolation_level=self._isolation_level,
        )
        return CursorOptions(fetch, tail, settings.kafka_timeout_s, settings.max_decompressed_bytes)

    def _find_leaders(self, partitions: Iterable[Partition]) -> dict[Partition, Leader]:
        """Refresh the metadata, and return the leaders of those partitions that have one."""
        wanted = list(partitions)
        self.describe({each.topic for each in wanted})
        return self._known_leaders(wanted)

    def _known_leaders(self, partitions: Iterable[Partition]) -> dict[Partition, Leader]:
        known = {each: self._leaders.get(each.topic, {}).get(each.partition) for each in partitions}
        return {each: leader for each, leader in known.items() if leader is not None}

    # Offsets

    def _list_offsets(self, *lookups: Mapping[Partition, int]) -> list[dict[Partition, int]]:
        """Look up offsets by timestamp or OffsetSpec.

        Args:
            lookups: maps of the same partitions to a timestamp in milliseconds or an OffsetSpec.

        Returns:
            For each lookup, the offset of each partition; -1 if no record has the timestamp or a later one.
        """
        if not lookups[0]:
            return [{} for _ in lookups]

        def look_up() -> list[dict[Partition, int]]:
            leaders = self._known_leaders(lookups[0])
            if len(leaders) == len(lookups[0]):
                try:
                    return self._list_offsets_of(leaders, lookups)
                except kafka_errors.KafkaError as error:
                    if not (getattr(error, "invalid_metadata", False) or isinstance(error, _TRANSIENT_ERRORS)):
                        raise
            return self._list_offsets_of(self._find_all_leaders(lookups[0]), lookups)

        return self._with_retries(look_up)

    def _list_offsets_of(
        self, leaders: Mapping[Partition, Leader], lookups: Iterable[Mapping[Partition, int]]
    ) -> list[dict[Partition, int]]:
        prefix = self._settings.topic_prefix
        requests = []
        for lookup in lookups:
            by_node: defaultdict[int, dict[TopicPartition, int]] = defaultdict(dict)
            for each, time_or_spec in lookup.items():
                topic = TopicPartition(prefix + each.topic, each.partition)
                by_node[leaders[each].broker.node_id][topic] = time_or_spec
            requests.append(by_node)
        return [
            {Partition(each.topic.removeprefix(prefix), each.partition): offset for each, offset in found.items()}
            for found in self._client.list_offsets(requests, self._isolation_level)
        ]

    def _find_all_leaders(self, partitions: Iterable[Partition]) -> dict[Partition, Leader]:
        """Refresh the metadata, and return the leader of each partition.

        Raises:
            UnknownTopicOrPartitionError: a partition does not exist.
            LeaderNotAvailableError: a partition has no leader now.
        """
        wanted = list(partitions)
        topics = self.describe({each.topic for each in wanted})
        leaders = self._known_leaders(wanted)
        for each in wanted:
            if each.topic not in topics or each.partition >= topics[each.topic].partitions:
                raise kafka_errors.UnknownTopicOrPartitionError(f"{each.topic}/{each.partition}")
            if each not in leaders:
                raise kafka_errors.LeaderNotAvailableError(f"{each.topic}/{each.partition}")
        return leaders

    def _with_retries(self, call: Callable[[], Result]) -> Result:
        """Return `call()`. Retry it after transient errors, for a short time, and translate other errors."""
        deadline_s = time.monotonic() + MAX_TRANSIENT_ERRORS_S
        with translate_errors():
            while True:
                try:
                    return call()
                except _TRANSIENT_ERRORS as error:
                    if isinstance(error, kafka_errors.UnknownBrokerIdError):
                        self._client.refresh_brokers()
                    if time.monotonic() > deadline_s:
                        raise
                    gevent.sleep(TRANSIENT_ERROR_BACKOFF_S)


def _leaders_of(name: str, topic: TopicMetadata) -> dict[int, Leader]:
    topic_name = fetch_protocol.topic_name(name)
    topic_id = fetch_protocol.topic_id(topic.topic_id) if topic.topic_id else b""

    def leader(each: PartitionMetadata) -> Leader | None:
        return Leader(each.leader, each.leader_epoch, topic_name, topic_id) if each.leader else None

    return {each.partition: found for each in topic.partitions if (found := leader(each)) is not None}


def _newest(known: Mapping[int, Leader], found: dict[int, Leader]) -> dict[int, Leader]:
    """Replace leaders in `found` by known leaders with a newer epoch: a broker that lags behind reports former leaders."""
    for partition, leader in found.items():
        before = known.get(partition, leader)
        if before.topic_id == leader.topic_id and before.epoch > leader.epoch:
            found[partition] = before
    return found


def _short_topic_id(topic_id: UUID | None) -> str:
    """Return the first characters of a topic ID as Kafka's tools print it, or "" if the cluster has no topic IDs."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode("ascii")[:TOPIC_ID_CHARS] if topic_id else ""


def check_patched() -> None:
    """Check that gevent patched the standard library before kafka-python chose its selector.

    Otherwise each wait for Kafka would block the whole process.

    Raises:
        ConfigurationError: gevent has not patched. The message says how to do it.
    """
    with suppress(ImportError):
        from gevent import monkey

        if monkey.is_module_patched("socket") and monkey.is_module_patched("selectors"):
            return
    raise ConfigurationError(
        "gevent must patch the standard library first. Put `from gevent import monkey; monkey.patch_all()` at the top of"
        " the module that creates your app, or run the app under gunicorn with kafkasse's gunicorn.conf.py."
    )
