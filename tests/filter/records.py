"""Records as filters see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kafkasse.log.memory import MemoryRecord
from kafkasse.records.frame.json_text import dumps
from kafkasse.records.frame.record_view import RecordView


def view_of(
    value: Any = None,
    key: bytes | None = None,
    headers: Sequence[tuple[str, bytes | None]] = (),
    offset: int = 7,
    timestamp: int | None = 1_790_000_000_000,
) -> RecordView:
    """Return a record of the topic `orders`, partition 2. The value is bytes, or is encoded as JSON."""
    encoded = value if isinstance(value, bytes | None) else dumps(value)
    return RecordView("orders", 2, MemoryRecord(offset, timestamp, key, encoded, headers))
