"""The sizes of the attacks. `make attacks` runs them in full size. By default, they are only as large as necessary."""

from __future__ import annotations

import os
from typing import NamedTuple, TypeVar

from tests.support.waiting import TIMEOUT_S

MB = 1_000_000
T = TypeVar("T")


def is_full() -> bool:
    """Whether `make attacks` runs the tests."""
    return os.environ.get("ATTACKS") == "full"


def size(small: T, full: T) -> T:
    return full if is_full() else small


class Sizes(NamedTuple):
    """The number of clients, records and topics in each attack, and how long it takes: by default, and in full size."""

    tiny_records: int = size(120_000, 900_000)
    joining: int = size(60, 200)
    table_mb: int = size(40, 200)
    table_readers: int = size(4, 8)
    keys: int = size(30_000, 100_000)
    keys_readers: int = size(4, 20)
    partitions: int = size(400, 1_000)
    batches: int = size(40, 400)
    batch_readers: int = size(20, 60)
    id_records: int = size(3_000, 20_000)
    rings: int = size(24, 50)
    ring_batches: int = size(3, 5)
    not_json: int = size(5_000, 300_000)
    slow_readers: int = size(20, 150)
    seconds: int = size(1, 10)
    combinations: int = size(40, 200)
    clients: int = size(50, 150)
    sent: int = size(50, 200)
    lookups: int = size(100, 400)
    connecting: int = size(500, 6_000)
    fleets: tuple[int, ...] = size((100,), (1_000, 3_000))
    wait_s: float = size(TIMEOUT_S, 3 * TIMEOUT_S)


SIZES = Sizes()


class Combined(NamedTuple):
    """The attack that combines loads. If one of its limits is removed, it exceeds the bound."""

    rings: int = 12
    batches: int = 10  # in each of these topics
    table_mb: int = 80
    behind: int = 60


COMBINED = Combined()
