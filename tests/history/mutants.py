"""Versions of kafkasse with one fault each. Tests check that the checker reports every one of them.

A mutant replaces a function or method of kafkasse and counts how often it applies its fault. A mutant proves nothing if its
target no longer exists or never runs: patch() raises an error in the first case, and the tests fail in the second.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from typing import Any

from kafkasse import frame
from kafkasse.feed import feeds
from kafkasse.feed.catch_up import CatchUp
from kafkasse.feed.epochs import EpochEnds
from kafkasse.feed.reader import Reader, ReaderState
from kafkasse.feed.ring import Ring, Segment
from kafkasse.feed.shared_feed import SharedFeed
from kafkasse.feed.snapshot import Snapshot, SnapshotReader
from kafkasse.feed.subscribers import NewFrames, Subscribers
from kafkasse.feed.tail import Tail
from kafkasse.feed.topic_watch import TopicWatch
from kafkasse.filter.dimensions import Dimensions, Selector
from kafkasse.frame import Encoder, ServerSentEvents
from kafkasse.kafka import batches, decoding
from kafkasse.kafka.broker_node import BrokerNode
from kafkasse.kafka.connection import Connection
from kafkasse.kafka.log import KafkaLog
from kafkasse.kafka.partition_state import PartitionState
from kafkasse.position import IdWriter
from kafkasse.route import Route
from kafkasse.web.client_socket import ClientSocket
from kafkasse.web.registry import EndReason
from kafkasse.web.stream import Stream

applied: Counter[str] = Counter()  # how often each mutant applied its fault in this process

_undo: list[tuple[Any, str, Any]] = []
_ID_LINE = re.compile(rb"^id: .*\n", re.MULTILINE)
_LAST_OFFSET = re.compile(rb'^(id: .*"offset":)(\d+)', re.MULTILINE)  # of the last partition in an event ID


class TargetMissing(Exception):
    """The function that this mutant patches no longer exists. Patch its replacement."""


def patch(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Replace `owner.name` with `replacement`, which receives the original as its first argument.

    Raises:
        TargetMissing: `owner.name` does not exist.
    """
    original = getattr(owner, name, None)
    if not callable(original):
        where = getattr(owner, "__name__", owner)
        raise TargetMissing(f"{where}.{name} does not exist: update the mutant {replacement.__qualname__}")
    _undo.append((owner, name, original))
    setattr(owner, name, lambda *args, **named: replacement(original, *args, **named))


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """Apply the mutant `name` to this process until the block ends."""
    applied.clear()
    try:
        MUTANTS[name]()
        yield
    finally:
        while _undo:
            owner, attribute, original = _undo.pop()
            setattr(owner, attribute, original)


def _on_frames(name: str, change: Callable[[list[bytes]], list[bytes]]) -> Callable[[], None]:
    """Return a mutant that changes the frames of a piece of records."""

    def encode_piece(original: Any, self: Any, *args: Any) -> Any:
        piece = original(self, *args)
        changed = change(list(piece.frames))
        applied[name] += changed != piece.frames
        return piece._replace(frames=changed, offsets=piece.offsets[: len(changed)])

    return lambda: patch(Encoder, "encode_piece", encode_piece)


def _shift_last_offset(by: int) -> Callable[[list[bytes]], list[bytes]]:
    def shift(found: re.Match[bytes]) -> bytes:
        return found[1] + b"%d" % max(0, int(found[2]) + by)

    return lambda frames: [_LAST_OFFSET.sub(shift, each, count=1) for each in frames]


def _id_first(frames: list[bytes]) -> list[bytes]:
    ids = [_ID_LINE.search(each) for each in frames]
    return [
        found[0] + b"\n" + _ID_LINE.sub(b"", each, 1) if found else each
        for found, each in zip(ids, frames, strict=True)
    ]


def _id_of_the_last_on_the_first(frames: list[bytes]) -> list[bytes]:
    """If a run has one event ID, at its end, move it to the first event."""
    if len(frames) < 2 or _ID_LINE.search(frames[0]) or not (last_id := _ID_LINE.search(frames[-1])):
        return frames
    return [frames[0][:-1] + last_id[0] + b"\n", *frames[1:-1], _ID_LINE.sub(b"", frames[-1], 1)]


