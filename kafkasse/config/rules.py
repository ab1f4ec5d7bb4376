"""The rules of settings that depend on each other. The types of the settings have been checked.

A problem is the path of a setting, and the rest of a sentence that starts with the name of the setting.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_network
from typing import Any
from urllib.parse import urlsplit

from kafkasse import schemas
from kafkasse.access.grant import PUBLIC
from kafkasse.config import kafka, names
from kafkasse.config.messages import example, expected, shown
from kafkasse.config.sources import SCHEMA, Layer, SettingPath
from kafkasse.config.times import parse_start_time

Problem = tuple[SettingPath, str]
SettingValues = Mapping[str, Any]

OPEN_ROUTE = "topics"
OPEN_PATH = "/{topics}"
OWN_PATHS = "/-/"  # of health, metrics and the like
RESERVED_PARAMETERS = ("claims", "topics")  # {claims.sub} is a claim; {topics} is the parameter of the open route
STARTS = ("latest", "earliest", "snapshot")
KEY_SOURCES = ("jwks_url", "jwks_file", "secret_file")
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")

_PARAMETER = re.compile(r"\{(\w+)\}")
_WHOLE_SERVER = "If everyone may read all streams of this server, set public: true (KAFKASSE_PUBLIC=true)."


def problems(layer: Layer) -> Iterator[Problem]:
    """Yield the problems of a configuration."""
    others = [problem for check in _CHECKS for problem in check(layer.values)]
    yield from [*_problems_of_clients(layer), *_problems_of_proxies(layer), *others] or _problems_of_parameters(
        layer.values
    )


# Kafka and the address of the client.


def _problems_of_clients(layer: Layer) -> Iterator[Problem]:
    """Check the settings of kafka-python's client for each cluster."""
    properties = schemas.read(SCHEMA)["$defs"]["kafka"]["properties"]
    clients: dict[SettingPath, SettingValues] = {("kafka",): layer.values["kafka"]}
    clients |= {("clusters", name): settings for name, settings in layer.values["clusters"].items()}
    for client, settings in clients.items():
        if client != ("kafka",) and "bootstrap_servers" not in settings:
            yield client, 'needs bootstrap_servers. Example: bootstrap_servers: ["kafka-eu.example:9093"]'
        only_code = [
            (*client, name)
            for name, value in settings.items()
            if properties[name].get("x-code-only") and not isinstance(value, kafka.PemCertificates)
        ]
        misplaced = [path for path in only_code if layer.source(path).type in ("file", "variable")]
        for path in misplaced:
            yield path, "can be set only in code, because it is a Python object."
        for name, rest in [] if misplaced else kafka.problems(settings):
            yield (*client, name), rest


def _problems_of_proxies(layer: Layer) -> Iterator[Problem]:
    """Check that trusted_proxies contains networks, and none that contains all addresses."""
    proxies = layer.values["trusted_proxies"]
    for number, text in enumerate([] if isinstance(proxies, int) else proxies):
        path = ("trusted_proxies", number)
        try:
            network = ip_network(text)
        except ValueError:
            schema = schemas.read(SCHEMA)["properties"]["trusted_proxies"]["items"]
            yield path, f"must be {expected(schema)}, not {shown(path, text)}{example(schema, layer.source(path))}"
        else:
            if not network.prefixlen:
                yield path, f"is {text!r}, which contains all addresses, so any client could forge its address."


# Access.


def _problems_of_access(values: SettingValues) -> Iterator[Problem]:
    for name, guard in values["guards"].items():
        if not callable(guard):
            yield from _problems_of_guard(("guards", name), guard)
    if PUBLIC in values["guards"] and PUBLIC in values["operations_access"]:
        yield ("operations_access",), "contains public, which means everyone, not the guard public: rename the guard."
    if values["public"] and values["access"]:
        yield ("public",), "cannot be true if access is set: remove one of them."
    for path, access in _accesses(values):
        for number, entry in enumerate(access):
            guard = entry if isinstance(entry, str) else entry["guard"]
            if guard not in values["guards"] and (guard, path) != (PUBLIC, ("operations_access",)):
                known = (
                    ", ".join(values["guards"])
                    or "none. Define it in guards, or pass it in code to Config.load(guards=…)"
                )
                rest = f"is {names.printable(guard)}, which is not one of the guards. They are: {known}."
                yield (*path, number), rest


def undecided_access(values: SettingValues) -> Iterator[Problem]:
    """Yield a problem for each stream for which the configuration does not say who may read it."""
    if values["public"] or values["access"]:
        return
    for name, route in values["routes"].items():
        if "access" not in route:
            rest = f"does not say who may read it: add access: [GUARD] or access: public. {_WHOLE_SERVER}"
            yield ("routes", name), rest
    if values["allowed_topics"]:
        yield ("allowed_topics",), f"does not say who may read these topics: set access: [GUARD]. {_WHOLE_SERVER}"


