"""The JSON Schemas of this project, and validation against them. This module reads only the package's own files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, TypeChecker, validators
from jsonschema.exceptions import ValidationError, best_match

MAX_SENTENCE_CHARS = 200
MAX_VALUE_CHARS = 60


@cache
def read(name: str) -> dict[str, Any]:
    """Return the schema `schemas/NAME.schema.json` from the installed package or the checkout. Do not modify the result."""
    packaged = resources.files("kafkasse") / "schemas" / f"{name}.schema.json"
    checkout = Path(__file__).parent.parent / "schemas" / f"{name}.schema.json"
    text = packaged.read_text("utf-8") if packaged.is_file() else checkout.read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


@cache
def validator(name: str) -> Draft202012Validator:
    """Return the validator for a schema. It is cached, because creating it takes milliseconds."""
    return Draft202012Validator(_without_uris(read(name)))


@cache
def settings_validator(name: str) -> Any:
    """Return a validator for settings, which can be Python values.

    A tuple is a list, 2.0 is not a whole number, infinity is not a number, and `$` in a pattern does not match before a line
    break.
    """
    types: TypeChecker = Draft202012Validator.TYPE_CHECKER.redefine_many({
        "array": lambda _, value: isinstance(value, list | tuple),
        "object": lambda _, value: isinstance(value, Mapping),
        "integer": lambda _, value: isinstance(value, int) and not isinstance(value, bool),
        "number": lambda _, value: (
            isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        ),
    })  # fmt: skip
    extend: Any = validators.extend  # which has no types
    return extend(Draft202012Validator, {"pattern": _pattern}, type_checker=types)(_without_uris(read(name)))


def _pattern(_: object, pattern: str, value: object, __: object) -> Iterator[ValidationError]:
    pattern = pattern.replace("$", r"\Z")  # because Python's $ also matches before a line break at the end
    if isinstance(value, str) and not re.search(pattern, value):
        yield ValidationError("it does not match the pattern")


def _without_uris(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without `$id` and `$schema`.

    With a URN as `$id`, jsonschema before 4.10 cannot resolve `#/$defs/…`. With `$schema`, descend() uses the standard
    validator.
    """
    return {keyword: value for keyword, value in schema.items() if keyword not in ("$id", "$schema")}


def first_error(name: str, value: object) -> tuple[str, str] | None:
    """Validate `value` against the schema `name`.

    Returns:
        The path and the reason of the most relevant mismatch, such as ("[0].offset", "-1 is less than the minimum of 0"), or
        None if the value matches.
    """
    error = best_match(validator(name).iter_errors(value))
    if error is None:
        return None
    error = deepest(error)
    return error.json_path.removeprefix("$").removeprefix("."), shorten(_sentence(error), MAX_SENTENCE_CHARS)


def deepest(error: ValidationError) -> ValidationError:
    """For an `anyOf`, return the error of the branch that matches most of the value, which is probably the intended one."""
    while error.context and not all(branch.validator == "required" for branch in error.context):
        error = max(error.context, key=lambda branch: (len(branch.absolute_path), branch.validator != "type"))
    return error


def _sentence(error: ValidationError) -> str:
    if error.context:
        required = [branch.validator_value for branch in error.context if isinstance(branch.validator_value, list)]
        return "it needs " + " or ".join(str(name) for names in required for name in names)
    value = repr(error.instance)
    return error.message.replace(value, shorten(value))  # a long value must not hide the reason


def shorten(text: str, max_chars: int = MAX_VALUE_CHARS) -> str:
    """Return `text`, or its start and an ellipsis if it has more than `max_chars` characters."""
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"
