"""A stream that serves itself, and the client's end of its socket."""

from __future__ import annotations


def chunked(data: bytes) -> bytes:
    """As a server would begin the body; no header, which is not a stream's affair."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def unchunked(data: bytes) -> tuple[bytes, bool]:
    """The body as far as it has come, and whether that is all of it."""
    body = b""
    while data:
        size, data = data.split(b"\r\n", 1)
        if size == b"0":
            assert data == b"\r\n"
            return body, True
        body, data = body + data[: int(size, 16)], data[int(size, 16) + 2 :]
    return body, False
