"""Decompresses record batches up to a size limit, because one megabyte of gzip or zstd can expand to a gigabyte.

The decoders of kafka-python and aiokafka have no such limit. This module does no I/O.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable

import lz4.frame
import snappy
import zstandard

_GZIP, _SNAPPY, _LZ4, _ZSTD = range(1, 5)
_ANY_HEADER = 32 + zlib.MAX_WBITS  # accept gzip's and zlib's header
_CHUNK_BYTES = 1 << 20
_XERIAL_MAGIC = b"\x82SNAPPY\x00"  # Java's framing: the magic, two version numbers, then blocks, each after its length
_XERIAL_HEADER_BYTES = 16
_LENGTH = struct.Struct(">i")


class DecompressedTooLarge(Exception):
    """The decompressed data is larger than the limit."""


def decompress(codec: int, data: memoryview, max_bytes: int) -> bytes | bytearray:
    """Decompress the records of a batch. Never holds more than about `max_bytes` of decompressed data.

    Args:
        codec: the codec in the batch's attributes: 1 gzip, 2 snappy, 3 lz4, 4 zstd.
        data: all compressed bytes.
        max_bytes: the limit for the decompressed size.

    Raises:
        DecompressedTooLarge: the decompressed size is above the limit.
        Exception: an exception of the codec's library, if the data is damaged.
    """
    decompressed = _DECOMPRESS[codec](data, max_bytes + 1)
    if len(decompressed) > max_bytes:
        raise DecompressedTooLarge(f"more than {max_bytes} bytes")
    return decompressed


def _gzip(data: memoryview, limit: int) -> bytearray:
    decompressor, decompressed = zlib.decompressobj(_ANY_HEADER), bytearray()
    rest: memoryview | bytes = data
    # Decompress in chunks, because zlib allocates up to twice the size that it may return.
    while rest and len(decompressed) < limit:
        decompressed += decompressor.decompress(rest, _CHUNK_BYTES)
        rest = decompressor.unconsumed_tail
    return decompressed


def _lz4(data: memoryview, limit: int) -> bytes:
    decompressed: bytes = lz4.frame.LZ4FrameDecompressor().decompress(data, limit)
    return decompressed


def _zstd(data: memoryview, limit: int) -> bytes:
    return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read(limit)


def _snappy(data: memoryview, limit: int) -> bytes:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _snappy_block(data, limit)
    blocks, at = [], _XERIAL_HEADER_BYTES
    while at < len(data) and limit > 0:
        (size,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        blocks.append(_snappy_block(data[at : at + size], limit))
        limit -= len(blocks[-1])
        at += size
    return b"".join(blocks)


def _snappy_block(data: memoryview, limit: int) -> bytes:
    """A block starts with its decompressed size as a varint: seven bits per byte."""
    size = 0
    for index, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if not byte & 0x80:
            break
    if size >= limit:
        raise DecompressedTooLarge(f"{size} bytes")
    decompressed: bytes = snappy.uncompress(bytes(data))
    return decompressed


_Decompress = Callable[[memoryview, int], bytes | bytearray]
_DECOMPRESS: dict[int, _Decompress] = {_GZIP: _gzip, _SNAPPY: _snappy, _LZ4: _lz4, _ZSTD: _zstd}
