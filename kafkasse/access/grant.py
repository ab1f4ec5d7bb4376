"""Grants: which visitors of a guard may read a route. This module does no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PUBLIC = "public"


@dataclass(frozen=True, slots=True)
class Grant:
    """One entry of a route's `access`: the visitors of a guard whose claims have certain values."""

    guard: str
    # For each claim, the values of which the visitor needs one. `{name}` stands for a path parameter.
    claims: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def on_any_path(self) -> Grant:
        """Return this grant without the claims that depend on a path parameter."""
        claims = tuple((name, values) for name, values in self.claims if not any(map(_is_parameter, values)))
        return Grant(self.guard, claims)

    @property
    def parameters(self) -> frozenset[str]:
        """The names of the path parameters to which the claims refer."""
        return frozenset(value[1:-1] for _, values in self.claims for value in values if _is_parameter(value))

    def includes(self, other: Grant) -> bool:
        """Return whether this grant admits all visitors of another grant, on paths without parameters."""
        needed = dict(other.claims)
        return (
            self.guard == other.guard
            and not self.parameters
            and all(name in needed and {*needed[name]} <= {*accepted} for name, accepted in self.claims)
        )

    def admits(self, claims: Mapping[str, Any], parameters: Mapping[str, str]) -> bool:
        """Return whether a visitor with these claims may read the stream with these path parameters."""
        return all(
            not _values(claims, name).isdisjoint(
                parameters.get(value[1:-1]) if _is_parameter(value) else value for value in accepted
            )
            for name, accepted in self.claims
        )


def grants(access: str | Sequence[str | Mapping[str, Any]]) -> tuple[Grant, ...]:
    """Return the grants of a valid setting `access`; none if the route is public."""
    if isinstance(access, str):
        return ()
    entries: list[Mapping[str, Any]] = [{"guard": entry} if isinstance(entry, str) else entry for entry in access]
    return tuple(
        Grant(entry["guard"], tuple((name, tuple(map(_text, of))) for name, of in entry.get("claims", {}).items()))
        for entry in entries
    )


def _is_parameter(value: str) -> bool:
    return value.startswith("{") and value.endswith("}")


def _values(claims: Mapping[str, Any], name: str) -> set[str]:
    """Return the values of a claim as text. A dot separates the names of nested claims, as in realm_access.roles."""
    value: Any = claims
    for part in [name] if name in claims else name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if name == "scope" and isinstance(value, str):  # RFC 8693: a list of scopes separated by spaces
        value = value.split()
    values = value if isinstance(value, list) else [value]
    return {_text(value) for value in values if isinstance(value, str | int | float)}


def _text(value: object) -> str:
    """Return a value as YAML and JSON write it, so that `true` in the configuration equals `true` in a token."""
    return str(value).lower() if isinstance(value, bool) else str(value)
