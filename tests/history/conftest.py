"""A Kafka whose cleaner does not rest, for tests that want compacted topics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafkasse.broker import EmbeddedBroker

SETTINGS = {"log.cleaner.backoff.ms": "50"}


@pytest.fixture(scope="package")
def broker() -> Iterator[EmbeddedBroker]:
    """In place of the one that all other tests share."""
    with EmbeddedBroker(settings=SETTINGS) as running:
        yield running
