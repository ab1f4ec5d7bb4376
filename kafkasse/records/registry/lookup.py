"""Look up schemas: a cache, retries, and references.

Many records wait for the same schema, so one greenlet looks it up for all of them. A decoder waits only for a short time
and then raises DecoderPending, so that its stream can send heartbeats before it tries the record again. After `max_wait_s`,
the lookup fails, and the streams end with status 503: their clients resume at the record, so no record is lost.

A schema never changes, so it is cached until it is evicted. A failure is cached briefly, and never evicts a schema.

A producer may write any number of unknown IDs. If each of them delayed the records after it, they would stall the stream.
Records therefore wait only MAX_UNKNOWN_WAIT_S in each interval for IDs that turn out to be unknown. For the rest of the
interval, in topics with unknown IDs, each schema that is not cached counts as unknown and is looked up in the background.
The cost: the first records with a new schema may be skipped although the registry knows the schema.
"""

from __future__ import annotations

import logging
import random
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol, cast

import gevent
from gevent.event import AsyncResult
from gevent.lock import BoundedSemaphore

from kafkasse.errors import RegistryUnavailable
from kafkasse.process.limited_log import LimitedLog
from kafkasse.process.log_line import one_line
from kafkasse.records.frame import DecoderPending, DeserializationError
from kafkasse.records.registry import avro, json_schema, protobuf
from kafkasse.records.registry.client import (
    Misconfigured,
    RegisteredSchema,
    RegistryClient,
    SchemaNotFound,
    TemporaryFailure,
)
from kafkasse.records.registry.wire_format import SchemaId

MAX_SCHEMAS = 500  # in the cache
MAX_FAILURES = 1_000  # in the cache
MAX_REQUESTS = 4  # at the same time
MAX_RUNNING = 100  # lookups; while this many run, no others start in the background
MAX_REFERENCES = 100  # of one schema, directly or through other schemas
MAX_WAIT_S = 1.0  # of one call of SchemaRegistry.schema()
FIRST_REGISTRY_BACKOFF_S = 0.2
MAX_REGISTRY_BACKOFF_S = 5.0
UNKNOWN_FOR_S = 30.0  # how long an unknown ID and an invalid schema are cached
UNAVAILABLE_FOR_S = 1.0
MISCONFIGURED_FOR_S = 10.0  # so that a wrong password does not lock the account
# A registry's replica may not know a new schema yet, so an unknown ID is requested again. For UNKNOWN_INTERVAL_S after an
# unknown ID, other unknown IDs are requested only once each, and several at the same time.
UNKNOWN_ATTEMPTS = 4
UNKNOWN_INTERVAL_S = 10.0
MAX_UNKNOWN_WAIT_S = 2.0  # in each interval; longer than the attempts for one ID

UNAVAILABLE = "The schema registry is not available. Retry after 5 s."
UNKNOWN_SCHEMA = "unknown_schema"  # the kind of an error, which the metrics contain

References = dict[str, RegisteredSchema]


class CompiledSchema(Protocol):
    """A schema that decodes values."""

    def decode(self, data: bytes, validate: bool = False) -> Any:
        """Return a value in JSON types. May switch greenlets.

        Args:
            data: the data of a record, after the schema ID.
            validate: whether to validate the value against a JSON Schema. Avro and Protobuf values always match.

        Raises:
            DeserializationError: the data cannot be decoded, or the value does not match the schema.
        """

    def json_schema(self) -> dict[str, Any]:
        """Return a JSON Schema of the decoded values."""


COMPILERS: dict[str, Callable[[RegisteredSchema, References], CompiledSchema]] = {
    "AVRO": avro.AvroSchema,
    "JSON": json_schema.JsonSchema,
    "PROTOBUF": protobuf.ProtobufSchema,
}


class _Lookup(AsyncResult):  # type: ignore[misc]  # gevent has no types
    """A schema that was found or is being looked up, or the error why there is none.

    Attributes:
        expires_at: when an error is forgotten.
        awaited_at: when the first record began to wait for this lookup, or None.
    """

    expires_at = float("inf")
    awaited_at: float | None = None


class _UnknownIds:
    """How long records have waited for unknown IDs in the current interval, and in which topics these IDs were."""

    def __init__(self) -> None:
        self._interval_ends_at = 0.0
        self._waited_s = 0.0
        self._counted_until = 0.0
        self._topics: set[str] = set()

    def add_wait(self, began_at: float, now: float) -> None:
        """Count a wait that ends now. Time during which several records wait counts once."""
        self._waited_s += now - max(began_at, self._counted_until)
        self._counted_until = now

    def add_topic(self, topic: str) -> None:
        self._topics.add(topic)

    def may_wait(self, topic: str, now: float) -> bool:
        """Return whether a record of a topic may wait for a schema. Starts a new interval if the current one has ended."""
        if now >= self._interval_ends_at:
            self._interval_ends_at = now + UNKNOWN_INTERVAL_S
            self._waited_s = 0.0
            self._topics.clear()
        return self._waited_s < MAX_UNKNOWN_WAIT_S or topic not in self._topics


