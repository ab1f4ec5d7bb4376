"""KafkaLog with fake brokers: partitions without a leader, brokers that do not answer, and errors in the metadata."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import gevent
import pytest

from kafkasse.errors import KafkasseError, KafkaTooOld, KafkaUnavailable, TopicNotAvailable, Unavailable
from kafkasse.kafka.client import TopicMetadata
from kafkasse.kafka.log import KafkaLog
from kafkasse.log import OffsetRange, Partition, Topic
from kafkasse.process import event_loop
from tests.kafka.fake_broker import (
    FETCH,
    LIST_OFFSETS,
    METADATA,
    NO_LEADER,
    OFFSET_FOR_LEADER_EPOCH,
    FakeCluster,
    FakeTopic,
)
from tests.kafka.logs import at, open_log

TIMEOUT_S = 3.0
SEVERAL = 3
NOT_LEADER, OFFSET_NOT_AVAILABLE, NOT_AUTHORIZED, LEADER_NOT_AVAILABLE = 6, 78, 29, 5
UNSUPPORTED_FOR_MESSAGE_FORMAT = 43


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with closing(FakeCluster(brokers=3)) as running:
        running.topics["t"] = FakeTopic([0, 1, 2], offset_range=(3, 7))
        yield running


def described(cluster: FakeCluster, timeout_s: float) -> Iterator[KafkaLog]:
    with closing(open_log(cluster.bootstrap_servers, kafka_timeout_s=timeout_s)) as opened:
        opened.describe(["t"])
        yield opened


@pytest.fixture
def log(cluster: FakeCluster) -> Iterator[KafkaLog]:
    yield from described(cluster, TIMEOUT_S)


@pytest.fixture
def patient_log(cluster: FakeCluster) -> Iterator[KafkaLog]:
    """A log that waits for an hour. A call that waits for an answer in vain hangs, and fails its test."""
    yield from described(cluster, 3600.0)


ALL = [at(0), at(1), at(2)]


def test_offsets_of_a_partition_without_a_leader_are_absent(cluster, patient_log):
    """The call does not wait long for a leader."""
    cluster.topics["t"].leaders[1] = NO_LEADER
    patient_log.describe(["t"])

    offsets = patient_log.offset_ranges(ALL), patient_log.offsets_at(dict.fromkeys(ALL, 5))

    assert ({at(0): OffsetRange(3, 7, 0), at(2): OffsetRange(3, 7, 0)}, {at(0): 7, at(2): 7}) == offsets
    assert {} == patient_log.offset_ranges([at(1)])


@pytest.mark.parametrize("error", [NOT_LEADER, OFFSET_NOT_AVAILABLE])
def test_offsets_are_absent_while_the_leader_cannot_answer(cluster, log, error):
    """A new leader may not know its offsets yet."""
    cluster.topics["u"] = FakeTopic([0], list_offsets_error=error)
    log.describe(["u"])

    assert {at(0)} == log.offset_ranges([at(0), Partition("u", 0)]).keys()


def test_offsets_after_an_election_are_found(cluster, log):
    """The known leader is outdated, so the call refreshes the metadata."""
    cluster.topics["t"].list_offsets_error = NOT_LEADER
    cluster.topics["t"].leaders[0] = 1
    cluster.on_request[LIST_OFFSETS] = lambda: setattr(cluster.topics["t"], "list_offsets_error", 0)

    assert {at(0): OffsetRange(3, 7, 0)} == log.offset_ranges([at(0)])


def test_offsets_do_not_wait_for_one_broker(cluster, log, patient_log):
    """One broker hangs, or has died but is still the leader. If no leader of the partitions answers, it is an error."""
    cluster.brokers[2].silent.add(LIST_OFFSETS)

    assert {at(0), at(1)} == patient_log.offset_ranges(ALL).keys()
    with pytest.raises(KafkaUnavailable):
        log.offset_ranges([at(2)])
    cluster.brokers[2].close()
    assert {at(0), at(1)} == patient_log.offset_ranges(ALL).keys()


def test_offsets_of_a_missing_partition_are_an_error(log):
    """Even if the other partitions exist."""
    for missing in (at(3), Partition("missing", 0)):
        with pytest.raises(TopicNotAvailable):
            log.offset_ranges([at(0), missing])


def test_counts_the_lookups_that_kafka_does_not_answer(cluster, log):
    """While Kafka is down, open streams only wait. If no request is rejected, only this count shows the outage."""
    before = log.totals()
    for broker in cluster.brokers:
        broker.close()
    with pytest.raises(KafkaUnavailable):
        log.find_leaders(ALL)

    assert ([("kafka_failures", 0, "")], [("kafka_failures", 1, "")]) == (before, log.totals())


def test_counts_the_connections_of_one_broker_that_fail_while_the_others_answer(cluster, log, caplog):
    """The metadata may still name the broker as a leader. Readers then get no records of its partitions."""
    caplog.set_level("WARNING", "kafkasse")
    cluster.brokers[1].close()

    with closing(log.cursor({at(1): 3})) as cursor:
        while log.totals()[0].value < SEVERAL:
            cursor.poll(0.1)

    (line,) = caplog.messages
    assert line.startswith("Connection to broker 1 failed: ")
    assert log.find_leaders(ALL).keys() == {*ALL}


def test_error_in_the_metadata_does_not_mean_that_the_topic_is_deleted(cluster, log):
    """Only an unknown topic is absent."""
    cluster.topics |= {
        "denied": FakeTopic([0], error=NOT_AUTHORIZED),
        "election": FakeTopic([0], error=LEADER_NOT_AVAILABLE),
        "created": FakeTopic([]),
    }

    topics = log.describe(["t", "denied", "election", "created", "missing"])

    expected = {"t": None, "denied": TopicNotAvailable, "election": Unavailable, "created": Unavailable}
    assert expected == {name: topic.error and type(topic.error) for name, topic in topics.items()}
    assert {0} == {topics[name].partitions for name in ("denied", "election", "created")}
    with pytest.raises(TopicNotAvailable):
        log.offset_ranges([Partition("denied", 0)])
    assert {} == log.offset_ranges([Partition("election", 0)])


def test_retries_on_another_connection(cluster, log):
    """A broker that restarts, or whose login has expired, closes connections with requests in flight."""
    log.offset_ranges(ALL)
    for broker in cluster.brokers:
        broker.disconnects |= {METADATA, LIST_OFFSETS}

    assert ["t"] == list(log.describe(["t"]))
    assert set(ALL) == log.offset_ranges(ALL).keys()


@pytest.mark.parametrize(
    ("request_type", "highest", "line"),
    [
        (FETCH, 3, "the broker supports Fetch versions 0 to 3, and kafkasse supports 4 to 18"),
        (LIST_OFFSETS, 0, "ListOffsetsRequest"),
    ],
)
def test_a_broker_that_is_too_old_is_rejected_before_a_stream_opens(cluster, caplog, request_type, highest, line):
    """The client receives 503 with the reason. The log names the versions, or the request that the broker lacks."""
    cluster.versions[request_type] = highest

    with closing(open_log(cluster.bootstrap_servers)) as log, pytest.raises(KafkaTooOld, match="needs Kafka") as error:
        _ = log.describe(["t"]) if request_type == FETCH else log.offset_ranges([at(0)])

    assert 503 == error.value.status
    assert line in caplog.text


def test_a_topic_without_timestamps_cannot_be_searched_by_time(cluster, log, caplog):
    """Its records have message format 0. The error is permanent, so clients must not retry."""
    cluster.topics["t"].list_offsets_error = UNSUPPORTED_FOR_MESSAGE_FORMAT

    with pytest.raises(KafkasseError, match="no timestamps") as error:
        log.offsets_at({at(0): 1000})

    assert "Retry-After" not in error.value.headers
    assert "t/0 has message format 0" in caplog.text


def test_descriptions_of_many_topics_take_turns(log, monkeypatch):
    """The metadata of thousands of topics must not delay other greenlets."""
    names = [f"t{n}" for n in range(50)]
    monkeypatch.setattr(log._client, "metadata", lambda wanted: dict.fromkeys(wanted, TopicMetadata(b"", 0, {})))
    monkeypatch.setattr(event_loop, "MAX_TURN_S", 1e-6)
    others = 0

    describing = gevent.spawn(log.describe, names)
    while not describing.ready():
        gevent.sleep(0)
        others += 1

    assert dict.fromkeys(names, Topic(0, "")) == describing.get()
    assert others >= len(names)


def test_epoch_ends_of_a_partition_with_a_new_leader(cluster, log):
    """Otherwise, a reader of lost records would continue at the end of the log, and miss the records before it."""
    answers = iter([(NOT_LEADER, -1, -1), (0, 5, 42)])

    class Answers(dict[int, tuple[int, int, int]]):
        def __missing__(self, partition: int) -> tuple[int, int, int]:
            return next(answers)

    cluster.topics["t"].epoch_ends = Answers()

    assert {at(0): (42, 5)} == log.epoch_ends({at(0): 5})


def test_epoch_ends(cluster, log):
    """Partitions whose leader does not know the epoch, or cannot answer, are absent. Before Kafka 0.11, all are absent."""
    cluster.topics["t"].epoch_ends = {0: (0, 5, 42), 1: (0, -1, -1), 2: (NOT_LEADER, -1, -1)}

    assert {at(0): (42, 5)} == log.epoch_ends(dict.fromkeys(ALL, 5))
    assert {} == log.epoch_ends({})
    del cluster.versions[OFFSET_FOR_LEADER_EPOCH]
    with closing(open_log(cluster.bootstrap_servers)) as old:
        assert {} == old.epoch_ends({at(0): 5})
