"""Read settings from a file, the environment and arguments. Each value keeps its source.

This module finds unknown variables and text that is not YAML. kafkasse.config.check validates the values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from kafkasse import config_file, schemas
from kafkasse.config import kafka, names

SCHEMA = "config"
NO_VARIABLES = (
    "kafka",
    "clusters",
    "topic_groups",
    "guards",
    "schema_registry",
    "schema_registries",
    "archives",
    "routes",
)  # settings that no environment variable can hold
SettingPath = tuple[str | int, ...]

_YES_OR_NO = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
# 64-bit numbers have at most 19 digits, and int() fails for thousands of digits.
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,19}")
_VARIABLES_OF_HEROKU = ("KAFKA_TRUSTED_CERT", "KAFKA_CLIENT_CERT", "KAFKA_CLIENT_CERT_KEY")

# PyYAML's description of a problem may quote a part of the file, which can be a secret. This matches descriptions that quote
# only tokens and punctuation.
_QUOTES_NO_VALUE = re.compile(r"(?:[^'\"]|'<[a-z ]+>'|'[-,:?{}\[\]]')*")
_RESERVED_CHARACTER = "a value starts with a character that YAML reserves: put the value in quotes"


class Source(NamedTuple):
    """Where a value comes from. `type` is default, file, variable or argument; `text` names the source in a message."""

    type: str
    text: str


DEFAULT = Source("default", "default")


@dataclass
class Layer:
    """The settings of one source, or of several merged ones, with the problems that were found while reading them.

    `sources` maps a path such as ("routes", "prices", "path") to a source. A missing path has the source of its longest
    prefix.
    """

    values: dict[str, Any] = field(default_factory=dict, repr=False)  # they can be secrets
    sources: dict[SettingPath, Source] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def source(self, path: SettingPath) -> Source:
        """Return where the value at `path` comes from."""
        for length in range(len(path), 0, -1):
            if found := self.sources.get(path[:length]):
                return found
        return DEFAULT

    def put(self, name: str, value: Any, source: Source) -> None:
        """Set a top-level setting."""
        self.values[name] = value
        self.sources[name,] = source

    def put_kafka(self, name: str, value: Any, source: Source) -> None:
        """Set a setting of kafka-python's client."""
        self.values.setdefault("kafka", {})[name] = value
        self.sources["kafka", name] = source

    def put_cluster(self, cluster: str, name: str, value: Any, source: Source) -> None:
        """Set a setting of kafka-python's client for one of the other clusters."""
        self.values.setdefault("clusters", {}).setdefault(cluster, {})[name] = value
        self.sources["clusters", cluster, name] = source


def merged(*layers: Layer) -> Layer:
    """Combine layers; later layers win. The settings of `kafka` and of each of the `clusters` are combined one by one."""
    whole = Layer(_defaults())
    for layer in layers:
        whole.problems += layer.problems
        for name, value in layer.values.items():
            if name == "kafka" and not isinstance(whole.values["kafka"], Mapping):
                continue  # keep the invalid value, so that a later source does not hide the mistake
            if name == "kafka" and isinstance(value, Mapping | None):
                _merge_kafka(whole, layer)
            elif name == "clusters" and isinstance(value, Mapping) and isinstance(whole.values[name], Mapping):
                _merge_clusters(whole, layer)
            else:
                whole.sources = {path: source for path, source in whole.sources.items() if path[0] != name}
                whole.values[name] = value
                whole.sources |= {path: source for path, source in layer.sources.items() if path[0] == name}
    return whole


def _merge_kafka(whole: Layer, layer: Layer) -> None:
    for name, value in (layer.values["kafka"] or {}).items():  # `kafka:` with nothing below it is None
        whole.values["kafka"] = {**whole.values["kafka"], name: value}
        whole.sources["kafka", name] = layer.source(("kafka", name))


def _merge_clusters(whole: Layer, layer: Layer) -> None:
    clusters = dict(whole.values["clusters"])
    for name, settings in layer.values["clusters"].items():
        can_merge = isinstance(settings, Mapping) and isinstance(clusters.get(name), Mapping)
        clusters[name] = {**clusters[name], **settings} if can_merge else settings
    whole.values["clusters"] = clusters
    whole.sources |= {path: source for path, source in layer.sources.items() if path[0] == "clusters"}


def _defaults() -> dict[str, Any]:
    return {name: setting["default"] for name, setting in schemas.read(SCHEMA)["properties"].items()}


