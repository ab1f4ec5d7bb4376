"""The words of error messages about settings: names, valid values, examples, and given values without secrets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kafkasse import schemas
from kafkasse.config import kafka, names
from kafkasse.config.sources import SettingPath, SettingSource


def sentence(source: SettingSource, path: SettingPath, rest: str) -> str:
    """Return a sentence about the setting at `path`. `rest` is the sentence without its subject."""
    if source.type == "variable":
        return f"{source.text} {rest}"
    if source.type == "file":
        return f"{source.text}: {name_of(path)} {rest}"
    return f"The {'argument' if source.type == 'argument' else 'setting'} {name_of(path)} {rest}"


def name_of(path: SettingPath) -> str:
    """Return the name of a setting, such as routes.prices.topics[0]."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{names.printable(str(part))}" for part in path)
    return text.removeprefix(".") or "configuration"


def expected(schema: Mapping[str, Any]) -> str:
    """Describe the valid values of a setting: `a whole number from 1 to 1000`."""
    if "x-expected" in schema:
        return str(schema["x-expected"])
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    types = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    return " or ".join(_expected_type(json_type, schema) for json_type in types)


def _expected_type(json_type: str, schema: Mapping[str, Any]) -> str:
    if json_type in ("integer", "number"):
        return ("a whole number" if json_type == "integer" else "a number") + _bounds(schema)
    descriptions = {"boolean": "true or false", "string": "text", "array": "a list", "object": "a mapping"}
    return descriptions.get(json_type, json_type)


def _bounds(schema: Mapping[str, Any]) -> str:
    low, above, high = (schema.get(keyword) for keyword in ("minimum", "exclusiveMinimum", "maximum"))
    if above is not None:
        return f" above {above}" + (f" and at most {high}" if high is not None else "")
    if low is not None:
        return f" from {low} to {high}" if high is not None else f" of at least {low}"
    return ""


def _is_secret(path: SettingPath) -> bool:
    """Return whether the value at `path` may be a secret, to judge by the names in the path.

    The settings of a route are never secrets, even if the name of the route contains a word such as token. But a text in
    place of the whole route, as in `routes: {token: abc}`, may be one. The names of guards and clusters do not count,
    either. The path in secret_file counts as a secret, because users may put the secret itself in its place.
    """
    if path[:1] in (("guards",), ("clusters",)) and len(path) > 2:
        path = path[2:]
    return any(kafka.is_secret(str(part)) for part in path) and not (path[0] == "routes" and len(path) > 2)


def shown(path: SettingPath, value: object) -> str:
    """Return the value as an error message or `kafkasse config` may show it: short and without secrets."""
    if _is_secret(path):
        return kafka.MASK
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    if isinstance(value, str):
        # A text in place of a mapping of client settings may contain a password.
        is_client = path == ("kafka",) or (path[:1] == ("clusters",) and len(path) < 3)
        return "text" if is_client else schemas.shorten(repr(kafka.without_credentials(value)))
    if value is None or isinstance(value, bool | int | float):
        return (
            schemas.shorten(json.dumps(value)) if not isinstance(value, int) or abs(value) < 10**19 else "a huge number"
        )
    return f"a value of type {type(value).__name__}"


def masked(path: SettingPath, value: Any) -> Any:
    """Return the value with secrets masked and in types that JSON supports."""
    if isinstance(value, bool) or value == "":
        return value  # not a secret, even if the name of the setting contains a word such as credentials
    if _is_secret(path):
        return kafka.MASK
    if isinstance(value, Mapping):
        return {str(name): masked((*path, str(name)), part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [masked(path, item) for item in value]
    if isinstance(value, str):
        return kafka.without_credentials(value)
    return value if value is None or isinstance(value, int | float) else type(value).__name__


def example(schema: Mapping[str, Any], source: SettingSource, name: str | int = "") -> str:
    """Return `. Example: max_streams: 8000`, in the syntax of the source."""
    if not schema.get("examples"):
        return ""
    value = schema["examples"][0]
    if source.type == "variable":
        return f". Example: {source.text}={_as_variable(value)}"
    if source.type == "file":
        return f". Example: {name}: {json.dumps(value)}" if name and isinstance(name, str) else f". Example: {value}"
    return f". Example: {value!r}"


def _as_variable(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value)
