"""The checker reports nothing for a correct history, and reports every single change to it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.history.checker import (
    Acknowledged,
    Allowance,
    Bounds,
    Connection,
    History,
    StoredRecord,
    last_id,
    violations,
)
from tests.history.payloads import expected_event
from tests.history.wire import Block, Partition, blocks, lines, parse_id
from tests.support.examples import examples

TOPIC = "t"
FIRST = {0: 3, 1: 0}  # retention removed the earlier records of partition 0
Frame = bytes


def event(name: str, id: str | None, data: str) -> Frame:
    id_line = f"id: {id}\n" if id is not None else ""
    return f"event: {name}\ndata: {data}\n{id_line}\n".encode()


def id_at(partitions: dict[int, int]) -> str:
    entries = [{"topic": TOPIC, "partition": partition, "offset": offset} for partition, offset in partitions.items()]
    entries[0]["topic_id"] = "abc"
    return json.dumps(entries, separators=(",", ":"))


def record(partition: int, offset: int) -> StoredRecord:
    value = None if offset % 5 == 4 else b'{"n":%d,"price":25.00}' % (100 * partition + offset)
    return StoredRecord(TOPIC, partition, offset, 1000 + offset, b"k%d" % offset, value)


def frame_of(stored: StoredRecord, id: str | None) -> Frame:
    where = {"topic": TOPIC, "partition": stored.partition, "offset": stored.offset}
    origin = json.dumps({**where, "timestamp": stored.timestamp, "key": (stored.key or b"").decode()})
    head = (stored.value or b"{}")[:-1].decode()
    name = "message" if stored.value is not None else "delete"
    return event(name, id, f'{head}{"," if stored.value else ""}"_kafka":{origin}}}')


class CorrectHistory:
    """A correct history: two partitions with holes, a gap in one of them, a cut and a reconnect."""

    def __init__(self, rng: random.Random, id_frequency: str = "event") -> None:
        self.stored = [record(0, offset) for offset in range(12) if offset != 7]
        self.stored += [record(1, offset) for offset in range(8)]
        self.bounds: dict[Partition, list[Bounds]] = {(TOPIC, 0): [Bounds(0, 0, 0, 0), Bounds(2, 2, FIRST[0], 12)]}
        self.id_frequency = id_frequency
        at = {0: 0, 1: 0}
        self.opening = b":ok\n\nretry: 1\n\n" + event("position", id_at(at), "{}")
        coming = {0: [entry for entry in self.stored if entry.partition == 0 and entry.offset not in (1, 2)]}
        coming[1] = [entry for entry in self.stored if entry.partition == 1]
        self.frames: list[Frame] = []
        while any(coming.values()):
            partition = rng.choice([number for number in coming if coming[number]])
            if partition == 0 and at[0] == 1:
                at[0] = FIRST[0]
                gap = {"topic": TOPIC, "partition": 0, "from": 1, "to": FIRST[0], "reason": "removed by retention"}
                self.frames.append(event("gap", id_at(at), json.dumps(gap)))
                continue
            stored = coming[partition].pop(0)
            at[partition] = stored.offset + 1
            has_id = id_frequency == "event" or not any(coming.values()) or rng.random() < 0.3
            self.frames.append(frame_of(stored, id_at(at) if has_id else None))
        self.ends = {(TOPIC, number): offset for number, offset in at.items()}

    def violations(self, frames: list[Frame], cut_at: int | None = None) -> list[str]:
        """Return what the checker reports for these frames, cut after `cut_at` bytes and resumed with the last event ID."""
        body = self.opening + b"".join(frames)
        times = [(len(self.opening), 1.0), (len(body), 2.0)]
        connections = [Connection(None, 200, body[:cut_at], arrivals=times)]
        if cut_at is not None:
            kept = last_id(body[:cut_at])
            received = max((block.end for block in blocks(body[:cut_at]) if block.id is not None), default=0)
            rest = (b":ok\n\n" if kept else b"") + body[received:]
            connections.append(Connection(kept, 200, rest, arrivals=[(len(rest), 2.0)] if kept else times))
        history = History("c", [TOPIC], connections, start="earliest", id_frequency=self.id_frequency)
        return violations([history], self.stored, reached=self.ends, bounds=self.bounds)


def with_id(frame: Frame, by: int) -> Frame:
    """Change the offset of this frame's event ID in the partition of its record."""
    partition = int(re.search(rb'"partition":\s*(\d+)', frame)[1])
    id_offset = rb'(id: .*"partition":%d,"offset":)(\d+)' % partition
    return re.sub(id_offset, lambda match: match[1] + b"%d" % max(0, int(match[2]) + by), frame)


