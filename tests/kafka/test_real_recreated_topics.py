"""A topic is recreated on a real broker without topic IDs. `make compat-kafka` runs these tests with Kafka 2.6 and 2.7."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing

import pytest

from kafkasse.feed.epochs import EpochEnds
from kafkasse.kafka.log import KafkaLog
from kafkasse.log import RECREATED_AT, TRUNCATED, Cursor, Gap, OffsetAndEpoch, OffsetOutOfRange, Partition
from kafkasse.tools.broker import EmbeddedBroker
from tests.kafka.logs import POLL_TIMEOUT_S, KafkaWriter, open_log, take, values
from tests.support.broker_versions import WITHOUT_TOPIC_IDS

OLD, NEW = 60, 45  # records in the topic before and after it is recreated

pytestmark = pytest.mark.skipif(
    os.environ.get("BROKER_VERSION") not in WITHOUT_TOPIC_IDS, reason="run by `make compat-kafka`"
)


@pytest.fixture(scope="module")
def writer(broker: EmbeddedBroker) -> Iterator[KafkaWriter]:
    with closing(KafkaWriter(broker.bootstrap_servers)) as cluster:
        yield cluster


@pytest.fixture
def log(broker: EmbeddedBroker) -> Iterator[KafkaLog]:
    with closing(open_log(broker.bootstrap_servers)) as opened:
        yield opened


def recreate(writer: KafkaWriter, topic: str) -> list[bytes]:
    """Delete a topic, create it again and write to it. Return the new values."""
    writer.delete(topic)
    writer.create(topic)
    new = [b"new %d" % number for number in range(NEW)]
    writer.send(topic, *new)
    return new


def gaps(cursor: Cursor, log: KafkaLog, partition: Partition) -> list[Gap]:
    """Poll until the cursor cannot continue, and return the gaps at the offset OLD."""
    with pytest.raises(OffsetOutOfRange) as error:
        take(cursor, NEW)
    return error.value.gaps(partition, OLD, log.offset_ranges([partition])[partition])


@pytest.mark.parametrize("read_before", [0, 10], ids=["idle", "after records"])
def test_an_open_stream_receives_all_records_of_the_new_topic(log, writer, fresh_name, read_before):
    """The new topic is shorter, and its leader has the same epoch."""
    writer.create(fresh_name)
    writer.send(fresh_name, *[b"old"] * OLD)
    partition = Partition(fresh_name, 0)
    with closing(log.cursor({partition: OLD - read_before}, tail=True)) as cursor:
        take(cursor, read_before)
        cursor.poll(0.1)
        new = recreate(writer, fresh_name)

        assert [Gap(partition, OLD, 0, TRUNCATED)] == gaps(cursor, log, partition)
        cursor.seek({partition: 0})
        assert new == values(take(cursor, NEW))


def test_a_client_with_an_old_event_id_receives_all_records_of_the_new_topic(log, writer, fresh_name):
    """Its event ID has the offset and the epoch of the old topic."""
    writer.create(fresh_name)
    writer.send(fresh_name, *[b"old"] * OLD)
    partition = Partition(fresh_name, 0)
    with closing(log.cursor({partition: 0})) as cursor:
        epoch = take(cursor, OLD)[-1].leader_epoch
    recreate(writer, fresh_name)

    position = {partition: OffsetAndEpoch(OLD, epoch)}
    assert {partition: RECREATED_AT} == EpochEnds(log, POLL_TIMEOUT_S).diverged_at(
        position, log.offset_ranges([partition])
    )
