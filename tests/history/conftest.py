"""A Kafka whose cleaner does not rest, for tests that want compacted topics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from kafkasse.broker import EmbeddedBroker
from tests.support.kafka import Cluster

SETTINGS = {"log.cleaner.backoff.ms": "50"}


@pytest.fixture(scope="package")
def broker() -> Iterator[EmbeddedBroker]:
    """In place of the one that all other tests share."""
    with EmbeddedBroker(settings=SETTINGS) as running:
        yield running


@pytest.fixture(scope="package")
def cluster(broker: EmbeddedBroker) -> Iterator[Cluster]:
    with closing(Cluster(broker.bootstrap_servers)) as cluster:
        yield cluster
