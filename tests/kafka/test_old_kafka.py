"""A real Kafka 2.6: Fetch version 11, no topic IDs, and no reports of truncated logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from kafkasse.log import RECREATED_AT, OffsetOutOfRange, OffsetRange, Partition
from tests.kafka.logs import KafkaWriter, open_log, take, values
from tests.support.broker_versions import running_broker
from tests.support.kafka import retry

FETCH_VERSION = 11

pytestmark = pytest.mark.long


@pytest.fixture
def bootstrap_servers(processes: None) -> Iterator[str]:
    with running_broker("2.6") as broker:
        yield broker.bootstrap_servers


def test_reads_from_kafka_2_6(bootstrap_servers: str) -> None:
    """Records, transactions, compression, sessions, offsets outside the log, and a log that is too short."""
    one, other = Partition("t", 0), Partition("t", 1)
    with closing(retry(lambda: KafkaWriter(bootstrap_servers))) as writer, closing(open_log(bootstrap_servers)) as log:
        writer.create("t", 2)
        writer.send("t", b"a", b"b")
        writer.compressed("t", "zstd", b"c" * 1000)
        writer.skip("t")
        writer.send("t", b"x", partition=1)

        described, ranges = log.describe(["t", "missing"]), log.offset_ranges([one, other])
        with closing(log.cursor({one: 0, other: 0}, tail=True)) as cursor:
            batches = take(cursor, 4)
            writer.send("t", b"d")
            batches += take(cursor, 1)
        epoch = batches[-1].leader_epoch
        end = batches[-1].next_offset

        assert ["t"] == list(described)
        assert (2, "") == described["t"][:2]
        assert OffsetRange(0, 1) == ranges[other]
        assert [b"a", b"b", b"c" * 1000, b"d"] == values(batches)
        assert [b"x"] == values(batches, 1)
        assert end == log.epoch_ends({one: epoch})[one].offset
        with closing(log.cursor({one: end + 9}, epochs={one: epoch})) as cursor:
            with pytest.raises(OffsetOutOfRange) as too_short:
                take(cursor, 1)
            versions = {connection.version for connection in log.pool.idle()}
        # A log does not get shorter without an election, so its topic must have been recreated.
        assert {one: RECREATED_AT} == too_short.value.diverged_at
        assert {FETCH_VERSION} == versions
        writer.drop_before("t", 2)
        with closing(log.cursor({one: 1})) as cursor, pytest.raises(OffsetOutOfRange):
            take(cursor, 1)
