"""Temporary directories that the next run removes if their process was killed.

Each directory contains a locked file. The system releases the lock when the process ends, for whatever reason. Process IDs
would not show which directories are in use, because two containers can share a directory but not their process IDs.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = "kafkasse.lock"
_NEW = ".kafkasse-new-"


@contextmanager
def temporary_directory(prefix: str) -> Iterator[Path]:
    """Provide a directory until the block ends, and remove the directories with this prefix that no process uses.

    Args:
        prefix: the beginning of the name, such as `kafkasse-spark-`.
    """
    parent = Path(tempfile.gettempdir())
    _remove_unused(parent, prefix)
    new = Path(tempfile.mkdtemp(prefix=_NEW, dir=parent))
    with (new / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # The directory gets the name that other processes search for only after it is locked.
        path = new.rename(parent / new.name.replace(_NEW, prefix))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def _remove_unused(parent: Path, prefix: str) -> None:
    for path in parent.glob(f"{prefix}*"):
        try:
            # Other users may write to the parent. Follow no link of theirs.
            if path.is_symlink() or path.stat().st_uid != os.geteuid():
                continue
            with (path / LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except OSError:  # another process uses the directory, or has just removed it
            continue
