"""Helpers for JSON text: validate it, and find or remove single members without rewriting the rest.

A value is sent as its producer wrote it, because decoding it and encoding it again would change numbers: many clients read
9007199254740993 as 9007199254740992, and 25.00 would become 25.0. A function that may take long with a large value calls
`take_turn` after each piece. This module does not depend on Kafka, SSE or an event loop.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

MAX_DECODED_BYTES = 65_536  # 1 MB of empty arrays takes 100 ms to decode, so larger values are only validated
TOKENS_PER_TURN = 1_000
MAX_NUMBER_DIGITS = 4_300  # Python rejects longer integers, and one record should not break the clients of a topic

_DIGITS = b"0123456789"
_LINE_SEPARATORS = {character.encode(): b"\\u%04x" % ord(character) for character in "\x85\u2028\u2029"}
# Matches a lone surrogate (the group). It also matches an escaped backslash and a pair of surrogates, to skip them.
_LONE_SURROGATE = re.compile(
    rb"\\(?:\\|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2}))"
)
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],]')  # strings, and the characters that delimit members

# Validates the whole value but builds no objects for its contents. It does not check that the text is valid UTF-8.
_validate = msgspec.json.Decoder(msgspec.Raw).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

TakeTurn = Callable[[], None]  # lets other greenlets run, such as process.event_loop.take_turn()


class DeserializationError(Exception):
    """The record cannot be sent in the route's format. It is skipped, logged and counted.

    Args:
        reason: a sentence for the log.
        kind: the reason as one word, which a counter has as a label.
    """

    def __init__(self, reason: str, kind: str = "not_json") -> None:
        super().__init__(reason)
        self.kind = kind


def loads(value: bytes, parse_float: Callable[[str], float] = float) -> Any:
    """Decode JSON. `parse_float` is used only for values that are large or that msgspec rejects.

    Raises:
        DeserializationError: the value is not JSON.
    """
    try:
        if len(value) > MAX_DECODED_BYTES:  # msgspec's own parser takes 0.4 s for 1 MB of the largest double
            return msgspec.json.Decoder(float_hook=parse_float).decode(value)
        return msgspec.json.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return _loads_leniently(value, error, parse_float)


def _loads_leniently(value: bytes, reason: Exception, parse_float: Callable[[str], float] = float) -> Any:
    """Decode valid JSON that msgspec rejects: lone surrogates, and numbers outside the range of a double."""
    try:
        return json.loads(value.decode(), parse_float=parse_float, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        raise DeserializationError(f"the value is not JSON: {reason}") from None


def _reject_constant(constant: str) -> None:
    raise ValueError(constant)  # NaN and Infinity are not JSON


def dumps(value: Any) -> bytes:
    """Encode as JSON in UTF-8, without spaces. Lone surrogates become "?". Line separators are escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return escape_line_separators(text.encode("utf-8", "replace"))


def dumps_decoded(value: Any) -> bytes:
    """Encode as dumps() does, twenty times faster. The value must be in JSON types; NaN would become null."""
    try:
        return escape_line_separators(msgspec.json.encode(value))
    except UnicodeEncodeError:  # a lone surrogate
        return dumps(value)


def has_line_separator(text: str) -> bool:
    """Return whether `text` contains U+0085, U+2028 or U+2029.

    Neither JSON nor SSE ends a line at these characters. But str.splitlines() does, and some clients use it.
    """
    return "\x85" in text or "\u2028" in text or "\u2029" in text


def escape_line_separators(text: bytes) -> bytes:
    """Escape U+0085, U+2028 and U+2029 in JSON text. They are inside strings, so the meaning does not change.

    str.splitlines() also breaks lines at some control characters. Valid JSON contains these only escaped.
    """
    if text.isascii() or not has_line_separator(text.decode()):
        return text
    for character, escaped in _LINE_SEPARATORS.items():  # a regular expression would take 0.3 s for 1 MB of them
        text = text.replace(character, escaped)
    return text


