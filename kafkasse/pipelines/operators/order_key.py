"""The keys under which a group's members are stored, so that Spark's state store returns them in rank order.

RocksDB returns the entries of a group in the order of their bytes. Spark stores a struct of five bigints as 8 bytes for
nulls and 8 bytes for each number, in little-endian order. The numbers here are chosen so that these bytes sort by
descending rank, then by the first PREFIX_BYTES of the key. OrderKey.java computes the same numbers.
"""

from __future__ import annotations

import hashlib
import struct

OrderKey = tuple[int, int, int, int, int]

PREFIX_BYTES = 16
MAX_BIGINT = 2**63 - 1


def order_key(rank: int, key: str) -> OrderKey:
    """Return five signed 64-bit numbers whose stored bytes sort by descending rank, then by key.

    A key of more than PREFIX_BYTES bytes is identified by its prefix and 128 bits of its SHA-256. Such keys are not sorted
    beyond their prefix.
    """
    text = key.encode()
    rest = struct.pack(">QQ", len(text), 0) if len(text) <= PREFIX_BYTES else hashlib.sha256(text).digest()[:16]
    stored = struct.pack(">Q", MAX_BIGINT - rank) + text[:PREFIX_BYTES].ljust(PREFIX_BYTES, b"\0") + rest
    numbers: OrderKey = struct.unpack("<5q", stored)
    return numbers


def stored_bytes(numbers: OrderKey) -> bytes:
    """Return the bytes by which the state store sorts."""
    return struct.pack("<5q", *numbers)