def _segment_lost() -> None:
    """One batch in four advances the feed but reaches no reader."""
    turns = Counter[str]()

    def append(original: Any, self: Any, batch: Any) -> Any:
        turns["all"] += 1
        if turns["all"] % 4 or not batch.records:
            return original(self, batch)
        applied["ring_segment_lost"] += 1
        return original(self, batch._replace(records=[]))

    patch(SharedFeed, "append", append)


def _joins_too_late() -> None:
    """A reader joins the ring although the ring starts one record after its position."""

    def covers(original: Any, self: Any, offsets: Any) -> bool:
        wrong = bool(original(self, {each: offset + 1 for each, offset in offsets.items()}))
        applied["joins_one_too_late"] += wrong and not original(self, offsets)
        return wrong

    patch(Ring, "covers", covers)


def _joins_too_early() -> None:
    """A reader that joins the ring receives its last record again."""

    def own_frames(original: Any, self: Any, segment: Any, ids: Any) -> Any:
        position = ids.offsets.get(segment.partition, 0)
        if position - 1 in segment.offsets:
            applied["joins_one_too_early"] += 1
            ids.offsets[segment.partition] = position - 1
        return original(self, segment, ids)

    patch(Reader, "_own_frames", own_frames)


def _evicted_while_joining() -> None:
    """A joining reader notes its position in the ring only after closing its cursor, while other greenlets run."""

    def join(original: Any, self: Any, reader: Any) -> None:
        original(self, reader)
        applied["evicted_while_joining"] += self._segment != self._feed.ring.first
        self._segment = self._feed.ring.first

    patch(Reader, "_join", join)


def _behind_at_the_feeds_place() -> None:
    """A reader that fell out of the ring catches up from the position of the feed."""

    def fall_behind(original: Any, self: Any) -> None:
        applied["falls_behind_to_the_end"] += 1
        ids = self._feed.ids
        self._ids = ids.copy_at(ids.offsets, ids.timestamps)
        original(self)

    patch(Reader, "_fall_behind", fall_behind)


def _filter_takes_two() -> None:
    """The record after a filtered record is not sent either."""
    last: dict[int, bool] = {}

    def encode(original: Any, self: Any, view: Any) -> Any:
        encoded = original(self, view)
        swallow = last.get(id(self), False) and encoded is not None
        last[id(self)] = encoded is None
        applied["filter_takes_one_more"] += swallow
        return None if swallow else encoded

    patch(Encoder, "_encode", encode)


def _lone_id_too_far() -> None:
    """A position event (at the start, or in place of a heartbeat) is one record too far."""

    def position(original: Any, self: Any, position_id: str) -> bytes:
        block = bytes(original(self, position_id))
        applied["lone_id_too_far"] += 1
        return _shift_last_offset(1)([block])[0]

    patch(ServerSentEvents, "position", position)


def _gap_unsent() -> None:
    def gap(original: Any, wire: Any, *args: Any) -> bytes:
        applied["gap_not_sent"] += 1
        return bytes(wire.position(args[-1]))

    patch(frame, "gap", gap)


def _truncation_unnoticed() -> None:
    """A client that returns after a truncation receives no gap if the log has grown past its offset."""

    def diverged_at(original: Any, *args: Any) -> dict[Any, Any]:
        applied["truncation_unnoticed"] += bool(original(*args))
        return {}

    patch(EpochEnds, "diverged_at", diverged_at)


def _truncation_ignored_by_the_tail() -> None:
    """The feed stays at an offset that the log has lost."""

    def recover(original: Any, self: Any, error: Any) -> None:
        applied["truncation_ignored_by_the_tail"] += 1

    patch(Tail, "_recover", recover)


def _gap_too_wide() -> None:
    def gap(original: Any, wire: Any, gap: Any, position_id: str) -> bytes:
        applied["gap_too_wide"] += 1
        return bytes(original(wire, gap._replace(end=gap.end + 1), position_id))

    patch(frame, "gap", gap)


def _half_a_chunk() -> None:
    """One read in three loses the end of its last frame."""
    turns = Counter[str]()

    def read(original: Any, self: Any, *args: Any) -> bytes:
        data = bytes(original(self, *args))
        turns["all"] += bool(data)
        if not data or turns["all"] % 3:
            return data
        applied["chunk_cut_in_a_frame"] += 1
        return data[: len(data) - 20]

    patch(Reader, "read", read)


