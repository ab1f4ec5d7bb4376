"""The selection of a stream: which records of the route's topics the client receives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from kafkasse.records.filter.dimensions import Dimensions, Selector, scalar_text
from kafkasse.records.filter.dimensions import field as field_of
from kafkasse.records.filter.expression import Expression, ExpressionFailure
from kafkasse.records.frame.record_view import RecordView

OnFailure = Callable[[RecordView, str], None]


def _ignore(view: RecordView, reason: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Filter:
    """The conditions of a feed, all of which a record must meet. Streams with equal filters share a feed.

    Attributes:
        keys: the key is one of these; None: any key.
        headers: for each name, one of the record's headers with this name has one of these values.
        fields: for each path, the field of the value is one of these texts.
        expressions: all of these are true.
        on_failure: called with each record for which an expression has no result, and the reason. It does not match.
    """

    keys: frozenset[bytes] | None = None
    headers: tuple[tuple[str, frozenset[bytes]], ...] = ()
    fields: tuple[tuple[str, frozenset[str]], ...] = ()
    expressions: tuple[Expression, ...] = ()
    on_failure: OnFailure = field(default=_ignore, compare=False, repr=False)

    @classmethod
    def of(
        cls,
        key: Iterable[str] | None = None,
        headers: Mapping[str, Iterable[str]] | None = None,
        fields: Mapping[str, Iterable[str]] | None = None,
        expressions: Iterable[Expression] = (),
        on_failure: OnFailure = _ignore,
    ) -> Self:
        """Return the filter for conditions in any order."""
        return cls(
            None if key is None else frozenset(text.encode() for text in key),
            tuple(
                (name, frozenset(text.encode() for text in values)) for name, values in sorted((headers or {}).items())
            ),
            tuple((path, frozenset(values)) for path, values in sorted((fields or {}).items())),
            tuple(dict.fromkeys(expressions)),
            on_failure,
        )

    def matches(self, view: RecordView) -> bool:
        """Return whether a record meets all conditions. The conditions that cost least are checked first.

        A record whose value cannot be decoded does not match a condition on a field.

        Raises:
            DeserializationError: an expression reads the value, which cannot be decoded.
        """
        return (
            (self.keys is None or view.record.key in self.keys)
            and all(_has_header(view, name, values) for name, values in self.headers)
            and all(scalar_text(field_of(view, path)) in values for path, values in self.fields)
            and all(self._is_true(expression, view) for expression in self.expressions)
        )

    def _is_true(self, expression: Expression, view: RecordView) -> bool:
        try:
            return expression.matches(view)
        except ExpressionFailure as failure:
            self.on_failure(view, str(failure))
            return False


def _has_header(view: RecordView, name: str, values: frozenset[bytes]) -> bool:
    return any(header == name and value in values for header, value in view.record.headers)


class Selection(NamedTuple):
    """Which records of the route's topics a client receives.

    Attributes:
        filter: the conditions that are the same for many clients, which share a feed; None if there are none. Hashable.
        dimensions: the parts of a record that decide which clients of the feed receive it.
        selector: the values that this client selects; None if there are no dimensions.
        is_of_client: whether the query of the client decides what the filter or the dimensions are. Clients can cause any
            number of such selections.
    """

    filter: Filter | None = None
    dimensions: Dimensions = Dimensions()
    selector: Selector | None = None
    is_of_client: bool = False


EVERYTHING = Selection()
