"""KafkaLog implements log.Log for a Kafka cluster. kafka-python looks up metadata and offsets; cursors fetch the records.

KafkaLog uses no consumer group and commits no offsets. gevent must patch the standard library before this module is
imported, because kafka-python chooses its selector when it is imported.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, TypeVar

import gevent
from gevent.monkey import is_module_patched
from kafka import errors as kafka_errors
from kafka.admin import OffsetSpec
from kafka.protocol.consumer import IsolationLevel

from kafkasse.config.kafka import servers
from kafkasse.errors import ConfigurationError, KafkasseError, TopicNotAvailable, Unavailable
from kafkasse.kafka.client import Client, unknown_settings
from kafkasse.kafka.connection_pool import ConnectionPool
from kafkasse.kafka.cursor import KafkaCursor
from kafkasse.kafka.cursor_core import CursorOptions
from kafkasse.kafka.errors import PERMANENT_ERRORS, SETTINGS_DO_NOT_WORK, TOPIC_NOT_AVAILABLE, Outages
from kafkasse.kafka.fetch_protocol import Broker, FetchOptions, Leader, short_topic_id
from kafkasse.kafka.old_brokers import UNKNOWN_OFFSET, is_of_another_topic
from kafkasse.log import Epochs, OffsetAndEpoch, OffsetRange, Offsets, Partition, Topic, Total
from kafkasse.process.event_loop import take_turn
from kafkasse.settings import KafkaSettings

log = logging.getLogger(__name__)

TAIL_MAX_WAIT_MS = 100  # while all partitions are idle, the first request for a new one waits up to this long
CATCH_UP_MAX_WAIT_MS = 20  # short, because a closed cursor's connection cannot be reused until the broker has responded
MAX_PARTITION_BYTES = 1_048_576
MAX_TRANSIENT_ERRORS_S = 2.0
TRANSIENT_ERROR_BACKOFF_S = 0.02
MAX_LEADERLESS_S = 0.15  # how long a lookup of offsets waits for elections
LEADERLESS_BACKOFF_S = 0.03
MAX_STRAGGLER_S = 0.5  # how long a lookup waits for the other brokers after one has answered

# kafka-python raises these while it connects, and if a connection closes while a request is in flight.
_TRANSIENT_ERRORS = (
    kafka_errors.NodeNotReadyError,
    kafka_errors.UnknownBrokerIdError,
    kafka_errors.KafkaConnectionError,
)
_TIMEOUTS = (kafka_errors.KafkaTimeoutError, kafka_errors.RequestTimedOutError)
_UNREACHABLE = (*_TRANSIENT_ERRORS, *_TIMEOUTS, OSError)  # errors of one broker

Result = TypeVar("Result")


class KafkaLog:
    """Implements log.Log.

    Args:
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
        self._client = Client(client_settings, settings.kafka_timeout_s, settings.topic_prefix)
        self._outages = Outages(servers(client_settings))
        self.pool = ConnectionPool(self._client, settings.kafka_timeout_s)

    # log.Log

    def describe(self, topics: Iterable[str]) -> dict[str, Topic]:
        names = dict.fromkeys(topics)
        if not names:
            return {}
        metadata = self._with_retries(lambda: self._client.metadata(names))
        described = {}
        for name in names:
            take_turn(urgent=True)
            known = self._leaders.pop(name, {})
            if (topic := metadata.get(name)) is None:
                continue
            if topic.error_code:
                described[name] = Topic(0, "", _topic_error(name, topic.error_code))
            else:
                self._leaders[name] = _newest(known, topic.leaders)
                described[name] = Topic(topic.partitions, short_topic_id(topic.topic_id))
        return described

    def topic_names(self) -> set[str]:
        metadata = self._with_retries(lambda: self._client.metadata(None))
        return {name for name, topic in metadata.items() if not topic.error_code}

    def offset_ranges(self, partitions: Iterable[Partition]) -> dict[Partition, OffsetRange]:
        wanted = list(partitions)
        starts, ends = self._list_offsets(
            dict.fromkeys(wanted, OffsetSpec.EARLIEST), dict.fromkeys(wanted, OffsetSpec.LATEST)
        )
        return {
            partition: OffsetRange(starts[partition].offset, *ends[partition])
            for partition in wanted
            if partition in starts
        }

    def offsets_at(self, timestamps: Mapping[Partition, int]) -> dict[Partition, int]:
        # Look up the ends first. Then a record that is written between the two lookups is found by its timestamp. In the
        # other order, it would be skipped, because it is before the end.
        (ends,) = self._list_offsets(dict.fromkeys(timestamps, OffsetSpec.LATEST))
        (offsets,) = self._list_offsets({partition: timestamps[partition] for partition in ends})
        return {partition: (at if at.offset >= 0 else ends[partition]).offset for partition, at in offsets.items()}

    def epoch_ends(self, epochs: Epochs) -> dict[Partition, OffsetAndEpoch]:
        ends = self.find_epochs(epochs)
        if missing := {partition: epoch for partition, epoch in epochs.items() if partition not in ends}:
            with self._outages.translate_errors():
                self._leaders_now(missing)  # the known leaders may be outdated
            ends |= self.find_epochs(missing)
        return {
            partition: OffsetAndEpoch(end[1], end[0])
            for partition, end in ends.items()
            if end is not None and end[1] != UNKNOWN_OFFSET
        }

    def recreated(self, epochs: Epochs) -> Set[Partition]:
        known = self.known_leaders(epochs)
        without_id = [partition for partition in epochs if partition not in known or not known[partition].topic_id]
        if not without_id:
            return set()
        with self._outages.translate_errors():
            leaders = self._leaders_now(without_id)
            suspects = {
                partition: leader
                for partition, leader in leaders.items()
                if is_of_another_topic(leader, epochs[partition])
            }

            def look_up(node_id: int, partitions: Sequence[Partition]) -> dict[Partition, bool]:
                current = {partition: suspects[partition].epoch for partition in partitions}
                ends = self._client.epoch_ends(node_id, current, current)
                return {partition: True for partition, (error, _, _) in ends.items() if not error}

            # The metadata may be outdated, but a broker that is the leader in this epoch is not.
            return self._ask_leaders(suspects, look_up)[0].keys()

    def cursor(
        self,
        offsets: Offsets,
        tail: bool = False,
        epochs: Epochs | None = None,
        topic_ids: Mapping[str, str] | None = None,
    ) -> KafkaCursor:
        if len(self.known_leaders(offsets)) < len(offsets):
            self.find_leaders(offsets)
        cursor = KafkaCursor(self, self.pool, self._cursor_options(tail), self._outages)
        cursor.seek(offsets, epochs, topic_ids)
        return cursor

    @property
    def recent(self) -> KafkaLog:
        return self

    def totals(self) -> list[Total]:
        return [Total("kafka_failures", self._outages.failures)]

    def close(self) -> None:
        self.pool.close()
        self._client.close()

    # Cursors

    def broker(self, node_id: int) -> Broker | None:
        return self._client.brokers.get(node_id)

    def reports_truncation(self, broker: Broker) -> bool:
        return self.pool.reports_truncation(broker)

    def find_leaders(self, partitions: Iterable[Partition]) -> Mapping[Partition, Leader | KafkasseError]:
        """Refresh the metadata. Return the leader of each partition that has one, or an error if we may not read it."""
        wanted = list(partitions)
        topics = self.describe({partition.topic for partition in wanted})
        errors = {name: topic.error for name, topic in topics.items() if isinstance(topic.error, TopicNotAvailable)}
        return {
            partition: errors[partition.topic] for partition in wanted if partition.topic in errors
        } | self.known_leaders(wanted)

    def known_leaders(self, partitions: Iterable[Partition]) -> dict[Partition, Leader]:
        known = {partition: self._leaders.get(partition.topic, {}).get(partition.partition) for partition in partitions}
        return {partition: leader for partition, leader in known.items() if leader is not None}

    def find_epochs(self, epochs: Epochs) -> dict[Partition, tuple[int, int] | None]:
        def look_up(node_id: int, partitions: Sequence[Partition]) -> dict[Partition, tuple[int, int] | None]:
            try:
                ends = self._client.epoch_ends(node_id, {partition: epochs[partition] for partition in partitions}, {})
            except kafka_errors.UnsupportedVersionError:  # before Kafka 0.11
                return dict.fromkeys(partitions)
            return {
                partition: None if error else (epoch, end)
                for partition, (error, epoch, end) in ends.items()
                if not kafka_errors.for_code(error).retriable
            }

        leaders = self.known_leaders(epochs)
        with self._outages.translate_errors():
            if len(leaders) < len(epochs):
                leaders = self._leaders_now(epochs)
            ends, error = self._ask_leaders(leaders, look_up)
            if error is not None and not ends:
                raise error
        return ends

    def _cursor_options(self, tail: bool) -> CursorOptions:
        settings = self._settings
        fetch = FetchOptions(
            max_wait_ms=TAIL_MAX_WAIT_MS if tail else CATCH_UP_MAX_WAIT_MS,
            max_bytes=settings.max_fetch_bytes,
            max_partition_bytes=min(settings.max_fetch_bytes, MAX_PARTITION_BYTES),
            isolation_level=self._isolation_level,
            rack=settings.client_rack,
        )
        return CursorOptions(fetch, tail, settings.kafka_timeout_s, settings.max_decompressed_bytes)

    def _leaders_now(self, partitions: Iterable[Partition]) -> dict[Partition, Leader]:
        """Refresh the metadata, and return the leaders of those partitions that have one.

        Raises:
            UnknownTopicOrPartitionError: a partition does not exist.
            TopicNotAvailable: we may not read a partition.
        """
        wanted = list(partitions)
        topics = self.describe({partition.topic for partition in wanted})
        for partition in wanted:
            topic = topics.get(partition.topic)
            if topic is not None and isinstance(topic.error, TopicNotAvailable):
                raise topic.error
            if topic is None or (topic.error is None and partition.partition >= topic.partitions):
                raise kafka_errors.UnknownTopicOrPartitionError(f"{partition.topic}/{partition.partition}")
        return self.known_leaders(wanted)

    # Offsets

    def _list_offsets(self, *lookups: Mapping[Partition, int]) -> list[dict[Partition, OffsetAndEpoch]]:
        """Look up offsets by timestamp or OffsetSpec.

        Args:
            lookups: maps of the same partitions to a timestamp in milliseconds or an OffsetSpec.

        Returns:
            For each lookup, the offset of each partition that has a leader, or -1 if no record is late enough, and an epoch:
            for LATEST, the current leader epoch.
        """

        def look_up(node_id: int, partitions: Sequence[Partition]) -> dict[Partition, Sequence[OffsetAndEpoch]]:
            wanted = [{partition: lookup[partition] for partition in partitions} for lookup in lookups]
            answers = self._client.list_offsets(node_id, wanted, self._isolation_level)
            return {partition: offsets for partition in partitions if (offsets := _offsets(partition, answers))}

        known: dict[Partition, Sequence[OffsetAndEpoch]] = {}
        leaders = self.known_leaders(lookups[0])
        deadline_s = math.inf
        with self._outages.translate_errors():
            while True:
                answers, error = self._ask_leaders(leaders, look_up, patient=not known)
                known |= answers
                missing = lookups[0].keys() - known.keys()
                if not missing or time.monotonic() >= deadline_s:
                    return [
                        {partition: offsets[index] for partition, offsets in known.items()}
                        for index in range(len(lookups))
                    ]
                if not known and isinstance(error, _TIMEOUTS):
                    raise error
                if deadline_s == math.inf:  # the known leaders may be outdated
                    deadline_s = time.monotonic() + MAX_LEADERLESS_S
                else:
                    gevent.sleep(LEADERLESS_BACKOFF_S)
                leaders = self._leaders_now(missing)

    def _ask_leaders(
        self,
        leaders: Mapping[Partition, Leader],
        ask: Callable[[int, Sequence[Partition]], dict[Partition, Result]],
        patient: bool = True,
    ) -> tuple[dict[Partition, Result], Exception | None]:
        """Send requests to the leaders of partitions, all at the same time.

        After one broker has answered, wait at most MAX_STRAGGLER_S for the others.

        Args:
            leaders: the partitions with their leaders.
            ask: sends a request about some partitions to the broker with a node ID.
            patient: wait until one broker has answered. False: wait at most MAX_STRAGGLER_S.

        Returns:
            The answers, and an error of a broker that did not answer.
        """
        partitions: defaultdict[int, list[Partition]] = defaultdict(list)
        for partition, leader in leaders.items():
            partitions[leader.broker.node_id].append(partition)

        def answer(node_id: int) -> dict[Partition, Result] | Exception:
            try:
                return ask(node_id, partitions[node_id])
            except Exception as error:  # noqa: BLE001 - raised below
                return error

        calls = [gevent.spawn(answer, node_id) for node_id in partitions]
        if patient:
            next((call for call in gevent.iwait(calls) if not isinstance(call.value, Exception)), None)
        gevent.joinall(calls, timeout=MAX_STRAGGLER_S)
        answers: dict[Partition, Result] = {}
        ignored: Exception | None = None
        for call in calls:
            if not isinstance(call.value, Exception):
                answers |= call.value or {}
            elif isinstance(call.value, PERMANENT_ERRORS) or not isinstance(call.value, _UNREACHABLE):
                raise call.value
            else:
                ignored = call.value
        return answers, ignored

    def _with_retries(self, call: Callable[[], Result]) -> Result:
        """Look up metadata with `call`. Retry it after transient errors, for a short time, and translate other errors."""
        deadline_s = time.monotonic() + MAX_TRANSIENT_ERRORS_S
        with self._outages.looking_up_metadata():
            while True:
                try:
                    return call()
                except _TRANSIENT_ERRORS:
                    if time.monotonic() > deadline_s:
                        raise
                    gevent.sleep(TRANSIENT_ERROR_BACKOFF_S)


