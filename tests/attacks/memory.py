"""The bound on the memory of a worker. docs/capacity.md states it, and each attack checks it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kafkasse.config import Config
from kafkasse.feed.core.chunk import MAX_CHUNK_BYTES
from kafkasse.schemas import read

KIB, MIB = 1 << 10, 1 << 20
IDLE_WORKER_BYTES = 72 * MIB
RESERVE_BYTES = 24 * MIB
STREAM_BYTES = 24 * KIB
PARTITION_BYTES = 8 * KIB
CURSOR_PARTITION_BYTES = 4 * KIB
CHUNKS_PER_STALLED_CLIENT = 2
CHUNK_BYTES = Config().feed.max_chunk_bytes
FETCHES_PER_CURSOR = 3
MIN_CURSOR_BYTES = 3 * MIB
FETCHES_OF_TAIL = 8
MIN_TAIL_BYTES = 8 * MIB
FINITE_CHUNK_BYTES = MAX_CHUNK_BYTES
KEPT_CHUNKS_BYTES = 32 * MIB
KEPT_CURSORS = 8
DEFAULTS = {name: schema.get("default") for name, schema in read("config")["properties"].items()}


class Load(NamedTuple):
    """The most that a worker serves at the same time.

    Attributes:
        streams: the open streams.
        stalled: those of them whose clients accept bytes more slowly than the server could send them.
        catching_up: those of them that have a cursor; at most `max_catch_ups`.
        large_batches: those cursors that read batches of more than 1 MiB after decompression.
        feeds: the feeds that have a ring.
        partitions: the partitions of all feeds.
        snapshots: the snapshots in memory. While a new version is built, the old one may still be sent.
        finite: the open streams that are responses to finite reads, each with another chunk.
    """

    streams: int = 0
    stalled: int = 0
    catching_up: int = 0
    large_batches: int = 0
    feeds: int = 1
    partitions: int = 1
    snapshots: int = 0
    finite: int = 0


def growth(load: Load, settings: Mapping[str, Any]) -> int:
    """Return how much memory a worker may use for this load, in addition to the memory of an idle worker."""
    limits = {**DEFAULTS, **settings}
    fetch = limits["max_fetch_bytes"]
    cursors = min(load.catching_up, limits["max_catch_ups"]) + 1  # and that of the tail
    cursors += KEPT_CURSORS * (load.finite > 0)
    return int(
        RESERVE_BYTES
        + min(load.feeds * limits["max_ring_bytes"], limits["max_total_ring_bytes"])
        + 2 * load.snapshots * limits["max_snapshot_bytes"]
        + load.streams * STREAM_BYTES
        + load.finite * FINITE_CHUNK_BYTES
        + KEPT_CHUNKS_BYTES * (load.finite > 0)
        + load.stalled * CHUNKS_PER_STALLED_CLIENT * CHUNK_BYTES
        + (cursors - 1) * max(FETCHES_PER_CURSOR * fetch, MIN_CURSOR_BYTES)
        + max(FETCHES_OF_TAIL * fetch, MIN_TAIL_BYTES)
        + min(load.large_batches, cursors) * limits["max_decompressed_bytes"]
        + load.partitions * (PARTITION_BYTES + cursors * CURSOR_PARTITION_BYTES)
    )
