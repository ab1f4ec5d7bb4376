"""The configuration file. It may be pinned, so that a process reads the same content again.

This module is not in kafkasse/config, and imports nothing else, because gunicorn's master uses it: without the packages
that check a configuration, the master takes 5 MB less memory.
"""

from __future__ import annotations

from pathlib import Path

VARIABLE = "KAFKASSE_CONFIG"  # the path of the file
_pinned: dict[Path, bytes] = {}


def pin(path: Path, content: bytes | None) -> bytes | None:
    """Make read() return this content, or read the file again if it is None.

    Returns:
        The previous content, or None.
    """
    previous = _pinned.pop(path, None)
    if content is not None:
        _pinned[path] = content
    return previous


def read(path: Path) -> bytes:
    """Return the pinned content of a file, or what is in the file.

    Raises:
        OSError: the file cannot be read.
    """
    pinned = _pinned.get(path)
    return path.read_bytes() if pinned is None else pinned
