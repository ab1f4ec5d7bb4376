"""Read settings from a file, the environment and arguments. Each value keeps its source.

This module finds unknown variables and text that is not YAML. kafkasse.config.check validates the values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from kafkasse import config_file, schemas
from kafkasse.config import kafka, names, yaml_file

SCHEMA = "config"
SettingPath = tuple[str | int, ...]

_MERGED_LEVELS = {"kafka": 1, "clusters": 2}  # of the settings whose parts may come from different sources
_YES_OR_NO = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
# 64-bit numbers have at most 19 digits, and int() fails for thousands of digits.
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,19}")
_VARIABLES_OF_HEROKU = ("KAFKA_TRUSTED_CERT", "KAFKA_CLIENT_CERT", "KAFKA_CLIENT_CERT_KEY")


class SettingSource(NamedTuple):
    """Where a value comes from. `type` is default, file, variable or argument; `text` names the source in a message."""

    type: str
    text: str


DEFAULT = SettingSource("default", "default")


@dataclass
class Layer:
    """The settings of one source, or of several merged ones, with the problems that were found while reading them.

    `sources` maps a path such as ("routes", "prices", "path") to a source. A missing path has the source of its longest
    prefix.
    """

    values: dict[str, Any] = field(default_factory=dict, repr=False)  # they can be secrets
    sources: dict[SettingPath, SettingSource] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def source(self, path: SettingPath) -> SettingSource:
        """Return where the value at `path` comes from."""
        prefixes = (path[:length] for length in range(len(path), 0, -1))
        return next((self.sources[prefix] for prefix in prefixes if prefix in self.sources), DEFAULT)

    def put(self, path: tuple[str, ...], value: Any, source: SettingSource) -> None:
        """Set a setting, such as ("kafka", "client_id")."""
        *parents, name = path
        mapping = self.values
        for parent in parents:
            mapping = mapping.setdefault(parent, {})
        mapping[name] = value
        self.sources[path] = source


def merged(*layers: Layer) -> Layer:
    """Combine layers; later layers win. The settings of `kafka` and of each of the `clusters` are combined one by one."""
    whole = Layer({name: setting["default"] for name, setting in schemas.read(SCHEMA)["properties"].items()})
    for layer in layers:
        whole.problems += layer.problems
        for name, value in layer.values.items():
            previous = whole.values.get(name)
            if name == "kafka" and (value is None or not isinstance(previous, Mapping)):
                continue  # nothing is below `kafka:`, or its value is not valid; a later source must not hide this mistake
            sources = {path: source for path, source in layer.sources.items() if path[0] == name}
            if name not in _MERGED_LEVELS or not isinstance(value, Mapping):
                whole.sources = {path: source for path, source in whole.sources.items() if path[0] != name}
            elif name == "kafka":  # as a whole, it has no source
                sources = {(name, setting): layer.source((name, setting)) for setting in value}
            whole.values[name] = _merged_value(previous, value, _MERGED_LEVELS.get(name, 0))
            whole.sources |= sources
    return whole


def _merged_value(previous: Any, value: Any, levels: int) -> Any:
    if not levels or not isinstance(previous, Mapping) or not isinstance(value, Mapping):
        return value
    return {**previous, **{name: _merged_value(previous.get(name), value[name], levels - 1) for name in value}}


def arguments(values: Mapping[str, Any]) -> Layer:
    """Return the settings that are arguments of Config() or Config.load()."""
    layer = Layer(dict(values))
    layer.sources = {(name,): SettingSource("argument", f"the argument {name}") for name in values}
    for name, levels in _MERGED_LEVELS.items():
        _add_arguments(layer, (name,), values.get(name), levels)
    return layer


def _add_arguments(layer: Layer, path: tuple[str, ...], settings: Any, levels: int) -> None:
    if levels and isinstance(settings, Mapping):
        for name, value in settings.items():
            setting = (*path, str(name))
            argument = setting[0] + "".join(f"[{part!r}]" for part in setting[1:])
            layer.sources[setting] = SettingSource("argument", f"the argument {argument}")
            _add_arguments(layer, setting, value, levels - 1)


def file(path: Path) -> Layer:
    """Read the settings of a YAML file. Problems, such as a missing file, are in the result."""
    try:
        document = yaml_file.parse(config_file.read(path))
    except OSError as error:
        return Layer(problems=[f"The configuration file {path} cannot be read: {error.strerror}."])
    except yaml_file.NotYaml as error:
        return Layer(problems=[f"{path}{f', line {error.line}' if error.line else ''}: {error}"])
    if not isinstance(document.value, dict | None):
        return Layer(problems=[f"{path}: the file must be a mapping of settings. Example: allowed_topics: [orders]"])
    return Layer(
        document.value or {},
        {setting: SettingSource("file", f"{path}, line {line}") for setting, line in document.lines.items() if setting},
        [
            f"{path}, line {line}: {names.printable(str(setting[-1]))} is set twice, first in line {first}. Remove one."
            for setting, first, line in document.repeated
        ],
    )


# The environment.


def environment(environ: Mapping[str, str]) -> Layer:
    """Read the settings of the variables KAFKASSE_… and of Heroku's Kafka add-on. Unknown variables are problems."""
    layer = Layer()
    properties = schemas.read(SCHEMA)["properties"]
    client_properties = schemas.read(SCHEMA)["$defs"]["kafka"]["properties"]
    _read_heroku(environ, layer)
    for variable, text in environ.items():
        if not variable.startswith(names.PREFIX) or variable == names.SERVERS_VARIABLE:
            continue
        name = variable.removeprefix(names.PREFIX).lower()
        source = SettingSource("variable", variable)
        if name in properties and fits_variable(properties[name]):
            layer.put((name,), _value(text, properties[name]), source)
        elif setting := _setting_of_cluster(name, client_properties):
            layer.put(("clusters", *setting), _value(text, client_properties[setting[1]]), source)
        elif names.is_from_kubernetes(variable, text):
            continue
        elif variable.startswith(names.KAFKA_PREFIX):
            client_name = variable.removeprefix(names.KAFKA_PREFIX).lower()
            layer.put(("kafka", client_name), _value(text, client_properties.get(client_name, {})), source)
        elif variable not in names.OTHER_VARIABLES:
            layer.problems.append(_unknown_variable(variable, name, properties, client_properties))
    if (servers := environ.get(names.SERVERS_VARIABLE)) is not None:
        layer.put(("kafka", "bootstrap_servers"), servers, SettingSource("variable", names.SERVERS_VARIABLE))
    return layer