class SchemaRegistry:
    """The schemas of one registry, shared by all routes of a worker.

    Args:
        client: sends the requests.
        max_wait_s: how long a lookup is retried while the registry is unavailable.
        logger: receives the reasons of failures, not more often than LimitedLog allows.
        clock: the time in seconds.
    """

    def __init__(
        self,
        client: RegistryClient,
        max_wait_s: float,
        logger: logging.Logger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._max_wait_s = max_wait_s
        self._logger = logger
        self._clock = clock
        self._found: OrderedDict[SchemaId, _Lookup] = OrderedDict()
        self._running: dict[SchemaId, _Lookup] = {}
        self._failed: OrderedDict[SchemaId, _Lookup] = OrderedDict()
        self._requests = BoundedSemaphore(MAX_REQUESTS)
        self._limited = LimitedLog(clock)
        self._retry_unknown_at = 0.0
        self._unknown = _UnknownIds()

    @property
    def has_unknown_ids(self) -> bool:
        """Whether an unknown ID was found in the last UNKNOWN_INTERVAL_S seconds."""
        return self._clock() < self._retry_unknown_at

    def prepare(self, schema_id: SchemaId) -> None:
        """Start to look up a schema that will be needed soon. Does not wait."""
        if self._cached(schema_id) is None and len(self._running) < MAX_RUNNING:
            self._start(schema_id)

    def schema(self, schema_id: SchemaId, topic: str = "") -> CompiledSchema:
        """Return the schema of a record of a topic. Waits for at most MAX_WAIT_S.

        Raises:
            DecoderPending: the lookup takes longer. Call again.
            RegistryUnavailable: the registry did not answer within `max_wait_s`, or rejects our requests.
            DeserializationError: the registry has no such schema, the schema is not valid, or the schema is not cached and
                records have waited too long for unknown IDs.
        """
        lookup = self._cached(schema_id)
        if lookup is None or not lookup.ready():
            lookup = self._wait(schema_id, topic)
        if (error := lookup.exception) is None:
            return cast(CompiledSchema, lookup.value)
        if isinstance(error, DeserializationError) and error.kind == UNKNOWN_SCHEMA:
            self._unknown.add_topic(topic)
        raise _again(error)

    def _cached(self, schema_id: SchemaId) -> _Lookup | None:
        """Return a lookup that is done or running, or None."""
        if (lookup := self._found.get(schema_id)) is not None:
            self._found.move_to_end(schema_id)
            return lookup
        if (lookup := self._running.get(schema_id)) is not None:
            return lookup
        lookup = self._failed.get(schema_id)
        return lookup if lookup is not None and self._clock() < lookup.expires_at else None

    def _wait(self, schema_id: SchemaId, topic: str) -> _Lookup:
        """Wait for a running lookup, or for a new one."""
        now = self._clock()
        if not self._unknown.may_wait(topic, now):
            self.prepare(schema_id)
            reason = f"the schema {schema_id} is not cached, and there are too many unknown schema IDs to wait for it"
            raise DeserializationError(reason, UNKNOWN_SCHEMA)
        lookup = self._running.get(schema_id) or self._start(schema_id)
        if lookup.awaited_at is None:
            lookup.awaited_at = now
        lookup.wait(MAX_WAIT_S)
        if not lookup.ready():
            raise DecoderPending
        return lookup

    def latest(self, subject: str) -> CompiledSchema | None:
        """Return the newest schema of a subject, or None if it has none that is valid. Waits for the registry.

        Raises:
            RegistryUnavailable: the registry does not answer, or rejects our requests.
        """
        try:
            with self._requests:
                return self._compile(subject, lambda format: self._client.version(subject, "latest", format))
        except (SchemaNotFound, DeserializationError):
            return None
        except (TemporaryFailure, Misconfigured) as error:
            self._log("The documents lack the schemas of the registry %s: %s", error)
            raise RegistryUnavailable(UNAVAILABLE) from error

    def _start(self, schema_id: SchemaId) -> _Lookup:
        lookup = self._running[schema_id] = _Lookup()
        gevent.spawn(self._run, schema_id, lookup)
        return lookup

    def _run(self, schema_id: SchemaId, lookup: _Lookup) -> None:
        error: Exception | None = None
        remember_s = UNKNOWN_FOR_S
        try:
            schema = self._find(schema_id)
        except SchemaNotFound:
            error = DeserializationError(f"the schema registry has no schema with the ID {schema_id}", UNKNOWN_SCHEMA)
            if lookup.awaited_at is not None:
                self._unknown.add_wait(lookup.awaited_at, self._clock())
        except DeserializationError as invalid:
            error = invalid
        except TemporaryFailure:
            error, remember_s = RegistryUnavailable(UNAVAILABLE), UNAVAILABLE_FOR_S
        except Misconfigured as reason:
            self._log("The schema registry %s rejects requests, so streams end with status 503: %s", reason)
            error, remember_s = RegistryUnavailable(UNAVAILABLE), MISCONFIGURED_FOR_S
        except Exception:
            self._logger.exception("The lookup of the schema %s failed unexpectedly.", schema_id)
            error, remember_s = RegistryUnavailable(UNAVAILABLE), MISCONFIGURED_FOR_S
        del self._running[schema_id]
        if error is None:
            _add(self._found, schema_id, lookup, MAX_SCHEMAS)
            lookup.set(schema)
        else:
            lookup.expires_at = self._clock() + remember_s
            _add(self._failed, schema_id, lookup, MAX_FAILURES)
            lookup.set_exception(error)

    def _find(self, schema_id: SchemaId) -> CompiledSchema:
        """Look up a schema, with retries."""
        deadline = self._clock() + self._max_wait_s
        backoff_s = FIRST_REGISTRY_BACKOFF_S / 2
        attempts = 0
        while True:
            try:
                with self._requests:
                    return self._compile(schema_id, lambda format: self._client.schema(schema_id, format))
            except TemporaryFailure as error:
                self._log("The schema registry %s is not available; streams wait for it: %s", error)
                if self._clock() >= deadline:
                    raise
            except SchemaNotFound:
                attempts += 1
                if attempts == UNKNOWN_ATTEMPTS or self.has_unknown_ids:
                    self._retry_unknown_at = self._clock() + UNKNOWN_INTERVAL_S
                    raise
            backoff_s = min(2 * backoff_s, MAX_REGISTRY_BACKOFF_S)
            jitter = random.uniform(0.5, 1.0)  # noqa: S311 - no secret
            gevent.sleep(min(backoff_s * jitter, max(0.0, deadline - self._clock())))

    def _compile(self, name: SchemaId | str, load: Callable[[str], RegisteredSchema]) -> CompiledSchema:
        """Return a schema with those to which it refers. `load` requests it in a format of the registry."""
        schema = load("")
        format = "serialized" if schema.type == "PROTOBUF" else ""
        if format:
            schema = load(format)
        if schema.type not in COMPILERS:
            raise DeserializationError(f"schemas of the type {schema.type} are not supported", "invalid_schema")
        references: References = {}
        self._add_references(schema, format, references)
        try:
            return COMPILERS[schema.type](schema, references)
        except Exception as error:  # the libraries raise many types of exceptions for schemas that are not valid
            reason = f"the schema {name} cannot be used: {type(error).__name__}: {error}"
            raise DeserializationError(one_line(reason), "invalid_schema") from error

    def _add_references(self, schema: RegisteredSchema, format: str, references: References) -> None:
        """Add the references of a schema to `references`, each after its own references."""
        for name, subject, version in schema.references:
            if name in references:
                continue
            if len(references) >= MAX_REFERENCES:
                raise DeserializationError(f"a schema has more than {MAX_REFERENCES} references", "invalid_schema")
            references[name] = other = self._client.version(subject, version, format)
            self._add_references(other, format, references)
            references[name] = references.pop(name)

    def _log(self, message: str, error: Exception) -> None:
        if self._limited.is_due("registry"):
            self._logger.error(message, self._client.url, one_line(str(error)))


def _add(cache: OrderedDict[SchemaId, _Lookup], schema_id: SchemaId, lookup: _Lookup, max_size: int) -> None:
    """Add the newest lookup to a cache, and evict the oldest one if the cache is full."""
    cache[schema_id] = lookup
    cache.move_to_end(schema_id)
    if len(cache) > max_size:
        cache.popitem(last=False)


def _again(error: BaseException) -> Exception:
    """Return a copy of a cached error. A traceback of the cached object would keep the record's batch in memory."""
    if isinstance(error, DeserializationError):
        return DeserializationError(str(error), error.kind)
    return RegistryUnavailable(UNAVAILABLE)
