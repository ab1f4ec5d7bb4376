"""Batches that are small in Kafka and huge when decompressed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kafka import KafkaProducer

from tests.attacks.conftest import Unharmed
from tests.support.client import Client
from tests.support.kafka import Cluster
from tests.support.server import Server

DECOMPRESSED_BYTES = 64_000_000
MORE_BYTES_MAX = 32_000_000  # peak growth


@pytest.fixture(scope="module")
def attacked(cluster: Cluster) -> str:
    return cluster.create("beside-bombs")


@pytest.fixture(scope="module")
def server(serve: Callable[..., Server], attacked: str) -> Server:
    return serve(heartbeat_s=300)


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_a_decompression_bomb_uses_bounded_memory(
    server: Server, unharmed: Unharmed, cluster: Cluster, codec: str
) -> None:
    """A reader of the batch costs a bounded amount of memory."""
    topic = cluster.create(f"bomb-{codec}")
    producer = KafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers,
        compression_type=codec,
        max_request_size=2**31 - 1,
        batch_size=2**28,
    )
    producer.send(topic, b'{"x":"' + b"x" * DECOMPRESSED_BYTES + b'"}').get(30)
    producer.close()
    Path(f"/proc/{server.worker}/clear_refs").write_text("5")  # reset the peak
    before = server.memory_bytes()

    with Client(server.port, f"/{topic}?timestamp=0") as client:
        client.read_until(lambda: len(client.body) > DECOMPRESSED_BYTES or b"event: gap" in client.body[:10_000])

    assert _peak(server) < before + MORE_BYTES_MAX


def _peak(server: Server) -> int:
    status = Path(f"/proc/{server.worker}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
