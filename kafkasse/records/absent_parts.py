"""Finds the parts of a record that the settings of a route name, but that no record has, such as a misspelled field."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kafkasse.log import Record
from kafkasse.records.filter.dimensions import Dimension
from kafkasse.records.frame.json_text import DeserializationError
from kafkasse.records.frame.record_view import RecordView

CHECKED_RECORDS = 100
MAX_VALUE_BYTES = 65_536  # a larger value is not checked, because decoding it takes long

Has = Callable[[RecordView], bool]


class AbsentParts:
    """Checks the first records of a route. Values must be JSON: a decoder may wait, and is expensive.

    Args:
        parts: by name, whether a record has the part.
        on_absent: called at most once, with the names of all parts that none of the first CHECKED_RECORDS records has.
    """

    def __init__(self, parts: dict[str, Has], on_absent: Callable[[list[str]], None]) -> None:
        self._absent = parts
        self._left = CHECKED_RECORDS
        self._next_offsets: dict[tuple[str, int], int] = {}  # several clients may read the same records
        self._on_absent = on_absent

    def __bool__(self) -> bool:
        """Whether more records must be checked."""
        return bool(self._absent)

    def check(self, topic: str, partition: int, records: Iterable[Record]) -> None:
        """Check records. Tombstones, and values that are large or unreadable, do not count."""
        for record in records:
            if not self._absent:
                return
            if record.value is None or len(record.value) > MAX_VALUE_BYTES:
                continue
            if record.offset < self._next_offsets.get((topic, partition), 0):
                continue
            self._next_offsets[topic, partition] = record.offset + 1
            view = RecordView(topic, partition, record)
            try:
                self._absent = {name: has for name, has in self._absent.items() if not has(view)}
            except (DeserializationError, RecursionError):
                continue
            self._left -= 1
            if self._left == 0:
                absent, self._absent = list(self._absent), {}
                if absent:
                    self._on_absent(absent)


def has_value(dimension: Dimension) -> Has:
    """Return a function that returns whether a record has a value in the dimension."""
    return lambda view: dimension.value(view) is not None


def has_member(path: str) -> Has:
    """Return a function that returns whether the value has a member at a path, as a projection finds it."""
    return lambda view: _contains(view.value, path)


def _contains(value: Any, path: str) -> bool:
    if isinstance(value, list):
        return any(_contains(element, path) for element in value)
    if not isinstance(value, dict):
        return False
    return path in value or any(
        _contains(value[path[:index]], path[index + 1 :])
        for index, char in enumerate(path)
        if char == "." and path[:index] in value
    )
