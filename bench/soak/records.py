"""The records of a soak test. Each record contains its own topic, partition and number.

The n-th record of a partition contains n. That is also its offset, because no other producer writes to these topics. This
module does not depend on Kafka or on streams.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

SHOWN_EVERY = 3  # the filter passes one of three records
RECORD_BYTES = 1024

Partition = tuple[str, int]  # topic, partition

_POSITION = re.compile(rb'"topic":"([^"]+)","partition":(\d+),"n":(\d+)')


def value(partition: Partition, n: int) -> bytes:
    """Return the value of the n-th record of a partition."""
    text = f'{{"topic":"{partition[0]}","partition":{partition[1]},"n":{n},"rest":"'
    return (text + "." * (RECORD_BYTES - len(text) - 2) + '"}').encode()


def read(data: bytes) -> tuple[Partition, int]:
    """Return the partition and the number of the record in an event.

    Raises:
        ValueError: the event contains no record of the soak test.
    """
    if (found := _POSITION.search(data)) is None:
        raise ValueError(f"not a record of the soak test: {data[:100]!r}")
    return (found[1].decode(), int(found[2])), int(found[3])


def shows(message: Mapping[str, Any]) -> bool:
    """Whether the filter passes this record."""
    return bool(message["n"] % SHOWN_EVERY == 0)


def first_shown(n: int) -> int:
    """Return the number of the first record, from n on, that passes the filter."""
    return n + -n % SHOWN_EVERY
