"""Convert a JSON Schema to the types of a record's fields. No I/O; the caller passes in the schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for

from kafkasse.errors import CommandError, did_you_mean
from kafkasse.pipelines.json_records import Type

TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")
MAX_DEPTH = 32
MAX_REASON_CHARACTERS = 200
_SCALARS = {
    "string": ("text", "STRING", "STRING"),
    "integer": ("a whole number", "BIGINT", "BIGINT"),
    "number": ("a number", "DOUBLE", r"BIGINT|DECIMAL\(.*\)|DOUBLE"),
    "boolean": ("true or false", "BOOLEAN", "BOOLEAN"),
}
_FORMATS = {"date-time": ("a time", "TIMESTAMP", "STRING"), "date": ("a date", "DATE", "STRING")}
_JSON = ("JSON", "STRING", ".*")  # the text of the value, if the schema allows several types


def fields(schema: Mapping[str, Any]) -> dict[str, Type]:
    """Return the type of each property.

    A string of the format `date-time` or `date` becomes a timestamp or a date. An array becomes an array. An object with
    properties becomes a struct, and one without becomes a map if its values have a type. A value that may have several types
    besides null, or that contains values of its own type, becomes its JSON text.

    Raises:
        CommandError: the schema is invalid or not that of an object, or a `$ref` cannot be resolved.
    """
    validator: Any = validator_for(schema, default=Draft202012Validator)
    try:
        validator.check_schema(schema)
    except SchemaError as error:
        raise CommandError(f"the schema is not a JSON Schema: {_problem(error)[:MAX_REASON_CHARACTERS]}") from error
    resolved = _resolve(schema, schema)
    properties = resolved.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        raise CommandError("the schema has no properties; a record must be an object with known fields")
    required = resolved.get("required", [])
    return {str(name): _type(property_, schema, name in required) for name, property_ in properties.items()}


def _problem(error: SchemaError) -> str:
    where, given = ".".join(str(part) for part in error.absolute_path), error.instance
    if error.absolute_path and error.absolute_path[-1] == "type" and isinstance(given, str):
        return f"{where} must be one of {', '.join(TYPES)}, not {given!r}{did_you_mean(given, TYPES)}"
    if isinstance(given, str) and given in TYPES:
        return f"{where} must be a mapping; write {{type: {given}}}"
    for type_, name in (("object", "a mapping"), ("array", "a list")):
        if error.validator == "type" and type_ in cast("Any", error.validator_value):
            return f"{where} must be {name}, not {given!r}"
    return f"{where}: {error.message}"


def _type(schema: Any, root: Mapping[str, Any], required: bool) -> Type:
    name, sql, variant = _parts(schema, root, ())
    return Type(name, sql, variant, required and not _allows_null(_resolve(schema, root)))


def _parts(schema: Any, root: Mapping[str, Any], inside: tuple[int, ...]) -> tuple[str, str, str]:
    """Return the name, the SQL type and the variant types of a value.

    `inside` identifies the schemas that contain this one.
    """
    resolved = _resolve(schema, root)
    alternatives = [_resolve(alternative, root) for alternative in _alternatives(resolved)]
    if len(others := [schema for schema in alternatives if _types(schema) != ["null"]]) == 1:
        resolved = others[0]
    types = [name for name in _types(resolved) if name != "null"]
    if len(types) != 1 or len(inside) > MAX_DEPTH or id(resolved) in inside:
        return _JSON
    inside = (*inside, id(resolved))
    if types[0] == "string" and resolved.get("format") in _FORMATS:
        return _FORMATS[resolved["format"]]
    if types[0] in _SCALARS:
        return _SCALARS[types[0]]
    if types[0] == "array":
        return "an array", f"ARRAY<{_parts(resolved.get('items', {}), root, inside)[1]}>", "ARRAY<.*>"
    if types[0] == "object":
        return "an object", _object(resolved, root, inside), "OBJECT<.*>"
    return _JSON


def _object(schema: Mapping[str, Any], root: Mapping[str, Any], inside: tuple[int, ...]) -> str:
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and properties:
        members = (f"{_quoted(name)}: {_parts(property_, root, inside)[1]}" for name, property_ in properties.items())
        return f"STRUCT<{', '.join(members)}>"
    return f"MAP<STRING, {_parts(schema.get('additionalProperties', {}), root, inside)[1]}>"


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _types(schema: Mapping[str, Any]) -> list[str]:
    given = schema.get("type")
    if given is None:
        values = schema.get("enum", [schema["const"]] if "const" in schema else [])
        return ["string"] if values and all(isinstance(value, str) for value in values) else []
    return [name for name in (given if isinstance(given, list) else [given]) if isinstance(name, str)]


def _alternatives(schema: Mapping[str, Any]) -> list[Any]:
    """Return the schemas of `anyOf` or `oneOf`, if only they give the type."""
    alternatives = schema.get("anyOf", schema.get("oneOf"))
    return alternatives if isinstance(alternatives, list) and not _types(schema) else []


def _allows_null(schema: Mapping[str, Any]) -> bool:
    return "null" in _types(schema) or not _types(schema)


def _resolve(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow the `$ref`s of a schema. They refer to the same document."""
    for _ in range(MAX_DEPTH):
        if not isinstance(schema, Mapping):
            return {}
        if "$ref" not in schema:
            return schema
        schema = _referenced(str(schema["$ref"]), root)
    raise CommandError("a $ref of the schema refers to itself")


def _referenced(reference: str, root: Mapping[str, Any]) -> Any:
    schema: Any = root
    if reference != "#" and not reference.startswith("#/"):
        raise CommandError(f"the schema refers to {reference}; only references within the schema are supported")
    for part in reference[2:].split("/") if reference != "#" else ():
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(schema, Mapping) or name not in schema:
            raise CommandError(f"the schema refers to {reference}, which does not exist")
        schema = schema[name]
    return schema
