"""Write a file that other processes read, or that must not be lost."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory


def replace(path: Path, content: bytes) -> None:
    """Write a file as a whole: if this fails, for example because the disk is full, the old file stays.

    Raises:
        OSError: it cannot be written.
    """
    with TemporaryDirectory(dir=path.parent) as directory:
        new = Path(directory, path.name)
        new.write_bytes(content)
        new.replace(path)