def _accesses(values: SettingValues) -> Iterator[tuple[SettingPath, list[Any]]]:
    yield ("access",), values["access"]
    yield ("operations_access",), values["operations_access"]
    for name, route in values["routes"].items():
        if isinstance(route.get("access"), list | tuple):
            yield ("routes", name, "access"), route["access"]


def _has_guards(route: SettingValues, general: SettingValues) -> bool:
    return route.get("access", general["access"]) not in (PUBLIC, [], ())


def _problems_of_guard(path: SettingPath, guard: Any) -> Iterator[Problem]:
    if not isinstance(guard, Mapping) or ("jwt" in guard) == ("api_keys" in guard):
        yield path, "must be a mapping with either jwt or api_keys."
        return
    if (jwt := guard.get("jwt")) is None:
        return
    given = [name for name in KEY_SOURCES if name in jwt]
    if len(given) != 1:
        yield (*path, "jwt"), f"must contain exactly one of {', '.join(KEY_SOURCES)}."
        return
    is_secret = given == ["secret_file"]
    for number, algorithm in enumerate(jwt["algorithms"]):
        if algorithm.startswith("HS") != is_secret:
            source = "secret_file" if algorithm.startswith("HS") else "jwks_url or jwks_file"
            yield (*path, "jwt", "algorithms", number), f"is {algorithm}, which needs {source} instead of {given[0]}."
    if "jwks_url" in jwt and not _is_safe(jwt["jwks_url"]):
        rest = "must start with https://, unless it is a URL of this machine, and must not contain a password."
        yield (*path, "jwt", "jwks_url"), f"{rest} Example: https://id.example/jwks.json"


def _is_safe(url: str) -> bool:
    """Return whether nobody on the network can replace what the URL returns."""
    try:
        parts = urlsplit(url)
        schemes = ("https", "http") if parts.hostname in LOCAL_HOSTS else ("https",)
    except ValueError:
        return False
    return bool(parts.hostname) and "@" not in parts.netloc and parts.scheme in schemes


def _problems_of_cors(values: SettingValues) -> Iterator[Problem]:
    """Check that cors_origins lists each origin if pages may send credentials. Any page can have the origin `null`."""
    routes: dict[SettingPath, SettingValues] = {("routes", name): route for name, route in values["routes"].items()}
    general: dict[SettingPath, SettingValues] = {(): {}}
    for path, settings in (general | routes).items():
        settings = {**values, **settings}
        unlisted = [origin for origin in ("*", "null") if origin in settings["cors_origins"]]
        if settings["cors_credentials"] and unlisted:
            rest = f"cannot be true while cors_origins contains {unlisted[0]}: list the origins instead."
            yield (*path, "cors_credentials"), rest


# Routes.


def _problems_of_filters(values: SettingValues) -> Iterator[Problem]:
    routes = values["routes"]
    client_filters: dict[SettingPath, Any] = {("client_filters",): values["client_filters"]}
    client_filters |= {
        ("routes", name, "client_filters"): route.get("client_filters", ()) for name, route in routes.items()
    }
    if not any(client_filters.values()) and not any("where" in route for route in routes.values()):
        return  # without importing what filters need
    from kafkasse.records.filter import expression, where

    for path, filters in client_filters.items():
        if "filter" in filters and not expression.is_installed():
            yield path, f"contains filter. {expression.NOT_INSTALLED}"
    for name, route in routes.items():
        parameters, has_guards = _PARAMETER.findall(route["path"]), _has_guards(route, values)
        for path, rest in where.problems(route.get("where", {}), parameters, has_guards):
            yield ("routes", name, "where", *path), rest


def _problems_of_routes(values: SettingValues) -> Iterator[Problem]:
    first_with_path = {_shape(OPEN_PATH): OPEN_PATH}
    for name, route in values["routes"].items():
        if name == OPEN_ROUTE:
            yield ("routes", name), "is the name of the route /{topics}: choose another name."
        for setting, rest in _problems_of_route(route, values):
            yield ("routes", name, setting), rest
        first = first_with_path.setdefault(_shape(route["path"]), f"routes.{name}")
        if first != f"routes.{name}":
            rest = f"is {route['path']!r}, which matches the same URLs as {first}: choose another path."
            yield ("routes", name, "path"), rest


def _problems_of_route(route: SettingValues, general: SettingValues) -> Iterator[tuple[str, str]]:
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
    repeated = next((name for name in parameters if parameters.count(name) > 1), None)
    return f"has the parameter {{{repeated}}} twice: choose another name for one of them." if repeated else ""


