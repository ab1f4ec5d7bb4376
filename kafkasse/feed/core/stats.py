"""What the feeds of one route have done, as plain numbers. kafkasse/web/sampler.py copies them to Prometheus at intervals.

The numbers change once per chunk or flush, and never per delivered event.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol


class HasLag(Protocol):
    """A reader with a cursor of its own."""

    def lag(self) -> int:
        """Return how many offsets the client is behind the feed."""


@dataclass(slots=True, eq=False)
class RouteStats:
    """The totals of one route in this process.

    Attributes:
        events: the records that were sent to clients.
        bytes: the bytes that were sent to clients, in chunks of all kinds.
        records: the records that were encoded, including those that a filter rejected.
        outdated: the records that `newest_by` dropped.
        encode_s: the time that encoding them took.
        catch_ups: how often a reader opened its own cursor.
        joins: how often a reader that had caught up joined the shared feed.
        falls_behind: how often the ring evicted frames that a reader still needed.
        gaps: the gaps that were reported, by reason, once for each shared feed, client that resumes or catches up, and
            chunk.
        delay_s: the longest time between the timestamp of a record and its encoding in a shared feed, since the value was
            last set to 0.
        readers: the number of open readers in each reader_states.ReaderState.
        catching_up: the readers with a cursor of their own, as the keys of a dict.
        silent_since: when the cluster stopped answering; see TopicWatch.
    """

    events: int = 0
    bytes: int = 0
    records: int = 0
    outdated: int = 0
    encode_s: float = 0.0
    catch_ups: int = 0
    joins: int = 0
    falls_behind: int = 0
    gaps: Counter[str] = field(default_factory=Counter)
    delay_s: float = 0.0
    readers: Counter[Enum] = field(default_factory=Counter)
    catching_up: dict[HasLag, None] = field(default_factory=dict)
    silent_since: float = math.inf
