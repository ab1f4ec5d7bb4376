"""The JSON Schemas of this project, and validation against them. This module reads only the package's own files."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match

SENTENCE_CHARS_MAX = 200
VALUE_CHARS_MAX = 60


@cache
def read(name: str) -> dict[str, Any]:
    """Return the schema `schemas/NAME.schema.json` of the wheel or of the checkout. Do not change it."""
    packaged = resources.files("kafkasse") / "schemas" / f"{name}.schema.json"
    checkout = Path(__file__).parent.parent / "schemas" / f"{name}.schema.json"
    text = packaged.read_text("utf-8") if packaged.is_file() else checkout.read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


@cache
def validator(name: str) -> Draft202012Validator:
    """Return a validator. Creating one takes milliseconds, so it is cached."""
    return Draft202012Validator(read(name))


def first_error(name: str, value: object) -> tuple[str, str] | None:
    """Return where and why `value` does not match a schema, or None if it matches.

    Example: ("[0].offset", "-1 is less than the minimum of 0").
    """
    error = best_match(validator(name).iter_errors(value))
    if error is None:
        return None
    error = _deepest(error)
    return error.json_path.removeprefix("$").removeprefix("."), _short(_sentence(error), SENTENCE_CHARS_MAX)


def _deepest(error: ValidationError) -> ValidationError:
    """Return the error in that branch of an `anyOf` that matches most of the value: probably the branch that was meant."""
    while error.context and not all(each.validator == "required" for each in error.context):
        error = max(error.context, key=lambda each: (len(each.absolute_path), each.validator != "type"))
    return error


def _sentence(error: ValidationError) -> str:
    if error.context:
        return "it needs " + " or ".join(str(name) for each in error.context for name in _names(each))
    value = repr(error.instance)
    return error.message.replace(value, _short(value, VALUE_CHARS_MAX))  # a long value must not hide the reason


def _names(error: ValidationError) -> list[str]:
    return error.validator_value if isinstance(error.validator_value, list) else []


def _short(message: str, chars_max: int) -> str:
    return message if len(message) <= chars_max else f"{message[: chars_max - 1]}…"
