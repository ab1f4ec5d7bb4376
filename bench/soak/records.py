"""The records of a soak: each says of itself where it stands. Knows no Kafka and no stream.

The n-th record of a partition holds n, which is its offset too: nothing else writes to these topics.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

SHOWN_EVERY = 3  # of so many records the filter lets one through
RECORD_BYTES = 1024

Place = tuple[str, int]  # topic, partition

_WHERE = re.compile(rb'"topic":"([^"]+)","partition":(\d+),"n":(\d+)')


def value(place: Place, n: int) -> bytes:
    """The value of the n-th record of a partition."""
    text = f'{{"topic":"{place[0]}","partition":{place[1]},"n":{n},"rest":"'
    return (text + "." * (RECORD_BYTES - len(text) - 2) + '"}').encode()


def read(data: bytes) -> tuple[Place, int]:
    """Where the record stands that an event shows.

    Raises:
        ValueError: it shows none of ours.
    """
    if (found := _WHERE.search(data)) is None:
        raise ValueError(f"no record of ours: {data[:100]!r}")
    return (found[1].decode(), int(found[2])), int(found[3])


def shows(message: Mapping[str, Any]) -> bool:
    """The filter."""
    return bool(message["n"] % SHOWN_EVERY == 0)


def first_shown(n: int) -> int:
    """The first record from the n-th on that the filter shows."""
    return n + -n % SHOWN_EVERY
