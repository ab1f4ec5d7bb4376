"""The checker says nothing of a history that is right, and finds whatever one thing is changed in it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.history.checker import Acknowledged, Attempt, History, Written, complaints, last_id
from tests.history.payloads import shown
from tests.history.wire import Block, Place, blocks, lines, read_id

TOPIC = "t"
FIRST = {0: 3, 1: 0}  # retention has removed what stood before in partition 0
Frame = bytes


def event(name: str, id: str | None, data: str) -> Frame:
    told = f"id: {id}\n" if id is not None else ""
    return f"event: {name}\n{told}data: {data}\n\n".encode()


def id_of(places: dict[int, int]) -> str:
    entries = [{"topic": TOPIC, "partition": partition, "offset": offset} for partition, offset in places.items()]
    entries[0]["topic_id"] = "abc"
    return json.dumps(entries, separators=(",", ":"))


def record(partition: int, offset: int) -> Written:
    value = None if offset % 5 == 4 else b'{"n":%d,"price":25.00}' % (100 * partition + offset)
    return Written(TOPIC, partition, offset, 1000 + offset, b"k%d" % offset, value)


def frame_of(written: Written, id: str | None) -> Frame:
    where = {"topic": TOPIC, "partition": written.partition, "offset": written.offset}
    told = json.dumps({**where, "timestamp": written.timestamp, "key": (written.key or b"").decode()})
    head = (written.value or b"{}")[:-1].decode()
    name = "message" if written.value is not None else "delete"
    return event(name, id, f'{head}{"," if written.value else ""}"_kafka":{told}}}')


class Right:
    """A right history: two partitions with holes, a gap in the midst of one, a cut and a return."""

    def __init__(self, chance: random.Random, sparse: bool = False) -> None:
        self.written = [record(0, offset) for offset in range(12) if offset != 7]
        self.written += [record(1, offset) for offset in range(8)]
        self.firsts: dict[Place, int] = {(TOPIC, 0): FIRST[0]}
        self.sparse = sparse
        at = {0: 0, 1: 0}
        self.opening = b":ok\n\nretry: 1\n\n" + f"id: {id_of(at)}\n\n".encode()
        coming = {0: [each for each in self.written if each.partition == 0 and each.offset not in (1, 2)]}
        coming[1] = [each for each in self.written if each.partition == 1]
        self.frames: list[Frame] = []
        while any(coming.values()):
            partition = chance.choice([each for each in coming if coming[each]])
            if partition == 0 and at[0] == 1:
                at[0] = FIRST[0]
                gap = {"topic": TOPIC, "partition": 0, "from": 1, "to": FIRST[0], "reason": "removed by retention"}
                self.frames.append(event("gap", id_of(at), json.dumps(gap)))
                continue
            written = coming[partition].pop(0)
            at[partition] = written.offset + 1
            told = not sparse or not any(coming.values()) or chance.random() < 0.3
            self.frames.append(frame_of(written, id_of(at) if told else None))
        self.ends = {(TOPIC, each): offset for each, offset in at.items()}

    def complaints(self, frames: list[Frame], cut_at: int | None = None) -> list[str]:
        """What the checker says of these frames, cut after so many bytes; the rest then comes for the last id."""
        body = self.opening + b"".join(frames)
        attempts = [Attempt(None, 200, body[:cut_at])]
        if cut_at is not None:
            kept = last_id(body[:cut_at])
            had = max((block.end for block in blocks(body[:cut_at]) if block.id is not None), default=0)
            attempts.append(Attempt(kept, 200, (b":ok\n\n" if kept else b"") + body[had:]))
        every = "run" if self.sparse else "event"
        history = History("c", [TOPIC], attempts, start="earliest", id_frequency=every)
        return complaints([history], self.written, reached=self.ends, firsts=self.firsts)


def with_id(frame: Frame, by: int) -> Frame:
    """The id of this frame tells another place in the partition that it is of."""
    partition = int(re.search(rb'"partition":\s*(\d+)', frame[frame.index(b"data:") :])[1])
    told = rb'(id: .*"partition":%d,"offset":)(\d+)' % partition
    return re.sub(told, lambda found: found[1] + b"%d" % max(0, int(found[2]) + by), frame)


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
    "an id one too far": lambda frames, at: [*frames[:at], with_id(frames[at], 1), *frames[at + 1 :]],
    "an id one too near": lambda frames, at: [*frames[:at], with_id(frames[at], -1), *frames[at + 1 :]],
    "no id": lambda frames, at: [*frames[:at], without_id(frames[at]), *frames[at + 1 :]],
    "an id before its data": lambda frames, at: [*frames[:at], id_before(frames[at]), *frames[at + 1 :]],
    "another name": lambda frames, at: [*frames[:at], b"event: other" + frames[at][12:], *frames[at + 1 :]],
    "cut in two": lambda frames, at: [*frames[:at], frames[at][:-9], *frames[at + 1 :]],
    "another topic": lambda frames, at: [*frames[:at], frames[at].replace(b'"t"', b'"u"'), *frames[at + 1 :]],
    "another key": lambda frames, at: [*frames[:at], frames[at].replace(b'"k', b'"q'), *frames[at + 1 :]],
    "another time": lambda frames, at: [*frames[:at], frames[at].replace(b": 10", b": 20"), *frames[at + 1 :]],
}


@given(st.randoms(use_true_random=False), st.booleans(), st.data())
@settings(max_examples=150, deadline=None)
def test_a_right_history_is_not_complained_about(chance: random.Random, sparse: bool, data: st.DataObject) -> None:
    """Whatever order its partitions come in, and wherever it is cut."""
    right = Right(chance, sparse)
    size = len(right.opening) + sum(map(len, right.frames))

    assert [] == right.complaints(right.frames)
    assert [] == right.complaints(right.frames, cut_at=data.draw(st.integers(0, size)))


@pytest.mark.parametrize("name", CORRUPTIONS)
@given(chance=st.randoms(use_true_random=False), data=st.data())
@settings(max_examples=40, deadline=None)
def test_one_thing_that_is_wrong_is_found(name: str, chance: random.Random, data: st.DataObject) -> None:
    """Any one event: dropped, repeated, changed in any way, or its id."""
    right = Right(chance)
    at = data.draw(st.integers(0, len(right.frames) - 1))
    wrong = CORRUPTIONS[name](right.frames, at)

    assert bool(right.complaints(wrong)) or wrong == right.frames or unnoticeable(name, right, at)


def unnoticeable(name: str, right: Right, at: int) -> bool:
    """An id alone may leave a gap, which repeats nothing, to the next event; and where nothing follows, or a hole does, the
    place behind it means the same."""
    frame = right.frames[at]
    before_nothing = any(b'"partition": %d, "offset": %d,' % place in frame for place in ((0, 6), (0, 11), (1, 7)))
    return (frame.startswith(b"event: gap") and name == "no id") or (before_nothing and name == "an id one too far")


# What is not one event.


def truth(count: int = 3) -> list[Written]:
    return [record(1, offset) for offset in range(count)]


def stream(count: int = 3, start: int = 0) -> bytes:
    frames = [frame_of(record(1, offset), id_of({1: offset + 1})) for offset in range(start, count)]
    return f":ok\n\nid: {id_of({1: start})}\n\n".encode() + b"".join(frames)


def about(*attempts: Attempt, **promises: object) -> list[str]:
    history = replace(History("c", [TOPIC], attempts, start="earliest"), **promises)
    return complaints([history], truth(), reached={(TOPIC, 1): 3})


def test_acknowledged_records_must_be_there() -> None:
    """A record that a broker said it kept, and that the witness did not read, is complained about, unless excused."""
    kept = Acknowledged(TOPIC, 1, 0, b"k0", truth()[0].value)
    lost = [kept._replace(offset=9), kept._replace(value=b"other")]

    assert [] == complaints([], truth(), acknowledged=[kept])
    assert 2 == len(complaints([], truth(), acknowledged=lost))
    assert [] == complaints([], truth(), acknowledged=lost, excused=[TOPIC])


def test_the_end_must_be_reached() -> None:
    """Records that never came are named, as is a client that never had a stream."""
    assert [] == about(Attempt(None, 200, stream()))
    assert ["c, at the end: t/1: it stands at 2 of 3, 1 never came: [2]"] == about(Attempt(None, 200, stream(2)))
    assert about(Attempt(None, 0, b""))


def test_answers_and_errors_must_be_expected() -> None:
    """A refusal, or an error event, is complained about unless the history allows its status."""
    refused = Attempt(None, 503, b"{}")
    failed = Attempt(None, 200, stream() + event("error", None, '{"status":410}'))

    assert ["c, attempt 0: was answered 503"] == about(refused, Attempt(None, 200, stream()))
    assert [] == about(refused, Attempt(None, 200, stream()), statuses=frozenset({503}))
    assert "410" in about(failed)[0]
    assert [] == about(failed, statuses=frozenset({410}))
    assert about(failed._replace(body=failed.body + event("message", None, "{}")), statuses=frozenset({410}))


def test_a_client_comes_back_with_the_id_that_it_had() -> None:
    """One that comes with another was not recorded as a browser would have been."""
    first = Attempt(None, 200, stream(2))

    assert [] == about(first, Attempt(id_of({1: 2}), 200, stream(3, start=2)))
    assert "came back with" in about(first, Attempt(id_of({1: 1}), 200, stream(3, start=1)))[0]


def test_a_stream_that_ends_within_an_event() -> None:
    """What the server ends by itself ends with a whole event."""
    assert [] == about(Attempt(None, 200, stream(), cut=False))
    assert about(Attempt(None, 200, stream() + b"event: mess", cut=False))
    assert [] == about(Attempt(None, 200, stream() + b"event: mess"))


def test_a_gap_needs_a_reason() -> None:
    """A gap over records that are still there is a loss that calls itself something else."""
    gap = {"topic": TOPIC, "partition": 1, "from": 0, "to": 1, "reason": "no reason"}
    told = event("gap", id_of({1: 1}), json.dumps(gap))
    body = stream(0) + told + stream(3, start=1).split(b"\n\n", 2)[2]
    history = History("c", [TOPIC], [Attempt(None, 200, body)], start="earliest")

    assert "nothing like that was lost" in complaints([history], truth())[0]
    assert [] == complaints([history], truth(), firsts={(TOPIC, 1): 1})


def test_a_topic_that_was_made_again() -> None:
    """The old topic's records, a gap, then those of the new one, under another topic_id; and none without the gap."""
    anew = [each._replace(topic_id=1, value=b'{"new":%d}' % each.offset) for each in truth()]
    gap = json.dumps({"topic": TOPIC, "partition": 1, "from": 3, "to": 0, "reason": "made again"})
    second = b"".join(frame_of(each, id_of({1: each.offset + 1})) for each in anew).replace(b"abc", b"xyz")
    told = event("gap", id_of({1: 0}), gap).replace(b"abc", b"xyz")

    def found(body: bytes) -> list[str]:
        attempts = [Attempt(None, 200, stream()), Attempt(id_of({1: 3}), 200, b":ok\n\n" + body)]
        return complaints([History("c", [TOPIC], attempts, start="earliest")], truth() + anew)

    assert [] == found(told + second)
    assert found(second)
    assert found(told.replace(b"xyz", b"abc") + second)