def is_utf8(value: bytes) -> bool:
    """Return whether `value` is valid UTF-8."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def is_json(value: bytes, take_turn: TakeTurn) -> bool:
    """Return whether `value` is valid JSON in UTF-8 whose numbers every client can parse."""
    try:
        _validate(value)
    except (msgspec.MsgspecError, RecursionError) as error:
        try:
            if len(value) > MAX_DECODED_BYTES:
                _validate(without_lone_surrogates(value, take_turn))
            else:
                _loads_leniently(value, error)
        except (DeserializationError, msgspec.MsgspecError, RecursionError):
            return False
    return is_utf8(value) and not (may_have_long_number(value) and not _is_decodable(value))


def without_lone_surrogates(value: bytes, take_turn: TakeTurn) -> bytes:
    """Return JSON text with "?" in place of each lone surrogate, which msgspec rejects. The other text does not change."""
    parts: list[bytes] = []
    start = 0
    for number, match in enumerate(_LONE_SURROGATE.finditer(value)):
        if number % TOKENS_PER_TURN == TOKENS_PER_TURN - 1:
            take_turn()
        if match[1]:
            parts += value[start : match.start()], b"?"
            start = match.end()
    return b"".join([*parts, value[start:]])


def may_have_long_number(value: bytes) -> bool:
    """Return whether `value` has more than MAX_NUMBER_DIGITS consecutive digits. They may be inside a string.

    Such a sequence covers at least one index that is a multiple of MAX_NUMBER_DIGITS. The search tests these bytes first,
    so that it costs next to nothing for a value without long numbers. A regular expression would take quadratic time.
    """
    step = MAX_NUMBER_DIGITS
    suspects = (at for at in range(step, len(value), step) if value[at : at + 1].isdigit())
    return any(_digits_around(value, at) > step for at in suspects)


def _digits_around(value: bytes, at: int) -> int:
    """Return the number of consecutive digits around an index, at most MAX_NUMBER_DIGITS on each side."""
    before, after = value[at - MAX_NUMBER_DIGITS : at], value[at : at + MAX_NUMBER_DIGITS]
    return len(before) - len(before.rstrip(_DIGITS)) + len(after) - len(after.lstrip(_DIGITS))


def _is_decodable(value: bytes) -> bool:
    try:
        loads(value)
    except DeserializationError:
        return False
    return True


def without_member(value: bytes, name: str, take_turn: TakeTurn) -> bytes:
    """Return a JSON object without its members called `name`. The text of the other values does not change."""
    try:
        members = _decode_members(value)
    except (msgspec.MsgspecError, RecursionError):  # a lone surrogate, or nested too deeply
        others = (member for member in _members(value, take_turn) if _name_and_text(member)[0] != name)
        return b"{" + b",".join(others) + b"}"
    members.pop(name, None)
    return escape_line_separators(msgspec.json.encode(members))


def members(value: bytes, take_turn: TakeTurn) -> Iterator[tuple[str, bytes]]:
    """Yield the unescaped name and the text of the value of each member of `value`, which must be a valid JSON object.

    The object may have several members with the same name.
    """
    return map(_name_and_text, _members(value, take_turn))


def _members(value: bytes, take_turn: TakeTurn) -> Iterator[bytes]:
    """Yield the text of each member of `value`, which must be a valid JSON object.

    This is a loop without recursion, because a value may be nested too deeply for Python's stack.
    """
    depth, start = 0, value.index(b"{") + 1
    for number, token in enumerate(_TOKEN.finditer(value)):
        if number % TOKENS_PER_TURN == TOKENS_PER_TURN - 1:
            take_turn()
        depth += {b"{": 1, b"[": 1, b"}": -1, b"]": -1}.get(token[0], 0)
        if depth == 0 or (depth == 1 and token[0] == b","):
            yield value[start : token.start()]
            start = token.end()


def _name_and_text(member: bytes) -> tuple[str, bytes]:
    """Return the unescaped name of a member from _members(), and the text of its value."""
    if (name := _TOKEN.search(member)) is None:  # the object is empty
        return "", b""
    return str(json.loads(name[0].decode())), member[name.end() :].strip().removeprefix(b":").strip()