def _problem_of_start(start: str) -> str:
    try:
        if start not in STARTS:
            parse_start_time(start)
    except ValueError:
        schema = schemas.read(SCHEMA)["$defs"]["route"]["properties"]["start"]
        return f"must be {expected(schema)}, not {shown((), start)}. Example: start: -15m"
    return ""


def _problems_of_parameters(values: SettingValues) -> Iterator[Problem]:
    """Check that something uses each path parameter, and that grants refer to no others."""
    for name, route in values["routes"].items():
        parameters = set(_PARAMETER.findall(route["path"]))
        access = route.get("access", values["access"])
        grants = [{"guard": entry} if isinstance(entry, str) else entry for entry in access if access != PUBLIC]
        in_grants = _references([grant.get("claims", {}) for grant in grants])
        if "access" in route and (unknown := sorted(in_grants - parameters)):
            rest = f"contains {{{unknown[0]}}}, which is not a parameter of the path {route['path']!r}."
            yield ("routes", name, "access"), rest
        if any(callable(values["guards"][grant["guard"]]) for grant in grants):
            continue  # the function can read the parameters of the request
        for parameter in sorted(parameters - in_grants - _references(route.get("where", {}))):
            where = f'where: {{key: "{{{parameter}}}"}}'
            yield (
                ("routes", name, "path"),
                f"has the parameter {{{parameter}}}, which no setting uses. Example: {where}",
            )


def _references(value: Any) -> set[str]:
    """Return the names in braces in the texts of a setting, such as `currency` for {currency}."""
    if isinstance(value, str):
        return set(_PARAMETER.findall(value))
    if isinstance(value, Mapping):
        value = list(value.values())
    return set().union(*map(_references, value)) if isinstance(value, list | tuple) else set()


# Other settings.


def _problems_of_registries(values: SettingValues) -> Iterator[Problem]:
    """Check that each decoder has a registry, that logins are complete, and that the files can be read."""
    general, others = values["schema_registry"], values["schema_registries"]
    registries: dict[SettingPath, SettingValues] = {
        ("schema_registries", name): registry for name, registry in others.items()
    }
    if general is not None:
        registries = {("schema_registry",): general} | registries
    elif values["decoder"] == "registry" and (values["allowed_topics"] or not values["routes"]):
        yield ("decoder",), _NEEDS_REGISTRY
    else:
        for name, route in values["routes"].items():
            if route.get("decoder", values["decoder"]) == "registry" and route.get("cluster") not in others:
                yield ("routes", name, "decoder") if values["decoder"] != "registry" else ("decoder",), _NEEDS_REGISTRY
    for path, registry in registries.items():
        if ("username" in registry) != ("password_file" in registry):
            yield path, "needs both username and password_file, or neither."
        if "key_file" in registry and "cert_file" not in registry:
            yield path, "needs cert_file too, because key_file is the key of a certificate."
        for name in registry.keys() & {"password_file", "ca_file", "cert_file", "key_file"}:
            if reason := kafka.unreadable(registry[name]):
                yield (*path, name), f"names a file that cannot be read: {reason}."


_NEEDS_REGISTRY = "is registry: set schema_registry too. Example: schema_registry: {url: https://registry.example}"


def _problems_of_clusters(values: SettingValues) -> Iterator[Problem]:
    """Check that mappings by clusters name no unknown cluster."""
    for setting, noun in (("schema_registries", "registry"), ("archives", "archive")):
        for cluster in values[setting].keys() - values["clusters"].keys():
            rest = f"is the {noun} of an unknown cluster. Add {cluster} to clusters, or correct the name."
            yield (setting, cluster), rest


def _problems_of_console(values: SettingValues) -> Iterator[Problem]:
    if values["console"] and values["catalog"] is False:
        rest = "needs the catalog, which lists the streams: remove catalog: false, or set console: false."
        yield ("console",), rest


def _problems_of_groups(values: SettingValues) -> Iterator[Problem]:
    if not values["topic_groups"]:
        return
    from kafkasse.route import Route  # here, so that `kafkasse load` does not import the modules that routes need

    route = Route(OPEN_ROUTE, OPEN_PATH, None, tuple(values["allowed_topics"]), values["topic_prefix"])
    for name, topics in values["topic_groups"].items():
        for number, topic in enumerate(topics):
            if not route.allows(topic):
                rest = f"is {topic!r}, which clients may not read: add it to allowed_topics."
                yield ("topic_groups", name, number), rest


_CHECKS: tuple[Callable[[SettingValues], Iterator[Problem]], ...] = (
    _problems_of_access, _problems_of_cors, _problems_of_filters, _problems_of_routes, _problems_of_registries,
    _problems_of_groups, _problems_of_console, _problems_of_clusters,
)  # fmt: skip
