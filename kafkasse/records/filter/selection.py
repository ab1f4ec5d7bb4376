"""The selection of a stream: which records of the route's topics the client receives."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from kafkasse.records.filter.dimensions import Dimensions, Selector
from kafkasse.records.frame.record_view import RecordView


class RecordFilter(Protocol):
    """Decides which records a stream contains. Equal filters have the same hash, so that their streams share a feed."""

    def __hash__(self) -> int: ...

    def matches(self, view: RecordView) -> bool:
        """Return whether the stream contains a record. May raise DeserializationError; the record is then skipped."""
        ...


class Selection(NamedTuple):
    """Which records of the route's topics a client receives.

    Attributes:
        filter: the conditions that are the same for many clients, which share a feed; None if there are none. Hashable.
        dimensions: the parts of a record that decide which clients of the feed receive it.
        selector: the values that this client selects; None if there are no dimensions.
        is_of_client: whether the query of the client decides what the filter or the dimensions are. Clients can cause any
            number of such selections.
    """

    filter: RecordFilter | None = None
    dimensions: Dimensions = Dimensions()
    selector: Selector | None = None
    is_of_client: bool = False


EVERYTHING = Selection()
