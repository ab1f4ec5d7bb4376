"""The states of a partition in a cursor: the data of each state, and the transitions. This module does no I/O.

remove() may be called in each state. After poll() has reported an error, the partition is removed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kafkasse.errors import KafkasseError
from kafkasse.kafka.fetch_position import FetchPosition
from kafkasse.kafka.fetch_session import FetchSession
from kafkasse.log import OffsetAndEpoch


@dataclass(slots=True, eq=False)
class Added:
    """The partition was just added by seek()."""


@dataclass(slots=True, eq=False)
class NeedsLeader:
    """Waits until its leader is found."""

    position: FetchPosition
    retry_at: float  # when to look up the leader
    # When the metadata first reported an older epoch than that of the last leader; inf if it has not.
    older_epoch_since: float = math.inf


@dataclass(slots=True, eq=False)
class Validating:
    """Has a leader. Waits for the leader to confirm that its log contains what was read."""

    position: FetchPosition


@dataclass(slots=True, eq=False)
class Fetching:
    """Is in the next request to the broker of this session: the leader, or the replica that the leader has named."""

    position: FetchPosition
    session: FetchSession


@dataclass(slots=True, eq=False)
class Decoding:
    """Has records that are not decoded yet. Until then it is in no request."""

    position: FetchPosition
    session: FetchSession  # where the records are from
    is_large: bool  # see decoding.is_large()


@dataclass(slots=True, eq=False)
class Deferred:
    """Is in no request yet, so that others come first: those with few records, and those that were deferred before."""

    position: FetchPosition
    session: FetchSession


@dataclass(slots=True, eq=False)
class Stopped:
    """Cannot continue until seek() moves it. See OffsetOutOfRange for `diverged_at` and `unreadable`."""

    position: FetchPosition
    diverged_at: OffsetAndEpoch | None = None
    unreadable: tuple[int, str] | None = None


@dataclass(slots=True, eq=False)
class Failed:
    """Cannot be read any more. poll() has not reported this yet."""

    error: KafkasseError


FetchState = Added | NeedsLeader | Validating | Fetching | Decoding | Deferred | Stopped | Failed

NEXT_STATES: Mapping[type[FetchState], tuple[type[FetchState], ...]] = {
    Added: (NeedsLeader,),  # always
    NeedsLeader: (
        Fetching,  # its leader is known
        Validating,  # its leader is known, but might not report that the log was truncated (old_brokers.py)
        Stopped,  # its topic was recreated (old_brokers.py)
        Failed,  # we may not read its topic
        NeedsLeader,  # seek() is called
    ),
    Validating: (
        Fetching,  # the leader's log contains what was read
        Stopped,  # the log was truncated, or the topic was recreated
        NeedsLeader,  # the leader does not answer, or seek() is called
    ),
    Fetching: (
        Decoding,  # records have arrived
        Deferred,  # large records have arrived, but so many others are undecoded that they were discarded
        Fetching,  # the leader names a replica to read from, or the replica cannot be used
        Stopped,  # the offset is out of range, or the log was truncated
        NeedsLeader,  # the leader has moved, its broker is unavailable, or its log must be validated after a seek()
        Failed,  # the broker rejects the partition, or returns no records although its log has some
    ),
    Decoding: (
        Fetching,  # all records are decoded, or seek() is called
        Deferred,  # the same, but it had large records, and other partitions are deferred
        NeedsLeader,  # the same, but the connection to the broker has failed
        Stopped,  # a batch is too large
        Failed,  # a batch is damaged
    ),
    Deferred: (
        Fetching,  # it is its turn, or seek() is called
        NeedsLeader,  # the connection to the broker has failed
    ),
    Stopped: (NeedsLeader,),  # seek() is called
    Failed: (NeedsLeader,),  # seek() is called before poll() has reported the error
}
