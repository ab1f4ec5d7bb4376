"""Compression of streams: a client can decompress each chunk at once, and a chunk does not depend on earlier chunks.

All clients of a feed can therefore receive the same compressed bytes, whenever each of them joined: a thousand clients cost
one compression. Segments without a common history are larger than those of a compressor for each client, which would cost a
compression for each client and 256 KiB of memory.

- zstd: the blocks of each segment are a frame of their own. RFC 8878 allows any number of frames. A segment ends with the
  header of the next frame, because some clients, httpx among them, fail if a frame ends where the data they have read ends.
- gzip: a segment is a sequence of deflate blocks that ends with an empty block (Z_FULL_FLUSH). Browsers read only one gzip
  member, so all segments are in one member, whose trailer contains the checksum of everything that the client received.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from functools import cache, lru_cache

import zstandard
from werkzeug.datastructures import Accept
from werkzeug.http import parse_accept_header

from kafkasse.web.headers import MAX_ACCEPT_CHARS

ZSTD_LEVEL = 3
GZIP_LEVEL = 3
_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # deflate, no name, no time, unknown system
_LAST_BLOCK = b"\x03\x00"
_TRAILER = struct.Struct("<II")  # the CRC-32 and the length modulo 2**32
_LAST_ZSTD_BLOCK = b"\x01\x00\x00"  # without data


@cache
def _zstd() -> zstandard.ZstdCompressor:
    """Return the compressor. It takes 1 MB, so a server without compression does not create it."""
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=False)


def _zstd_blocks(data: bytes) -> bytes:
    """Return a frame without its last block."""
    compressor = _zstd().compressobj()
    return compressor.compress(data) + compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)


@cache
def _zstd_header() -> bytes:
    """Return the header of a frame."""
    frame = _zstd_blocks(b" ")
    return frame[: zstandard.frame_header_size(frame)]


class Coding:
    """The content coding of one response. This one does not compress."""

    __slots__ = ()
    name = ""  # as in Content-Encoding

    def opening(self) -> bytes:
        """Return the bytes before the first segment."""
        return b""

    def segment(self, data: bytes) -> bytes:
        """Return `data` as a segment. It is the same for all responses with this coding."""
        return data

    def add(self, data: bytes) -> None:
        """Count data that the response contains."""

    def ending(self) -> bytes:
        """Return the bytes after the last segment."""
        return b""


class Zstd(Coding):
    """Zstandard (RFC 8878)."""

    __slots__ = ()
    name = "zstd"

    def opening(self) -> bytes:
        return _zstd_header()

    def segment(self, data: bytes) -> bytes:
        header = _zstd_header()
        return _zstd_blocks(data)[len(header) :] + _LAST_ZSTD_BLOCK + header

    def ending(self) -> bytes:
        return _LAST_ZSTD_BLOCK


class Gzip(Coding):
    """gzip (RFC 1952)."""

    __slots__ = ("_crc", "_size")
    name = "gzip"

    def __init__(self) -> None:
        self._crc = self._size = 0

    def opening(self) -> bytes:
        return _GZIP_HEADER

    def segment(self, data: bytes) -> bytes:
        compressor = zlib.compressobj(GZIP_LEVEL, wbits=-zlib.MAX_WBITS)
        return compressor.compress(data) + compressor.flush(zlib.Z_FULL_FLUSH)

    def add(self, data: bytes) -> None:
        self._crc = zlib.crc32(data, self._crc)
        self._size += len(data)

    def ending(self) -> bytes:
        return _LAST_BLOCK + _TRAILER.pack(self._crc, self._size % 2**32)


IDENTITY = Coding()
CODINGS: dict[str, type[Coding]] = {"zstd": Zstd, "gzip": Gzip}


def negotiate(accept: str, offered: Sequence[str]) -> Coding:
    """Return the coding for an Accept-Encoding: one of the names `offered`, the first if the client has no preference."""
    name = _best(accept, tuple(offered)) if len(accept) <= MAX_ACCEPT_CHARS else ""
    return CODINGS[name]() if name else IDENTITY


@lru_cache(maxsize=256)
def _best(header: str, offered: tuple[str, ...]) -> str:
    """Return the name of a coding, or "" for no coding. Cached, because most clients send one of a few headers."""
    accept = parse_accept_header(header, Accept)
    qualities = {name: accept.quality(name) for name in offered}
    best = max(offered, key=lambda name: qualities[name], default="")
    return best if best and 0 < qualities[best] >= accept.quality("identity") else ""
