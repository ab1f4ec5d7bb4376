"""Versions of kafkasse with one fault each. Tests check that the checker reports every one of them.

A mutant replaces a function or method of kafkasse and counts how often it applies its fault. A mutant proves nothing if its
target no longer exists or never runs: patch() raises an error in the first case, and the tests fail in the second.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any

from kafkasse.feed import feeds
from kafkasse.feed.catch_up import CatchUp
from kafkasse.feed.core import truncation_marks
from kafkasse.feed.core.chunk import ChunkCore
from kafkasse.feed.core.chunk_start import ChunkStart
from kafkasse.feed.core.reader_states import Joining, ReaderState
from kafkasse.feed.core.ring import Ring, Segment
from kafkasse.feed.core.subscribers import NewFrames, Subscribers
from kafkasse.feed.core.topics import KnownTopics
from kafkasse.feed.epochs import EpochEnds
from kafkasse.feed.reader import Reader
from kafkasse.feed.shared_chunks import SharedChunks
from kafkasse.feed.shared_feed import SharedFeed
from kafkasse.feed.snapshot import Snapshot
from kafkasse.feed.tail import Tail
from kafkasse.kafka import batches, decoding
from kafkasse.kafka.connection import Connection
from kafkasse.kafka.cursor_core import CursorCore
from kafkasse.kafka.fetch_position import FetchPosition
from kafkasse.kafka.fetch_session import FetchSession
from kafkasse.kafka.log import KafkaLog
from kafkasse.log.epoch_history import EpochHistory
from kafkasse.process.open_streams import EndReason
from kafkasse.records import frame
from kafkasse.records.encoder import Encoder
from kafkasse.records.filter.dimensions import Dimensions, Selector
from kafkasse.records.frame import ServerSentEvents
from kafkasse.records.position import IdWriter
from kafkasse.route import Route
from kafkasse.web.client_socket import ClientSocket
from kafkasse.web.stream import StreamBody

MUTANTS: dict[str, Callable[[], None]] = {}
applied: Counter[str] = Counter()  # how often each mutant applied its fault in this process
turns: Counter[str] = Counter()  # of is_turn()
memory: defaultdict[str, dict[Any, Any]] = defaultdict(dict)  # what a mutant remembers between two calls

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


def mutant(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as a mutant of its own name, which replaces `owner.name`."""

    def register(replacement: Callable[..., Any]) -> Callable[..., Any]:
        MUTANTS[replacement.__name__] = lambda: patch(owner, name, replacement)
        return replacement

    return register


def is_turn(name: str, every: int, counts: bool = True, applies: bool = True) -> bool:
    """Count the calls of a mutant for which `counts` is true. Every `every`th of them is a fault, if `applies` is true.

    Count the fault, and return whether it is one.
    """
    turns[name] += counts
    is_fault = counts and turns[name] % every == 0 and applies
    applied[name] += is_fault
    return is_fault


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """Apply the mutant `name` to this process until the block ends."""
    for state in (applied, turns, memory):
        state.clear()
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
    def shift(match: re.Match[bytes]) -> bytes:
        return match[1] + b"%d" % max(0, int(match[2]) + by)

    return lambda frames: [_LAST_OFFSET.sub(shift, block, count=1) for block in frames]


def _id_first(frames: list[bytes]) -> list[bytes]:
    ids = [_ID_LINE.search(block) for block in frames]
    return [
        match[0] + b"\n" + _ID_LINE.sub(b"", block, 1) if match else block
        for match, block in zip(ids, frames, strict=True)
    ]


def _id_of_the_last_on_the_first(frames: list[bytes]) -> list[bytes]:
    """If a run has one event ID, at its end, move it to the first event."""
    if len(frames) < 2 or _ID_LINE.search(frames[0]) or not (last_id := _ID_LINE.search(frames[-1])):
        return frames
    return [frames[0][:-1] + last_id[0] + b"\n", *frames[1:-1], _ID_LINE.sub(b"", frames[-1], 1)]


