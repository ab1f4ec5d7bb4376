"""The selection of a stream: which records of the route's topics the client receives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kafkasse.filter.dimensions import Dimensions, Selector
from kafkasse.frame.encoder import RecordFilter
from kafkasse.frame.record_view import RecordView


class Selection(NamedTuple):
    """Which records of the route's topics a client receives.

    Attributes:
        filter: the conditions that are the same for many clients, which share a feed; None if there are none. Hashable.
        dimensions: the parts of a record that decide which clients of the feed receive it.
        selector: the values that this client selects; None if there are no dimensions.
    """

    filter: RecordFilter | None = None
    dimensions: Dimensions = Dimensions()
    selector: Selector | None = None

    def undispatched(self) -> Selection:
        """Return the same selection without dimensions, for a feed that does not distribute records by them."""
        if self.selector is None:
            return self
        return Selection(SelectedRecords(self.filter, self.dimensions, self.selector))


@dataclass(frozen=True, slots=True)
class SelectedRecords:
    """The filter of the records that one selector selects."""

    filter: RecordFilter | None
    dimensions: Dimensions
    selector: Selector

    def matches(self, view: RecordView) -> bool:
        """Return whether the selector selects a record that meets the other conditions."""
        return self.selector.selects(self.dimensions.values(view)) and (
            self.filter is None or self.filter.matches(view)
        )


EVERYTHING = Selection()