def arguments(values: Mapping[str, Any]) -> Layer:
    """Return the settings that are arguments of Config() or Config.load()."""
    layer = Layer(dict(values))
    layer.sources = {(name,): Source("argument", f"the argument {name}") for name in values}
    for path, settings in _clients(values):
        argument = path[0] + "".join(f"[{each!r}]" for each in path[1:])
        layer.sources |= {(*path, name): Source("argument", f"the argument {argument}[{name!r}]") for name in settings}
    return layer


def _clients(values: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path and the value of each mapping of client settings: `kafka` and each of the `clusters`."""
    if isinstance(values.get("kafka"), Mapping):
        yield ("kafka",), values["kafka"]
    if isinstance(clusters := values.get("clusters"), Mapping):
        for name, settings in clusters.items():
            if isinstance(settings, Mapping):
                yield ("clusters", str(name)), settings


# A YAML file.


def file(path: Path) -> Layer:
    """Read the settings of a YAML file. Problems, such as a missing file, are in the result."""
    layer = Layer()
    try:
        loader = _Loader(config_file.read(path).decode())
        node = loader.get_single_node()
        values = loader.construct_document(node) if node else {}
        if node:
            _index(node, (), layer, path, set())
    except OSError as error:
        layer.problems.append(f"The configuration file {path} cannot be read: {error.strerror}.")
    except yaml.MarkedYAMLError as error:
        layer.problems.append(_not_yaml(path, error))
    except (yaml.YAMLError, ValueError):
        layer.problems.append(f"{path}: this is not a text file in UTF-8.")
    except RecursionError:
        layer.problems.append(f"{path}: the lists and mappings are nested too deeply.")
    else:
        if isinstance(values, dict):
            layer.values = {name: value for name, value in values.items() if isinstance(name, str)}
            for name in values.keys() - layer.values.keys():  # YAML reads 5, true and 2026-01-01 as other types
                layer.problems.append(f"{path}: {names.printable(str(name))} is not a setting: a name must be text.")
            _find_code_only(layer)
        elif values is not None:
            layer.problems.append(f"{path}: the file must be a mapping of settings. Example: allowed_topics: [orders]")
    return layer


class _Loader(yaml.SafeLoader):
    """A safe loader that reports the line of every error, and reads a time as text."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, AttributeError, LookupError):  # such as the date 2026-99-99
            problem = "this value cannot be read; put text in quotes"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None


_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda _, node: str(node.value))


def _not_yaml(path: Path, error: yaml.MarkedYAMLError) -> str:
    """Name the line and the problem, without quoting the line, which can contain a secret."""
    mark = error.problem_mark or error.context_mark
    problem = error.problem or ""
    if "'\\t'" in problem:
        problem = "a line is indented with a tab: use spaces"
    elif problem.startswith("mapping values are not allowed"):
        problem = "a value contains a colon, or a line is indented too far: put text with a colon in quotes"
    elif "unexpected end of stream" in problem:
        problem = "a quote or a bracket is not closed"
    elif "cannot start any token" in problem or "alias" in problem or "tag" in problem or "alphabetic" in problem:
        problem = _RESERVED_CHARACTER
    elif not _QUOTES_NO_VALUE.fullmatch(problem):
        problem = "check the indentation, quotes and brackets"
    return f"{path}, line {mark.line + 1 if mark else 1}: this is not valid YAML: {problem}."


def _index(node: yaml.Node, path: SettingPath, layer: Layer, file: Path, seen: set[int]) -> None:
    """Note the line of each setting, and find settings that are set twice."""
    if id(node) in seen:  # an alias
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            layer.sources[*path, number] = Source("file", f"{file}, line {item.start_mark.line + 1}")
            _index(item, (*path, number), layer, file, seen)
    elif isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in lines:
                first = f"first in line {lines[name]}"
                layer.problems.append(
                    f"{file}, line {line}: {names.printable(name)} is set twice, {first}. Remove one."
                )
            lines[name] = line
            layer.sources[*path, name] = Source("file", f"{file}, line {line}")
            _index(value, (*path, name), layer, file, seen)


# The environment.