@mutant(SharedFeed, "append")
def ring_segment_lost(original: Any, self: Any, batch: Any) -> Any:
    """One batch in four advances the feed but reaches no reader."""
    is_lost = is_turn("ring_segment_lost", 4, applies=bool(batch.records))
    return original(self, batch._replace(records=[]) if is_lost else batch)


@mutant(Ring, "covers")
def joins_one_too_late(original: Any, self: Any, offsets: Any) -> bool:
    """A reader joins the ring although the ring starts one record after its position."""
    wrong = bool(original(self, {partition: offset + 1 for partition, offset in offsets.items()}))
    applied["joins_one_too_late"] += wrong and not original(self, offsets)
    return wrong


@mutant(Reader, "_own_frames")
def joins_one_too_early(original: Any, self: Any, segment: Any, ids: Any) -> Any:
    """A reader that joins the ring receives its last record again."""
    position = ids.offsets.get(segment.partition, 0)
    if position - 1 in segment.offsets:
        applied["joins_one_too_early"] += 1
        ids.offsets[segment.partition] = position - 1
    return original(self, segment, ids)


@mutant(Reader, "_release")
def evicted_while_joining(original: Any, self: Any, release: Any) -> None:
    """A joining reader notes its position in the ring only after closing its cursor, while other greenlets run."""
    original(self, release)
    if release is not None and self.state in (ReaderState.JOINING, ReaderState.LIVE):
        applied["evicted_while_joining"] += self._state.segment != self._feed.ring.first
        self._state.segment = self._feed.ring.first


@mutant(Reader, "_fall_behind")
def falls_behind_to_the_end(original: Any, self: Any, state: Any) -> None:
    """A reader that fell out of the ring catches up from the position of the feed."""
    applied["falls_behind_to_the_end"] += 1
    ids = self._feed.ids
    original(self, Joining(ids.copy_at(ids.places()), 0))


@mutant(Encoder, "_encode")
def filter_takes_one_more(original: Any, self: Any, view: Any) -> Any:
    """The record after a filtered record is not sent either."""
    last = memory["filter_takes_one_more"]
    encoded = original(self, view)
    swallow = last.get(id(self), False) and encoded is not None
    last[id(self)] = encoded is None
    applied["filter_takes_one_more"] += swallow
    return None if swallow else encoded


@mutant(ServerSentEvents, "position")
def lone_id_too_far(original: Any, self: Any, position_id: str) -> bytes:
    """A position event (at the start, or in place of a heartbeat) is one record too far."""
    block = bytes(original(self, position_id))
    applied["lone_id_too_far"] += 1
    return _shift_last_offset(1)([block])[0]


@mutant(frame, "gap")
def gap_not_sent(original: Any, wire: Any, *args: Any) -> bytes:
    applied["gap_not_sent"] += 1
    return bytes(wire.position(args[-1]))


@mutant(EpochEnds, "diverged_at")
def truncation_unnoticed(original: Any, *args: Any) -> dict[Any, Any]:
    """A client that returns after a truncation receives no gap if the log has grown past its offset."""
    applied["truncation_unnoticed"] += bool(original(*args))
    return {}


@mutant(Tail, "_recover")
def truncation_ignored_by_the_tail(original: Any, self: Any, error: Any) -> None:
    """The feed stays at an offset that the log has lost."""
    applied["truncation_ignored_by_the_tail"] += 1


@mutant(frame, "gap")
def gap_too_wide(original: Any, wire: Any, gap: Any, position_id: str) -> bytes:
    applied["gap_too_wide"] += 1
    return bytes(original(wire, gap._replace(end=gap.end + 1), position_id))


@mutant(Reader, "read")
def chunk_cut_in_a_frame(original: Any, self: Any, *args: Any) -> bytes:
    """One read in three loses the end of its last frame."""
    data = bytes(original(self, *args))
    return data[: len(data) - 20] if is_turn("chunk_cut_in_a_frame", 3, bool(data)) else data