def without_id(frame: Frame) -> Frame:
    return re.sub(rb"id: .*\n", b"", frame)


def id_before(frame: Frame) -> Frame:
    return re.search(rb"id: .*\n", frame)[0] + b"\n" + without_id(frame)


def altered(frame: Frame) -> Frame:
    return frame.replace(b"25.00", b"25") if b"25.00" in frame else frame.replace(b'"from": 1', b'"from": 2')


CORRUPTIONS: dict[str, Callable[[list[Frame], int], list[Frame]]] = {
    "dropped": lambda frames, at: [*frames[:at], *frames[at + 1 :]],
    "repeated": lambda frames, at: [*frames[: at + 1], *frames[at:]],
    "swapped": lambda frames, at: [*frames[:at], *frames[at : at + 2][::-1], *frames[at + 2 :]],
    "altered": lambda frames, at: [*frames[:at], altered(frames[at]), *frames[at + 1 :]],
    "an ID one too far": lambda frames, at: [*frames[:at], with_id(frames[at], 1), *frames[at + 1 :]],
    "an ID one too near": lambda frames, at: [*frames[:at], with_id(frames[at], -1), *frames[at + 1 :]],
    "no ID": lambda frames, at: [*frames[:at], without_id(frames[at]), *frames[at + 1 :]],
    "an ID before its data": lambda frames, at: [*frames[:at], id_before(frames[at]), *frames[at + 1 :]],
    "another event name": lambda frames, at: [*frames[:at], b"event: other" + frames[at][12:], *frames[at + 1 :]],
    "cut in two": lambda frames, at: [*frames[:at], frames[at][:-9], *frames[at + 1 :]],
    "another topic": lambda frames, at: [*frames[:at], frames[at].replace(b'"t"', b'"u"'), *frames[at + 1 :]],
    "another key": lambda frames, at: [*frames[:at], frames[at].replace(b'"k', b'"q'), *frames[at + 1 :]],
    "another timestamp": lambda frames, at: [*frames[:at], frames[at].replace(b": 10", b": 20"), *frames[at + 1 :]],
}


@given(st.randoms(use_true_random=False), st.sampled_from(["event", "run"]), st.data())
@settings(max_examples=examples(150), deadline=None)
def test_reports_nothing_for_a_correct_history(rng, id_frequency, data):
    """The order of the partitions and the place of the cut make no difference."""
    correct = CorrectHistory(rng, id_frequency)
    size = len(correct.opening) + sum(map(len, correct.frames))

    assert [] == correct.violations(correct.frames)
    assert [] == correct.violations(correct.frames, cut_at=data.draw(st.integers(0, size)))


@pytest.mark.parametrize("name", CORRUPTIONS)
@given(rng=st.randoms(use_true_random=False), data=st.data())
@settings(max_examples=examples(40), deadline=None)
def test_reports_any_single_change(name, rng, data):
    """One event is dropped, repeated or changed, or its event ID is."""
    correct = CorrectHistory(rng)
    at = data.draw(st.integers(0, len(correct.frames) - 1))
    wrong = CORRUPTIONS[name](correct.frames, at)

    assert bool(correct.violations(wrong)) or wrong == correct.frames or unnoticeable(name, correct, at)


def unnoticeable(name: str, correct: CorrectHistory, at: int) -> bool:
    """Return whether the change has no effect.

    If a gap lacks an ID, the next event still has one. An ID that is one too far is also correct if no record has the
    skipped offset.
    """
    frame = correct.frames[at]
    before_nothing = any(
        b'"partition": %d, "offset": %d,' % partition in frame for partition in ((0, 6), (0, 11), (1, 7))
    )
    return (frame.startswith(b"event: gap") and name == "no ID") or (before_nothing and name == "an ID one too far")


# Beyond single events.


def stored_records(count: int = 3) -> list[StoredRecord]:
    return [record(1, offset) for offset in range(count)]


def stream(count: int = 3, start: int = 0) -> bytes:
    frames = [frame_of(record(1, offset), id_at({1: offset + 1})) for offset in range(start, count)]
    return f":ok\n\nid: {id_at({1: start})}\n\n".encode() + b"".join(frames)


