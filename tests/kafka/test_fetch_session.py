"""Which partitions the requests of a fetch session contain."""

from __future__ import annotations

from kafkasse.kafka.fetch_position import FetchPosition
from kafkasse.kafka.fetch_protocol import VERSIONS, Broker, FetchOptions, FetchPartition, FetchResponse, Leader
from kafkasse.kafka.fetch_session import FetchSession
from kafkasse.log import Partition

BROKER = Broker(1, "kafka", 9092)
OPTIONS = FetchOptions(max_wait_ms=100, max_bytes=1000, max_partition_bytes=1000, isolation_level=0)
ANSWER = FetchResponse(correlation_id=0, throttle_ms=0, error_code=0, session_id=7, partitions=[])


def test_a_request_does_not_visit_partitions_that_an_earlier_request_has_forgotten(monkeypatch):
    """Otherwise, each request of a cursor with a thousand paused partitions would take a millisecond."""
    session, positions = FetchSession(BROKER, use_session=True), []
    for number in range(3):
        position = FetchPosition(Partition("t", number))
        position.leader = Leader(BROKER, 1, b"t", b"i" * 16)
        positions.append(position)
        session.add(position)
    session.request(VERSIONS[-1], OPTIONS)
    list(session.receive(ANSWER))
    for position in positions[1:]:
        session.pause(position)
    session.resume(positions[1])
    forgotten = session.request(VERSIONS[-1], OPTIONS).forgotten
    visited: list[int] = []
    request = FetchPosition.request

    def counted(position: FetchPosition, version: int) -> FetchPartition:
        visited.append(position.partition.partition)
        return request(position, version)

    monkeypatch.setattr(FetchPosition, "request", counted)

    again = session.request(VERSIONS[-1], OPTIONS).forgotten

    assert ([(b"i" * 16, 2)], []) == (forgotten, again)
    assert [] == visited
