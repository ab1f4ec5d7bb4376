"""Kafka behind the contract of a log, by kafka-python 3. The only module that knows a Kafka client.

Consumers are assigned, never subscribed: no group, no commits. kafka-python runs each consumer's I/O on a thread of its
own, a greenlet once gevent has patched; so gevent must have patched before this module is imported.
"""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import BoundedSemaphore, Lock
from typing import Any
from uuid import UUID

import gevent
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka import errors as kafka_errors
from kafka.admin import OffsetSpec
from kafka.protocol.consumer import IsolationLevel

from kafkasse.errors import ConfigurationError, KafkasseError, KafkaUnavailable, ServerFull, TopicNotAvailable
from kafkasse.feed.contract import Batch, Bounds, OffsetOutOfRange, Topic
from kafkasse.feed.fetched import fetched
from kafkasse.position import Partition

log = logging.getLogger(__name__)

INCARNATION_CHARS = 8  # of the 22 that a topic id has in base64url: 48 bits tell any two creations apart
FOLLOW_WAIT_MS = 500  # how long Kafka may hold an empty answer to one who follows the end
CATCH_UP_WAIT_MS = 20  # and to one who catches up: the next user of a warm consumer waits for what the last one asked
WARM_CONSUMERS_MAX = 4
CLOSE_TIMEOUT_MS = 1_000
QUESTIONS_AT_ONCE_MAX = 1_000  # of 5 by default, past which kafka-python claims that there is no node
NOT_READY_S = 2.0
NOT_READY_PAUSE_S = 0.02
RECONNECT_BACKOFF_MAX_MS = 1_000
RETRY_BACKOFF_MS = 10  # of 100 by default, which a new consumer waits out twice before its first record

_SETTINGS_DO_NOT_WORK = "This server's settings for Kafka do not work; its log says why."
_ADMIN_SETTINGS = frozenset(KafkaAdminClient.DEFAULT_CONFIG)
# What a client may be told about a topic that cannot be read: nothing, as if it did not exist.
_NOT_THERE = (
    kafka_errors.UnknownTopicOrPartitionError,
    kafka_errors.TopicAuthorizationFailedError,
    kafka_errors.InvalidTopicError,
)