def check(
    *connections: Connection, stored: Sequence[StoredRecord] = (), about: Any = None, **promises: Any
) -> list[str]:
    """Return what the checker reports for a client. `about` are further arguments of violations()."""
    history = replace(History("c", [TOPIC], connections, start="earliest"), **promises)
    return violations([history], stored or stored_records(), **({"reached": {(TOPIC, 1): 3}} | (about or {})))


def test_reports_lost_acknowledged_records():
    """A record that was acknowledged but that the independent consumer did not read is reported, unless it is excused."""
    kept = Acknowledged(TOPIC, 1, 0, b"k0", stored_records()[0].value)
    lost = [kept._replace(offset=9), kept._replace(value=b"other")]

    assert [] == violations([], stored_records(), acknowledged=[kept])
    assert 2 == len(violations([], stored_records(), acknowledged=lost))
    assert [] == violations([], stored_records(), acknowledged=lost, excused=[TOPIC])


def test_reports_records_that_never_arrived():
    assert [] == check(Connection(None, 200, stream()))
    assert ["c, at the end: t/1: the position is 2 of 3, 1 records never came: [2]"] == check(
        Connection(None, 200, stream(2))
    )
    assert check(Connection(None, 0, b""))


def test_reports_unexpected_statuses():
    """An error response or an error event is reported unless the history allows its status."""
    refused = Connection(None, 503, b"{}")
    failed = Connection(None, 200, stream() + event("error", None, '{"status":410}'))

    findings = check(refused, Connection(None, 200, stream()), max_refused=1)
    assert ["c, connection 0: the response was 503"] == findings
    assert [] == check(refused, Connection(None, 200, stream()), statuses=frozenset({503}), max_refused=1)
    assert "410" in check(failed)[0]
    assert [] == check(failed, statuses=frozenset({410}))
    assert check(failed._replace(body=failed.body + event("message", None, "{}")), statuses=frozenset({410}))


def test_reports_a_reconnect_with_another_id():
    first = Connection(None, 200, stream(2))

    assert [] == check(first, Connection(id_at({1: 2}), 200, stream(3, start=2)))
    assert "reconnected with" in check(first, Connection(id_at({1: 1}), 200, stream(3, start=1)))[0]


def test_reports_a_stream_that_ends_within_an_event():
    assert [] == check(Connection(None, 200, stream(), cut=False), max_ended=1)
    assert check(Connection(None, 200, stream() + b"event: mess", cut=False), max_ended=1)
    assert [] == check(Connection(None, 200, stream() + b"event: mess"))


def latest(start: int, bounds: dict[Partition, list[Bounds]] | None = None, **limits: float) -> list[str]:
    """Return what the checker reports for a client that starts at the end, whose first ID has this offset."""
    connection = Connection(None, 200, stream(start=start), began=1.0, arrivals=[(10_000, 2.0)])
    return check(connection, about={"bounds": bounds, **limits}, start="latest")


def test_a_client_without_an_id_starts_at_the_end():
    """The first ID is the end of the log at some time between the request and the arrival of the ID."""
    at_1 = {(TOPIC, 1): [Bounds(0.1, 0.2, 0, 0), Bounds(0.3, 0.4, 0, 1), Bounds(2.1, 2.2, 0, 1), Bounds(3, 3, 0, 3)]}
    from_0_to_2 = {(TOPIC, 1): [Bounds(0.1, 0.2, 0, 0), Bounds(0.9, 1.1, 0, 1), Bounds(2.1, 2.2, 0, 2)]}

    assert [] == latest(1, at_1) == latest(0, from_0_to_2) == latest(1, from_0_to_2) == latest(2, from_0_to_2)
    assert "would be repeated" in latest(0, at_1)[0]
    assert "would be lost" in latest(2, at_1)[0]
    assert "would be lost" in latest(3, from_0_to_2)[0]
    assert "the end of the log was not recorded" in latest(1)[0]
    assert [] == latest(0, at_1, began=0.0)  # the tail is still where the log ended when the server started