@mutant(feeds, "resolve")
def resume_forgets_a_partition(original: Any, log: Any, position: Any, *args: Any, **named: Any) -> Any:
    """A client that reconnects resumes at the end of its last partition."""
    opening = original(log, position, *args, **named)
    if position.starts:
        last = list(opening.offsets)[-1]
        end = log.offset_ranges([last])[last].end
        applied["resume_forgets_a_partition"] += opening.offsets[last] != end
        opening.offsets[last] = end
    return opening


@mutant(Encoder, "_encode")
def tombstones_hidden(original: Any, self: Any, view: Any) -> Any:
    applied["tombstones_hidden"] += view.record.value is None
    return None if view.record.value is None else original(self, view)


@mutant(Snapshot, "make_version")
def snapshot_lacks_a_key(original: Any, self: Any, now: float) -> None:
    """The oldest key of a snapshot is not sent."""
    original(self, now)
    rows = self.newest.rows
    if rows and len(rows) == len(self._rows):  # not a version that lacks a row already
        applied["snapshot_lacks_a_key"] += 1
        del rows[0]


@mutant(IdWriter, "set")
def times_one_too_far(original: Any, self: Any, partition: Any, next_offset: int, *rest: Any, **named: Any) -> None:
    given = inspect.signature(original).bind(self, partition, next_offset, *rest, **named)
    if given.arguments.get("timestamp") is not None:
        applied["times_one_too_far"] += 1
        given.arguments["timestamp"] += 1
    original(*given.args, **given.kwargs)


@mutant(KafkaLog, "__init__")
def aborted_records_shown(original: Any, self: Any, *args: Any, **named: Any) -> None:
    """Kafka is read with an isolation level that includes uncommitted records."""
    given = inspect.signature(original).bind(self, *args, **named)
    given.arguments["settings"] = replace(given.arguments["settings"], isolation_level="read_uncommitted")
    applied["aborted_records_shown"] += 1
    original(*given.args, **given.kwargs)


@mutant(CatchUp, "read")
def catching_up_skips_a_frame(original: Any, self: Any, *args: Any) -> bytes:
    """A reader that catches up loses the first frame of every second read."""
    data = bytes(original(self, *args))
    return (
        data.split(b"\n\n", 1)[1]
        if is_turn("catching_up_skips_a_frame", 2, bool(data), applies=b"\n\n" in data)
        else data
    )


@mutant(FetchPosition, "advance")
def cursor_one_too_far(original: Any, self: Any, run: Any) -> None:
    """After every second run of records, a Kafka cursor continues one offset too far."""
    original(self, run)
    if is_turn("cursor_one_too_far", 2, bool(run.records)):  # often: a busy machine decodes few, long runs
        self.offset += 1


@mutant(decoding, "decode")
def batch_decoded_from_its_start(original: Any, fetched: Any, offset: int, *args: Any) -> Any:
    """A batch that starts before the position of the cursor is decoded from its start."""
    for run in original(fetched, 0, *args):
        applied["batch_decoded_from_its_start"] += bool(run.records) and run.records[0].offset < offset
        yield run


@mutant(batches, "_small_batch")
def last_of_a_batch_not_decoded(original: Any, *args: Any) -> Any:
    """The last record of a small batch is not decoded."""
    records = original(*args)
    applied["last_of_a_batch_not_decoded"] += records is not None
    return None if records is None else records[:-1]


@mutant(batches._AbortedTransactions, "hides")
def abort_never_ends(original: Any, self: Any, batch: Any, attributes: int, producer: int, last_offset: int) -> bool:
    """After an aborted transaction, the later transactions of its producer are hidden too."""
    hidden = memory["abort_never_ends"]
    aborted = hidden.setdefault(id(self), set())
    hides = bool(original(self, batch, attributes, producer, last_offset))
    wrong = not hides and producer in aborted and not attributes & batches._CONTROL
    applied["abort_never_ends"] += wrong
    aborted |= {producer} if hides else set()
    return hides or wrong


