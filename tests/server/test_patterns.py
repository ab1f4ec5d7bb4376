"""A route with a pattern, over a real broker: topics that are created later join its streams."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.client import Client, numbers
from tests.support.kafka import Cluster
from tests.support.server import Server

PREFIX = "patterns-"


@pytest.fixture(scope="module")
def server(serve: Callable[..., Server]) -> Server:
    return serve(routes={"matching": {"path": "/matching", "topics": [f"{PREFIX}*"]}})


def test_topics_that_are_created_later_join(server: Server, cluster: Cluster, connect: Callable[..., Client]) -> None:
    """An open stream and one that resumes receive their first record. A deleted topic leaves, and nothing is lost."""
    for name in ("a", "b"):
        cluster.create(PREFIX + name)
    live = connect("/matching").ready()
    early_id = live.last_id
    cluster.create(f"{PREFIX}c", 2)
    cluster.send(f"{PREFIX}c", b'{"n":1}', b'{"n":2}')
    assert [1, 2] == numbers(live.events(2))

    resumed = connect("/matching", Last_Event_ID=early_id)
    assert [1, 2] == numbers(resumed.events(2))

    cluster.delete(f"{PREFIX}b")
    assert [] == live.rest()
    cluster.send(f"{PREFIX}a", b'{"n":3}')
    after = connect("/matching", Last_Event_ID=live.last_id)
    assert [3] == numbers(after.events(1))
