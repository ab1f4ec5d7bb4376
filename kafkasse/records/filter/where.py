"""The setting `where` of a route: literal conditions, an expression, and values from the request of each client.

    where: {key: "{claims.sub}", headers: {type: [created, paid]}, fields: {shop: "{shop}"}, expression: "value.amount > 10"}

A value with a template, such as `{claims.sub}` or `{shop}`, makes its condition a dimension: all clients share a feed, and
each selects its own values. Values are compared literally; nothing in them has a special meaning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from string import Formatter
from typing import Any, NamedTuple

from kafkasse.errors import Forbidden, InvalidParameter
from kafkasse.records.filter.dimensions import Dimension, Dimensions, Selector, scalar_text
from kafkasse.records.filter.expression import NOT_INSTALLED, compile_expression, is_installed
from kafkasse.records.filter.query import Query
from kafkasse.records.filter.selection import EVERYTHING, Filter, OnFailure, Selection

MAX_SELECTED_VALUES = 100  # of one client, or combinations of values if there are several dimensions

CLAIMS = "claims."  # the start of a reference to a claim
NO_CONDITIONS = Filter()


class Template(NamedTuple):
    """A value of a condition: text, and at most one reference to a path parameter or a claim.

    Attributes:
        before: the text before the reference, or the whole value if there is no reference.
        reference: `currency` for the path parameter, or `claims.sub` for the claim; "" if there is no reference.
        after: the text after the reference.
    """

    before: str
    reference: str = ""
    after: str = ""

    @classmethod
    def parse(cls, text: str) -> Template:
        """Parse a value such as `order-{claims.sub}`. `{{` and `}}` are literal braces.

        Raises:
            ValueError: the rest of a sentence that starts with the name of the setting.
        """
        try:
            parts = list(Formatter().parse(text))
        except ValueError:
            raise ValueError("has a brace without its counterpart: write {{ or }} for a literal brace") from None
        before = reference = after = ""
        for literal, name, rest, conversion in parts:
            before, after = (before, after + literal) if reference else (before + literal, after)
            if name is None:
                continue
            if reference:
                raise ValueError("has two references in one value: use one")
            if not name or conversion:
                raise ValueError("has an empty reference: write {{ and }} for literal braces")
            reference = f"{name}:{rest}" if rest else name  # the name of a claim may be a URL
        return cls(before, reference, after)

    def values(self, parameters: Mapping[str, str], claims: Mapping[str, Any]) -> Iterator[str]:
        """Yield the values for one client. There may be several, if a claim is a list.

        Raises:
            Forbidden: the client does not have the claim.
        """
        if not self.reference:
            yield self.before
        elif self.reference.startswith(CLAIMS):
            for value in _claim(claims, self.reference.removeprefix(CLAIMS)):
                yield f"{self.before}{value}{self.after}"
        else:
            yield f"{self.before}{parameters[self.reference]}{self.after}"


@dataclass(frozen=True, slots=True)
class Where:
    """The parsed setting.

    Attributes:
        conditions: the conditions with a template.
        filter: the other conditions.
    """

    conditions: tuple[tuple[Dimension, tuple[Template, ...]], ...] = ()
    filter: Filter = NO_CONDITIONS

    @property
    def references(self) -> frozenset[str]:
        """The path parameters and claims to which the conditions refer, such as `currency` and `claims.sub`."""
        return frozenset(template.reference for _, templates in self.conditions for template in templates) - {""}

    @property
    def headers_and_fields(self) -> frozenset[Dimension]:
        """The headers and fields that the conditions name, without those in an expression."""
        return frozenset(
            {
                *(dimension for dimension, _ in self.conditions if dimension.source != "key"),
                *(Dimension("header", name) for name, _ in self.filter.headers),
                *(Dimension("field", path) for path, _ in self.filter.fields),
            }
        )

    @classmethod
    def parse(cls, setting: Mapping[str, Any]) -> Where:
        """Parse the setting of a route, which problems() has checked."""
        conditions: list[tuple[Dimension, tuple[Template, ...]]] = []
        literal: dict[str, dict[str, list[str]]] = {"key": {}, "header": {}, "field": {}}
        for dimension, _, texts in _conditions(setting):
            templates = tuple(map(Template.parse, texts))
            if any(template.reference for template in templates):
                conditions.append((dimension, templates))
            else:
                literal[dimension.source][dimension.name] = [template.before for template in templates]
        expressions = [compile_expression(setting["expression"])] if setting.get("expression") is not None else []
        return cls(
            tuple(conditions), Filter.of(literal["key"].get(""), literal["header"], literal["field"], expressions)
        )

    def select(
        self, parameters: Mapping[str, str], claims: Mapping[str, Any], query: Query, on_failure: OnFailure
    ) -> Selection:
        """Return the records that one client receives.

        If the route and the query both have a condition on the same part of a record, it must meet both. A query can
        therefore only exclude more records.

        Args:
            parameters: the path parameters of the request.
            claims: the claims of the visitor.
            query: the filters in the query.
            on_failure: see Filter.

        Raises:
            Forbidden: the client does not have a claim to which the route refers.
            InvalidParameter: the client selects too many values.
        """
        selected = {
            dimension: frozenset(value for template in templates for value in template.values(parameters, claims))
            for dimension, templates in self.conditions
        }
        for dimension, values in query.values.items():
            selected[dimension] = selected.get(dimension, values) & values
        expressions = self.filter.expressions
        if query.expression is not None and query.expression not in expressions:
            expressions = (*expressions, query.expression)
        has_filter = bool(expressions) or self.filter != NO_CONDITIONS
        if not has_filter and not selected:
            return EVERYTHING
        return Selection(
            replace(self.filter, expressions=expressions, on_failure=on_failure) if has_filter else None,
            Dimensions(tuple(sorted(selected))),
            _selector(selected) if selected else None,
            query.expression is not None or bool(query.values),
        )


EVERY_RECORD = Where()


def _selector(selected: Mapping[Dimension, frozenset[str]]) -> Selector:
    count = 1
    for values in selected.values():
        count *= len(values)
    if count > MAX_SELECTED_VALUES:
        raise InvalidParameter(
            f"The filters select {count} values or combinations; {MAX_SELECTED_VALUES} are possible."
        )
    return Selector.of(*product(*(selected[dimension] for dimension in sorted(selected))))


def problems(
    setting: Mapping[str, Any], parameters: list[str], has_guards: bool
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Check the setting of a route.

    Args:
        setting: the setting, which matches the schema.
        parameters: the path parameters of the route.
        has_guards: whether the route has guards, whose claims the setting may name.

    Yields:
        The path of each invalid part, and the rest of a sentence that starts with its name.
    """
    for _, path, texts in _conditions(setting):
        for text in texts:
            if problem := _problem(text, parameters, has_guards):
                yield path, problem
    if (expression := setting.get("expression")) is not None:
        if not is_installed():
            yield ("expression",), f"cannot be evaluated. {NOT_INSTALLED}"
            return
        try:
            compile_expression(expression)
        except ValueError as error:
            yield ("expression",), f"is invalid at {error}."


