"""Validate a configuration: each setting against the schema, and settings that depend on each other.

Each problem is one sentence with the source, the setting, the value, a description of valid values, and an example. A
sentence never contains a secret.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator, TypeChecker, validators
from jsonschema.exceptions import ValidationError

from kafkasse import schemas
from kafkasse.access.grant import PUBLIC
from kafkasse.config import access, hooks, kafka, names
from kafkasse.config.sources import SCHEMA, Layer, SettingPath, Source
from kafkasse.config.times import parse_start_time

if TYPE_CHECKING:  # jsonschema has protocols since version 4.3
    from jsonschema.protocols import Validator

_KINDS = {
    "kafka": "a client setting of kafka-python",
    "clusters": "a client setting of kafka-python",
    "schema_registry": "a setting of the schema registry",
    "schema_registries": "a setting of a schema registry",
    "guards": "a setting of a guard",
    "routes": "a setting of a route",
}
OPEN_ROUTE = "topics"
OPEN_PATH = "/{topics}"
OWN_PATHS = "/-/"  # of health, metrics and the like
RESERVED_PARAMETERS = ("claims", "topics")  # {claims.sub} is a claim; {topics} is the parameter of the open route
STARTS = ("latest", "earliest", "snapshot")

_PARAMETER = re.compile(r"\{(\w+)\}")


def problems(layer: Layer) -> list[str]:
    """Return a sentence for each problem of the settings."""
    errors = sorted(_validator().iter_errors(layer.values), key=lambda error: [str(each) for each in error.path])
    found = [sentence for error in errors for sentence in _sentences(error, layer)]
    if not errors:  # the following checks rely on the types
        found += [*_problems_of_clients(layer), *_problems_of_proxies(layer)]
        found += [_sentence(layer.source(path), _name(path), rest) for path, rest in access.problems(layer.values)]
        found += [*_problems_of_filters(layer), *_problems_of_routes(layer), *_problems_of_registries(layer)]
        found += [*_problems_of_groups(layer), *_problems_of_console(layer), *_problems_of_archives(layer)]
        if not found:  # otherwise, a parameter may be unused because of another mistake
            found += _problems_of_parameters(layer)
    return list(dict.fromkeys(found))


def _problems_of_clients(layer: Layer) -> Iterator[str]:
    """Check the settings of kafka-python's client for each cluster."""
    for name, rest in kafka.problems(layer.values["kafka"]):
        yield _sentence(layer.source(("kafka", name)), f"kafka.{name}", rest)
    for cluster, settings in layer.values["clusters"].items():
        full_name = f"clusters.{cluster}"
        if "bootstrap_servers" not in settings:
            rest = 'needs bootstrap_servers. Example: bootstrap_servers: ["kafka-eu.example:9093"]'
            yield _sentence(layer.source(("clusters", cluster)), full_name, rest)
        for name, rest in kafka.problems(settings):
            yield _sentence(layer.source(("clusters", cluster, name)), f"{full_name}.{name}", rest)


def _problems_of_proxies(layer: Layer) -> Iterator[str]:
    """Check that trusted_proxies contains networks, and none that contains all addresses."""
    proxies = layer.values["trusted_proxies"]
    for number, text in enumerate([] if isinstance(proxies, int) else proxies):
        path = ("trusted_proxies", number)
        try:
            network = ip_network(text)
        except ValueError:
            schema = schemas.read(SCHEMA)["properties"]["trusted_proxies"]["items"]
            source = layer.source(path)
            rest = f"must be {expected(schema)}, not {shown(path, text)}{_example(schema, source, '')}"
            yield _sentence(source, _name(path), rest)
        else:
            if not network.prefixlen:
                rest = f"is {text!r}, which contains all addresses, so any client could forge its address."
                yield _sentence(layer.source(path), _name(path), rest)


@cache
def _validator() -> Validator:
    """Return a validator for Python values: a tuple is a list, 2.0 is not a whole number, and infinity is not a number."""
    types: TypeChecker = Draft202012Validator.TYPE_CHECKER.redefine_many({
        "array": lambda _, value: isinstance(value, list | tuple),
        "object": lambda _, value: isinstance(value, Mapping),
        "integer": lambda _, value: isinstance(value, int) and not isinstance(value, bool),
        "number": lambda _, value: (
            isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        ),
    })  # fmt: skip
    extend: Any = validators.extend  # which has no types
    validator: Validator = extend(Draft202012Validator, type_checker=types)(schemas.without_id(schemas.read(SCHEMA)))
    return validator