def environment(environ: Mapping[str, str]) -> Layer:
    """Read the settings of the variables KAFKASSE_… and of Heroku's Kafka add-on. Unknown variables are problems."""
    layer = Layer()
    properties = schemas.read(SCHEMA)["properties"]
    client_properties = schemas.read(SCHEMA)["$defs"]["kafka"]["properties"]
    _read_heroku(environ, layer)
    for variable, text in environ.items():
        if not variable.startswith(names.PREFIX):
            continue
        name = variable.removeprefix(names.PREFIX).lower()
        source = Source("variable", variable)
        if name in properties and name not in NO_VARIABLES:
            layer.put(name, _value(text, properties[name]), source)
        elif setting := _setting_of_cluster(name, client_properties):
            layer.put_cluster(*setting, _value(text, client_properties[setting[1]]), source)
        elif variable.startswith(names.KAFKA_PREFIX):
            client_name = variable.removeprefix(names.KAFKA_PREFIX).lower()
            layer.put_kafka(client_name, _value(text, client_properties.get(client_name, {})), source)
        elif variable == "KAFKASSE_BOOTSTRAP_SERVERS":
            continue
        elif variable not in names.OTHER_VARIABLES and not names.is_from_kubernetes(variable, text):
            layer.problems.append(_unknown_variable(variable, name, properties))
    if (servers := environ.get("KAFKASSE_BOOTSTRAP_SERVERS")) is not None:
        layer.put_kafka("bootstrap_servers", servers, Source("variable", "KAFKASSE_BOOTSTRAP_SERVERS"))
    _find_code_only(layer)
    return layer


def _setting_of_cluster(name: str, client_properties: Iterable[str]) -> tuple[str, str] | None:
    """Return the cluster and the setting of a variable such as KAFKASSE_CLUSTERS_EU_SASL_PLAIN_PASSWORD, or None."""
    rest = name.removeprefix("clusters_")
    found = [each for each in client_properties if rest != name and rest.endswith(f"_{each}") and rest != f"_{each}"]
    setting = max(found, key=len, default=None)
    return (rest.removesuffix(f"_{setting}"), setting) if setting else None


def _unknown_variable(variable: str, name: str, properties: Mapping[str, Any]) -> str:
    if name in NO_VARIABLES:
        return f"{variable} is not a setting: {name} can be set only in a file or in code."
    others = (each.removeprefix(names.PREFIX).lower() for each in names.OTHER_VARIABLES)
    client = (f"kafka_{each}" for each in schemas.read(SCHEMA)["$defs"]["kafka"]["properties"])
    known = [*(each for each in properties if each not in NO_VARIABLES), *others, *client]
    return f"{variable} is not a setting{names.suggestion(name, known, names.PREFIX)}"


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """Convert the text to the type of the setting. If that is impossible, return the text; check.py then rejects it."""
    types = schema.get("type", "string")
    if "string" in types:
        return text
    if ("integer" in types or "number" in types) and _WHOLE_NUMBER.fullmatch(text):
        return int(text)
    if "array" in types:
        return [each.strip() for each in text.split(",") if each.strip()]
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
        layer.put("topic_prefix", environ["KAFKA_PREFIX"], Source("variable", "KAFKA_PREFIX"))
    if not (url := environ.get("KAFKA_URL")):
        return
    source = Source("variable", "KAFKA_URL")
    if (settings := kafka.settings_of_url(url)) is None:
        layer.problems.append(
            "KAFKA_URL must be kafka+ssl://HOST:PORT or kafka://HOST:PORT without a user name, or several with commas. "
            "Example: KAFKA_URL=kafka+ssl://kafka-1.example:9096"
        )
        return
    for name, value in settings.items():
        layer.put_kafka(name, value, source)
    if environ.get("KAFKA_TRUSTED_CERT"):
        pem = kafka.PemCertificates(*(environ.get(name, "") for name in _VARIABLES_OF_HEROKU))
        layer.put_kafka("ssl_context", pem, Source("variable", "KAFKA_TRUSTED_CERT"))


def _find_code_only(layer: Layer) -> None:
    """Reject settings that neither a file nor a variable can hold, because their values are Python objects."""
    properties = schemas.read(SCHEMA)["$defs"]["kafka"]["properties"]
    for path, settings in _clients(layer.values):
        for name, value in list(settings.items()):
            if properties.get(name, {}).get("x-code-only") and not isinstance(value, kafka.PemCertificates):
                source = layer.source((*path, name)).text
                full_name = ".".join(map(names.printable, (*path, name)))
                layer.problems.append(f"{source}: {full_name} can be set only in code, because it is a Python object.")
                del settings[name]
