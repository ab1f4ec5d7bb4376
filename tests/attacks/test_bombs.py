"""Batches that are small in Kafka and huge when decompressed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kafka import KafkaProducer

from tests.attacks.conftest import Attacked, Unharmed
from tests.support.client import Client
from tests.support.kafka import Cluster

DECOMPRESSED_BYTES = 64_000_000
MAX_MORE_BYTES = 32_000_000  # peak growth


@pytest.fixture(scope="module")
def attacked(cluster: Cluster) -> str:
    return cluster.create("beside-bombs")


@pytest.fixture(scope="module")
def server(serve: Callable[..., Attacked], attacked: str) -> Attacked:
    return serve(heartbeat_s=300)


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_a_decompression_bomb_uses_bounded_memory(
    server: Attacked, unharmed: Unharmed, cluster: Cluster, codec: str
) -> None:
    topic = cluster.create(f"bomb-{codec}")
    producer = KafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers,
        compression_type=codec,
        max_request_size=2**31 - 1,
        batch_size=2**28,
    )
    producer.send(topic, b'{"x":"' + b"x" * DECOMPRESSED_BYTES + b'"}').get(30)
    producer.close()
    server.expect("too large when decompressed")
    before = server.reset_peak()

    with Client(server.port, f"/{topic}?timestamp=0") as client:
        client.read_until(lambda: len(client.body) > DECOMPRESSED_BYTES or b"event: gap" in client.body[:10_000])

    assert server.peak_bytes() < before + MAX_MORE_BYTES
