"""The settings of pipelines in YAML and Python, as schemas/pipelines.schema.json declares them. Reads only that file."""

from __future__ import annotations

from typing import Any, TypeAlias, cast

from jsonschema.exceptions import ValidationError, best_match

from kafkasse import schemas
from kafkasse.errors import did_you_mean

SCHEMA = "pipelines"
NOT_SHOWN = ("spark", "registry")  # their values may contain passwords
SCHEMA_FORMS = ("file", "registry", "properties")
EMPTY = ("minItems", "minLength", "minProperties")  # keywords of JSON Schema, which are 1 in the schema of the file

DefinitionPath: TypeAlias = tuple[str | int, ...]


def mismatch(value: object, part: str = "#") -> tuple[DefinitionPath, str] | None:
    """Check a value against a part of the schema. Return the path and the text of the most relevant error, or None."""
    error = best_match(schemas.settings_validator(SCHEMA).descend(value, {"$ref": part}))
    if error is None:
        return None
    from kafkasse.config.messages import expected, shown  # here, because they take long to import

    error = schemas.deepest(error)
    while error.parent is not None and not error.relative_path:  # the whole anyOf, and not one of its alternatives
        error = cast("ValidationError", error.parent)
    path, given, schema = tuple(error.absolute_path), cast("Any", error.instance), cast("Any", error.schema)
    if error.validator == "additionalProperties":
        known = list(schema.get("properties", {}))
        name = next(setting for setting in given if setting not in known)
        if name in SCHEMA_FORMS:
            return (*path, name), f"cannot be combined with {known[0]}; remove one of them"
        hint = did_you_mean(name, known) or f"; use one of: {', '.join(known)}"
        return (*path, name), f"is not a setting{hint}"
    if "propertyNames" in error.absolute_schema_path:
        return (*path, given), f"is not a valid name; it must be {expected(schema)}"
    if error.validator == "required" and error.validator_value == ["properties"]:  # no form of a schema
        for name in given:
            if hint := did_you_mean(name, SCHEMA_FORMS):
                return (*path, name), f"is not a setting{hint}"
        return path, "needs file, or registry with subject, or properties"
    if error.validator in ("required", "oneOf", "dependentRequired"):
        return path, _missing(error)
    if error.validator in EMPTY:
        return path, "must not be empty"
    if any(part in NOT_SHOWN for part in path):
        return path, f"must be {expected(schema)}"
    hint = did_you_mean(str(given), schema.get("enum", []))
    return path, f"must be {expected(schema)}, not {shown(path, given)}{hint}"


def default(*path: str) -> Any:
    """Return the default of a setting, such as `default("query", "window", "watermark")`."""
    setting: Any = {"properties": schemas.read(SCHEMA)["$defs"]}
    for name in path:
        setting = setting["properties"][name]
    return setting["default"]


def _missing(error: ValidationError) -> str:
    given, required = cast("Any", error.instance), cast("Any", error.validator_value)
    if error.validator == "dependentRequired":
        return "needs both username and password_file"
    if error.validator == "required":
        *others, last = (name for name in required if name not in given)
        return f"needs {', '.join(others)} and {last}" if others else f"needs {last}"
    alternatives = ", or ".join(" with ".join(alternative["required"]) for alternative in required)
    return f"needs {alternatives}" if error.context else f"has contradictory settings; use only {alternatives}"
