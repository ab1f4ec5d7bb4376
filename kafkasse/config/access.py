"""Checks the settings of access that depend on each other: guards, the access of each route, and CORS. Reads no files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from kafkasse.access.grant import PUBLIC
from kafkasse.config import names
from kafkasse.config.sources import SettingPath

Problem = tuple[SettingPath, str]  # the path of a setting, and the rest of a sentence that starts with its name

KEY_SOURCES = ("jwks_url", "jwks_file", "secret_file")
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
_WHOLE_SERVER = "If everyone may read all streams of this server, set public: true (KAFKASSE_PUBLIC=true)."


def problems(values: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problems of settings whose types have been checked."""
    for name, guard in values["guards"].items():
        if not callable(guard):
            yield from _problems_of_guard(("guards", name), guard)
    if values["public"] and values["access"]:
        yield ("public",), "cannot be true if access is set: remove one of them."
    for path, access in _accesses(values):
        for number, entry in enumerate(access):
            guard = entry if isinstance(entry, str) else entry["guard"]
            if guard == PUBLIC and path == ("operations_access",):
                continue
            if guard not in values["guards"]:
                known = ", ".join(values["guards"]) or "none"
                yield (
                    (*path, number),
                    f"is {names.printable(guard)}, which is not one of the guards. They are: {known}.",
                )
    for path, settings in [((), values), *((("routes", name), each) for name, each in values["routes"].items())]:
        yield from _problems_of_cors(path, {**values, **settings})


def undecided(values: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem for each stream for which the configuration does not say who may read it."""
    if values["public"] or values["access"]:
        return
    for name, route in values["routes"].items():
        if "access" not in route:
            rest = f"does not say who may read it: add access: [GUARD] or access: public. {_WHOLE_SERVER}"
            yield ("routes", name), rest
    if values["allowed_topics"]:
        yield ("allowed_topics",), f"does not say who may read these topics: set access: [GUARD]. {_WHOLE_SERVER}"


def _accesses(values: Mapping[str, Any]) -> Iterator[tuple[SettingPath, list[Any]]]:
    yield ("access",), values["access"]
    yield ("operations_access",), values["operations_access"]
    for name, route in values["routes"].items():
        if isinstance(route.get("access"), list | tuple):
            yield ("routes", name, "access"), route["access"]


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
        is_local = parts.hostname in LOCAL_HOSTS
    except ValueError:
        return False
    return (
        bool(parts.hostname) and "@" not in parts.netloc and parts.scheme in ("https", "http" if is_local else "https")
    )


def _problems_of_cors(path: SettingPath, settings: Mapping[str, Any]) -> Iterator[Problem]:
    """Check that cors_origins lists each origin if pages may send credentials. Any page can have the origin `null`."""
    unlisted = [origin for origin in ("*", "null") if origin in settings["cors_origins"]]
    if settings["cors_credentials"] and unlisted:
        rest = f"cannot be true while cors_origins contains {unlisted[0]}: list the origins instead."
        yield (*path, "cors_credentials"), rest
