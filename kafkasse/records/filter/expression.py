"""CEL expressions, which decide about a record by its topic, partition, offset, timestamp, key, headers and value.

The library that evaluates them is an extra, pip install "kafkasse[cel]", and is imported for the first expression.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Any

from kafkasse.errors import ConfigurationError
from kafkasse.records.filter.language import Checked, ExpressionError, Token, check
from kafkasse.records.frame.record_view import RecordView

MAX_ITEMS = 1_000  # in the parts of a record that an expression reads: members of objects, items of lists, and values
MAX_TEXT_CHARS = 65_536  # in these parts
MAX_MATCHED_CHARS = 16_384  # the same, if the expression contains patterns
MAX_CACHED = 256  # compiled expressions

NOT_INSTALLED = 'Filter expressions need the package common-expression-language: pip install "kafkasse[cel]"'

_ERROR = re.compile(r"ERROR: <input>:(\d+):(\d+): (?:Syntax error: )?(.*)")

# The members of an object that an expression reads. A member without members of its own is read completely.
Members = Mapping[str, "Members"]


class ExpressionFailure(Exception):
    """An expression has no result for a record. The message contains no part of the record."""


class Expression:
    """A compiled expression. Expressions that differ only in spaces are equal.

    Attributes:
        text: the expression with one space between its tokens.
        fields: the paths of the fields that it reads, such as (customer, id); () if it reads the whole value.
    """

    __slots__ = ("_max_chars", "_members", "_program", "fields", "text")

    def __init__(self, checked: Checked, program: Any) -> None:
        self.text = checked.canonical
        self.fields = frozenset(path[1:] for path in checked.paths if path[0] == "value")
        self._program = program
        self._members = _tree(checked.paths)
        self._max_chars = MAX_MATCHED_CHARS if checked.patterns else MAX_TEXT_CHARS

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def matches(self, view: RecordView) -> bool:
        """Return the result of the expression for a record.

        Raises:
            ExpressionFailure: the record lacks a field, a type does not fit, the record is too large, or the result is
                neither true nor false.
            DeserializationError: the expression reads the value, which cannot be decoded.
        """
        variables = _variables(view, self._members, _Budget(self._max_chars))
        try:
            result = self._program.execute(variables)
        except KeyError:
            raise ExpressionFailure("a field is missing") from None
        except TypeError:
            raise ExpressionFailure("the types of two values do not fit") from None
        except Exception as error:  # noqa: BLE001 - of many types; the messages may contain parts of the record
            raise ExpressionFailure(f"it failed with {type(error).__name__}") from None
        if result is not True and result is not False:
            raise ExpressionFailure("the result is neither true nor false")
        return result


@lru_cache(MAX_CACHED)
def compile_expression(text: str) -> Expression:
    """Compile an expression.

    Raises:
        ExpressionError: the expression is not valid, or not within the limits.
        ConfigurationError: the library is not installed.
    """
    checked = check(text)
    program = _compile(text, text, 0)
    for pattern in checked.patterns:
        _check_pattern(pattern, text)
    return Expression(checked, program)


def _compile(source: str, text: str, index: int) -> Any:
    try:
        return library().compile(source)
    except ValueError as error:
        match = _ERROR.search(str(error))
        if match is None:
            raise ExpressionError.at_index("the syntax is invalid", text, index) from None
        line, column, reason = match.groups()
        reason = "it is nested too deeply" if "Recursion limit" in reason else reason.partition(" expecting ")[0]
        raise ExpressionError(reason, text, int(line), int(column)) from None


def _check_pattern(pattern: Token, text: str) -> None:
    """Check that the library accepts a pattern. It would otherwise fail for each record."""
    try:
        library().compile(f'"".matches({pattern.text})').execute({})
    except Exception:  # noqa: BLE001 - the library raises several types
        raise ExpressionError.at_index("the pattern is not a valid regular expression", text, pattern.start) from None


def is_installed() -> bool:
    """Return whether the library is installed."""
    return find_spec("cel") is not None


@cache
def library() -> Any:
    """Return the compiled module of the library.

    The package itself also imports a command line, which would take 0.4 s and 30 MB.

    Raises:
        ConfigurationError: the library is not installed.
    """
    package = find_spec("cel")
    spec = PathFinder.find_spec("cel.cel", package.submodule_search_locations) if package is not None else None
    if spec is None or spec.loader is None:
        raise ConfigurationError(NOT_INSTALLED)
    if spec.name not in sys.modules:  # it cannot be loaded twice, and the host app may have imported the package
        sys.modules[spec.name] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[spec.name])
    return sys.modules[spec.name]


def _tree(paths: Iterable[tuple[str, ...]]) -> Members:
    """Return the members that any of `paths` names: {"value": {"a": {}}} for value.a and value.a.b."""
    tree: dict[str, Any] = {}
    for path in sorted(paths):  # a path comes before the paths that it contains
        members, is_contained = tree, False
        for name in path:
            is_contained = is_contained or (name in members and not members[name])
            members = members.setdefault(name, {}) if not is_contained else {}
    return tree


def _variables(view: RecordView, members: Members, budget: _Budget) -> dict[str, Any]:
    """Return the variables that an expression reads, without the members of the value that it does not read.

    The conversion to the library's types is most of the cost of an expression.
    """
    variables: dict[str, Any] = {}
    for name, used in members.items():
        match name:
            case "value":
                variables[name] = _pick(view.value, used, budget)
            case "key":
                variables[name] = budget.spend(_text(view.record.key))
            case "headers":
                headers = {name: _text(value) for name, value in view.record.headers}  # the last one with each name
                variables[name] = _pick(headers, used, budget)
            case "timestamp":
                timestamp = view.record.timestamp
                variables[name] = timestamp if timestamp is not None and timestamp >= 0 else None
            case "offset":
                variables[name] = view.record.offset
            case _:  # topic, partition
                variables[name] = getattr(view, name)
    return variables


def _pick(value: Any, members: Members, budget: _Budget) -> Any:
    """Return a value with only these members, or completely if `members` is empty. Other types keep their type."""
    if not members:
        return budget.spend(value)
    if isinstance(value, dict):
        return {name: _pick(value[name], used, budget) for name, used in members.items() if name in value}
    if isinstance(value, list):
        return []
    return "" if isinstance(value, str) else value


class _Budget:
    """Limits what one record may cost: the time for the conversion and for the evaluation is proportional to it."""

    def __init__(self, max_chars: int) -> None:
        self._items = MAX_ITEMS
        self._max_chars = self._chars = max_chars

    def spend(self, value: Any) -> Any:
        """Return `value`, after counting what it contains.

        This is a loop without recursion, because the library would crash on a value that is nested ten thousand levels deep.

        Raises:
            ExpressionFailure: the record is too large.
        """
        unseen = [value]
        while unseen:
            part = unseen.pop()
            self._items -= 1
            if isinstance(part, str | bytes):
                self._chars -= len(part)
            elif isinstance(part, dict):
                self._check(2 * len(part))
                unseen += part
                unseen += part.values()
            elif isinstance(part, list):
                self._check(len(part))
                unseen += part
        self._check(0)
        return value

    def _check(self, more: int) -> None:
        if self._items < more:
            raise ExpressionFailure(f"the fields that it reads contain more than {MAX_ITEMS} values")
        if self._chars < 0:
            raise ExpressionFailure(f"the texts that it reads have more than {self._max_chars} characters")


def _text(value: bytes | None) -> str | bytes | None:
    """Return bytes as text if they are UTF-8."""
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return value
