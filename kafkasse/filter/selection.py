"""The selection of a stream: which records of the route's topics the client receives."""

from __future__ import annotations

from typing import NamedTuple

from kafkasse.filter.dimensions import Dimensions, Selector
from kafkasse.frame.encoder import RecordFilter


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
