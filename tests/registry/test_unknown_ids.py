"""Many unknown schema IDs: how long they delay the records of a stream, and which schemas stay in the cache."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterable, Iterator

import gevent
import pytest

from kafkasse.log.memory import MemoryRecord
from kafkasse.records.frame import DeserializationError
from kafkasse.records.frame.record_view import RecordView
from kafkasse.records.registry import lookup
from kafkasse.records.registry.client import RegisteredSchema, SchemaNotFound
from kafkasse.records.registry.decoder import Decoder
from kafkasse.records.registry.lookup import SchemaRegistry
from tests.support.registry import framed
from tests.support.waiting import TIMEOUT_S

KNOWN, NEW = 1, 2  # the IDs that the registry has
REQUEST_S = 0.05


class Records:
    """Decodes records. Each request to the registry advances the clock by REQUEST_S.

    Attributes:
        requests: the ID of each request.
        pause_s: how far a test has advanced the clock in addition.
    """

    url = "http://registry.example"

    def __init__(self) -> None:
        self.requests: list[int] = []
        self.pause_s = 0.0
        registry = SchemaRegistry(self, 1, logging.getLogger("registry"), self.now)  # type: ignore[arg-type]
        self._decoder = Decoder(registry, validate=False)

    def now(self) -> float:
        return self.pause_s + REQUEST_S * len(self.requests)

    def schema(self, schema_id: int, format: str) -> RegisteredSchema:
        """Answer a request."""
        self.requests.append(schema_id)
        if schema_id not in (KNOWN, NEW):
            raise SchemaNotFound
        return RegisteredSchema("AVRO", '"long"', ())

    def decode(self, schema_id: int, topic: str = "t") -> bool:
        """Return whether a record with this ID can be decoded."""
        try:
            self._decoder(RecordView(topic, 0, MemoryRecord(0, 0, None, framed(schema_id, b"\2")), None))
        except DeserializationError as error:
            if error.kind != "unknown_schema":
                raise
            return False
        return True

    def skip(self, schema_ids: Iterable[int], topic: str = "t") -> None:
        for schema_id in schema_ids:
            assert not self.decode(schema_id, topic)


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> Iterator[Records]:
    monkeypatch.setattr(lookup, "FIRST_REGISTRY_BACKOFF_S", 0.0)
    monkeypatch.setattr(lookup, "MAX_WAIT_S", TIMEOUT_S)  # in real time, so only a hang reaches it
    records = Records()
    assert records.decode(KNOWN)
    gc.disable()  # connections that other tests have left switch greenlets when they are collected
    yield records
    gc.enable()


def test_they_delay_the_next_record_by_a_limited_time(records):
    """The limit is for all unknown IDs of an interval together, whatever their number."""
    began_at = records.now()

    records.skip(range(10, 3_010))

    assert records.decode(KNOWN)
    assert records.now() - began_at < lookup.MAX_UNKNOWN_WAIT_S + 2 * REQUEST_S


def test_afterwards_a_new_schema_is_looked_up_in_the_background(records):
    """Its first record is skipped. The number of lookups that run at the same time is limited."""
    records.skip(range(10, 110))
    waited_for = len(records.requests)
    records.skip([NEW, *range(110, 3_010)])
    assert waited_for == len(records.requests)

    gevent.sleep(0)

    assert NEW in records.requests[waited_for:]
    assert len(records.requests) - waited_for <= lookup.MAX_RUNNING
    assert records.decode(NEW)


def test_a_topic_without_unknown_ids_is_not_affected(records):
    records.skip(range(10, 3_010))

    assert records.decode(NEW, topic="other")


def test_records_wait_again_in_the_next_interval(records):
    records.skip(range(10, 3_010))
    gevent.sleep(0)  # runs the lookups in the background
    records.pause_s += lookup.UNKNOWN_INTERVAL_S
    records.skip([3_010])

    assert records.decode(NEW)


def test_known_schemas_stay_in_the_cache(records, monkeypatch):
    """Unknown IDs have a cache of their own, which is limited, too: the oldest one is requested again."""
    monkeypatch.setattr(lookup, "MAX_SCHEMAS", 1)
    monkeypatch.setattr(lookup, "MAX_FAILURES", 3)
    records.skip([10, 11, 12, 13, 13, 10])

    assert records.decode(KNOWN)
    assert [KNOWN, *[10] * lookup.UNKNOWN_ATTEMPTS, 11, 12, 13, 10] == records.requests