@mutant(FetchSession, "receive")
def records_of_another_partition(original: Any, self: Any, response: Any) -> Any:
    """If a response has records of several partitions, they are taken for those of another one."""
    pairs = list(original(self, response))
    states = [state for state, _ in pairs]
    applied["records_of_another_partition"] += len(pairs) > 1
    return iter([(state, data) for state, (_, data) in zip([*states[1:], *states[:1]], pairs, strict=True)])


@mutant(Snapshot, "_read")
def snapshot_ignores_epochs(original: Any, self: Any, ends: Any) -> None:
    """The cursor of a snapshot does not know the leader epochs of the records that it has read."""
    log = self._log
    applied["snapshot_ignores_epochs"] += bool(self.ids.epochs)
    self._log = SimpleNamespace(
        cursor=lambda offsets, epochs, topic_ids: log.cursor(offsets, topic_ids=topic_ids),
        offset_ranges=log.offset_ranges,
        describe=log.describe,
    )
    try:
        original(self, ends)
    finally:
        self._log = log


@mutant(FetchSession, "remove")
def removed_partition_not_forgotten(original: Any, self: Any, position: Any) -> None:
    """A partition that a cursor no longer reads stays in the session of the broker."""
    requested = dict(self._requested)
    original(self, position)
    applied["removed_partition_not_forgotten"] += requested != self._requested
    self._requested, self._forgotten = requested, []


@mutant(CursorCore, "_must_validate")
def new_leader_not_validated(original: Any, self: Any, *args: Any) -> bool:
    """A cursor reads from a new leader that does not report truncated logs, without asking where the last epoch ends."""
    applied["new_leader_not_validated"] += bool(original(self, *args))
    return False


@mutant(CursorCore, "_discard_records")
def records_from_before_a_seek(original: Any, self: Any, partitions: Any) -> None:
    """Records that were decoded before seek() are returned after it."""
    decoded = list(self.decoded)
    original(self, partitions)
    applied["records_from_before_a_seek"] += decoded != self.decoded
    self.decoded = decoded


@mutant(EpochHistory, "first_newer")
def newer_epochs_forgotten(original: Any, self: Any, epoch: int, default: int) -> int:
    """A truncation is reported where the broker's epoch ends, even if a later epoch was read before that offset."""
    applied["newer_epochs_forgotten"] += original(self, epoch, default) < default
    return default


@mutant(FetchSession, "restart")
def evicted_session_not_rebuilt(original: Any, self: Any) -> bool:
    """After a broker has evicted a session, the next one lacks a partition."""
    was_open = bool(original(self))
    if was_open and self.positions:
        applied["evicted_session_not_rebuilt"] += 1
        self.positions = dict(list(self.positions.items())[1:])
    return was_open


@mutant(KnownTopics, "compare")
def added_partitions_ignored(original: Any, self: Any, names: Any, matching: Any, *args: Any) -> Any:
    """Only the partitions that a topic had when it was compared first are known."""
    changes = original(self, names, matching, *args)
    known = memory["added_partitions_ignored"]
    whole = {name: known.setdefault((self, name), topic) for name, topic in changes.whole.items()}
    applied["added_partitions_ignored"] += whole != changes.whole
    return changes._replace(whole=whole)


@mutant(ClientSocket, "try_send")
def rest_of_a_write_lost(original: Any, self: Any, chunk: bytes, data: bytes) -> bool:
    """A socket accepts only a part of every tenth write, and the rest is forgotten."""
    return bool(original(self, chunk[:-30] if is_turn("rest_of_a_write_lost", 10) else chunk, data))