def test_reports_a_gap_before_retention():
    """A gap over records that the log still held when the client received the gap is a loss."""
    gap = {"topic": TOPIC, "partition": 1, "from": 0, "to": 1, "reason": "removed by retention"}
    body = stream(0) + event("gap", id_at({1: 1}), json.dumps(gap)) + stream(3, start=1).split(b"\n\n", 2)[2]

    def found(removed_at: float) -> list[str]:
        connection = Connection(None, 200, body, began=1.0, arrivals=[(10_000, 2.0)])
        bounds = [Bounds(at, at, int(at >= removed_at), 3) for at in (0.0, 1.5, 2.5, 3.0)]
        return check(connection, about={"bounds": {(TOPIC, 1): bounds}})

    assert [] == found(removed_at=1.5)
    assert "the log did not lose these offsets" in found(removed_at=3.0)[0]


def test_reports_a_gap_before_retention_in_a_recreated_topic():
    """A client may receive the gap of a topic after the topic was recreated."""
    gap = {"topic": TOPIC, "partition": 1, "from": 0, "to": 1, "reason": "removed by retention"}
    body = stream(0) + event("gap", id_at({1: 1}), json.dumps(gap)) + stream(3, start=1).split(b"\n\n", 2)[2]
    stored = [*stored_records(), record(1, 0)._replace(topic_id=1, value=b'{"new":0}')]
    recreated = {(TOPIC, 1): {(0, 0): 0.0, (1, 0): 2.0}}

    def found(first: int) -> list[str]:
        connection = Connection(None, 200, body, began=1.0, arrivals=[(10_000, 4.0)])
        bounds = [Bounds(1.0, 1.0, first, 3), Bounds(2.0, 2.0, first, 3)]
        bounds += [Bounds(at, at, 0, 1) for at in (3.0, 4.0, 5.0)]
        about = {"bounds": {(TOPIC, 1): bounds}, "versions_began": recreated, "reached": {}}
        return check(connection, stored=stored, about=about)

    assert [] == found(first=1)
    assert "the log did not lose these offsets" in found(first=0)[0]


def test_an_added_partition_starts_at_the_first_record_that_the_log_holds():
    """Records that retention removed before the partition joined the stream need no gap. Later ones do."""
    opening = event("position", id_at({0: 0}), "{}")
    first = frame_of(record(1, 1), id_at({0: 0, 1: 2}))

    def found(removed_at: float) -> list[str]:
        arrivals = [(len(opening), 1.0), (10_000, 3.0)]
        bounds = {(TOPIC, 1): [Bounds(at, at, int(at >= removed_at), 2) for at in (0.0, 2.0, 4.0, 5.0)]}
        connection = Connection(None, 200, opening + first, arrivals=arrivals)
        return check(connection, stored=stored_records(2), about={"bounds": bounds, "reached": {}})

    assert [] == found(removed_at=2.0)
    assert "offset 1 came, but 1 records before it did not" in found(removed_at=5.0)[0]


def test_a_client_that_starts_at_a_timestamp_receives_the_first_record_that_the_log_holds():
    """Records that retention removed before the client connected need no gap. Later ones do."""

    def found(removed_at: float) -> list[str]:
        connection = Connection(None, 200, stream(start=1), began=1.0, arrivals=[(10_000, 2.0)])
        bounds = [Bounds(at, at, int(at >= removed_at), 3) for at in (0.0, 1.5, 2.5, 3.0)]
        return check(connection, about={"bounds": {(TOPIC, 1): bounds}}, start=0)

    assert [] == found(removed_at=0.0) == found(removed_at=1.5)
    assert "[0] would be lost" in found(removed_at=3.0)[0]


def test_reports_refused_connections():
    refused = [Connection(None, 0, b"")] * 1000

    assert [] == check(*refused[:5], Connection(None, 200, stream()), max_refused=5)
    assert ["c, at the end: 1000 connections in a row brought no stream, expected at most 5"] == check(
        *refused, Connection(None, 200, stream()), max_refused=5
    )


def test_reports_streams_that_the_server_ends():
    """A server that ends the stream after every record is not available, even though clients lose nothing."""
    one_by_one = [
        Connection(id_at({1: at}) if at else None, 200, stream(at + 1, start=at), cut=False) for at in range(3)
    ]

    assert [] == check(*one_by_one, max_ended=3)
    assert ["c, at the end: the server ended 3 streams, expected at most 0"] == check(*one_by_one)