def _problem(text: str, parameters: list[str], has_guards: bool) -> str:
    """Return the rest of a sentence that starts with the name of the setting, or "" if the value is valid."""
    try:
        reference = Template.parse(text).reference
    except ValueError as error:
        return f"{error}."
    if reference.startswith(CLAIMS):
        return "" if has_guards else f"refers to {{{reference}}}, but the route has no guard that provides claims."
    if reference and reference not in parameters:
        known = ", ".join(f"{{{name}}}" for name in (*parameters, "claims.NAME"))
        return f"refers to {{{reference}}}, which is not a parameter of the path. There are {known}."
    return ""


def _conditions(setting: Mapping[str, Any]) -> Iterator[tuple[Dimension, tuple[str, ...], list[str]]]:
    """Yield the part of a record, the path in the setting and the values of each condition."""
    if "key" in setting:
        yield Dimension("key"), ("key",), _texts(setting["key"])
    for name, values in setting.get("headers", {}).items():
        yield Dimension("header", name), ("headers", name), _texts(values)
    for name, values in setting.get("fields", {}).items():
        yield Dimension("field", name), ("fields", name), _texts(values)


def _texts(values: Any) -> list[str]:
    return [scalar_text(value) or "" for value in (values if isinstance(values, list | tuple) else [values])]


def _claim(claims: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield the values of a claim: a name, or a path such as `customer.id`."""
    claim: Any = claims
    for part in (name,) if name in claims else name.split("."):
        claim = claim.get(part) if isinstance(claim, Mapping) else None
    values = claim if isinstance(claim, list) else [claim]
    texts = [text for value in values if (text := scalar_text(value)) is not None]
    if not texts or len(texts) < len(values):
        raise Forbidden(f"This stream requires the claim {name}, which your credentials do not contain.")
    yield from texts
