"""A Kafka broker with TLS and passwords, for tests of settings that it accepts and rejects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafkasse.broker import EmbeddedBroker
from tests.support.certificates import Authority
from tests.support.secured_broker import free_ports, secured_broker


@pytest.fixture(scope="package")
def authority() -> Authority:
    """The authority that signed the certificates of the broker and of its clients."""
    return Authority()


@pytest.fixture(scope="package")
def ports() -> dict[str, int]:
    """The port of each listener of the broker."""
    return free_ports()


@pytest.fixture(scope="package")
def broker(processes: None, authority: Authority, ports: dict[str, int]) -> Iterator[EmbeddedBroker]:
    """Replaces the broker that all other tests share."""
    with secured_broker(authority, ports) as running:
        yield running