def _sentences(error: ValidationError, layer: Layer) -> Iterator[str]:
    path: SettingPath = tuple(error.absolute_path)
    schema: Any = error.schema
    instance: Any = error.instance
    if error.validator == "additionalProperties":
        for name in instance:
            if name not in schema["properties"]:
                yield _unknown((*path, name), list(schema["properties"]), layer)
    elif error.validator == "required":
        for name in schema["required"]:
            if name not in instance:
                example = _example(schema["properties"][name], layer.source(path), name)
                yield _sentence(layer.source(path), _name(path), f"needs {name}{example}")
    elif "propertyNames" in error.absolute_schema_path:
        rest = f"is not a valid name: a name consists of {expected(schema)}{_example(schema, layer.source(path), '')}"
        yield _sentence(layer.source((*path, instance)), _name((*path, instance)), rest)
    else:
        source = layer.source(path)
        rest = f"must be {expected(schema)}, not {shown(path, instance)}"
        yield _sentence(source, _name(path), rest + _example(schema, source, path[-1] if path else ""))


def _unknown(path: SettingPath, known: Sequence[str], layer: Layer) -> str:
    *parents, last = path
    source, name = layer.source(path), str(last)
    is_client = parents[:1] in (["kafka"], ["clusters"])
    setting = _KINDS.get(str(path[0]), "a setting") if parents else "a setting"
    full_name = _name(path)
    if is_client and name in kafka.RESERVED:
        return _sentence(source, full_name, "is set by kafkasse itself: remove it.")
    if not parents and name in hooks.NAMES:
        return _sentence(source, full_name, "can be set only in code, because it is a function.")
    if not parents and name in schemas.read(SCHEMA)["$defs"]["kafka"]["properties"]:
        return _sentence(source, full_name, f"is not a setting: did you mean kafka.{name}?")
    if source.type == "variable":  # the user may have meant kafka_timeout_s, which is a setting of kafkasse
        variables = [*(f"kafka_{each}" for each in known), "kafka_timeout_s"]
        return _sentence(
            source, full_name, f"is not {setting}{names.suggestion(f'kafka_{name}', variables, names.PREFIX)}"
        )
    return _sentence(source, full_name, f"is not {setting}{names.suggestion(name, known)}")


def _sentence(source: Source, name: str, rest: str) -> str:
    if source.type == "file":
        return f"{source.text}: {name} {rest}"
    if source.type == "variable":
        return f"{source.text} {rest}"
    return f"The {'argument' if source.type == 'argument' else 'setting'} {name} {rest}"


def _name(path: SettingPath) -> str:
    """Return the name of a setting, such as routes.prices.topics[0]."""
    text = "".join(f"[{each}]" if isinstance(each, int) else f".{names.printable(str(each))}" for each in path)
    return text.removeprefix(".") or "configuration"


def expected(schema: Mapping[str, Any]) -> str:
    """Describe the valid values of a setting: `a whole number from 1 to 1000`."""
    if "x-expected" in schema:
        return str(schema["x-expected"])
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    types = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    return " or ".join(_expected_type(each, schema) for each in types)


def _expected_type(json_type: str, schema: Mapping[str, Any]) -> str:
    if json_type in ("integer", "number"):
        return ("a whole number" if json_type == "integer" else "a number") + _bounds(schema)
    descriptions = {"boolean": "true or false", "string": "text", "array": "a list", "object": "a mapping"}
    return descriptions.get(json_type, json_type)


