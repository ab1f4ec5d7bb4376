"""A Kafka broker that compacts without a pause, for tests with compacted topics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafkasse.broker import EmbeddedBroker

SETTINGS = {"log.cleaner.backoff.ms": "50"}


@pytest.fixture(scope="package")
def broker(processes: None) -> Iterator[EmbeddedBroker]:
    """Replaces the broker that all other tests share."""
    with EmbeddedBroker(settings=SETTINGS) as running:
        yield running
        running.kill()  # its data is no longer needed
