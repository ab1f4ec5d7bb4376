"""Personal streams of visitors whose tokens expire, on a real server that reloads its file, judged by the checker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.history.gateway import LIFETIME_S, VISITORS, Gateway
from tests.support.kafka import Cluster
from tests.support.server import Server

SEED = 1


@pytest.fixture
def gateway(cluster: Cluster, fresh_name: str, tmp_path: Path) -> Iterator[Gateway]:
    with closing(Gateway(cluster, fresh_name, tmp_path, SEED)) as gateway:
        yield gateway


def test_nothing_is_lost_or_repeated_by_expired_tokens_and_reloads(gateway):
    """Streams end when their token expires, not later, and resume with a new one. A new topic joins without a gap.

    After a reload, they resume at the new worker. A topic that the new file adds to a route joins from its first record.
    """

    def write(servers: list[Server]) -> None:
        gateway.write(LIFETIME_S)
        gateway.create()
        gateway.write(LIFETIME_S)
        gateway.reload(servers[0])
        gateway.write(LIFETIME_S)

    assert [] == gateway.play([""], write)[""].violations
    assert gateway.expiries >= len(VISITORS)