def _setting_of_cluster(name: str, client_properties: Iterable[str]) -> tuple[str, str] | None:
    """Return the cluster and the setting of a variable such as KAFKASSE_CLUSTERS_EU_SASL_PLAIN_PASSWORD, or None."""
    rest = name.removeprefix("clusters_")
    possible = [
        setting
        for setting in client_properties
        if rest != name and rest.endswith(f"_{setting}") and rest != f"_{setting}"
    ]
    setting = max(possible, key=len, default=None)
    return (rest.removesuffix(f"_{setting}"), setting) if setting else None


def fits_variable(schema: Mapping[str, Any]) -> bool:
    """Return whether an environment variable can hold a setting. It cannot hold a mapping."""
    return "object" not in schema.get("type", ())


def _unknown_variable(
    variable: str, name: str, properties: Mapping[str, Mapping[str, Any]], client_properties: Iterable[str]
) -> str:
    if name in properties:
        return f"{variable} is not a setting: {name} can be set only in a file or in code."
    if name in names.WITHOUT_PREFIX:
        return f"{variable} is not a setting: did you mean {names.WITHOUT_PREFIX[name]}?"
    others = (variable_name.removeprefix(names.PREFIX).lower() for variable_name in names.OTHER_VARIABLES)
    client = (f"kafka_{setting}" for setting in client_properties)
    known = [*(setting for setting, schema in properties.items() if fits_variable(schema)), *others, *client]
    return f"{variable} is not a setting{names.suggestion(name, known, names.PREFIX)}"


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """Convert the text to the type of the setting. If that is impossible, return the text; check.py then rejects it."""
    value, types = _scalar(text, schema), schema.get("type", "string")
    if value is not text or "string" in types or "array" not in types:
        return value
    return [_scalar(item.strip(), schema.get("items", {})) for item in text.split(",") if item.strip()]


def _scalar(text: str, schema: Mapping[str, Any]) -> Any:
    types = schema.get("type", "string")
    if "string" in types:
        return text
    if ("integer" in types or "number" in types) and _WHOLE_NUMBER.fullmatch(text):
        return int(text)
    if "null" in types and text == "null":
        return None
    if "boolean" in types:
        return _YES_OR_NO.get(text.lower(), text)
    return _decimal(text) if "number" in types else text


def _decimal(text: str) -> float | str:
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text


def _read_heroku(environ: Mapping[str, str], layer: Layer) -> None:
    if environ.get("KAFKA_PREFIX"):
        layer.put(("topic_prefix",), environ["KAFKA_PREFIX"], SettingSource("variable", "KAFKA_PREFIX"))
    if not (url := environ.get("KAFKA_URL")):
        return
    if (settings := kafka.settings_of_url(url)) is None:
        layer.problems.append(
            "KAFKA_URL must be kafka+ssl://HOST:PORT or kafka://HOST:PORT without a user name, or several with commas. "
            "Example: KAFKA_URL=kafka+ssl://kafka-1.example:9096"
        )
        return
    for name, value in settings.items():
        layer.put(("kafka", name), value, SettingSource("variable", "KAFKA_URL"))
    if environ.get("KAFKA_TRUSTED_CERT"):
        pem = kafka.PemCertificates(*(environ.get(name, "") for name in _VARIABLES_OF_HEROKU))
        layer.put(("kafka", "ssl_context"), pem, SettingSource("variable", "KAFKA_TRUSTED_CERT"))
