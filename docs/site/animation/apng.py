"""Join PNG files of equal size into an animated PNG, which all browsers show. Needs no imaging library.

Source: the section on APNG in the third edition of the PNG specification.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def animated(pictures: Sequence[bytes], pause_s: float, last_s: float) -> bytes:
    """Return an animation that repeats forever. Equal pictures in a row become one frame.

    Programs that do not support animations show the last picture.

    Args:
        pictures: PNG files with the same size and type of color.
        pause_s: how long to show each picture.
        last_s: how long to show the last one.
    """
    frames: list[tuple[bytes, float]] = []
    for picture in pictures:
        if frames and frames[-1][0] == picture:
            frames[-1] = picture, frames[-1][1] + pause_s
        else:
            frames.append((picture, pause_s))
    frames[-1] = frames[-1][0], last_s
    [header] = _content(pictures[0], b"IHDR")
    size = header[:8]
    parts = [SIGNATURE, _chunk(b"IHDR", header), _chunk(b"acTL", struct.pack(">II", len(frames), 0))]
    parts += [_chunk(b"IDAT", data) for data in _content(pictures[-1], b"IDAT")]  # before all frames: not one of them
    number = 0
    for picture, seconds in frames:
        control = struct.pack(">I8sIIHHBB", number, size, 0, 0, round(seconds * 1000), 1000, 0, 0)
        parts.append(_chunk(b"fcTL", control))
        number += 1
        for data in _content(picture, b"IDAT"):
            parts.append(_chunk(b"fdAT", struct.pack(">I", number) + data))
            number += 1
    return b"".join([*parts, _chunk(b"IEND", b"")])


def _content(picture: bytes, kind: bytes) -> Iterator[bytes]:
    """Yield the contents of the chunks of a kind."""
    at = len(SIGNATURE)
    while at < len(picture):
        size, found = struct.unpack_from(">I4s", picture, at)
        if found == kind:
            yield picture[at + 8 : at + 8 + size]
        at += 12 + size


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
