"""A registry, and the objects that read from it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from kafkasse.records.registry.client import RegistryClient
from kafkasse.records.registry.lookup import SchemaRegistry
from kafkasse.settings import SchemaRegistrySettings
from tests.support.registry import Registry


@pytest.fixture
def server() -> Iterator[Registry]:
    """A registry without schemas."""
    server = Registry()
    yield server
    server.close()


@pytest.fixture
def registry(server: Registry) -> SchemaRegistry:
    """A client of the registry."""
    settings = SchemaRegistrySettings(url=server.url, timeout_s=5, max_wait_s=1)
    return SchemaRegistry(RegistryClient(settings), settings.max_wait_s, logging.getLogger("registry"))


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Returns the lines that the client has logged. Timers of earlier tests may log others."""
    return lambda: [record.getMessage() for record in caplog.records if record.name == "registry"]
