"""The body of a stream that serves itself, as the client receives it."""

from __future__ import annotations


def chunked(data: bytes) -> bytes:
    """Start a response as the server would, without a header."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def unchunked(data: bytes) -> tuple[bytes, bool]:
    """Return the body received so far, and whether it is complete."""
    body = b""
    while data:
        size, data = data.split(b"\r\n", 1)
        if size == b"0":
            assert data == b"\r\n"
            return body, True
        body, data = body + data[: int(size, 16)], data[int(size, 16) + 2 :]
    return body, False