def _one_partition_forgotten() -> None:
    """A client that reconnects resumes at the end of its last partition."""

    def resolve(original: Any, log: Any, position: Any, *args: Any, **named: Any) -> Any:
        opening = original(log, position, *args, **named)
        if position.starts:
            last = list(opening.offsets)[-1]
            end = log.offset_ranges([last])[last].end
            applied["resume_forgets_a_partition"] += opening.offsets[last] != end
            opening.offsets[last] = end
        return opening

    patch(feeds, "resolve", resolve)


def _tombstones_hidden() -> None:
    def encode(original: Any, self: Any, view: Any) -> Any:
        applied["tombstones_hidden"] += view.record.value is None
        return None if view.record.value is None else original(self, view)

    patch(Encoder, "_encode", encode)


def _snapshot_short() -> None:
    """The oldest key of a snapshot is not sent."""

    def make_version(original: Any, self: Any, ids: Any) -> None:
        original(self, ids)
        rows = self._newest.rows
        if rows and len(rows) == len(self._rows):  # not a version that lacks a row already
            applied["snapshot_lacks_a_key"] += 1
            del rows[0]

    patch(Snapshot, "_make_version", make_version)


def _times_too_far() -> None:
    def set_(original: Any, self: Any, partition: Any, next_offset: int, *rest: Any, **named: Any) -> None:
        given = inspect.signature(original).bind(self, partition, next_offset, *rest, **named)
        if given.arguments.get("timestamp") is not None:
            applied["times_one_too_far"] += 1
            given.arguments["timestamp"] += 1
        original(*given.args, **given.kwargs)

    patch(IdWriter, "set", set_)


def _aborted_shown() -> None:
    """Kafka is read with an isolation level that includes uncommitted records."""

    def init(original: Any, self: Any, *args: Any, **named: Any) -> None:
        given = inspect.signature(original).bind(self, *args, **named)
        given.arguments["settings"] = replace(given.arguments["settings"], isolation_level="read_uncommitted")
        applied["aborted_records_shown"] += 1
        original(*given.args, **given.kwargs)

    patch(KafkaLog, "__init__", init)


def _own_reader_skips() -> None:
    """A reader that catches up loses the first frame of every second read."""
    turns = Counter[str]()

    def read(original: Any, self: Any, *args: Any) -> bytes:
        data = bytes(original(self, *args))
        turns["all"] += bool(data)
        if not data or turns["all"] % 2 or b"\n\n" not in data:
            return data
        applied["catching_up_skips_a_frame"] += 1
        return data.split(b"\n\n", 1)[1]

    patch(CatchUp, "read", read)


def _cursor_too_far() -> None:
    """After every fifth run of records, a Kafka cursor continues one offset too far."""
    turns = Counter[str]()

    def advance(original: Any, self: Any, run: Any) -> None:
        original(self, run)
        turns["all"] += bool(run.records)
        if run.records and turns["all"] % 2 == 0:  # often, because a busy machine has few runs
            applied["cursor_one_too_far"] += 1
            self.offset += 1

    patch(PartitionState, "advance", advance)


def _decoded_from_the_start() -> None:
    """A batch that starts before the position of the cursor is decoded from its start."""

    def decode(original: Any, fetched: Any, offset: int, *args: Any) -> Any:
        for run in original(fetched, 0, *args):
            applied["batch_decoded_from_its_start"] += bool(run.records) and run.records[0].offset < offset
            yield run

    patch(decoding, "decode", decode)


def _last_not_decoded() -> None:
    """The last record of a small batch is not decoded."""

    def small_batch(original: Any, *args: Any) -> Any:
        records = original(*args)
        applied["last_of_a_batch_not_decoded"] += records is not None
        return None if records is None else records[:-1]

    patch(batches, "_small_batch", small_batch)


def _abort_never_ends() -> None:
    """After an aborted transaction, the later transactions of its producer are hidden too."""
    hidden: dict[int, set[int]] = {}

    def hides(original: Any, self: Any, batch: Any, attributes: int, producer: int, last_offset: int) -> bool:
        aborted = hidden.setdefault(id(self), set())
        hides = bool(original(self, batch, attributes, producer, last_offset))
        wrong = not hides and producer in aborted and not attributes & batches._CONTROL
        applied["abort_never_ends"] += wrong
        aborted |= {producer} if hides else set()
        return hides or wrong

    patch(batches._AbortedTransactions, "hides", hides)