def test_a_log_that_was_truncated() -> None:
    """After an unclean election: the gap leads back to where the logs part, and what follows is the new log's."""
    anew = [truth()[0]._replace(epoch=1), *(record(1, at)._replace(epoch=1, value=b'{"new":%d}' % at) for at in (1, 2))]

    def found(to: int) -> list[str]:
        gap = json.dumps({"topic": TOPIC, "partition": 1, "from": 3, "to": to, "reason": "truncated"})
        rest = b"".join(frame_of(each, id_of({1: each.offset + 1})) for each in anew[to:])
        body = stream() + event("gap", id_of({1: to}), gap) + rest
        history = History("c", [TOPIC], [Attempt(None, 200, body)], start="earliest")
        return complaints([history], truth() + anew, reached={(TOPIC, 1): 3})

    assert [] == found(1)
    assert found(2)


def test_compaction_may_take_what_was_replaced() -> None:
    """Of two records of a key the older one may come or not; the newer one has to."""
    written = [truth()[0], truth()[1]._replace(key=b"k0"), truth()[2]]
    frames = [frame_of(each, id_of({1: each.offset + 1})) for each in written]

    def found(*kept: int) -> list[str]:
        body = stream(0) + b"".join(frames[each] for each in kept)
        history = History("c", [TOPIC], [Attempt(None, 200, body)], start="earliest")
        return complaints([history], written, reached={(TOPIC, 1): 3}, compacted=[TOPIC])

    assert [] == found(0, 1, 2) == found(1, 2)
    assert found(0, 2)


