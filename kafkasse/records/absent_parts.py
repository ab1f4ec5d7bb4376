"""Finds the parts of a record that the settings of a route name, but that no record has, such as a misspelled field."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kafkasse.errors import RegistryUnavailable
from kafkasse.log import Record
from kafkasse.records.filter.dimensions import Dimension
from kafkasse.records.frame.json_text import DeserializationError
from kafkasse.records.frame.record_view import DecoderPending, RecordView

CHECKED_RECORDS = 100
MAX_VALUE_BYTES = 65_536  # a larger value is not checked, because decoding it takes long


class AbsentParts:
    """Checks the first records of a route.

    Args:
        dimensions: the headers and fields that its setting `where` names.
        members: the paths of members in `fields` and `redact`, by setting.
        decoder: as for an encoder.
        on_absent: called at most once, with all parts that none of the first CHECKED_RECORDS records has, each with its
            setting, such as `where.fields: amuont`.
    """

    def __init__(
        self,
        dimensions: Iterable[Dimension],
        members: Mapping[str, Iterable[str]],
        decoder: Callable[[RecordView], Any] | None,
        on_absent: Callable[[list[str]], None],
    ) -> None:
        self._absent: dict[str, Callable[[RecordView], bool]] = {
            f"where.{dimension.source}s: {dimension.name}": _has_value(dimension) for dimension in dimensions
        } | {f"{setting}: {path}": _has_path(path) for setting, paths in members.items() for path in paths}
        self._decoder = decoder
        self._left = CHECKED_RECORDS
        self._next_offsets: dict[tuple[str, int], int] = {}  # several clients may read the same records
        self._on_absent = on_absent

    def __bool__(self) -> bool:
        """Whether more records must be checked."""
        return bool(self._absent)

    def check(self, topic: str, partition: int, records: Iterable[Record]) -> None:
        """Check records that the encoder has read. Tombstones, and values that are large or unreadable, do not count."""
        for record in records:
            if not self._absent:
                return
            if record.value is None or len(record.value) > MAX_VALUE_BYTES:
                continue
            if record.offset < self._next_offsets.get((topic, partition), 0):
                continue
            self._next_offsets[topic, partition] = record.offset + 1
            view = RecordView(topic, partition, record, self._decoder)
            try:
                self._absent = {name: has for name, has in self._absent.items() if not has(view)}
            except (DeserializationError, DecoderPending, RegistryUnavailable):
                continue
            self._left -= 1
            if self._left == 0:
                absent, self._absent = list(self._absent), {}
                if absent:
                    self._on_absent(absent)


def _has_value(dimension: Dimension) -> Callable[[RecordView], bool]:
    return lambda view: dimension.value(view) is not None


def _has_path(path: str) -> Callable[[RecordView], bool]:
    return lambda view: _contains(view.value, path)


def _contains(value: Any, path: str) -> bool:
    """Return whether a value has a member at a path, as a projection finds it: in the elements of arrays, too."""
    if isinstance(value, list):
        return any(_contains(element, path) for element in value)
    if not isinstance(value, dict):
        return False
    return path in value or any(
        _contains(value[path[:index]], path[index + 1 :])
        for index, char in enumerate(path)
        if char == "." and path[:index] in value
    )
