"""The JSON Schemas that ship with kafkasse, and checking by them. No I/O but reading the package's own files."""

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


def read(name: str) -> dict[str, Any]:
    """The schema `schemas/NAME.schema.json`, from the wheel or, in a checkout, from the top level."""
    packaged = resources.files("kafkasse") / "schemas" / f"{name}.schema.json"
    checkout = Path(__file__).parent.parent / "schemas" / f"{name}.schema.json"
    text = packaged.read_text("utf-8") if packaged.is_file() else checkout.read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


@cache
def validator(name: str) -> Draft202012Validator:
    """A validator that is built once."""
    return Draft202012Validator(read(name))


def first_error(name: str, value: object) -> tuple[str, str] | None:
    """Where and why `value` breaks the schema `name`: ("[0].offset", "-1 is less than the minimum of 0"), or None."""
    error = best_match(validator(name).iter_errors(value))
    if error is None:
        return None
    error = _deepest(error)
    return error.json_path.removeprefix("$").removeprefix("."), _short(_sentence(error), SENTENCE_CHARS_MAX)


def _deepest(error: ValidationError) -> ValidationError:
    """Of an `anyOf`, the failure that got furthest: it belongs to the branch that was meant."""
    while error.context and not all(each.validator == "required" for each in error.context):
        error = max(error.context, key=lambda each: (len(each.absolute_path), each.validator != "type"))
    return error


def _sentence(error: ValidationError) -> str:
    if error.context:
        return "it needs " + " or ".join(str(name) for each in error.context for name in _names(each))
    value = repr(error.instance)
    return error.message.replace(value, _short(value, VALUE_CHARS_MAX))  # what is wrong with it must stay readable


def _names(error: ValidationError) -> list[str]:
    return error.validator_value if isinstance(error.validator_value, list) else []


def _short(message: str, chars_max: int) -> str:
    return message if len(message) <= chars_max else f"{message[: chars_max - 1]}…"