def test_a_fault_explains_only_what_happens_during_it():
    """Connections that are refused, and streams that the server ends, before or after the fault are reported."""
    fault = Allowance(10, 20, refused=2, ended=1)

    def found(*began: float, status: int = 0) -> list[str]:
        body = stream() if status else b""
        ids = (None, id_at({1: 3}))
        disturbed = [
            Connection(ids[status and bool(at)], status, body if at == 0 else b":ok\n\n", cut=not status, began=moment)
            for at, moment in enumerate(began)
        ]
        last = Connection(ids[bool(status)], 200, b":ok\n\n" if status else stream())
        return [violation.partition(": ")[2] for violation in check(*disturbed, last, allowances=[fault])]

    assert [] == found(10, 20) == found(15, status=200)
    assert ["3 connections in a row brought no stream, expected at most 2"] == found(11, 12, 13)
    assert ["1 connections in a row brought no stream, expected at most 0"] == found(21)
    assert ["the server ended 1 streams that no fault explains"] == found(9, status=200)
    assert "the server ended 2 streams, expected at most 1" in found(12, 13, status=200)


def test_reports_a_stream_that_does_not_end_when_its_token_expires():
    """A stream must end when its token expires: not earlier, not much later, and with a reconnection time."""

    def found(ended_at: float, last: bytes = b"retry: 1\n\n", cut: bool = False) -> list[str]:
        body = stream() + last
        connection = Connection(None, 200, body, cut, arrivals=[(len(body), ended_at)], expires_at=10.0)
        return check(connection, about={"max_overstay_s": 1.0})

    assert [] == found(10.0) == found(11.0) == found(5.0, b"", cut=True)
    assert ["c, at the end: the server ended 1 streams, expected at most 0"] == found(9.0)
    assert (
        ["c, connection 0: the stream sent bytes 1.5 s after its token expired"] == found(11.5) == found(11.5, cut=True)
    )
    assert ["c, connection 0: the server ended the stream without a reconnection time"] == found(10.0, b"")


def test_reports_a_401_unless_the_token_has_expired():
    """A token may expire before the server answers."""

    def found(answered_at: float) -> list[str]:
        rejected = Connection(None, 401, b"{}", False, arrivals=[(2, answered_at)], expires_at=10.0)
        return check(rejected, Connection(None, 200, stream()))

    assert [] == found(10.0)
    assert "c, connection 0: the response was 401" == found(9.0)[0]


def test_reports_late_records():
    """A record that arrives too late is reported. Outages, and the time before the client connected, do not count."""
    acknowledged = [Acknowledged(*entry[:3], *entry[4:6], at=10.0) for entry in stored_records()]

    def found(arrived: float, began: float = 0.0, outages: Sequence[tuple[float, float]] = ()) -> int:
        connection = Connection(None, 200, stream(), began=began, arrivals=[(10_000, arrived)])
        about = {"max_delay_s": 5.0, "outages": outages, "acknowledged": acknowledged}
        return sum("s late" in violation for violation in check(connection, about=about))

    assert 0 == found(15.0) == found(25.0, began=20.0) == found(25.0, outages=[(5.0, 18.0), (19.0, 21.0)])
    assert 3 == found(15.1) == found(25.1, began=20.0) == found(25.1, outages=[(5.0, 18.0), (19.0, 21.0)])


def test_a_client_of_json_lines_resumes_after_its_last_line():
    """A client of JSON lines makes an ID from the lines that it received. A line that was cut off is sent again."""
    every = [frame_of(entry, None).partition(b"data: ")[2][:-1] for entry in stored_records()]
    body = b"".join(every)

    def found(cut_at: int, resumed_from: int) -> list[str]:
        own_id = json.dumps([TOPIC, {"topic": TOPIC, "partition": 1, "offset": resumed_from}])
        rest = Connection(own_id, 200, b"".join(every[resumed_from:]))
        return check(Connection(None, 200, body[:cut_at]), rest, wire="lines")

    assert [] == found(len(every[0]), 1) == found(len(body) - 1, 2) == found(len(body), 3)
    assert found(len(every[0]), 2)
    assert found(len(body), 2)


