"""The filters in a client's query: `?key=a&key=b`, `?header.type=created`, `?field.customer.id=7` and `?filter=…`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from kafkasse.errors import InvalidFilter, InvalidParameter
from kafkasse.records.filter.dimensions import Dimension
from kafkasse.records.filter.expression import Expression, compile_expression
from kafkasse.records.filter.language import ExpressionError
from kafkasse.schemas import shorten

MAX_VALUE_CHARS = 1_000
MAX_OTHER_NAMES = 20  # of parameters that are not filters, because each is compared with the names of filters
# Of the name of a parameter to a known one, from which it counts as misspelled.
SIMILARITY = 0.8

_NAMES = ("key", "header", "field", "filter")


class Query(NamedTuple):
    """The filters in a query.

    Attributes:
        values: for each part of a record that the client selects by, the values that it accepts.
        expression: the client's expression, if there is one.
    """

    values: dict[Dimension, frozenset[str]]
    expression: Expression | None


def parse_query(
    arguments: Iterable[tuple[str, str]],
    allowed: Sequence[str],
    sends: Callable[[tuple[str, ...]], bool] = lambda path: True,
    known: Collection[str] = (),
) -> Query:
    """Parse the filters in a query. Parameters with other names are ignored, unless they look like a misspelled known one.

    Args:
        arguments: the names and values of the query's parameters, in order.
        allowed: the setting client_filters of the route.
        sends: whether the route sends the field of the value at a path of member names. A client could otherwise find out
            the values of redacted fields. A field that `allowed` names, and does not merely match with field.*, can always
            be used.
        known: the names of the parameters that are not filters.

    Raises:
        InvalidParameter: the route does not allow a filter, a name is misspelled, a value is too long, or the query has too
            many other parameters.
        InvalidFilter: the expression is invalid.
    """
    values: dict[Dimension, set[str]] = {}
    others: set[str] = set()
    expression: Expression | None = None
    for name, value in arguments:
        source, dot, rest = name.partition(".")
        if source not in _NAMES or bool(dot and rest) != (source in ("header", "field")):
            if source not in others and name not in known:
                others.add(source)
                if len(others) > MAX_OTHER_NAMES:
                    raise InvalidParameter(f"The query has more than {MAX_OTHER_NAMES} parameters with unknown names.")
                _check_spelling(name, allowed, known)
            continue
        if name not in allowed and f"{source}.*" not in allowed:
            raise _not_allowed(f"This route does not allow the filter {shorten(name)}.", allowed)
        if len(value) > MAX_VALUE_CHARS:
            raise InvalidParameter(f"The value of {shorten(name)} has more than {MAX_VALUE_CHARS} characters.")
        if source == "filter":
            if expression is not None:
                raise InvalidParameter("The query has two expressions: combine them with && or ||.")
            expression = _compile(value)
            for path in sorted(expression.fields):
                _check_is_sent(path, sends)
        else:
            if source == "field" and name not in allowed:
                _check_is_sent(tuple(rest.split(".")), sends)
            dimension = Dimension(source, rest)  # type: ignore[arg-type]  # checked above
            values.setdefault(dimension, set()).add(value)
    return Query({dimension: frozenset(accepted) for dimension, accepted in values.items()}, expression)


def _check_is_sent(path: tuple[str, ...], sends: Callable[[tuple[str, ...]], bool]) -> None:
    if not sends(path):
        what = f"the field {shorten('.'.join(path))}" if path else "the whole value"
        raise InvalidParameter(f"This stream does not contain {what}, so it cannot be filtered by it.")


def _compile(text: str) -> Expression:
    try:
        return compile_expression(text)
    except ExpressionError as error:
        detail = f"The filter expression is invalid at line {error.line}, column {error.column}: {error.reason}."
        raise InvalidFilter(
            detail, line=error.line, column=error.column, reason=error.reason, picture=error.picture
        ) from None


def _check_spelling(name: str, allowed: Sequence[str], known: Collection[str]) -> None:
    """Reject a parameter that is probably misspelled: its client would receive records that it does not expect."""
    source = name.partition(".")[0].lower()[:MAX_VALUE_CHARS]
    close = get_close_matches(source, [*_NAMES, *known], 1, SIMILARITY)
    if close and close[0] in known:
        raise InvalidParameter(f"There is no query parameter {shorten(name)}. Did you mean {close[0]}?")
    if close:
        form = {"header": "header.NAME", "field": "field.PATH"}.get(close[0], close[0])
        suggestion = f" Did you mean {form}?" if allowed else ""
        raise _not_allowed(f"There is no query parameter {shorten(name)}.{suggestion}", allowed)


def _not_allowed(sentence: str, allowed: Sequence[str]) -> InvalidParameter:
    which = f"The filters of this route are {', '.join(allowed)}." if allowed else "This route has no client filters."
    return InvalidParameter(f"{sentence} {which}", allowed=list(allowed))