def _bounds(schema: Mapping[str, Any]) -> str:
    low, above, high = (schema.get(each) for each in ("minimum", "exclusiveMinimum", "maximum"))
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
    return any(kafka.is_secret(str(each)) for each in path) and not (path[0] == "routes" and len(path) > 2)


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
        return {str(name): masked((*path, str(name)), each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [masked(path, each) for each in value]
    if isinstance(value, str):
        return kafka.without_credentials(value)
    return value if value is None or isinstance(value, int | float) else type(value).__name__


def _example(schema: Mapping[str, Any], source: Source, name: str | int) -> str:
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


def _problems_of_registries(layer: Layer) -> Iterator[str]:
    """Check that each decoder has a registry, that logins are complete, and that the files can be read."""
    general, others = layer.values["schema_registry"], layer.values["schema_registries"]
    if general is None:
        routes: list[SettingPath] = [
            ("routes", name, "decoder")
            for name, route in layer.values["routes"].items()
            if route.get("decoder", layer.values["decoder"]) == "registry" and route.get("cluster") not in others
        ]
        needs_general = routes or layer.values["allowed_topics"] or not layer.values["routes"]
        if layer.values["decoder"] == "registry" and needs_general:
            routes = [("decoder",)]
        for path in routes:
            rest = "is registry: set schema_registry too. Example: schema_registry: {url: https://registry.example}"
            yield _sentence(layer.source(path), _name(path), rest)
    else:
        yield from _problems_of_registry(("schema_registry",), general, layer)
    for cluster, registry in others.items():
        path = ("schema_registries", cluster)
        if cluster not in layer.values["clusters"]:
            rest = f"is the registry of an unknown cluster. Add {cluster} to clusters, or correct the name."
            yield _sentence(layer.source(path), _name(path), rest)
        yield from _problems_of_registry(path, registry, layer)


def _problems_of_registry(path: SettingPath, registry: Mapping[str, Any], layer: Layer) -> Iterator[str]:
    if ("username" in registry) != ("password_file" in registry):
        yield _sentence(layer.source(path), _name(path), "needs both username and password_file, or neither.")
    if "key_file" in registry and "cert_file" not in registry:
        rest = "needs cert_file too, because key_file is the key of a certificate."
        yield _sentence(layer.source(path), _name(path), rest)
    for name in registry.keys() & {"password_file", "ca_file", "cert_file", "key_file"}:
        if reason := kafka.unreadable(registry[name]):
            file = (*path, name)
            yield _sentence(layer.source(file), _name(file), f"names a file that cannot be read: {reason}.")


def _problems_of_archives(layer: Layer) -> Iterator[str]:
    """Check that each archive belongs to a cluster."""
    for cluster in layer.values["archives"].keys() - layer.values["clusters"].keys():
        path = ("archives", cluster)
        rest = f"is the archive of an unknown cluster. Add {cluster} to clusters, or correct the name."
        yield _sentence(layer.source(path), _name(path), rest)


def problems_of_access(layer: Layer) -> Iterator[str]:
    """Yield a sentence for each stream for which the configuration does not say who may read it."""
    for path, rest in access.undecided(layer.values):
        yield _sentence(layer.source(path), _name(path), rest)


def _problems_of_console(layer: Layer) -> Iterator[str]:
    if layer.values["console"] and layer.values["catalog"] is False:
        rest = "needs the catalog, which lists the streams: remove catalog: false, or set console: false."
        yield _sentence(layer.source(("console",)), "console", rest)


def _problems_of_groups(layer: Layer) -> Iterator[str]:
    if not layer.values["topic_groups"]:
        return
    from kafkasse.route import Route  # here, so that `kafkasse load` does not import the modules that routes need

    route = Route(OPEN_ROUTE, OPEN_PATH, None, tuple(layer.values["allowed_topics"]), layer.values["topic_prefix"])
    for name, topics in layer.values["topic_groups"].items():
        for number, topic in enumerate(topics):
            if not route.allows(topic):
                path = ("topic_groups", name, number)
                rest = f"is {topic!r}, which clients may not read: add it to allowed_topics."
                yield _sentence(layer.source(path), _name(path), rest)


def _problems_of_routes(layer: Layer) -> Iterator[str]:
    first_with_path = {_shape(OPEN_PATH): "/{topics}"}
    for name, route in layer.values["routes"].items():
        if name == OPEN_ROUTE:
            rest = "is the name of the route /{topics}: choose another name."
            yield _sentence(layer.source(("routes", name)), f"routes.{name}", rest)
        problems = list(_problems_of_route(route, layer.values))
        first = first_with_path.setdefault(_shape(route["path"]), f"routes.{name}")
        if first != f"routes.{name}":
            rest = f"is {route['path']!r}, which matches the same URLs as {first}: choose another path."
            problems.append(("path", rest))
        for setting, rest in problems:
            yield _sentence(layer.source(("routes", name, setting)), f"routes.{name}.{setting}", rest)


def _problems_of_route(route: Mapping[str, Any], general: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield, for each setting of a route that cannot work, its name and the rest of a sentence that starts with the name."""
    if problem := _problem_of_path(route["path"]):
        yield "path", problem
    if "cluster" in route and route["cluster"] not in general["clusters"]:
        known = list(general["clusters"])
        suggestion = names.suggestion(route["cluster"], known) if known else ". There are none."
        yield "cluster", f"is {shown((), route['cluster'])}, which is not one of the clusters{suggestion}"
    if problem := _problem_of_start(route.get("start", "latest")):
        yield "start", problem
    for limit in ("max_streams", "max_streams_per_client"):
        if route.get(limit, 0) > general[limit]:
            all_routes = f"the setting {limit} allows {general[limit]} for all routes together"
            yield limit, f"is {route[limit]}, but {all_routes}: lower the one, or raise the other."


def _problems_of_filters(layer: Layer) -> Iterator[str]:
    routes = layer.values["routes"]
    client_filters: dict[SettingPath, Any] = {("client_filters",): layer.values["client_filters"]}
    client_filters |= {
        ("routes", name, "client_filters"): each.get("client_filters", ()) for name, each in routes.items()
    }
    if not any(client_filters.values()) and not any("where" in each for each in routes.values()):
        return  # without importing what filters need
    from kafkasse.records.filter import expression, where

    for setting, filters in client_filters.items():
        if "filter" in filters and not expression.is_installed():
            yield _sentence(layer.source(setting), _name(setting), f"contains filter. {expression.NOT_INSTALLED}")
    for name, route in routes.items():
        has_guards = route.get("access", layer.values.get("access")) not in (None, "public", [], ())
        for path, rest in where.problems(route.get("where", {}), _PARAMETER.findall(route["path"]), has_guards):
            setting = ("routes", name, "where", *path)
            yield _sentence(layer.source(setting), _name(setting), rest)


def _shape(path: str) -> str:
    """Return a path without the names of its parameters. Two routes with the same shape match the same requests."""
    return _PARAMETER.sub("{}", path).rstrip("/")


def _problem_of_path(path: str) -> str:
    """Return the rest of a sentence that starts with the name of the setting, or "" if the path is valid."""
    parameters = _PARAMETER.findall(path)
    if path.startswith(OWN_PATHS):
        return f"is {path!r}, but paths that start with {OWN_PATHS} belong to kafkasse itself: choose another path."
    for name in RESERVED_PARAMETERS:
        if name in parameters:
            return f"has the parameter {{{name}}}, whose name kafkasse uses itself: choose another name."
    repeated = next((each for each in parameters if parameters.count(each) > 1), None)
    return f"has the parameter {{{repeated}}} twice: choose another name for one of them." if repeated else ""


def _problems_of_parameters(layer: Layer) -> Iterator[str]:
    """Check that something uses each path parameter, and that grants refer to no others."""
    for name, route in layer.values["routes"].items():
        parameters = set(_PARAMETER.findall(route["path"]))
        access = route.get("access", layer.values["access"])
        grants = [{"guard": each} if isinstance(each, str) else each for each in access if access != PUBLIC]
        in_grants = _references([each.get("claims", {}) for each in grants])
        if "access" in route and (unknown := sorted(in_grants - parameters)):
            rest = f"contains {{{unknown[0]}}}, which is not a parameter of the path {route['path']!r}."
            yield _sentence(layer.source(("routes", name, "access")), f"routes.{name}.access", rest)
        if any(callable(layer.values["guards"][each["guard"]]) for each in grants):
            continue  # the function can read the parameters of the request
        for parameter in sorted(parameters - in_grants - _references(route.get("where", {}))):
            rest = (
                f'has the parameter {{{parameter}}}, which no setting uses. Example: where: {{key: "{{{parameter}}}"}}'
            )
            yield _sentence(layer.source(("routes", name, "path")), f"routes.{name}.path", rest)


def _references(value: Any) -> set[str]:
    """Return the names in braces in the texts of a setting, such as `currency` for {currency}."""
    if isinstance(value, str):
        return set(_PARAMETER.findall(value))
    if isinstance(value, Mapping):
        value = list(value.values())
    return set().union(*map(_references, value)) if isinstance(value, list | tuple) else set()


def _problem_of_start(start: str) -> str:
    if start in STARTS:
        return ""
    try:
        parse_start_time(start)
    except ValueError:
        schema = schemas.read(SCHEMA)["$defs"]["route"]["properties"]["start"]
        return f"must be {expected(schema)}, not {shown((), start)}. Example: start: -15m"
    return ""