# The second opinion on the wire.


def test_reads_blocks_as_the_web_platform_does() -> None:
    """Line ends of three kinds, a BOM, comments, ids with NUL, fields without a colon, and an end that is not there yet."""
    stream = b"\xef\xbb\xbf:c\n\ndata: a\r\ndata\r\n\r\nid: 1\rdata:b\r\rid: \x00\nevent: e\n\nretry: 5\n\ndata: c\n"

    told = [(each.event, each.data, each.id, each.retry_ms) for each in blocks(stream)]

    assert [("message", "a\n", None, None), ("message", "b", "1", None), ("", "", None, 5)] == told
    assert "1" == last_id(stream) == last_id(stream, "0")
    assert "0" == last_id(b"id: 1\n", "0")


def test_reads_lines() -> None:
    """A line that is not complete has not come; an empty one is a heartbeat."""
    assert [Block(0, 2, "message", "1", None, None), Block(3, 5, "message", "2", None, None)] == lines(b"1\n\n2\n3")


def test_reads_both_forms_of_an_id() -> None:
    """The compact form says what the JSON form does."""
    plain = read_id(
        '[{"topic":"t","partition":0,"offset":5,"topic_id":"abc"},{"topic":"t","partition":3,"timestamp":7}]'
    )
    compact = read_id("~" + "CnQgaWFiYyA6NSAzOjo3")

    assert plain == compact
    assert {("t", 0): (5, None), ("t", 3): (None, 7)} == plain.places


@pytest.mark.parametrize("format", ["kafkasse", "value", "envelope", "cloudevents"])
@given(st.binary(), st.text())
@settings(max_examples=50, deadline=None)
def test_any_value_looks_like_something(format: str, raw: bytes, text: str) -> None:
    """No value that a producer may write makes the checker itself fail; other data is never taken for it."""
    for value in (raw, text.encode("utf-8", "replace"), None):
        look = shown(record(0, 1)._replace(value=value), format)
        assert look is None or value == b"\0" or not look.fits("\0")