def _partitions_swapped() -> None:
    """If a response has records of several partitions, they are taken for those of another one."""

    def match(original: Any, self: Any, response: Any) -> Any:
        pairs = list(original(self, response))
        states = [state for state, _ in pairs]
        applied["records_of_another_partition"] += len(pairs) > 1
        return iter([(state, data) for state, (_, data) in zip([*states[1:], *states[:1]], pairs, strict=True)])

    patch(BrokerNode, "match", match)


def _watch_ignores_partitions() -> None:
    def check(original: Any, self: Any, *args: Any) -> Any:
        changes = original(self, *args)
        applied["added_partitions_ignored"] += bool(changes.added)
        return changes._replace(added=[])

    patch(TopicWatch, "check", check)


def _rest_of_a_write_lost() -> None:
    """A socket accepts only a part of every tenth write, and the rest is forgotten."""
    turns = Counter[str]()

    def try_send(original: Any, self: Any, chunk: bytes, data: bytes) -> bool:
        turns["all"] += 1
        if turns["all"] % 10:
            return bool(original(self, chunk, data))
        applied["rest_of_a_write_lost"] += 1
        return bool(original(self, chunk[:-30], data))

    patch(ClientSocket, "try_send", try_send)


def _chunk_size_wrong() -> None:
    """The size of every tenth chunk is one byte too small."""
    turns = Counter[str]()

    def to_chunk(original: Any, self: Any, data: bytes) -> bytes:
        turns["all"] += 1
        if turns["all"] % 10:
            return bytes(original(self, data))
        applied["chunk_size_wrong"] += 1
        return b"%x\r\n%b\r\n" % (len(data) - 1, data)

    patch(ClientSocket, "to_chunk", to_chunk)


def _write_repeated() -> None:
    """A parked client receives every tenth write twice."""
    turns = Counter[str]()

    def try_send(original: Any, self: Any, chunk: bytes, data: bytes) -> bool:
        turns["all"] += 1
        if turns["all"] % 10:
            return bool(original(self, chunk, data))
        applied["write_repeated"] += 1
        return bool(original(self, chunk + chunk, data))

    patch(ClientSocket, "try_send", try_send)


def _buffer_shared() -> None:
    """All connections to Kafka receive into the same buffer."""
    buffer = bytearray(1 << 24)

    def receive(original: Any, self: Any) -> memoryview:
        response = original(self)
        applied["buffer_shared"] += 1
        buffer[: len(response)] = response
        return memoryview(buffer)[: len(response)]

    patch(Connection, "_receive", receive)


def _chunk_not_sent() -> None:
    """A stream does not send every third chunk of its reader."""
    turns = Counter[str]()

    def frames(original: Any, self: Any) -> Iterator[bytes | None]:
        for data in original(self):
            turns["all"] += bool(data)
            if data and turns["all"] % 3 == 0:
                applied["chunk_not_sent"] += 1
            else:
                yield data

    patch(Stream, "_frames", frames)


def _opening_without_position() -> None:
    """The first chunk of a stream lacks the event ID of its start."""

    def generate(original: Any, self: Any) -> Iterator[bytes | None]:
        body = original(self)
        opening = next(body)
        applied["opening_without_position"] += b"event: position" in opening
        yield opening.partition(b"event: position")[0]
        yield from body

    patch(Stream, "_generate", generate)


def _sent_to_other_keys() -> None:
    """One record in four is sent to the parked clients of all keys."""
    turns = Counter[str]()

    def groups_of(original: Any, self: Any, values: Any) -> Any:
        found = original(self, values)
        turns["all"] += 1
        if turns["all"] % 4 or len(found) == len(self.groups):
            return found
        applied["sent_to_other_keys"] += 1
        return self.groups

    patch(Subscribers, "groups_of", groups_of)


def _one_group_of_a_key() -> None:
    """If the selectors of several groups contain a key, only one group receives its records."""

    def groups_of(original: Any, self: Any, values: Any) -> Any:
        found = list(original(self, values))
        applied["one_group_of_a_key"] += len(found) > 1
        return found[:1]

    patch(Subscribers, "groups_of", groups_of)


