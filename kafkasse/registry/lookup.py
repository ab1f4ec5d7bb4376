"""Look up schemas: a cache, retries, and references.

Many records wait for the same schema, so one greenlet looks it up for all of them. A decoder waits only for a short time
and then raises DecoderPending, so that its stream can send heartbeats before it tries the record again. After `max_wait_s`,
the lookup fails, and the streams end with status 503: their clients resume at the record, so no record is lost.

A schema never changes, so it is cached until it is evicted. A failure is cached briefly.
"""

from __future__ import annotations

import logging
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import gevent
from gevent.event import Event
from gevent.lock import BoundedSemaphore

from kafkasse.errors import RegistryUnavailable
from kafkasse.frame import DecoderPending, DeserializationError
from kafkasse.log_line import one_line
from kafkasse.registry import avro, json_schema, protobuf
from kafkasse.registry.client import Misconfigured, NotFound, RegisteredSchema, RegistryClient, TemporaryFailure
from kafkasse.registry.wire_format import SchemaId

MAX_SCHEMAS = 500  # in the cache, with the IDs that are unknown
MAX_REQUESTS = 4  # at the same time
MAX_RUNNING = 100  # lookups that prepare() adds to
MAX_REFERENCES = 100  # of one schema, directly or through other schemas
MAX_WAIT_S = 1.0  # of one call of SchemaRegistry.schema()
FIRST_BACKOFF_S = 0.2
MAX_BACKOFF_S = 5.0
UNKNOWN_FOR_S = 30.0  # how long an unknown ID and an invalid schema are cached
UNAVAILABLE_FOR_S = 1.0
MISCONFIGURED_FOR_S = 10.0  # so that a wrong password does not lock the account
LOG_INTERVAL_S = 10.0
# A registry's replica may not know a new schema yet, so an unknown ID is tried again. A producer that writes many unknown
# IDs must not delay the stream for each of them: for this time, the others are tried once, and several at once.
UNKNOWN_ATTEMPTS = 4
UNKNOWN_INTERVAL_S = 10.0

UNAVAILABLE = "The schema registry is not available. Retry after 5 s."

References = dict[str, RegisteredSchema]


class Schema(Protocol):
    """A schema that decodes values."""

    def decode(self, data: bytes, validate: bool = False) -> Any:
        """Return a value in JSON types. May switch greenlets.

        Args:
            data: the data of a record, after the schema ID.
            validate: whether to validate the value against a JSON Schema. Avro and Protobuf values always match.

        Raises:
            DeserializationError: the data cannot be decoded, or the value does not match the schema.
        """
        ...

    def json_schema(self) -> dict[str, Any]:
        """Return a JSON Schema of the decoded values."""
        ...


COMPILERS: dict[str, Callable[[RegisteredSchema, References], Schema]] = {
    "AVRO": avro.AvroSchema,
    "JSON": json_schema.JsonSchema,
    "PROTOBUF": protobuf.ProtobufSchema,
}


class _Lookup:
    """A schema that was found, is being looked up, or was not found.

    Attributes:
        schema: the schema, or None.
        error: why there is no schema, or None.
        expires_at: when the error is forgotten, by the monotonic clock.
        done: set when there is a schema or an error.
    """

    __slots__ = ("done", "error", "expires_at", "schema")

    def __init__(self) -> None:
        self.schema: Schema | None = None
        self.error: Exception | None = None
        self.expires_at = float("inf")
        self.done = Event()

    def fail(self, error: Exception, for_s: float) -> None:
        self.error = error
        self.expires_at = time.monotonic() + for_s


