"""A closed cursor frees its memory at once. A cursor may hold megabytes, and workers rarely run the garbage collector."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import closing

import gevent
import pytest

from kafkasse.broker import EmbeddedBroker
from kafkasse.log import Partition
from tests.kafka.logs import open_log
from tests.support.kafka import Cluster

TURNS, TURN_S = 100, 0.001


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("tail", [False, True])
def test_closed_cursor_is_freed_at_once(
    broker: EmbeddedBroker, fresh_name: str, without_collector: None, tail: bool
) -> None:
    """A cursor that has returned records leaves nothing to the garbage collector."""
    with (
        closing(Cluster(broker.bootstrap_servers)) as cluster,
        closing(open_log(broker.bootstrap_servers)) as log,
    ):
        cluster.send(cluster.create(fresh_name), b"x" * 100_000)
        cursor = log.cursor({Partition(fresh_name, 0): 0}, tail)
        while not cursor.poll(1.0):
            pass
        reference = weakref.ref(cursor)

        cursor.close()
        del cursor
        for _ in range(TURNS):
            gevent.sleep(TURN_S)

        assert reference() is None
