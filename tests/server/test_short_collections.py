"""Garbage collections visit only new objects, and a full one happens only if there may be much garbage."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from kafkasse.server import short_collections
from kafkasse.server.short_collections import OBJECTS_PER_STREAM, ShortCollections
from tests.support.waiting import wait_until

LIMIT = 5_000


class Node:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def streams() -> list[object]:
    return []


@pytest.fixture
def collections(streams: list[object], monkeypatch: pytest.MonkeyPatch) -> Iterator[ShortCollections]:
    """Collections at the end of each turn, each with a check of the frozen objects."""
    monkeypatch.setattr(short_collections, "MAX_UNEXPLAINED_OBJECTS", LIMIT)
    monkeypatch.setattr(short_collections, "INTERVAL_S", 0.0)
    monkeypatch.setattr(short_collections, "CHECK_INTERVAL_S", 0.0)
    thresholds, callbacks = gc.get_threshold(), gc.callbacks[:]
    gc.collect()
    collections = ShortCollections(streams)
    collections.start()
    yield collections
    collections._watcher.close()
    gc.callbacks[:] = callbacks
    gc.set_threshold(*thresholds)
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def frozen_garbage(count: int) -> weakref.ref[Node]:
    """Create garbage that was still in use during a collection. Return a reference that shows whether it exists."""
    nodes = [Node() for _ in range(count)]
    gc.collect(0)
    return weakref.ref(nodes[0])


@pytest.mark.usefixtures("collections")
def test_an_object_that_survives_a_collection_is_not_visited_again():
    node = Node()
    gc.collect(0)

    assert not any(survivor is node for survivor in gc.get_objects())


@pytest.mark.usefixtures("collections")
def test_new_garbage_is_collected_at_the_end_of_a_turn():
    """This does not depend on the collections that Python starts itself."""
    gc.set_threshold(0)
    garbage = weakref.ref(Node())

    wait_until(lambda: garbage() is None)


def test_much_garbage_among_frozen_objects_is_collected(collections):
    """One full collection frees it. Little garbage waits, because a full collection takes long."""
    little = frozen_garbage(LIMIT // 10)
    collections.turn_ends()
    waits = little() is not None
    much = frozen_garbage(LIMIT)
    collections.turn_ends()

    assert waits
    assert (None, None) == (little(), much())


def test_the_objects_of_open_streams_cause_no_full_collection(collections, streams):
    """They are expected, so they do not count as possible garbage."""
    garbage = frozen_garbage(LIMIT)
    streams += [None] * (2 * LIMIT // OBJECTS_PER_STREAM)

    collections.turn_ends()

    assert garbage() is not None
