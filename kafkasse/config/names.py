"""The names that a configuration may use: variables that are not settings, and suggestions for typos.

schemas/config.schema.json defines the settings themselves. This module does not read any configuration.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from kafkasse import config_file

PREFIX = "KAFKASSE_"
KAFKA_PREFIX = "KAFKASSE_KAFKA_"
SERVERS_VARIABLE = "KAFKASSE_BOOTSTRAP_SERVERS"
DOCS = "docs/configuration.md"

OTHER_VARIABLES = (
    config_file.VARIABLE, SERVERS_VARIABLE, "KAFKASSE_BIND", "KAFKASSE_OPERATIONS_BIND", "KAFKASSE_RUNTIME_DIR",
    "KAFKASSE_LOG_LEVEL", "KAFKASSE_LOG_FORMAT", "KAFKASSE_ACCESS_LOG", "KAFKASSE_CACHE_DIR", "KAFKASSE_IVY_SETTINGS",
)  # fmt: skip

# The variables to suggest if a user sets KAFKASSE_PORT or KAFKASSE_WORKERS.
WITHOUT_PREFIX = {"port": "PORT or KAFKASSE_BIND", "workers": "WEB_CONCURRENCY"}

# Kubernetes sets such variables in every pod, for each service. Those of a service called `kafkasse` must not be errors.
_KUBERNETES_NAME = re.compile(
    r"KAFKASSE_([A-Z0-9_]+_)?(SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|PORT_\d+_(TCP|UDP|SCTP)(_[A-Z]+)?)"
)
_KUBERNETES_PORT = re.compile(r"KAFKASSE_([A-Z0-9_]+_)?PORT")
_KUBERNETES_URL = re.compile(r"(tcp|udp|sctp)://")


def printable(name: str) -> str:
    """Return the part of a name that an error message may contain: up to the first character that names do not have.

    In YAML, `{ssl_password:secret}` is a name without a value, so a name that a user mistyped may contain a secret.
    """
    start = re.match(r"[A-Za-z0-9_.-]{0,60}", name)
    return name if start and start[0] == name else f"{start[0] if start else ''}…"


def is_from_kubernetes(name: str, value: str) -> bool:
    """Return whether a variable describes a Kubernetes service whose name starts with `kafkasse`."""
    is_port = _KUBERNETES_PORT.fullmatch(name) and _KUBERNETES_URL.match(value)
    return bool(is_port or _KUBERNETES_NAME.fullmatch(name))


def suggestion(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return `: did you mean NAME?` with the known name that is most similar to `name`, or a link to the documentation.

    A name with all words of `name` is preferred: sasl_password means sasl_plain_password rather than ssl_password.
    """
    words = set(name.lower().split("_"))
    close = sorted(get_close_matches(name.lower(), list(known)), key=lambda match: not words <= {*match.split("_")})
    if not close:
        return f". See {DOCS} for all settings."
    return f": did you mean {prefix + (close[0].upper() if prefix else close[0])}?"
