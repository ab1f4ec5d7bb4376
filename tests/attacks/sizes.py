"""The sizes of the attacks. `make attacks` runs them in full size. By default, they are only as large as necessary."""

from __future__ import annotations

import os
from typing import NamedTuple

from tests.support.waiting import TIMEOUT_S

MB = 1_000_000


class Sizes(NamedTuple):
    """The number of clients, records and topics in each attack, and how long it takes. The defaults are small."""

    tiny_records: int = 120_000
    joining: int = 60
    table_mb: int = 40
    table_readers: int = 4
    keys: int = 30_000
    keys_readers: int = 4
    partitions: int = 400
    batches: int = 40
    batch_readers: int = 20
    id_records: int = 3_000
    rings: int = 24
    ring_batches: int = 3
    not_json: int = 5_000
    slow_readers: int = 20
    seconds: int = 1
    combinations: int = 40
    clients: int = 50
    sent: int = 50
    lookups: int = 100
    connecting: int = 500
    fleets: tuple[int, ...] = (100,)
    wait_s: float = TIMEOUT_S


FULL = Sizes(
    tiny_records=900_000,
    joining=200,
    table_mb=200,
    table_readers=8,
    keys=100_000,
    keys_readers=20,
    partitions=1_000,
    batches=400,
    batch_readers=60,
    id_records=20_000,
    rings=50,
    ring_batches=5,
    not_json=300_000,
    slow_readers=150,
    seconds=10,
    combinations=200,
    clients=150,
    sent=200,
    lookups=400,
    connecting=6_000,
    fleets=(1_000, 3_000),
    wait_s=3 * TIMEOUT_S,
)


def is_full() -> bool:
    """Whether `make attacks` runs the tests."""
    return os.environ.get("ATTACKS") == "full"


SIZES = FULL if is_full() else Sizes()


class Combined(NamedTuple):
    """The attack that combines loads. If one of its limits is removed, it exceeds the bound."""

    rings: int = 12
    batches: int = 10  # in each of these topics
    table_mb: int = 80
    behind: int = 60


COMBINED = Combined()