@mutant(ClientSocket, "to_chunk")
def chunk_size_wrong(original: Any, self: Any, data: bytes) -> bytes:
    """The size of every tenth chunk is one byte too small."""
    is_wrong = is_turn("chunk_size_wrong", 10)
    return b"%x\r\n%b\r\n" % (len(data) - 1, data) if is_wrong else bytes(original(self, data))


@mutant(ClientSocket, "try_send")
def write_repeated(original: Any, self: Any, chunk: bytes, data: bytes) -> bool:
    """A parked client receives every tenth write twice."""
    return bool(original(self, chunk * (2 if is_turn("write_repeated", 10) else 1), data))


def _buffer_shared() -> None:
    """All connections to Kafka receive into the same buffer."""
    buffer = bytearray(1 << 24)

    def receive(original: Any, self: Any) -> memoryview:
        response = original(self)
        applied["buffer_shared"] += 1
        buffer[: len(response)] = response
        return memoryview(buffer)[: len(response)]

    patch(Connection, "_receive", receive)


@mutant(StreamBody, "_frames")
def chunk_not_sent(original: Any, self: Any) -> Iterator[bytes | None]:
    """A stream does not send every third chunk of its reader."""
    for data in original(self):
        if not is_turn("chunk_not_sent", 3, bool(data)):
            yield data


@mutant(StreamBody, "_generate")
def opening_without_position(original: Any, self: Any) -> Iterator[bytes | None]:
    """The first chunk of a stream lacks the event ID of its start."""
    body = original(self)
    opening = next(body)
    applied["opening_without_position"] += b"event: position" in opening
    yield opening.partition(b"event: position")[0]
    yield from body


@mutant(Subscribers, "groups_of")
def sent_to_other_keys(original: Any, self: Any, values: Any) -> Any:
    """One record in four is sent to the parked clients of all keys."""
    groups = original(self, values)
    return self.groups if is_turn("sent_to_other_keys", 4, applies=len(groups) < len(self.groups)) else groups


@mutant(Subscribers, "groups_of")
def one_group_of_a_key(original: Any, self: Any, values: Any) -> Any:
    """If the selectors of several groups contain a key, only one group receives its records."""
    groups = list(original(self, values))
    applied["one_group_of_a_key"] += len(groups) > 1
    return groups[:1]


@mutant(NewFrames, "frames_for")
def keys_one_after_another(original: Any, self: Any, group: Any) -> Any:
    """A parked client with several keys receives the new records of one key after those of another."""
    _, events = original(self, group)
    indexes = [index for values in self._values_of[group] for index in self._indexes[values]]
    applied["keys_one_after_another"] += indexes != sorted(indexes)
    return b"".join([self._frames[index] for index in indexes]), events


@mutant(Ring, "find_selected")
def index_skips_a_segment(original: Any, self: Any, *args: Any) -> Any:
    """The index of the ring does not find the last of several segments."""
    numbers = original(self, *args)
    applied["index_skips_a_segment"] += len(numbers) > 1
    return numbers[:-1] if len(numbers) > 1 else numbers


@mutant(Segment, "selected")
def frames_of_all_keys(original: Any, self: Any, selector: Any) -> Any:
    """A reader receives all frames of a segment that contains one of its records."""
    applied["frames_of_all_keys"] += bool(self.values)
    return original(self, None)


@mutant(Selector, "selects")
def one_key_not_selected(original: Any, self: Any, values: Any) -> bool:
    """A reader that does not receive shared frames loses the records of the last of its keys."""
    lost = len(self.values) > 1 and values == max(self.values)
    applied["one_key_not_selected"] += lost
    return not lost and bool(original(self, values))


@mutant(Dimensions, "values")
def key_of_the_record_before(original: Any, self: Any, view: Any) -> Any:
    """A record without a key has the key of the record before it."""
    last = memory["key_of_the_record_before"]
    key = original(self, view)
    applied["key_of_the_record_before"] += key is None and id(self) in last
    key = last.get(id(self)) if key is None else key
    last[id(self)] = key
    return key


