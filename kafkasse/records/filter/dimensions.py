"""Keyed dispatch: the dimensions by which a feed distributes records, and the values that each client selects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, NamedTuple

from kafkasse.records.frame.json_text import DeserializationError
from kafkasse.records.frame.record_view import RecordView

Values = tuple[str, ...]  # one for each dimension


class Dimension(NamedTuple):
    """A part of a record whose value decides which clients receive the record.

    Attributes:
        source: the part of the record.
        name: the name of the header, or the path of the field in the value, such as `customer.id`; "" for the key.
    """

    source: Literal["key", "header", "field"]
    name: str = ""

    def value(self, view: RecordView) -> str | None:
        """Return the record's value as text, or None if the record has none. Then no client receives the record."""
        match self.source:
            case "key":
                return _text(view.record.key)
            case "header":
                values = [value for name, value in view.record.headers if name == self.name]
                return _text(values[-1]) if values else None  # Kafka's lastHeader()
            case "field":
                return scalar_text(field(view, self.name))


@dataclass(frozen=True, slots=True)
class Dimensions:
    """The dimensions of a feed. Feeds without dimensions send all their records to all their clients."""

    parts: tuple[Dimension, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.parts)

    def values(self, view: RecordView) -> Values | None:
        """Return the record's values, or None if it has no value in a dimension."""
        values: list[str] = []
        for dimension in self.parts:
            value = dimension.value(view)
            if value is None:
                return None
            values.append(value)
        return tuple(values)


@dataclass(frozen=True, slots=True)
class Selector:
    """The records that a client selects: those whose values are one of `values`. Equal selectors form one group."""

    values: frozenset[Values]

    @classmethod
    def of(cls, *values: Iterable[str]) -> Selector:
        """Return the selector for one value in each dimension: Selector.of(["DE"]), Selector.of(["DE", "created"], …)."""
        return cls(frozenset(tuple(combination) for combination in values))

    def selects(self, values: Values | None) -> bool:
        """Return whether the client receives a record with these values."""
        return values in self.values


def field(view: RecordView, path: str) -> object:
    """Return the field of the value at a path of member names, such as `customer.id`, or None if there is none.

    A value that cannot be decoded has no fields.
    """
    try:
        member = view.value
    except DeserializationError:
        return None
    for name in path.split("."):
        if not isinstance(member, dict) or name not in member:
            return None
        member = member[name]
    return member


def scalar_text(value: object) -> str | None:
    """Return a JSON scalar as text: true, 12.0, 1e-05 and "a" are `true`, `12`, `0.00001` and `a`. Others have no text."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case float() if value.is_integer():
            return str(int(value))
        case int() | float():
            text = str(value)
            return format(Decimal(text), "f") if "e" in text else text
        case _:
            return None


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
