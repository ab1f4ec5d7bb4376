"""The content of the configuration file. A process can pin it, so that later reads return the same content.

This module imports no other module of kafkasse and is not in kafkasse/config, because gunicorn's master uses it: the
packages that check a configuration would take 5 MB in the master.
"""

from __future__ import annotations

from pathlib import Path

VARIABLE = "KAFKASSE_CONFIG"  # the path of the file
_pinned: dict[Path, bytes] = {}


def pin(path: Path, content: bytes | None) -> bytes | None:
    """Make read() return this content. If it is None, read() reads the file again.

    Returns:
        The previous content, or None.
    """
    previous = _pinned.pop(path, None)
    if content is not None:
        _pinned[path] = content
    return previous


def read(path: Path) -> bytes:
    """Return the pinned content of a file, or else its current content.

    Raises:
        OSError: the file cannot be read.
    """
    pinned = _pinned.get(path)
    return path.read_bytes() if pinned is None else pinned