def _keys_one_after_another() -> None:
    """A parked client with several keys receives the new records of one key after those of another."""

    def frames_for(original: Any, self: Any, group: Any) -> Any:
        _, events = original(self, group)
        indexes = [index for values in self._values_of[group] for index in self._indexes[values]]
        applied["keys_one_after_another"] += indexes != sorted(indexes)
        return b"".join([self._frames[index] for index in indexes]), events

    patch(NewFrames, "frames_for", frames_for)


def _index_skips_a_segment() -> None:
    """The index of the ring does not find the last of several segments."""

    def find_selected(original: Any, self: Any, *args: Any) -> Any:
        found = original(self, *args)
        applied["index_skips_a_segment"] += len(found) > 1
        return found[:-1] if len(found) > 1 else found

    patch(Ring, "find_selected", find_selected)


def _frames_of_all_keys() -> None:
    """A reader receives all frames of a segment that contains one of its records."""

    def selected(original: Any, self: Any, selector: Any) -> Any:
        applied["frames_of_all_keys"] += bool(self.values)
        return original(self, None)

    patch(Segment, "selected", selected)


def _one_key_not_selected() -> None:
    """A reader that does not receive shared frames loses the records of the last of its keys."""

    def selects(original: Any, self: Any, values: Any) -> bool:
        lost = len(self.values) > 1 and values == max(self.values)
        applied["one_key_not_selected"] += lost
        return not lost and bool(original(self, values))

    patch(Selector, "selects", selects)


def _key_of_the_record_before() -> None:
    """A record without a key has the key of the record before it."""
    last: dict[int, Any] = {}

    def values(original: Any, self: Any, view: Any) -> Any:
        found = original(self, view)
        applied["key_of_the_record_before"] += found is None and id(self) in last
        found = last.get(id(self)) if found is None else found
        last[id(self)] = found
        return found

    patch(Dimensions, "values", values)


def _skips_records_in_the_ring() -> None:
    """A reader moves to the feed's position although the ring has records for it."""

    def skip(original: Any, self: Any) -> None:
        if self.state is ReaderState.LIVE and self._segment < self._feed.ring.head:
            applied["skips_records_in_the_ring"] += 1
            self._segment = self._feed.ring.head
        original(self)

    patch(Reader, "_skip_filtered_records", skip)


def _new_topic_from_its_end() -> None:
    """The tail reads a new partition from its end."""

    def add_partitions(original: Any, self: Any, offsets: Any) -> None:
        ends = {each: held.end for each, held in self._log.offset_ranges(offsets).items()}
        applied["new_topic_from_its_end"] += ends != offsets
        original(self, ends)

    patch(Tail, "_add_partitions", add_partitions)


def _new_topic_ignored_by_the_tail() -> None:
    """A live stream does not contain new topics."""

    def add_topics(original: Any, self: Any, matching: Any) -> None:
        applied["new_topic_ignored_by_the_tail"] += bool(matching.keys() - self.topics.keys())
        original(self, {name: topic for name, topic in matching.items() if name in self.topics})

    patch(Tail, "_add_topics", add_topics)


def _new_topic_missed_in_catch_up() -> None:
    """A reader that catches up starts a new topic at its second record."""

    def add(original: Any, self: Any, starts: Any) -> None:
        applied["new_topic_missed_in_catch_up"] += len(starts)
        original(self, {each: start + 1 for each, start in starts.items()})

    patch(CatchUp, "_add", add)


def _new_topic_starts_like_the_route() -> None:
    """A client that returns starts topics that were created since at their end, like a new client."""

    def adapt(original: Any, self: Any, position: Any, matching: Any = ()) -> Any:
        adapted = original(self, position, matching)
        if position.topics:
            applied["new_topic_starts_like_the_route"] += bool(adapted.added_topics)
            adapted = replace(adapted, named_topics=(*adapted.named_topics, *adapted.added_topics), added_topics=())
        return adapted

    patch(Route, "adapt", adapt)


def _topic_id_of_a_new_topic_missing() -> None:
    """Event IDs do not contain the topic ID of a topic that has joined the stream."""

    def add_partitions(original: Any, self: Any, offsets: Any, topic_ids: Any) -> None:
        applied["topic_id_of_a_new_topic_missing"] += 1
        original(self, offsets, {})

    patch(SharedFeed, "add_partitions", add_partitions)


