"""The sizes of the attacks. `make attacks` runs them in full size. By default, they are only as large as necessary."""

from __future__ import annotations

import os
from typing import NamedTuple

MB = 1_000_000


class Sizes(NamedTuple):
    """The number of clients, records and topics in each attack, and how long it takes."""

    tiny_records: int
    joining: int
    table_mb: int
    table_readers: int
    keys: int
    keys_readers: int
    partitions: int
    batches: int
    batch_readers: int
    id_records: int
    rings: int
    not_json: int
    slow_readers: int
    seconds: int
    combinations: int
    clients: int
    sent: int
    lookups: int
    connecting: int
    fleets: tuple[int, ...]
    wait_s: int


SMALL = Sizes(
    tiny_records=120_000,
    joining=60,
    table_mb=40,
    table_readers=4,
    keys=30_000,
    keys_readers=8,
    partitions=400,
    batches=100,
    batch_readers=20,
    id_records=8_000,
    rings=24,
    not_json=60_000,
    slow_readers=20,
    seconds=3,
    combinations=40,
    clients=100,
    sent=300,
    lookups=200,
    connecting=1_500,
    fleets=(400,),
    wait_s=60,
)
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
    not_json=300_000,
    slow_readers=150,
    seconds=10,
    combinations=200,
    clients=150,
    sent=200,
    lookups=400,
    connecting=6_000,
    fleets=(1_000, 3_000),
    wait_s=300,
)
SIZES = FULL if os.environ.get("ATTACKS") == "full" else SMALL


class Combined(NamedTuple):
    """The attack that combines loads. If one of its limits is removed, it exceeds the bound."""

    rings: int = 12
    batches: int = 10  # in each of these topics
    table_mb: int = 80
    behind: int = 60
    seconds: int = 3


COMBINED = Combined()
