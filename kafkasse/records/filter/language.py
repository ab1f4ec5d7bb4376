"""The part of CEL that filter expressions can use. This module does not evaluate expressions.

The compiled library cannot be interrupted, and some short expressions take it seconds: nested macros, map() over a large
list, a chain of list concatenations, or a regular expression with a counted repetition. check() therefore rejects everything
whose cost is not proportional to the length of the expression times the size of the record, before the library sees it:

- macros other than all() and exists(); a macro inside a macro; a macro on anything but a field; a body that reads `key`,
  `headers` or `value`, because each element would then cost as much as the whole record;
- more than MAX_ADDITIONS additions, because each one may copy a list; with patterns, none, because texts may become longer;
- patterns that are not literals, or that are expensive to compile, because the library compiles a pattern for each record;
- functions that the library does not have or that this list does not need.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NamedTuple

MAX_CHARS = 500
MAX_DEPTH = 32  # of brackets
MAX_ADDITIONS = 16
MAX_PATTERN_CHARS = 100  # in all patterns of an expression together

VARIABLES = ("topic", "partition", "offset", "timestamp", "key", "headers", "value")
FUNCTIONS = ("has", "size", "int", "uint", "double", "string", "timestamp", "duration")
METHODS = (
    *("size", "startsWith", "endsWith", "contains", "matches"),
    *("getFullYear", "getMonth", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear"),
    *("getHours", "getMinutes", "getSeconds", "getMilliseconds"),
)
MACROS = ("all", "exists")

_LITERALS = ("true", "false", "null", "in")
_LARGE = ("key", "headers", "value")  # the variables whose size has no small limit

_TOKEN = re.compile(
    r"""
      (?P<space>(?:[ \t\r\n\f]|//[^\n]*)+)
    | (?P<triple>[rR]?(?:["]{3}|'''))
    | (?P<string>[rR]"[^"\r\n]*"|[rR]'[^'\r\n]*'|"(?:[^"\\\r\n]|\\.)*"|'(?:[^'\\\r\n]|\\.)*')
    | (?P<number>0x[0-9A-Fa-f]+u?|[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?u?)
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<sign>&&|\|\||[=!<>]=|[-+*/%<>!?:.,()\[\]{}])
    """,
    re.VERBOSE,
)
# Characters, escaped punctuation, sets and groups. Repetition with a count, flags, and the sets of Unicode, such as \w, take
# the library up to 50 ms to compile.
_PATTERN = re.compile(r"(?:[^\\{(]|\\[^A-Za-z0-9\s]|\((?!\?))*")


class ExpressionError(ValueError):
    """An expression is invalid.

    Args:
        reason: the rest of the sentence "The expression is invalid at line 1, column 9: …".
        text: the expression.
        line: the line of the error, from 1.
        column: the column of the error, from 1.
    """

    def __init__(self, reason: str, text: str, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {reason}")
        self.reason, self.line, self.column = reason, line, column
        lines = text.split("\n")
        self.picture = f"{lines[line - 1] if line <= len(lines) else ''}\n{' ' * (column - 1)}^"

    @classmethod
    def at_index(cls, reason: str, text: str, index: int) -> ExpressionError:
        """Return an error at the character `index` of the text."""
        line = text.count("\n", 0, index) + 1
        return cls(reason, text, line, index - text.rfind("\n", 0, index))


class Token(NamedTuple):
    """A word of an expression.

    Attributes:
        kind: string, number, name or sign; "" for the end of the expression.
        text: the text.
        start: the index of its first character.
    """

    kind: str
    text: str
    start: int


@dataclass(frozen=True, slots=True)
class Checked:
    """An expression that is safe to compile.

    Attributes:
        canonical: the expression with one space between its tokens. Equal for expressions that differ only in spaces.
        paths: the variables that the expression reads, with the member names that follow each: ("value", "customer", "id").
        patterns: the tokens that are patterns of matches().
    """

    canonical: str
    paths: frozenset[tuple[str, ...]]
    patterns: tuple[Token, ...]


def check(text: str) -> Checked:
    """Check that an expression stays within the limits of this module. Syntax errors are left to the library.

    Raises:
        ExpressionError: it does not.
    """
    if len(text) > MAX_CHARS:
        raise ExpressionError.at_index(f"it has more than {MAX_CHARS} characters", text[:MAX_CHARS], MAX_CHARS)
    return _Checker(text).check()


class _Checker:
    """Checks the tokens of one expression from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [*_tokens(text), Token("", "", len(text))]
        self._at = 0
        self._paths: set[tuple[str, ...]] = set()
        self._patterns: list[Token] = []
        self._macro: tuple[str, int] | None = None  # the variable of the macro that is being checked, and its depth

    def check(self) -> Checked:
        depth = additions = 0
        while (token := self._token()).kind:
            depth += (token.text in ("(", "[", "{")) - (token.text in (")", "]", "}"))
            additions += token.text == "+"
            if depth > MAX_DEPTH:
                raise self._error(f"brackets are nested more than {MAX_DEPTH} levels deep")
            if additions > MAX_ADDITIONS:
                raise self._error(f"it contains more than {MAX_ADDITIONS} additions")
            if self._macro is not None and depth < self._macro[1]:
                self._macro = None
            if token.kind == "name":
                depth += self._check_name(token, depth)
            self._at += 1
        if additions and self._patterns:
            raise self._error("it contains an addition and matches()", self._patterns[0])
        return Checked(
            " ".join(token.text for token in self._tokens[:-1]), frozenset(self._paths), tuple(self._patterns)
        )

    def _token(self, ahead: int = 0) -> Token:
        return self._tokens[min(self._at + ahead, len(self._tokens) - 1)]

    def _error(self, reason: str, token: Token | None = None) -> ExpressionError:
        return ExpressionError.at_index(reason, self._text, (token or self._token()).start)

    def _check_name(self, token: Token, depth: int) -> int:
        """Check a name and the tokens that belong to it. Return the number of brackets that these tokens open."""
        if self._at and self._token(-1).text == ".":
            self._check_operand()
            if self._token(1).text == "(":
                self._check_method(token)
        elif self._token(1).text == "(":
            if token.text not in FUNCTIONS:
                raise self._error(f"there is no function {token.text}(){_suggestion(token.text, FUNCTIONS)}")
        elif token.text not in _LITERALS:
            return self._check_variable(token, depth)
        return 0

    def _check_operand(self) -> None:
        """Check that something precedes the dot before this name. CEL reads `.value` as another variable than `value`."""
        before = self._token(-2) if self._at > 1 else Token("", "", 0)
        if before.text == "in" or not (before.kind in ("name", "string", "number") or before.text in (")", "]", "}")):
            raise self._error("unexpected '.'", self._token(-1))

    def _check_method(self, token: Token) -> None:
        name = token.text
        if name in MACROS:
            raise self._error(f"{name}() can only be used on a field, such as value.items.{name}(item, …)")
        if name not in METHODS:
            raise self._error(f"there is no function {name}(){_suggestion(name, (*METHODS, *MACROS))}")
        if name.startswith("get") and self._token(2).text != ")":
            raise self._error(f"{name}() does not accept a time zone: the result is in that of the timestamp")
        if name == "matches":
            self._check_pattern(self._token(2))

    def _check_pattern(self, token: Token) -> None:
        if self._macro is not None:
            raise self._error("matches() cannot be used inside all() or exists()")
        if token.kind != "string" or self._token(3).text != ")":
            raise self._error("the pattern of matches() must be a text, such as matches(r'^[a-z]+$')", token)
        self._patterns.append(token)
        pattern = _content(token.text)
        if pattern is None or not _PATTERN.fullmatch(pattern):
            reason = r"a pattern cannot contain {n}, (?…), \d, \w or \p: write [0-9] or [A-Za-z0-9_], in a text r'…'"
            raise self._error(reason, token)
        if sum(len(pattern.text) for pattern in self._patterns) > MAX_PATTERN_CHARS:
            raise self._error(f"its patterns have more than {MAX_PATTERN_CHARS} characters", token)

    def _check_variable(self, token: Token, depth: int) -> int:
        is_own = self._macro is not None and token.text == self._macro[0]
        if token.text not in VARIABLES and not is_own:
            raise self._error(f"there is no variable {token.text}{_suggestion(token.text, VARIABLES)}")
        if self._macro is not None and not is_own and token.text in _LARGE:
            raise self._error(f"all() and exists() cannot read {token.text}: use the variable {self._macro[0]}")
        path = [token.text, *self._members()]
        if not is_own:
            self._paths.add(tuple(path))
        name = self._token(2).text
        if self._token(1).text != "." or name not in MACROS or self._token(3).text != "(":
            return 0
        return self._enter_macro(depth)

    def _members(self) -> Iterator[str]:
        """Yield the member names that follow a variable: `.customer` or `["customer"]`. Continue after the last of them."""
        while True:
            following = self._token(1).text, self._token(2), self._token(3).text
            if following[0] == "." and following[1].kind == "name" and following[2] != "(":
                yield following[1].text
                self._at += 2
            elif following[0] == "[" and following[1].kind == "string" and following[2] == "]":
                name = _content(following[1].text)
                if name is None:
                    return
                yield name
                self._at += 3
            else:
                return

    def _enter_macro(self, depth: int) -> int:
        self._at += 2
        macro, variable = self._token(), self._token(2)
        if self._macro is not None:
            raise self._error(f"{macro.text}() cannot be used inside all() or exists()")
        if variable.kind != "name" or self._token(3).text != "," or variable.text in (*VARIABLES, *_LITERALS):
            raise self._error(f"{macro.text}() needs a variable of its own, such as {macro.text}(item, …)", variable)
        self._macro = variable.text, depth + 1
        self._at += 3
        return 1


def _tokens(text: str) -> Iterator[Token]:
    index = 0
    while index < len(text):
        match = _TOKEN.match(text, index)
        if match is None:
            raise ExpressionError.at_index(f"unexpected character {text[index]!r}", text, index)
        if match.lastgroup == "triple":
            raise ExpressionError.at_index("texts with three quotes are not supported", text, index)
        if match.lastgroup != "space":
            yield Token(str(match.lastgroup), match[0], index)
        index = match.end()


def _content(text: str) -> str | None:
    r"""Return the content of a string token, or None if it contains escapes other than \\."""
    if text[0] in "rR":
        return text[2:-1]
    content = text[1:-1].replace("\\\\", "\0")
    return None if "\\" in content else content.replace("\0", "\\")


def _suggestion(name: str, known: Iterable[str]) -> str:
    names: Sequence[str] = list(known)
    close = get_close_matches(name, names, 1)
    return f": did you mean {close[0]}?" if close else f". There are {', '.join(names)}"