class KafkaLog:
    """See contract.Log.

    Args:
        settings: of kafka-python's KafkaConsumer; those that kafkasse's promises rest on are set here.
        timeout_s: how long any call but poll() may take.
        topic_prefix: put before every topic name on the way to Kafka, taken off on the way back.
        isolation_level: read_committed or read_uncommitted.
        fetch_bytes_max: what one fetch may bring.
        consumers_max: how many cursors may be open; the next waits for one up to `timeout_s`.

    Raises:
        ConfigurationError: a setting that KafkaConsumer does not have.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        timeout_s: float = 5,
        topic_prefix: str = "",
        isolation_level: str = "read_committed",
        fetch_bytes_max: int = 1_048_576,
        consumers_max: int = 200,
    ) -> None:
        if unknown := sorted(settings.keys() - KafkaConsumer.DEFAULT_CONFIG.keys()):
            log.error("kafka.%s is no setting of kafka-python's consumer", unknown[0])
            raise ConfigurationError(_SETTINGS_DO_NOT_WORK)
        timeout_ms = int(timeout_s * 1000)
        self._prefix = topic_prefix
        self._isolation = IsolationLevel.build_from(isolation_level)
        self._settings = {
            "request_timeout_ms": max(timeout_ms, FOLLOW_WAIT_MS * 4),
            "bootstrap_timeout_ms": timeout_ms,
            "reconnect_backoff_max_ms": RECONNECT_BACKOFF_MAX_MS,
            "client_id": "kafkasse",
            "retry_backoff_ms": RETRY_BACKOFF_MS,
            **settings,
        }
        self._consumer_settings = {
            **self._settings,
            "group_id": None,
            "enable_auto_commit": False,
            "auto_offset_reset": "none",  # with `earliest` a resume that is out of range would silently rewind to 0
            "allow_auto_create_topics": False,
            "isolation_level": isolation_level,
            "fetch_max_bytes": fetch_bytes_max,
            "max_partition_fetch_bytes": min(fetch_bytes_max, 1_048_576),
            "metrics_enabled": False,
        }
        self._timeout_s = timeout_s
        self._places = BoundedSemaphore(consumers_max)
        self._warm: list[KafkaConsumer] = []
        self._warming = False
        self._closed = False
        self._admin: KafkaAdminClient | None = None
        self._admin_lock = Lock()

    def describe(self, topics: Iterable[str]) -> dict[str, Topic]:
        names = [self._prefix + topic for topic in topics]
        found = self._ask(lambda admin: admin.describe_topics(names)) if names else []
        return {
            each["name"].removeprefix(self._prefix): Topic(len(each["partitions"]), _incarnation(each.get("topic_id")))
            for each in found
            if each["error_code"] == 0 and each["partitions"]
        }

    def bounds(self, partitions: Iterable[Partition]) -> dict[Partition, Bounds]:
        wanted = list(partitions)
        firsts = self._offsets(dict.fromkeys(wanted, OffsetSpec.EARLIEST))
        ends = self._offsets(dict.fromkeys(wanted, OffsetSpec.LATEST))
        return {each: Bounds(firsts[each], ends[each]) for each in wanted}

    def offsets_at(self, timestamps: Mapping[Partition, int]) -> dict[Partition, int]:
        found = self._offsets(timestamps)
        late = [each for each in timestamps if found[each] < 0]
        return found | (self._offsets(dict.fromkeys(late, OffsetSpec.LATEST)) if late else {})

    def cursor(self, offsets: Mapping[Partition, int], follow: bool = False) -> KafkaCursor:
        if not self._places.acquire(timeout=self._timeout_s):
            raise ServerFull("This server reads from Kafka for as many clients as it may. Come back in a moment.")
        try:
            consumer = self._consumer(FOLLOW_WAIT_MS) if follow else self._warm_one()
        except BaseException:
            self._places.release()
            raise

        def done(healthy: bool) -> None:
            self._places.release()
            if healthy and not follow:
                self._take_back(consumer)
            else:
                _discard(consumer)

        return KafkaCursor(consumer, offsets, self._prefix, done)

    def _warm_one(self) -> KafkaConsumer:
        consumer = self._warm.pop() if self._warm else self._consumer(CATCH_UP_WAIT_MS)
        if not self._warm and not self._warming:
            gevent.spawn(self._keep_one_warm)
        return consumer

    def _consumer(self, wait_ms: int) -> KafkaConsumer:
        with _told_plainly():
            return KafkaConsumer(**self._consumer_settings, fetch_max_wait_ms=wait_ms)

    def _keep_one_warm(self) -> None:
        """A new consumer waits more than 100 ms for its first metadata, one that is warm answers in a few."""
        self._warming = True
        try:
            self._take_back(self._consumer(CATCH_UP_WAIT_MS))
        except KafkasseError:
            pass  # whoever needs one will be told
        finally:
            self._warming = False

    def _take_back(self, consumer: KafkaConsumer) -> None:
        if self._closed or len(self._warm) >= WARM_CONSUMERS_MAX:
            _discard(consumer)
        else:
            try:
                consumer.unsubscribe()
                consumer.poll(0)  # lets go of what was fetched and not read
            except Exception as error:  # noqa: BLE001 - whatever it is, the consumer is closed
                log.info("a consumer that was given back is of no more use: %s", error)
                _discard(consumer)
            else:
                self._warm.append(consumer)

    def close(self) -> None:
        self._closed = True
        while self._warm:
            _discard(self._warm.pop())
        with self._admin_lock:
            admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    def _offsets(self, specs: Mapping[Partition, int]) -> dict[Partition, int]:
        asked = {TopicPartition(self._prefix + each.topic, each.partition): spec for each, spec in specs.items()}
        if not asked:
            return {}
        found = self._ask(lambda admin: admin.list_partition_offsets(asked, isolation_level=self._isolation))
        return {
            Partition(each.topic.removeprefix(self._prefix), each.partition): at.offset for each, at in found.items()
        }

    def _ask(self, question: Callable[[KafkaAdminClient], Any]) -> Any:
        deadline = time.monotonic() + NOT_READY_S
        with _told_plainly():
            while True:
                try:
                    return question(self._connected())
                except kafka_errors.NodeNotReadyError:
                    # While a connection is made, and when it has enough requests under way, kafka-python has no node.
                    if time.monotonic() > deadline:
                        raise
                    gevent.sleep(NOT_READY_PAUSE_S)

    def _connected(self) -> KafkaAdminClient:
        with self._admin_lock:
            if self._admin is None:
                settings = {name: value for name, value in self._settings.items() if name in _ADMIN_SETTINGS}
                settings["max_in_flight_requests_per_connection"] = QUESTIONS_AT_ONCE_MAX
                self._admin = KafkaAdminClient(**settings)
            return self._admin


class KafkaCursor:
    """See contract.Cursor. `done` is told, once, whether the consumer is still good for others."""

    def __init__(
        self,
        consumer: KafkaConsumer,
        offsets: Mapping[Partition, int],
        prefix: str,
        done: Callable[[bool], object],
    ) -> None:
        self._consumer = consumer
        self._prefix = prefix
        self._done = done
        self._healthy = True
        self._closed = False
        self._assigned: dict[TopicPartition, Partition] = {}
        # Runs in place of records: see fetched.py.
        consumer._fetcher.PartitionRecords = fetched()
        self.seek(offsets)

    def seek(self, offsets: Mapping[Partition, int]) -> None:
        added = {TopicPartition(self._prefix + each.topic, each.partition): each for each in offsets}
        if not added.keys() <= self._assigned.keys():
            self._assigned |= added
            self._consumer.assign(list(self._assigned))
        for each, partition in added.items():
            self._consumer.seek(each, offsets[partition])

    def poll(self, timeout_s: float) -> list[Batch]:
        try:
            with _told_plainly():
                found = self._consumer.poll(timeout_ms=int(timeout_s * 1000))
        except KafkasseError:
            self._healthy = False
            raise
        except kafka_errors.LogTruncationError as error:
            divergent = {self._assigned[each]: at.offset for each, at in error.divergent_offsets.items() if at}
            raise OffsetOutOfRange([self._assigned[each] for each in error.divergent_offsets], divergent) from None
        except kafka_errors.OffsetOutOfRangeError as error:
            raise OffsetOutOfRange([self._assigned[each] for each in error.args[0]]) from None
        return [
            Batch(self._assigned[each], records, next_offset)
            for each, runs in found.items()
            for records, next_offset in runs
        ]

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._done(self._healthy)


def _discard(consumer: KafkaConsumer) -> None:
    consumer.close(autocommit=False, timeout_ms=CLOSE_TIMEOUT_MS)


def _incarnation(topic_id: object) -> str:
    """The first characters of a topic id as Kafka's own tools print it, or "" where the cluster has none."""
    if topic_id is None or (uuid := UUID(str(topic_id))).int == 0:
        return ""
    return base64.urlsafe_b64encode(uuid.bytes).decode("ascii")[:INCARNATION_CHARS]