def _offsets(
    partition: Partition, answers: Iterable[Mapping[Partition, tuple[int, OffsetAndEpoch]]]
) -> list[OffsetAndEpoch]:
    """Return the offset of a partition in each answer, or [] if its broker cannot answer now.

    Raises:
        kafka.errors.KafkaError: the broker rejects the request.
    """
    offsets = [answer[partition] for answer in answers if partition in answer]
    for code, _ in offsets:
        error = kafka_errors.for_code(code)
        if code and not error.retriable:
            raise error(f"{partition.topic}/{partition.partition}")
    return [] if any(code for code, _ in offsets) else [offset for _, offset in offsets]


def _topic_error(name: str, code: int) -> KafkasseError:
    error = kafka_errors.for_code(code)
    log.info("The cluster cannot describe the topic %s: %s", name, error.__name__)
    if error is kafka_errors.TopicAuthorizationFailedError:
        return TopicNotAvailable(TOPIC_NOT_AVAILABLE)
    return Unavailable("Kafka cannot say whether a topic of this stream exists. Retry in a few seconds.")


def _newest(known: Mapping[int, Leader], leaders: dict[int, Leader]) -> dict[int, Leader]:
    """Replace `leaders` by known leaders with a newer epoch. A broker that lags behind reports old leaders.

    A leader without a topic ID stays in `leaders`, because its older epoch may be that of a recreated topic.
    """
    for partition, leader in leaders.items():
        before = known.get(partition, leader)
        if leader.topic_id and before.topic_id == leader.topic_id and before.epoch > leader.epoch:
            leaders[partition] = before
    return leaders


def check_patched() -> None:
    """Check that gevent patched the standard library before kafka-python chose its selector.

    Otherwise each wait for Kafka would block the whole process.

    Raises:
        ConfigurationError: gevent has not patched. The message says how to do it.
    """
    if not (is_module_patched("socket") and is_module_patched("selectors")):
        raise ConfigurationError(
            "gevent must patch the standard library first. Run the app with"
            " `gunicorn --worker-class kafkasse.server.worker.Worker MODULE:APP`."
        )