def _snapshot_of_all_keys() -> None:
    def version(original: Any, self: Any, timeout_s: float, selector: Any = None) -> Any:
        applied["snapshot_of_all_keys"] += selector is not None
        return original(self, timeout_s)

    patch(Snapshot, "version", version)


def _snapshot_out_of_order() -> None:
    """A client with several keys receives the newest row of its snapshot first."""

    def version(original: Any, self: Any, timeout_s: float, selector: Any = None) -> Any:
        found = original(self, timeout_s, selector)
        if found is None or selector is None or len(found.rows) < 2:
            return found
        applied["snapshot_out_of_order"] += 1
        return replace(found, rows=type(found.rows)(reversed(found.rows)))

    patch(Snapshot, "version", version)


def _after_snapshot_at_the_end() -> None:
    """After a snapshot, a client continues at the feed's position."""

    def read(original: Any, self: Any, *args: Any) -> bytes:
        data = bytes(original(self, *args))
        if self.position is not None:
            feed = self._snapshot._feed
            now = feed.places(feed.ids)
            applied["after_snapshot_at_the_end"] += self.position != now
            self.position = now
        return data

    patch(SnapshotReader, "read", read)


def _archive_transition(name: str, by: int) -> Callable[[], None]:
    """Return a mutant in which a reader of the archive continues in Kafka `by` records too far."""

    def apply() -> None:
        from kafkasse.archive.log import ArchiveCursor  # needs pyarrow

        def return_to_kafka(original: Any, self: Any, partition: Any, place: Any) -> None:
            original(self, partition, place)
            applied[name] += 1
            self._kafka.seek({partition: place.offset + by})

        patch(ArchiveCursor, "_return_to_kafka", return_to_kafka)

    return apply


def _archive_read_past_kafkas_start() -> None:
    """A reader receives the rest of a row group from the archive, although Kafka's cursor sends these records again."""
    from kafkasse.archive.log import ArchiveCursor

    def read_partition(original: Any, self: Any, partition: Any, place: Any) -> Any:
        if place.offset >= place.until:
            return original(self, partition, place)
        until, place.until = place.until, 2**63
        try:
            batch = original(self, partition, place)
        finally:
            place.until = until
        if batch is None or batch.next_offset <= until:
            return batch
        applied["archived_record_repeated"] += 1
        return batch._replace(next_offset=until)

    patch(ArchiveCursor, "_read_partition", read_partition)


def _archive_hole_hidden() -> None:
    """A reader continues after a hole of the archive without a gap."""
    from kafkasse.archive.log import ArchiveCursor

    def read_partition(original: Any, self: Any, partition: Any, place: Any) -> Any:
        manifest = self._log.reader.topic(partition.topic, place.topic_id).manifest
        following = manifest.next_from(partition.partition, place.offset) or place.offset
        if place.offset < following < place.until:
            applied["archive_hole_hidden"] += 1
            place.offset = following
        return original(self, partition, place)

    patch(ArchiveCursor, "_read_partition", read_partition)


def _on_expiry(name: str, by_s: float) -> Callable[[], None]:
    """Return a mutant whose streams end `by_s` seconds after their token has expired."""

    def init(original: Any, self: Any, *args: Any, **named: Any) -> None:
        given = inspect.signature(original).bind(self, *args, **named)
        applied[name] += given.arguments["expires_at"] < inf
        given.arguments["expires_at"] += by_s
        original(*given.args, **given.kwargs)

    return lambda: patch(Stream, "__init__", init)


def _on_last_chunk(name: str, change: Callable[[Any, bytes], bytes]) -> Callable[[], None]:
    """Return a mutant that changes the last chunk of a stream whose token has expired."""

    def after_opening(original: Any, self: Any) -> Iterator[bytes | None]:
        for data in original(self):
            if data and self._end_reason is EndReason.ACCESS_EXPIRED:
                applied[name] += 1
                data = change(self, data)
            yield data

    return lambda: patch(Stream, "_after_opening", after_opening)


def _with_later_id(stream: Any, data: bytes) -> bytes:
    return data + _shift_last_offset(1)([stream._reader.wire.position(stream._reader.position_id)])[0]