@contextmanager
def _told_plainly() -> Iterator[None]:
    """Kafka's errors as ours. What may hold a broker's address goes to the log only."""
    try:
        yield
    except (kafka_errors.OffsetOutOfRangeError, kafka_errors.LogTruncationError):
        raise
    except _NOT_THERE as error:
        log.warning("topic not available: %s", error)
        raise TopicNotAvailable("A topic of this stream is not available.") from error
    except (kafka_errors.KafkaConfigurationError, kafka_errors.SaslAuthenticationFailedError) as error:
        log.error("the Kafka settings do not work: %s", error)
        raise ConfigurationError(_SETTINGS_DO_NOT_WORK) from error
    except kafka_errors.CorruptRecordError as error:
        log.error("damaged records: %s", error)
        raise KafkasseError(
            "The next record of this stream is damaged in Kafka, so the stream cannot go on."
        ) from error
    except (kafka_errors.KafkaError, OSError) as error:
        log.warning("Kafka cannot be reached: %s: %s", type(error).__name__, error)
        raise KafkaUnavailable("Kafka cannot be reached. Try again in a moment.") from error
    except AssertionError as error:  # kafka-python checks many of its settings by assert
        log.error("the Kafka settings do not work: %s", error)
        raise ConfigurationError(_SETTINGS_DO_NOT_WORK) from error


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
