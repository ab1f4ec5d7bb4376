"""Decompresses record batches in pieces, up to a size limit: one megabyte of gzip or zstd can expand to a gigabyte.

The decoders of kafka-python and aiokafka have no such limit and decompress at once. This module does no I/O.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator

import lz4.frame
import snappy
import zstandard

PIECE_BYTES = 1 << 17  # of decompressed data; takes at most about a millisecond
_INPUT_BYTES = 1 << 16  # given to a codec at once, because some codecs copy what they have not decompressed yet

_GZIP, _SNAPPY, _LZ4, _ZSTD = range(1, 5)
_ANY_HEADER = 32 + zlib.MAX_WBITS  # accept gzip's and zlib's header
_XERIAL_MAGIC = b"\x82SNAPPY\x00"  # Java's framing: the magic, two version numbers, then blocks, each after its length
_XERIAL_HEADER_BYTES = 16
_LENGTH = struct.Struct(">i")


class DecompressedTooLarge(Exception):
    """The decompressed data is larger than the limit."""


class LargeBlock:
    """A snappy block, which can only be decompressed as a whole. The receiver may call decompress() in a thread."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._result: bytes | Exception | None = None

    def decompress(self) -> None:
        """Decompress the block, without the GIL. Never raises."""
        try:
            self._result = snappy.uncompress(bytes(self._data))
        except Exception as error:  # noqa: BLE001 - result() raises it
            self._result = error

    def result(self) -> bytes:
        """Return the decompressed block."""
        if self._result is None:
            self.decompress()
        if not isinstance(self._result, bytes):
            raise ValueError(f"a snappy block cannot be decompressed: {self._result!r}")
        return self._result


def decompress(codec: int, data: memoryview, max_bytes: int) -> Iterator[bytes | LargeBlock]:
    """Decompress the records of a batch in pieces. A LargeBlock comes before its bytes.

    Args:
        codec: the codec in the batch's attributes: 1 gzip, 2 snappy, 3 lz4, 4 zstd.
        data: all compressed bytes.
        max_bytes: the limit for the decompressed size.

    Raises:
        DecompressedTooLarge: the decompressed size is above the limit.
        Exception: an exception of the codec's library, if the data is damaged.
    """
    size = 0
    for piece in _DECOMPRESS[codec](data, max_bytes):
        size += len(piece) if isinstance(piece, bytes) else 0
        if size > max_bytes:
            raise DecompressedTooLarge(f"more than {max_bytes} bytes")
        yield piece


def block_bytes(codec: int, data: memoryview) -> int:
    """Return the decompressed size of the largest snappy block, which can only be decompressed as a whole; else 0."""
    if codec != _SNAPPY:
        return 0
    return max((_block_size(block) for block in _snappy_blocks(data)), default=0)


def _gzip(data: memoryview, _: int) -> Iterator[bytes]:
    decompressor = zlib.decompressobj(_ANY_HEADER)
    for at in range(0, len(data), _INPUT_BYTES):
        rest: memoryview | bytes = data[at : at + _INPUT_BYTES]
        while rest:
            yield decompressor.decompress(rest, PIECE_BYTES)
            rest = decompressor.unconsumed_tail


def _lz4(data: memoryview, _: int) -> Iterator[bytes]:
    decompressor = lz4.frame.LZ4FrameDecompressor()
    for at in range(0, len(data), _INPUT_BYTES):
        yield decompressor.decompress(data[at : at + _INPUT_BYTES], PIECE_BYTES)
        while not (decompressor.eof or decompressor.needs_input):
            yield decompressor.decompress(b"", PIECE_BYTES)
        if decompressor.eof:
            return


def _zstd(data: memoryview, _: int) -> Iterator[bytes]:
    reader = zstandard.ZstdDecompressor().stream_reader(data)
    while piece := reader.read(PIECE_BYTES):
        yield piece


def _snappy(data: memoryview, max_bytes: int) -> Iterator[bytes | LargeBlock]:
    for block in _snappy_blocks(data):
        size = _block_size(block)
        if size > max_bytes:
            raise DecompressedTooLarge(f"{size} bytes")
        large = LargeBlock(block)
        if size > PIECE_BYTES:
            yield large
        yield large.result()


def _snappy_blocks(data: memoryview) -> Iterator[memoryview]:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        yield data
        return
    at = _XERIAL_HEADER_BYTES
    while at < len(data):
        (size,) = _LENGTH.unpack_from(data, at)
        if size < 0:
            raise ValueError("a block has a negative length")
        at += _LENGTH.size
        yield data[at : at + size]
        at += size


def _block_size(data: memoryview) -> int:
    """Return the decompressed size of a block. The block starts with this size as a varint: seven bits per byte."""
    size = 0
    for index, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if not byte & 0x80:
            break
    return size


_Decompress = Callable[[memoryview, int], Iterator[bytes | LargeBlock]]
_DECOMPRESS: dict[int, _Decompress] = {_GZIP: _gzip, _SNAPPY: _snappy, _LZ4: _lz4, _ZSTD: _zstd}