class SchemaRegistry:
    """The schemas of one registry, shared by all routes of a worker.

    Args:
        client: sends the requests.
        max_wait_s: how long a lookup is retried while the registry is unavailable.
        logger: receives the reasons of failures, at most one line in LOG_INTERVAL_S.
    """

    def __init__(self, client: RegistryClient, max_wait_s: float, logger: logging.Logger) -> None:
        self._client = client
        self._max_wait_s = max_wait_s
        self._logger = logger
        self._lookups: OrderedDict[SchemaId, _Lookup] = OrderedDict()
        self._requests = BoundedSemaphore(MAX_REQUESTS)
        self._running = 0
        self._log_at = 0.0
        self._retry_unknown_at = 0.0

    @property
    def has_unknown_ids(self) -> bool:
        """Whether an unknown ID was found in the last UNKNOWN_INTERVAL_S seconds."""
        return time.monotonic() < self._retry_unknown_at

    def prepare(self, schema_ids: Iterable[SchemaId]) -> None:
        """Start to look up schemas that will be needed soon. Does not wait."""
        for schema_id in schema_ids:
            if schema_id not in self._lookups and self._running < MAX_RUNNING:
                self._start(schema_id)

    def schema(self, schema_id: SchemaId) -> Schema:
        """Return a schema. Waits for at most MAX_WAIT_S.

        Raises:
            DecoderPending: the lookup takes longer. Call again.
            RegistryUnavailable: the registry did not answer within `max_wait_s`, or rejects our requests.
            DeserializationError: the registry has no such schema, or the schema is not valid.
        """
        lookup = self._lookups.get(schema_id)
        if lookup is None or (lookup.error is not None and time.monotonic() >= lookup.expires_at):
            lookup = self._start(schema_id)
        if lookup.schema is None:
            if not lookup.done.wait(MAX_WAIT_S):
                raise DecoderPending
            if lookup.error is not None:
                raise _again(lookup.error)
            assert lookup.schema is not None  # noqa: S101 - a lookup that is done has one of both
        else:
            self._lookups.move_to_end(schema_id)
        return lookup.schema

    def latest(self, subject: str) -> Schema | None:
        """Return the newest schema of a subject, or None if it has none that is valid. Waits for the registry.

        Raises:
            RegistryUnavailable: the registry does not answer, or rejects our requests.
        """
        try:
            with self._requests:
                return self._compile(subject, lambda format: self._client.version(subject, "latest", format))
        except (NotFound, DeserializationError):
            return None
        except (TemporaryFailure, Misconfigured) as error:
            self._log("The documents lack the schemas of the registry %s: %s", error)
            raise RegistryUnavailable(UNAVAILABLE) from error

    def _start(self, schema_id: SchemaId) -> _Lookup:
        lookup = self._lookups[schema_id] = _Lookup()
        while len(self._lookups) > MAX_SCHEMAS:
            self._lookups.popitem(last=False)
        self._running += 1
        gevent.spawn(self._run, schema_id, lookup)
        return lookup

    def _run(self, schema_id: SchemaId, lookup: _Lookup) -> None:
        try:
            lookup.schema = self._find(schema_id)
        except NotFound:
            reason = f"the schema registry has no schema with the ID {schema_id}"
            lookup.fail(DeserializationError(reason, "unknown_schema"), UNKNOWN_FOR_S)
        except DeserializationError as error:
            lookup.fail(error, UNKNOWN_FOR_S)
        except TemporaryFailure:
            lookup.fail(RegistryUnavailable(UNAVAILABLE), UNAVAILABLE_FOR_S)
        except Misconfigured as error:
            self._log("The schema registry %s rejects requests, so streams end with status 503: %s", error)
            lookup.fail(RegistryUnavailable(UNAVAILABLE), MISCONFIGURED_FOR_S)
        except Exception:
            self._logger.exception("The lookup of the schema %s failed unexpectedly.", schema_id)
            lookup.fail(RegistryUnavailable(UNAVAILABLE), MISCONFIGURED_FOR_S)
        finally:
            self._running -= 1
            lookup.done.set()

    def _find(self, schema_id: SchemaId) -> Schema:
        """Look up a schema, with retries."""
        deadline = time.monotonic() + self._max_wait_s
        backoff_s = FIRST_BACKOFF_S / 2
        attempts = 0
        while True:
            try:
                with self._requests:
                    return self._compile(schema_id, lambda format: self._client.schema(schema_id, format))
            except TemporaryFailure as error:
                self._log("The schema registry %s is not available; streams wait for it: %s", error)
                if time.monotonic() >= deadline:
                    raise
            except NotFound:
                attempts += 1
                if attempts == UNKNOWN_ATTEMPTS or self.has_unknown_ids:
                    self._retry_unknown_at = time.monotonic() + UNKNOWN_INTERVAL_S
                    raise
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
            jitter = random.uniform(0.5, 1.0)  # noqa: S311 - no secret
            gevent.sleep(min(backoff_s * jitter, max(0.0, deadline - time.monotonic())))

    def _compile(self, name: SchemaId | str, load: Callable[[str], RegisteredSchema]) -> Schema:
        """Return a schema with those to which it refers. `load` requests it in a format of the registry."""
        found = load("")
        format = "serialized" if found.type == "PROTOBUF" else ""
        if format:
            found = load(format)
        if found.type not in COMPILERS:
            raise DeserializationError(f"schemas of the type {found.type} are not supported", "invalid_schema")
        references: References = {}
        self._add_references(found, format, references)
        try:
            return COMPILERS[found.type](found, references)
        except Exception as error:  # the libraries raise many types of exceptions for schemas that are not valid
            reason = f"the schema {name} cannot be used: {type(error).__name__}: {error}"
            raise DeserializationError(one_line(reason), "invalid_schema") from error

    def _add_references(self, schema: RegisteredSchema, format: str, found: References) -> None:
        """Add the references of a schema to `found`, each after its own references."""
        for name, subject, version in schema.references:
            if name in found:
                continue
            if len(found) >= MAX_REFERENCES:
                raise DeserializationError(f"a schema has more than {MAX_REFERENCES} references", "invalid_schema")
            found[name] = other = self._client.version(subject, version, format)
            self._add_references(other, format, found)
            found[name] = found.pop(name)

    def _log(self, message: str, error: Exception) -> None:
        if time.monotonic() >= self._log_at:
            self._log_at = time.monotonic() + LOG_INTERVAL_S
            self._logger.error(message, self._client.url, one_line(str(error)))


def _again(error: Exception) -> Exception:
    """Return a copy of an error, because each raise adds to the traceback of its error."""
    if isinstance(error, DeserializationError):
        return DeserializationError(str(error), error.kind)
    return RegistryUnavailable(UNAVAILABLE)
