"""Unpacks what producers have compressed, up to a bound: a megabyte of gzip or zstd can hold a gigabyte.

The decoders of kafka-python and aiokafka unpack a batch whole, however large it becomes. Pure.
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
_ANY_HEADER = 32 + zlib.MAX_WBITS  # gzip's, or zlib's
_PIECE_BYTES = 1 << 20
_XERIAL = b"\x82SNAPPY\x00"  # Java's framing: this, two versions, and then blocks with their lengths
_XERIAL_BYTES = 16
_LENGTH = struct.Struct(">i")


class TooLarge(Exception):
    """It would be larger than it may."""


def unpack(codec: int, packed: memoryview, bytes_max: int) -> bytes | bytearray:
    """What was compressed.

    Args:
        codec: as a record batch's attributes name it: 1 gzip, 2 snappy, 3 lz4, 4 zstd.
        packed: all of it.
        bytes_max: how large it may become.

    Raises:
        TooLarge: see there. No more than `bytes_max` was ever held.
        Exception: of the library, where the bytes are damaged.
    """
    unpacked = _UNPACK[codec](packed, bytes_max + 1)
    if len(unpacked) > bytes_max:
        raise TooLarge(f"more than {bytes_max} bytes")
    return unpacked


def _gzip(packed: memoryview, limit: int) -> bytearray:
    unpacker, unpacked = zlib.decompressobj(_ANY_HEADER), bytearray()
    rest: memoryview | bytes = packed
    while rest and len(unpacked) < limit:  # piece by piece: zlib needs as much again as it is asked for
        unpacked += unpacker.decompress(rest, _PIECE_BYTES)
        rest = unpacker.unconsumed_tail
    return unpacked


def _lz4(packed: memoryview, limit: int) -> bytes:
    unpacked: bytes = lz4.frame.LZ4FrameDecompressor().decompress(packed, limit)
    return unpacked


def _zstd(packed: memoryview, limit: int) -> bytes:
    return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(packed)).read(limit)


def _snappy(packed: memoryview, limit: int) -> bytes:
    if bytes(packed[: len(_XERIAL)]) != _XERIAL:
        return _snappy_block(packed, limit)
    blocks, at = [], _XERIAL_BYTES
    while at < len(packed) and limit > 0:
        (size,) = _LENGTH.unpack_from(packed, at)
        at += _LENGTH.size
        blocks.append(_snappy_block(packed[at : at + size], limit))
        limit -= len(blocks[-1])
        at += size
    return b"".join(blocks)


def _snappy_block(packed: memoryview, limit: int) -> bytes:
    """A block begins with its unpacked size, as a number of seven bits a byte."""
    size = 0
    for place, byte in enumerate(packed[:5]):
        size |= (byte & 0x7F) << (7 * place)
        if not byte & 0x80:
            break
    if size >= limit:
        raise TooLarge(f"{size} bytes")
    unpacked: bytes = snappy.uncompress(bytes(packed))
    return unpacked


_Unpack = Callable[[memoryview, int], bytes | bytearray]
_UNPACK: dict[int, _Unpack] = {_GZIP: _gzip, _SNAPPY: _snappy, _LZ4: _lz4, _ZSTD: _zstd}
