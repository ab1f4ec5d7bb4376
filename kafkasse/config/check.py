"""Validate a configuration: each setting against the schema, then settings that depend on each other (see rules.py).

Each problem is one sentence with the source, the setting, the value, a description of valid values, and an example. A
sentence never contains a secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jsonschema.exceptions import ValidationError

from kafkasse import schemas
from kafkasse.config import hooks, kafka, names, rules
from kafkasse.config.messages import example, expected, sentence, shown
from kafkasse.config.rules import Problem
from kafkasse.config.sources import SCHEMA, Layer, SettingPath

_KINDS = {
    "kafka": "a client setting of kafka-python",
    "clusters": "a client setting of kafka-python",
    "schema_registry": "a setting of the schema registry",
    "schema_registries": "a setting of a schema registry",
    "guards": "a setting of a guard",
    "routes": "a setting of a route",
}


def problems(layer: Layer) -> list[str]:
    """Return a sentence for each problem of the settings."""
    validator = schemas.settings_validator(SCHEMA)
    errors = sorted(validator.iter_errors(layer.values), key=lambda error: [str(part) for part in error.path])
    problems = [problem for error in errors for problem in _problems_of_error(error, layer)]
    if not errors:  # the rules rely on the types
        problems = [*rules.problems(layer)]
    return list(dict.fromkeys(sentence(layer.source(path), path, rest) for path, rest in problems))


def problems_of_access(layer: Layer) -> list[str]:
    """Return a sentence for each stream for which the configuration does not say who may read it."""
    return [sentence(layer.source(path), path, rest) for path, rest in rules.undecided_access(layer.values)]


def _problems_of_error(error: ValidationError, layer: Layer) -> Iterator[Problem]:
    path: SettingPath = tuple(error.absolute_path)
    schema: Any = error.schema
    instance: Any = error.instance
    source = layer.source(path)
    if error.validator == "additionalProperties":
        for name in instance:
            if name not in schema["properties"]:
                yield (*path, name), _unknown((*path, name), list(schema["properties"]), layer)
    elif error.validator == "required":
        for name in schema["required"]:
            if name not in instance:
                yield path, f"needs {name}{example(schema['properties'][name], source, name)}"
    elif "propertyNames" in error.absolute_schema_path:
        rest = f"is not a valid name: a name consists of {expected(schema)}{example(schema, source)}"
        yield (*path, instance), rest
    else:
        last = path[-1] if path else ""
        yield path, f"must be {expected(schema)}, not {shown(path, instance)}{example(schema, source, last)}"


def _unknown(path: SettingPath, known: Sequence[str], layer: Layer) -> str:
    *parents, last = path
    name = str(last)
    setting = _KINDS.get(str(path[0]), "a setting") if parents else "a setting"
    if parents[:1] in (["kafka"], ["clusters"]) and name in kafka.RESERVED:
        return "is set by kafkasse itself: remove it."
    if not parents and name in hooks.NAMES:
        return "can be set only in code, because it is a function."
    if not parents and name in schemas.read(SCHEMA)["$defs"]["kafka"]["properties"]:
        return f"is not a setting: did you mean kafka.{name}?"
    if layer.source(path).type == "variable":  # the user may have meant kafka_timeout_s, which is a setting of kafkasse
        variables = [*(f"kafka_{setting_name}" for setting_name in known), "kafka_timeout_s"]
        return f"is not {setting}{names.suggestion(f'kafka_{name}', variables, names.PREFIX)}"
    return f"is not {setting}{names.suggestion(name, known)}"
