"""The ID of a request, which error responses, log lines and the response header contain.

A proxy or client may send it in X-Request-ID or traceparent (W3C Trace Context). Otherwise, it is random.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import MutableMapping
from typing import Any

HEADER = "X-Request-ID"
MAX_CHARS = 64
_ENVIRON_KEY = "kafkasse.request_id"
_VALID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_CHARS - 1}}}")
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


def request_id(environ: MutableMapping[str, Any]) -> str:
    """Return the ID of the request with this WSGI environ. It is the same for each call.

    An ID with other characters than letters, digits, dots, underscores and hyphens is replaced, because it appears in logs
    and in a response header.
    """
    own_id: str | None = environ.get(_ENVIRON_KEY)
    if own_id is None:
        environ[_ENVIRON_KEY] = own_id = _accepted(environ) or new_id()
    return own_id


def new_id() -> str:
    """Return a random ID."""
    return secrets.token_hex(8)


def _accepted(environ: MutableMapping[str, Any]) -> str | None:
    if match := _VALID.fullmatch(environ.get("HTTP_X_REQUEST_ID", "")):
        return match[0]
    if match := _TRACEPARENT.fullmatch(environ.get("HTTP_TRACEPARENT", "")):
        return match[1]
    return None