MUTANTS: dict[str, Callable[[], None]] = {
    "snapshot_of_all_keys": _snapshot_of_all_keys,
    "snapshot_out_of_order": _snapshot_out_of_order,
    "after_snapshot_at_the_end": _after_snapshot_at_the_end,
    "first_record_after_the_archive_skipped": _archive_transition("first_record_after_the_archive_skipped", 1),
    "archived_record_repeated": _archive_read_past_kafkas_start,
    "archive_hole_hidden": _archive_hole_hidden,
    "expiry_ignored": _on_expiry("expiry_ignored", inf),
    "ends_before_expiry": _on_expiry("ends_before_expiry", -0.5),
    "expiry_cuts_an_event": _on_last_chunk("expiry_cuts_an_event", lambda stream, data: data[:-1]),
    "expiry_without_retry": _on_last_chunk("expiry_without_retry", lambda stream, data: data.partition(b"\n\n")[2]),
    "expired_id_too_far": _on_last_chunk("expired_id_too_far", _with_later_id),
    "new_topic_from_its_end": _new_topic_from_its_end,
    "new_topic_ignored_by_the_tail": _new_topic_ignored_by_the_tail,
    "new_topic_missed_in_catch_up": _new_topic_missed_in_catch_up,
    "new_topic_starts_like_the_route": _new_topic_starts_like_the_route,
    "topic_id_of_a_new_topic_missing": _topic_id_of_a_new_topic_missing,
    "sent_to_other_keys": _sent_to_other_keys,
    "one_group_of_a_key": _one_group_of_a_key,
    "keys_one_after_another": _keys_one_after_another,
    "index_skips_a_segment": _index_skips_a_segment,
    "frames_of_all_keys": _frames_of_all_keys,
    "one_key_not_selected": _one_key_not_selected,
    "key_of_the_record_before": _key_of_the_record_before,
    "skips_records_in_the_ring": _skips_records_in_the_ring,
    "buffer_shared": _buffer_shared,
    "chunk_not_sent": _chunk_not_sent,
    "opening_without_position": _opening_without_position,
    "cursor_one_too_far": _cursor_too_far,
    "batch_decoded_from_its_start": _decoded_from_the_start,
    "last_of_a_batch_not_decoded": _last_not_decoded,
    "abort_never_ends": _abort_never_ends,
    "records_of_another_partition": _partitions_swapped,
    "added_partitions_ignored": _watch_ignores_partitions,
    "rest_of_a_write_lost": _rest_of_a_write_lost,
    "chunk_size_wrong": _chunk_size_wrong,
    "write_repeated": _write_repeated,
    "id_one_too_far": _on_frames("id_one_too_far", _shift_last_offset(1)),
    "id_one_too_near": _on_frames("id_one_too_near", _shift_last_offset(-1)),
    "id_before_its_data": _on_frames("id_before_its_data", _id_first),
    "sparse_id_too_early": _on_frames("sparse_id_too_early", _id_of_the_last_on_the_first),
    "last_of_a_batch_dropped": _on_frames("last_of_a_batch_dropped", lambda frames: frames[:-1]),
    "two_of_a_batch_swapped": _on_frames("two_of_a_batch_swapped", lambda frames: [*frames[-2:][::-1], *frames[:-2]]),
    "number_rewritten": _on_frames(
        "number_rewritten", lambda frames: [each.replace(b"25.00", b"25") for each in frames]
    ),
    "ring_segment_lost": _segment_lost,
    "joins_one_too_late": _joins_too_late,
    "joins_one_too_early": _joins_too_early,
    "evicted_while_joining": _evicted_while_joining,
    "falls_behind_to_the_end": _behind_at_the_feeds_place,
    "filter_takes_one_more": _filter_takes_two,
    "lone_id_too_far": _lone_id_too_far,
    "gap_not_sent": _gap_unsent,
    "gap_too_wide": _gap_too_wide,
    "truncation_unnoticed": _truncation_unnoticed,
    "truncation_ignored_by_the_tail": _truncation_ignored_by_the_tail,
    "chunk_cut_in_a_frame": _half_a_chunk,
    "resume_forgets_a_partition": _one_partition_forgotten,
    "tombstones_hidden": _tombstones_hidden,
    "snapshot_lacks_a_key": _snapshot_short,
    "times_one_too_far": _times_too_far,
    "aborted_records_shown": _aborted_shown,
    "catching_up_skips_a_frame": _own_reader_skips,
}
