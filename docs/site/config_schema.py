"""Generates schemas/config.schema.json from kafkasse/settings.py: `python -m docs.site.tables` updates it."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import types
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from kafkasse import settings
from kafkasse.config.sources import fits_variable

FILE = Path(__file__).parents[2] / "schemas/config.schema.json"
GENERAL: tuple[type, ...] = (
    settings.KafkaSettings,
    settings.RouteSettings,
    settings.WebSettings,
    settings.FeedSettings,
    settings.AccessSettings,
)
# The classes in "$defs" of the schema. All others are inlined.
DEFINITIONS: Mapping[str, type] = {
    "route": settings.NamedRoute,
    "guard": settings.GuardSettings,
    "grant": settings.GrantSettings,
    "schema_registry": settings.SchemaRegistrySettings,
    "kafka": settings.KafkaClient,
}
TYPES = {
    str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null", tuple: "array",
    Sequence: "array", Mapping: "object",
}  # fmt: skip
KEYWORDS = {
    "expected": "x-expected", "code_only": "x-code-only", "pattern": "pattern", "at_least": "minimum",
    "above": "exclusiveMinimum", "at_most": "maximum", "min_length": "minLength", "max_length": "maxLength",
    "min_items": "minItems", "min_members": "minProperties", "unique": "uniqueItems",
}  # fmt: skip
MISSING = dataclasses.MISSING

Schema = dict[str, Any]


def text() -> str:
    """Return the text of the schema file."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def schema() -> Schema:
    """Return the schema of a whole configuration."""
    properties = {name: each for owner in GENERAL for name, each in _members(owner, is_general=True)}
    *names, last = [name for name, each in properties.items() if not fits_variable(each)]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:kafkasse:schema:config",
        "title": "kafkasse configuration",
        "description": f"All settings. Every top-level setting except {', '.join(names)} and {last} can also be set by an "
        "environment variable: KAFKASSE_ followed by the name in capitals, with commas between the items of a list.",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "$defs": {name: _object(owner) for name, owner in DEFINITIONS.items()},
    }


def _members(owner: type, *, is_general: bool = False) -> Iterator[tuple[str, Schema]]:
    """Yield the name and the schema of each setting of a class. A field without a docstring is not a setting."""
    hints = get_type_hints(owner, include_extras=True)
    for name, description in _docstrings()[owner.__name__].items():
        default = _default(owner, name)
        is_optional = default is None and not is_general
        each = {"description": description, **_value(hints[name], is_optional=is_optional)}
        if default is not MISSING and not is_optional:
            each |= {"examples": each.get("examples", [default]), "default": default}
        yield name, each
    if owner is settings.NamedRoute:
        yield from _of_routes()


def _of_routes() -> Iterator[tuple[str, Schema]]:
    """Yield the general settings that each route can set for itself."""
    for owner in GENERAL:
        for name, hint in get_type_hints(owner, include_extras=True).items():
            for mark in getattr(hint, "__metadata__", ()):
                if isinstance(mark, settings.OfRoutes):
                    bound = "" if mark.at_least is None else f", but at least {mark.at_least}"
                    each = {"description": f"The setting of the same name, for this route only{bound}.", **_value(hint)}
                    if mark.at_least is not None:
                        each.pop("exclusiveMinimum", None)
                    yield name, each | _limits(mark)


def _object(owner: type) -> Schema:
    """Return the keywords for a mapping whose members a class declares."""
    members = dict(_members(owner))
    required = [name for name in members if _default(owner, name) is MISSING and name in _docstrings()[owner.__name__]]
    return {**({"required": required} if required else {}), "additionalProperties": False, "properties": members}


def _value(hint: Any, *, is_optional: bool = False) -> Schema:
    """Return the schema of a type. If the value is optional, None means that it is missing, not null."""
    base, marks = (hint.__origin__, hint.__metadata__) if get_origin(hint) is Annotated else (hint, ())
    union = get_args(base) if get_origin(base) in (Union, types.UnionType) else (base,)
    if get_origin(union[0]) is Annotated:  # Annotated[int, …] | None means Annotated[int | None, …]
        first, *others = union
        return _value(Annotated[Union[first.__origin__, *others], *first.__metadata__, *marks], is_optional=is_optional)
    given = [name_and_value for mark in marks if isinstance(mark, settings.Value) for name_and_value in _given(mark)]
    limits = settings.Value(**dict(given))
    if is_optional and not limits.nullable:
        union = tuple(each for each in union if each is not type(None))
    if get_origin(union[0]) is Literal:
        return {"enum": [*get_args(union[0])], **_limits(limits)}
    names = [TYPES[get_origin(each) or each] for each in union if each is not Any]
    result: Schema = {"type": names[0] if len(names) == 1 else names} if names else {}
    for each in union:
        if TYPES.get(get_origin(each)) == "array" and (items := _value(get_args(each)[0])):
            result["items"] = items
        elif TYPES.get(get_origin(each)) == "object" and limits.of is None:
            name, member = map(_value, get_args(each))
            result |= ({"propertyNames": name} if len(name) > 1 else {}) | {"additionalProperties": member}
    if limits.of is not None:
        owner = getattr(settings, limits.of)
        name = next((name for name, each in DEFINITIONS.items() if each is owner), None)
        result |= _object(owner) if name is None else {"$ref": f"#/$defs/{name}"}
    return result | _limits(limits)


def _given(limits: settings.ValueLimits) -> list[tuple[str, Any]]:
    """Return the limits that are set."""
    fields = dataclasses.fields(limits)
    return [(each.name, value) for each in fields if (value := getattr(limits, each.name)) is not each.default]


def _limits(limits: settings.ValueLimits) -> Schema:
    """Return the keywords for the limits and the examples."""
    found = {KEYWORDS[name]: value for name, value in _given(limits) if name in KEYWORDS}
    examples = [*limits.examples] or ([] if limits.example is None else [limits.example])
    return found | ({"examples": examples} if examples else {})


def _default(owner: type, name: str) -> Any:
    """Return the default of a field as JSON, or MISSING."""
    if not dataclasses.is_dataclass(owner):
        return vars(owner).get(name, MISSING)
    each = owner.__dataclass_fields__.get(name)
    if each is None or each.default is MISSING:
        return MISSING if each is None or each.default_factory is MISSING else each.default_factory()
    return list(each.default) if isinstance(each.default, tuple) else each.default


@cache
def _docstrings() -> Mapping[str, Mapping[str, str]]:
    """Return for each class the docstrings of its fields, each on one line."""
    found = {}
    for node in ast.parse(inspect.getsource(settings)).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = {
                field.target.id: " ".join(ast.literal_eval(after.value).split())
                for field, after in zip(node.body, node.body[1:], strict=False)
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
                and isinstance(after, ast.Expr)
            }  # fmt: skip
    return found
