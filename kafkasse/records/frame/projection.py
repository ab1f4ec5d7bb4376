"""Projections: the members of a record's value that a route sends.

    fields: [id, customer.name]     only these members
    redact: [customer.email]        all members except these

- A path applies to each element of an array: `items.price` is the price of every item.
- A path also applies to members whose names contain dots: `customer.email` matches {"customer.email": …} too.
- A scalar in the place of an object, such as a text in `customer`, is not sent, because it may contain a redacted member in
  another form. null is sent.

A projection decodes each object that a path enters, so neither escaped names nor duplicate members can hide a member from
it. It does not decode the other members of a JSON text: they are sent as the producer wrote them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import combinations, pairwise
from typing import Any

import msgspec

from kafkasse.records.frame.json_text import (
    MAX_DECODED_BYTES,
    DeserializationError,
    TakeTurn,
    dumps,
    escape_line_separators,
    loads,
    without_lone_surrogates,
)

# Decodes one level of JSON, and two levels of an array: a call for each element would take twice as long.
_Scalar = str | int | float | bool | None
_Element = dict[str, msgspec.Raw] | list[msgspec.Raw] | _Scalar
_open = msgspec.json.Decoder(dict[str, msgspec.Raw] | list[_Element] | _Scalar).decode
# Decodes only one level of a larger value: two levels of 1 MB of empty objects would take 70 ms at once.
_open_large = msgspec.json.Decoder(dict[str, msgspec.Raw] | list[msgspec.Raw] | _Scalar).decode
ELEMENTS_PER_TURN = 500

_NOTHING = object()  # in place of a value that is not sent


class _Tree(dict[str, "_Tree"]):
    """Paths by their first name; the rest of the paths is a tree of its own. A path ends at an empty tree."""


class Projection:
    """Reduces a value to the members that a route sends.

    Args:
        fields: the paths of the members to send. Empty: all.
        redact: the paths of the members to remove.
    """

    def __init__(self, fields: Sequence[str] = (), redact: Sequence[str] = ()) -> None:
        self._fields = _tree(fields)
        self._redact = _tree(redact)

    def of_json(self, value: bytes, take_turn: TakeTurn) -> bytes:
        """Return a JSON text without the members that are not sent.

        Args:
            value: the JSON text.
            take_turn: called after each piece of a large value.

        Raises:
            DeserializationError: the value is not JSON, is a scalar, or is nested too deeply.
        """
        try:
            try:
                return self._projected_text(value, take_turn)
            except (msgspec.MsgspecError, UnicodeDecodeError):  # msgspec rejects some valid JSON
                with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                    return self._projected_text(without_lone_surrogates(value, take_turn), take_turn)
                return dumps(self._projected(loads(value), take_turn))
        except (ValueError, RecursionError) as error:
            raise DeserializationError(f"the value cannot be reduced to the members that are sent: {error}") from None

    def _projected_text(self, value: bytes, take_turn: TakeTurn) -> bytes:
        return escape_line_separators(msgspec.json.encode(self._projected(msgspec.Raw(value), take_turn)))

    def _projected(self, value: Any, take_turn: TakeTurn) -> Any:
        if self._fields:
            value = _project(_selected, value, self._fields, take_turn)
        if self._redact:
            value = _project(_redacted, value, self._redact, take_turn)
        if value is _NOTHING:
            raise DeserializationError("the value has no members, and the route sends only some members")
        return value


def _tree(paths: Sequence[str]) -> _Tree:
    root = _Tree()
    spellings = [names for path in paths for names in _spellings(path.split("."))]
    for names in sorted(
        spellings, key=len, reverse=True
    ):  # `customer` replaces `customer.name`, because it contains it
        *parents, last = names
        node = root
        for name in parents:
            node = node.setdefault(name, _Tree())
        node[last] = _Tree()
    return root


def _spellings(names: Sequence[str]) -> Iterator[list[str]]:
    """Yield all ways to join neighboring names: [a.b.c], [a, b.c], [a.b, c] and [a, b, c]."""
    for count in range(len(names)):
        for cuts in combinations(range(1, len(names)), count):
            yield [".".join(names[low:high]) for low, high in pairwise([0, *cuts, len(names)])]


_OfObject = Callable[[dict[str, Any], _Tree, TakeTurn], dict[str, Any]]


def _project(of_object: _OfObject, value: Any, tree: _Tree, take_turn: TakeTurn) -> Any:
    """Apply a projection of objects to a value, or to the elements of an array. Return _NOTHING for a scalar."""
    if type(value) is msgspec.Raw:
        value = _open(value) if len(memoryview(value)) <= MAX_DECODED_BYTES else _open_large(value)
    if isinstance(value, dict):
        return of_object(value, tree, take_turn)
    if isinstance(value, list):
        projected: list[Any] = []
        for start in range(0, len(value), ELEMENTS_PER_TURN):
            if start:
                take_turn()
            piece = value[start : start + ELEMENTS_PER_TURN]
            projected += [
                of_object(element, tree, take_turn)
                if type(element) is dict
                else _project(of_object, element, tree, take_turn)
                for element in piece
            ]
        return [element for element in projected if element is not _NOTHING]
    return None if value is None else _NOTHING


def _selected(members: dict[str, Any], tree: _Tree, take_turn: TakeTurn) -> dict[str, Any]:
    selected = {}
    for name, subtree in tree.items():
        if name in members:
            value = _project(_selected, members[name], subtree, take_turn) if subtree else members[name]
            if value is not _NOTHING:
                selected[name] = value
    return selected


def _redacted(members: dict[str, Any], tree: _Tree, take_turn: TakeTurn) -> dict[str, Any]:
    for name, subtree in tree.items():
        if name in members:
            value = _project(_redacted, members[name], subtree, take_turn) if subtree else _NOTHING
            if value is _NOTHING:
                del members[name]
            else:
                members[name] = value
    return members
