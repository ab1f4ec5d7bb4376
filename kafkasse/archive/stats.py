"""What the clients of a process have read from an archive, as plain numbers, for kafkasse/telemetry."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class ArchiveStats:
    """The totals of the archive of one cluster.

    Attributes:
        files: how often a client began to read a file.
        bytes: the size of the records that were read from files, uncompressed.
        errors: how often the archive could not be read, by reason: `unavailable` or `damaged`.
        readers: the number of cursors that read from the archive now.
    """

    files: int = 0
    bytes: int = 0
    errors: Counter[str] = field(default_factory=lambda: Counter(unavailable=0, damaged=0))
    readers: int = 0