def test_a_recreated_topic_needs_a_gap():
    """The gap and another topic ID come between the records of the old topic and those of the new one."""
    recreated = [entry._replace(topic_id=1, value=b'{"new":%d}' % entry.offset) for entry in stored_records()]
    gap = json.dumps({"topic": TOPIC, "partition": 1, "from": 3, "to": 0, "reason": "recreated"})
    second = b"".join(frame_of(entry, id_at({1: entry.offset + 1})) for entry in recreated).replace(b"abc", b"xyz")
    announced = event("gap", id_at({1: 0}), gap).replace(b"abc", b"xyz")

    def found(body: bytes) -> list[str]:
        rest = Connection(id_at({1: 3}), 200, b":ok\n\n" + body)
        return check(Connection(None, 200, stream()), rest, stored=stored_records() + recreated, about={"reached": {}})

    assert [] == found(announced + second)
    assert found(second)
    assert found(announced.replace(b"xyz", b"abc") + second)


def test_a_truncated_log_needs_a_gap():
    """After an unclean election the gap ends where the logs diverge; the records of the new log follow."""
    recreated = [
        stored_records()[0]._replace(epoch=1),
        *(record(1, at)._replace(epoch=1, value=b'{"new":%d}' % at) for at in (1, 2)),
    ]

    def found(body: bytes) -> list[str]:
        return check(Connection(None, 200, stream() + body), stored=stored_records() + recreated)

    def gap(to: int) -> bytes:
        members = json.dumps({"topic": TOPIC, "partition": 1, "from": 3, "to": to, "reason": "truncated"})
        rest = b"".join(frame_of(entry, id_at({1: entry.offset + 1})) for entry in recreated[to:])
        return event("gap", id_at({1: to}), members) + rest

    assert [] == found(gap(1))
    assert found(gap(2))
    assert "the log did not lose these offsets" in found(gap(0))[0]
    assert ["c, at the end: t/1: the position is 3 in a log that no longer exists"] == found(b"")


def test_compaction_may_remove_replaced_records():
    """Of two records with the same key the older one is optional; the newer one is required."""
    records = [stored_records()[0], stored_records()[1]._replace(key=b"k0"), stored_records()[2]]
    frames = [frame_of(entry, id_at({1: entry.offset + 1})) for entry in records]

    def found(*kept: int, seen: float = -inf) -> list[str]:
        body = stream(0) + b"".join(frames[index] for index in kept)
        stored = [entry._replace(seen=seen) for entry in records]
        return check(Connection(None, 200, body), stored=stored, about={"compacted": [TOPIC]})

    assert [] == found(0, 1, 2) == found(1, 2)
    assert found(0, 2)
    assert ["offset 1 came, but 1 records before it did not, and no gap covers them: [0]"] == [
        violation.partition("t/1: ")[2] for violation in found(1, 2, seen=5.0)
    ]


# The independent parsers.


def test_parses_blocks_as_the_html_standard_does():
    """All three line ends, a BOM, comments, IDs with NUL, fields without a colon, and an incomplete last block."""
    stream = b"\xef\xbb\xbf:c\n\ndata: a\r\ndata\r\n\r\nid: 1\rdata:b\r\rid: \x00\nevent: e\n\nretry: 5\n\ndata: c\n"

    parsed = [(block.event, block.data, block.id, block.retry_ms) for block in blocks(stream)]

    assert [("message", "a\n", None, None), ("message", "b", "1", None), ("", "", None, 5)] == parsed
    assert "1" == last_id(stream) == last_id(stream, "0")
    assert "0" == last_id(b"id: 1\n", "0")


def test_parses_lines():
    """An incomplete line is dropped; an empty line is a heartbeat."""
    assert [Block(0, 2, "message", "1", None, None), Block(3, 5, "message", "2", None, None)] == lines(b"1\n\n2\n3")


def test_parses_both_forms_of_an_id():
    plain = parse_id(
        '[{"topic":"t","partition":0,"offset":5,"topic_id":"abc"},{"topic":"t","partition":3,"timestamp":7}]'
    )
    compact = parse_id("~" + "CnQgaWFiYyA6NSAzOjo3")

    assert plain == compact
    assert {("t", 0): (5, None), ("t", 3): (None, 7)} == plain.entries


@pytest.mark.parametrize("format", ["kafkasse", "value", "envelope", "cloudevents"])
@given(st.binary(), st.text())
@settings(max_examples=examples(50), deadline=None)
def test_expects_an_event_for_any_value(format, raw, text):
    """No value makes the checker itself fail, and no other data passes for the value."""
    for value in (raw, text.encode("utf-8", "replace"), None):
        expected = expected_event(record(0, 1)._replace(value=value), format)
        assert expected is None or value == b"\0" or not expected.matches("\0")