@mutant(Reader, "_skip_filtered_records")
def skips_records_in_the_ring(original: Any, self: Any) -> None:
    """A reader moves to the feed's position although the ring has records for it."""
    if self.state is ReaderState.LIVE and self._state.segment < self._feed.ring.head:
        applied["skips_records_in_the_ring"] += 1
        self._state.segment = self._feed.ring.head
    original(self)


@mutant(Tail, "_add_partitions")
def new_topic_from_its_end(original: Any, self: Any, offsets: Any) -> None:
    """The tail reads a new partition from its end."""
    ends = {partition: held.end for partition, held in self._log.offset_ranges(offsets).items()}
    applied["new_topic_from_its_end"] += ends != offsets
    original(self, ends)


@mutant(Tail, "add_topics")
def new_topic_ignored_by_the_tail(original: Any, self: Any, matching: Any) -> None:
    """A live stream does not contain new topics."""
    applied["new_topic_ignored_by_the_tail"] += bool(matching.keys() - self.topics.keys())
    original(self, {name: topic for name, topic in matching.items() if name in self.topics})


@mutant(CatchUp, "_add")
def new_topic_missed_in_catch_up(original: Any, self: Any, starts: Any) -> None:
    """A reader that catches up starts a new topic at its second record."""
    applied["new_topic_missed_in_catch_up"] += len(starts)
    original(self, {partition: start + 1 for partition, start in starts.items()})


@mutant(Route, "adapt")
def new_topic_starts_like_the_route(original: Any, self: Any, position: Any, matching: Any = ()) -> Any:
    """A client that returns starts topics that were created since at their end, like a new client."""
    adapted = original(self, position, matching)
    if position.topics:
        applied["new_topic_starts_like_the_route"] += bool(adapted.added_topics)
        adapted = replace(adapted, named_topics=(*adapted.named_topics, *adapted.added_topics), added_topics=())
    return adapted


@mutant(SharedFeed, "add_partitions")
def topic_id_of_a_new_topic_missing(original: Any, self: Any, offsets: Any, topic_ids: Any) -> None:
    """Event IDs do not contain the topic ID of a topic that has joined the stream."""
    applied["topic_id_of_a_new_topic_missing"] += 1
    original(self, offsets, {})


@mutant(Snapshot, "version")
def snapshot_of_all_keys(original: Any, self: Any, timeout_s: float, selector: Any = None) -> Any:
    applied["snapshot_of_all_keys"] += selector is not None
    return original(self, timeout_s)


@mutant(Snapshot, "version")
def snapshot_out_of_order(original: Any, self: Any, timeout_s: float, selector: Any = None) -> Any:
    """A client with several keys receives the newest row of its snapshot first."""
    version = original(self, timeout_s, selector)
    if version is None or selector is None or len(version.rows) < 2:
        return version
    applied["snapshot_out_of_order"] += 1
    return replace(version, rows=type(version.rows)(reversed(version.rows)))


@mutant(Reader, "_end_snapshot")
def after_snapshot_at_the_end(original: Any, self: Any, places: Any) -> bytes:
    """After a snapshot, a client continues at the feed's position."""
    now = self._feed.ids.places()
    applied["after_snapshot_at_the_end"] += places != now
    return bytes(original(self, now))


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
        manifest = self._log.reader.manifest(partition.topic, place.topic_id)
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

    return lambda: patch(StreamBody, "__init__", init)


def _on_last_chunk(name: str, change: Callable[[Any, bytes], bytes]) -> Callable[[], None]:
    """Return a mutant that changes the last chunk of a stream whose token has expired."""

    def after_opening(original: Any, self: Any) -> Iterator[bytes | None]:
        for data in original(self):
            if data and self._end_reason is EndReason.ACCESS_EXPIRED:
                applied[name] += 1
                data = change(self, data)
            yield data

    return lambda: patch(StreamBody, "_after_opening", after_opening)


