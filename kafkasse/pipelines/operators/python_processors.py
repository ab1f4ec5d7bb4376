"""The operators in pure Python: stateful processors for Spark's public Row API.

They run in micro-batches and on Spark Connect. Spark's Python workers need kafkasse, pyarrow, pandas and protobuf. The
Java classes in java/ do the same in real-time mode, and one test suite compares both.

The processors handle rows and items as JSON text, see schemas.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from kafkasse.pipelines.operators import schemas
from kafkasse.pipelines.operators.order_key import PREFIX_BYTES, order_key, stored_bytes

Position = dict[int, int]
Member = tuple[str, int, str]  # key, rank, item

CHANGE, RESULT = Row(*schemas.CHANGE.names), Row(*schemas.RESULT.names)
SPARE_CANDIDATES = 16  # members beyond the top n that the state of the group contains
RANK_AND_PREFIX_BYTES = 8 + PREFIX_BYTES


class LatestPerKey(StatefulProcessor):
    """Keeps the latest row of each key. Emits the old row and the new one each time that they differ."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._latest = handle.getValueState("latest", schemas.KEY_STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        stored = self._latest.get()
        state = _KeyState(*stored) if stored else _KeyState()
        changes = []
        for row in sorted(rows, key=_sequence):
            before, version_before = state.row, state.version
            if state.apply(row) and before != state.row:
                step = state.version - version_before
                changes.append(CHANGE(key[0], before, state.row, state.version, sorted(state.position.items()), step))
            if state.can_be_forgotten:  # at once, so that the steps do not depend on where a micro-batch ends
                state = _KeyState()
        if state.position:
            self._latest.update(state.stored)
        else:
            self._latest.clear()
        return iter(changes)


class _KeyState:
    """The latest row of a key, and what it was computed from."""

    def __init__(
        self,
        order: int | None = None,
        sequence: int = -1,
        version: int = 0,
        position: Iterable[tuple[int, int]] = (),
        row: str | None = None,
    ) -> None:
        self.order, self.sequence, self.version, self.row = order, sequence, version, row
        self.position: Position = dict(position)

    @property
    def stored(self) -> tuple[Any, ...]:
        return (self.order, self.sequence, self.version, sorted(self.position.items()), self.row)

    @property
    def can_be_forgotten(self) -> bool:
        """Whether the key was removed, and no later row can depend on what it was computed from."""
        return self.row is None and self.order is None and len(self.position) <= 1

    def apply(self, row: Row) -> bool:
        """Apply a row, unless it is a duplicate or older than the latest one. Returns whether it was applied."""
        position = dict(row.position)
        if row.version is None:
            if all(offset <= self.position.get(partition, -1) for partition, offset in position.items()):
                return False
        elif row.version <= self.version:
            return False
        self.position = merged(self.position, position)
        self.version = sum(self.position.values()) + len(self.position) if row.version is None else row.version
        sequence = _sequence(row)
        if row.order is not None and self.order is not None and (row.order, sequence) < (self.order, self.sequence):
            return False
        self.order, self.sequence, self.row = row.order, sequence, row.row
        return True


class Ranked(StatefulProcessor):
    """Keeps the members of each group in rank order. Emits the top n each time that they change."""

    def __init__(self, n: int) -> None:
        self._n = n

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._members = handle.getMapState("members", schemas.ORDER_KEY, schemas.MEMBER)
        self._group = handle.getValueState("group", schemas.GROUP_STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        stored = self._group.get()
        size, version, stored_position, stored_candidates = stored or (0, 0, [], [])
        position = dict(stored_position)
        candidates = [tuple(member) for member in stored_candidates]
        top = candidates[: self._n]
        for row in sorted(rows, key=lambda row: row.sequence):
            version += row.step
            position = merged(position, dict(row.position))
            if row.old_rank is not None:
                size -= self._remove(candidates, row.key, row.old_rank)
            if row.rank is not None:
                self._add(candidates, size, (row.key, row.rank, row.item))
                size += 1
            if len(candidates) < min(self._n, size):
                candidates = self._first_members()
        self._group.update((size, version, sorted(position.items()), candidates))
        if candidates[: self._n] == top:
            return iter(())
        items = [item for _, _, item in candidates[: self._n]]
        return iter((RESULT(key[0], items, version, sorted(position.items())),))

    def _remove(self, candidates: list[Member], key: str, rank: int) -> bool:
        """Remove a member. Returns whether the group contained it."""
        stored_key = order_key(rank, key)
        if not self._members.containsKey(stored_key):
            return False
        self._members.removeKey(stored_key)
        candidates[:] = [member for member in candidates if member[0] != key]
        return True

    def _add(self, candidates: list[Member], size: int, member: Member) -> None:
        """Add a member. The candidates are the first members of the group before and after this call."""
        self._members.updateValue(order_key(member[1], member[0]), member)
        if len(candidates) == size or (candidates and rank_order(member) < rank_order(candidates[-1])):
            candidates.append(member)
            candidates.sort(key=rank_order)
            del candidates[self._n + SPARE_CANDIDATES :]

    def _first_members(self) -> list[Member]:
        wanted = self._n + SPARE_CANDIDATES
        return sorted(first_members(self._members.iterator(), wanted), key=rank_order)[:wanted]


def first_members(entries: Iterable[tuple[Any, Member]], wanted: int) -> Iterator[Member]:
    """Yield the first `wanted` entries of the sorted state, and those that only their full key can order.

    If the entries are not sorted, yield all of them, so that the result is right with any layout of the state.
    """
    last, sorted_so_far, count = b"", True, 0
    for stored_key, member in entries:
        stored = stored_bytes(stored_key)
        sorted_so_far = sorted_so_far and last <= stored
        if sorted_so_far and count >= wanted and stored[:RANK_AND_PREFIX_BYTES] != last[:RANK_AND_PREFIX_BYTES]:
            return
        yield member
        last, count = stored, count + 1


def rank_order(member: Member) -> tuple[int, bytes]:
    """The largest rank first; equal ranks by the UTF-8 bytes of the key."""
    return -member[1], member[0].encode()


def merged(position: Position, other: Position) -> Position:
    """Return the highest offset of each partition."""
    return {
        partition: max(position.get(partition, -1), other.get(partition, -1)) for partition in {**position, **other}
    }


def _sequence(row: Row) -> int:
    """The order in which the source wrote the rows of a key."""
    offsets: dict[int, int] = dict(row.position)
    return max(offsets.values()) if row.version is None else int(row.version)
