"""Slow lookups: shared by concurrent callers, or in the background of a stream. Does not depend on Kafka."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

import gevent
from gevent.event import AsyncResult

from kafkasse.errors import KafkasseError, KafkaUnavailable, Unavailable
from kafkasse.feed.core.topics import is_recreated
from kafkasse.log import Log, OffsetRange, Partition
from kafkasse.process.event_loop import take_turn

MAX_WAIT_S = 0.05  # how long a stream waits for a background lookup
UNAVAILABLE_BACKOFF_S = 0.5  # after an error, before the tail, a snapshot or a reader tries again
MAX_KEYS = 100  # in one request, so that one caller with many keys does not delay the others for long

Key = TypeVar("Key")
Value = TypeVar("Value")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Result(Generic[Value]):
    """When a key was requested, as in time.monotonic(), and its value, if it has one."""

    requested_at: float
    values: list[Value]


class SharedLookup(Generic[Key, Value]):
    """Looks up values by key. Callers that need the same key at the same time share one request.

    While a request is in flight, the keys of other callers are collected for the next request.

    Args:
        look_up: returns the values of some keys; keys without a value are absent.
        timeout_s: how long a caller waits at most.
        max_cached: how many results are cached, including those of keys without a value.
    """

    def __init__(
        self,
        look_up: Callable[[list[Key]], Mapping[Key, Value]],
        timeout_s: float,
        max_cached: int = 0,
    ) -> None:
        self._look_up = look_up
        self._timeout_s = timeout_s
        self._max_cached = max_cached
        self._cache: dict[Key, _Result[Value]] = {}  # the oldest result is first
        self._is_requesting = False
        self._waiting: dict[Key, None] = {}  # the keys of the next requests
        self._results: dict[Key, AsyncResult[_Result[Value]]] = {}  # of the keys that wait or are in flight

    def get(self, keys: Iterable[Key], max_age_s: float = 0.0, since: float = 0.0) -> dict[Key, Value]:
        """Return the values of those keys that have one.

        Args:
            keys: the keys.
            max_age_s: how old cached results may be.
            since: results that were requested before this time, as in time.monotonic(), are replaced. The caller waits until
                they are `max_age_s` old, so that such calls cause no more requests than others.

        Raises:
            KafkasseError: raised by the request, or by an earlier request while the keys waited.
            KafkaUnavailable: there is no answer within the timeout.
        """
        results = self._find(keys, max_age_s)
        while outdated := [key for key, result in results.items() if result.requested_at < since]:
            newest = max(results[key].requested_at for key in outdated)
            gevent.sleep(max(0.0, newest + max_age_s - time.monotonic()))
            results |= self._find(outdated, max_age_s)
        return {key: result.values[0] for key, result in results.items() if result.values}

    def _find(self, keys: Iterable[Key], max_age_s: float) -> dict[Key, _Result[Value]]:
        oldest = time.monotonic() - max_age_s
        results: dict[Key, _Result[Value]] = {}
        pending = {}
        for key in keys:
            if max_age_s and (cached := self._cache.get(key)) and cached.requested_at > oldest:
                results[key] = cached
                continue
            if key not in self._results:
                self._results[key] = AsyncResult()
                self._waiting[key] = None
            pending[key] = self._results[key]
        if pending:
            self._start_request()
            results |= wait_for(pending, self._timeout_s)
        return results

    def _start_request(self) -> None:
        if self._waiting and not self._is_requesting:
            keys = list(islice(self._waiting, MAX_KEYS))
            for key in keys:
                del self._waiting[key]
            self._is_requesting = True
            # A greenlet of its own, because other callers need the result even if the first caller is killed.
            gevent.spawn(self._request, keys)

    def _request(self, keys: list[Key]) -> None:
        requested_at = time.monotonic()
        try:
            values = self._look_up(keys)
            for key in keys:
                result = _Result(requested_at, [values[key]] if key in values else [])
                self._add_to_cache(key, result)
                self._results.pop(key).set(result)
        except Exception as error:  # noqa: BLE001 - each caller raises it
            failed = [*keys]
            if isinstance(error, Unavailable):
                # The next request would probably fail too, after another timeout.
                failed += self._waiting
                self._waiting.clear()
            for key in failed:
                self._results.pop(key).set_exception(error)
        finally:
            for key in keys:
                if (result := self._results.pop(key, None)) is not None:  # a Timeout, for example, is not an Exception
                    result.set_exception(Unavailable("The request was interrupted. Retry later."))
            self._is_requesting = False
            self._start_request()

    def _add_to_cache(self, key: Key, result: _Result[Value]) -> None:
        self._cache.pop(key, None)  # a new entry must be the last one
        self._cache[key] = result
        while len(self._cache) > self._max_cached:
            del self._cache[next(iter(self._cache))]


class FreshLookup(Generic[Key, Value]):
    """Looks up values by key, for many clients that resume at the same time.

    Callers that need the same key share a request, but never one that was sent before they called. Its response may be older
    than the client's position, which would then appear to be beyond the end of the log, or older than a truncation.

    Args:
        look_up: returns the values of some keys; keys without a value are absent.
        topic_of: returns the topic of a key.
        timeout_s: how long a caller waits at most.
    """

    def __init__(
        self,
        look_up: Callable[[Iterable[Key]], Mapping[Key, Value]],
        topic_of: Callable[[Key], str],
        timeout_s: float,
    ) -> None:
        self._look_up = look_up
        self._topic_of = topic_of
        self._timeout_s = timeout_s
        self._waiting: dict[Key, AsyncResult[list[Value]]] = {}  # of the next requests
        self._in_flight: set[Key] = set()

    def get(self, keys: Iterable[Key]) -> dict[Key, Value]:
        """Return the values of those keys that have one.

        Raises:
            KafkasseError: raised by the request.
            KafkaUnavailable: there is no answer within the timeout.
        """
        results = {key: self._waiting.setdefault(key, AsyncResult()) for key in keys}
        if not results:
            return {}
        self._start_requests()
        values: dict[Key, list[Value]] = wait_for(results, self._timeout_s)
        return {key: value[0] for key, value in values.items() if value}

    def _start_requests(self) -> None:
        ready = {key: self._waiting.pop(key) for key in list(self._waiting) if key not in self._in_flight}
        if ready:
            self._in_flight |= ready.keys()
            gevent.spawn(self._request, ready)

    def _request(self, results: dict[Key, AsyncResult[list[Value]]]) -> None:
        try:
            self._answer(results)
        finally:
            self._in_flight -= results.keys()
            self._start_requests()

    def _answer(self, results: dict[Key, AsyncResult[list[Value]]]) -> None:
        try:
            values = self._look_up(results)
        except Exception as error:  # noqa: BLE001 - each caller raises it
            topics = {self._topic_of(key) for key in results}
            if len(topics) > 1 and not isinstance(error, Unavailable):  # one topic must not affect the others
                for topic in topics:
                    self._answer({key: result for key, result in results.items() if self._topic_of(key) == topic})
                return
            for result in results.values():
                result.set_exception(error)
            return
        for key, result in results.items():
            result.set([values[key]] if key in values else [])


class OffsetRanges(FreshLookup[Partition, OffsetRange]):
    """Looks up the offsets that partitions hold. Partitions without a leader are absent. See FreshLookup."""

    def __init__(self, log: Log, timeout_s: float) -> None:
        super().__init__(log.offset_ranges, lambda partition: partition.topic, timeout_s)


def known_offset_ranges(
    log: Log, partitions: Iterable[Partition], topic_ids: Mapping[str, str]
) -> dict[Partition, OffsetRange]:
    """Return the offsets that these partitions hold; an empty dict if the log cannot answer now. The caller retries.

    The result omits partitions without a leader, and partitions of deleted or recreated topics, whose offsets belong to
    another log.

    Args:
        log: the log that holds the topics.
        partitions: the partitions.
        topic_ids: the topic IDs of their topics, as far as they are known.
    """
    try:
        ranges = log.offset_ranges(partitions)
        # The topics are described last: a topic that still has its ID had it when its offsets were looked up.
        topics = log.describe({partition.topic for partition in ranges if topic_ids.get(partition.topic)})
    except Unavailable:
        return {}
    return {
        partition: offset_range
        for partition, offset_range in ranges.items()
        if not (topic_id := topic_ids.get(partition.topic))
        or (partition.topic in topics and not is_recreated(topic_id, topics[partition.topic]))
    }


def wait_for(results: Mapping[Key, AsyncResult[Any]], timeout_s: float) -> dict[Key, Any]:
    """Return the results.

    Raises:
        KafkaUnavailable: there is no result within the timeout.
    """
    with gevent.Timeout(timeout_s, KafkaUnavailable(f"Kafka did not answer within {timeout_s:g} s.")):
        values = {key: _result(result) for key, result in results.items()}
    take_turn()  # a thousand callers may have waited for the same result
    return values


def _result(result: AsyncResult[Any]) -> Any:
    try:
        return result.get()
    except KafkasseError as error:
        raise copy.copy(error) from error  # many callers share the error, and each adds to its traceback


class BackgroundLookups:
    """Runs lookups in greenlets of their own, because a slow broker must not delay heartbeats and other topics."""

    def __init__(self) -> None:
        self._running: dict[str, gevent.Greenlet[..., Any]] = {}

    def get(self, name: str, call: Callable[[], Result]) -> Result | None:
        """Return `call()`, or None if it fails or takes longer than MAX_WAIT_S.

        The caller repeats the lookup until it returns something. If the lookup with this name is still running, get() waits
        for it instead of another call.
        """
        lookup = self._running.get(name)
        if lookup is None:
            lookup = self._running[name] = gevent.spawn(_run, call)
        lookup.join(MAX_WAIT_S)
        if not lookup.ready():
            return None
        del self._running[name]
        result: Result | None = lookup.get()
        return result


def _run(call: Callable[[], Result]) -> Result | None:
    try:
        return call()
    except KafkasseError:
        return None