def _with_later_id(stream: Any, data: bytes) -> bytes:
    return data + _shift_last_offset(1)([stream.reader.wire.position(stream.reader.position_id)])[0]


# Finite reads.


@mutant(truncation_marks, "offset_of")
def next_offset_too_far(original: Any, ids: IdWriter, marks: Any) -> Any:
    """Some next offsets are one record too far in a partition that the chunk has moved."""
    if is_turn("next_offset_too_far", 5, counts=bool(ids.epochs)):
        ids = ids.copy_at(ids.places())
        partition = max(ids.epochs)
        ids.set(partition, ids.offsets[partition] + 1, leader_epoch=ids.epochs[partition])
    return original(ids, marks)


@mutant(ChunkCore, "_append")
def chunk_lacks_a_record(original: Any, self: Any, frames: list[bytes]) -> None:
    """One record in 20 is missing."""
    original(self, [frame for frame in frames if not is_turn("chunk_lacks_a_record", 20)])


@mutant(ChunkCore, "_append")
def chunk_repeats_a_record(original: Any, self: Any, frames: list[bytes]) -> None:
    """One record in 20 is repeated."""
    repeated = [[frame] * (1 + is_turn("chunk_repeats_a_record", 20)) for frame in frames]
    original(self, [frame for copies in repeated for frame in copies])


@mutant(SharedChunks, "get")
def chunk_of_another_selection(original: Any, self: Any, key: Any, *args: Any) -> Any:
    """A kept chunk is sent to clients that have selected other records."""
    applied["chunk_of_another_selection"] += 1
    return original(self, key[1:], *args)


@mutant(truncation_marks, "offset_of")
def lost_history_again(original: Any, ids: Any, marks: Any) -> Any:
    """After a truncation, the next offset may be that of a chunk with the lost records, which a cache keeps."""
    applied["lost_history_again"] += bool(marks)
    return original(ids, {})


@mutant(ChunkStart, "gone")
def gone_too_far(original: Any, self: Any, gaps: Any, *args: Any) -> Any:
    """After lost records, the client also loses the next one."""
    applied["gone_too_far"] += 1
    return original(self, [gap._replace(end=gap.end + 1) for gap in gaps], *args)


MUTANTS |= {
    "first_record_after_the_archive_skipped": _archive_transition("first_record_after_the_archive_skipped", 1),
    "archived_record_repeated": _archive_read_past_kafkas_start,
    "archive_hole_hidden": _archive_hole_hidden,
    "expiry_ignored": _on_expiry("expiry_ignored", inf),
    "ends_before_expiry": _on_expiry("ends_before_expiry", -0.5),
    "expiry_cuts_an_event": _on_last_chunk("expiry_cuts_an_event", lambda stream, data: data[:-1]),
    "expiry_without_retry": _on_last_chunk("expiry_without_retry", lambda stream, data: data.partition(b"\n\n")[2]),
    "expired_id_too_far": _on_last_chunk("expired_id_too_far", _with_later_id),
    "buffer_shared": _buffer_shared,
    "id_one_too_far": _on_frames("id_one_too_far", _shift_last_offset(1)),
    "id_one_too_near": _on_frames("id_one_too_near", _shift_last_offset(-1)),
    "id_before_its_data": _on_frames("id_before_its_data", _id_first),
    "id_of_run_too_early": _on_frames("id_of_run_too_early", _id_of_the_last_on_the_first),
    "last_of_a_batch_dropped": _on_frames("last_of_a_batch_dropped", lambda frames: frames[:-1]),
    "two_of_a_batch_swapped": _on_frames("two_of_a_batch_swapped", lambda frames: [*frames[-2:][::-1], *frames[:-2]]),
    "number_rewritten": _on_frames(
        "number_rewritten", lambda frames: [block.replace(b"25.00", b"25") for block in frames]
    ),
}
