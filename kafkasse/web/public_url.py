"""The URL at which clients reach the server, as the nearest of your own proxies describes it.

It appears only in what the server says about itself: the catalog, the documents, and the links to them and to the errors. A
client can send these headers itself, and a proxy that does not replace them forwards them. Only the last value of a header
counts, and only if it is a valid scheme, host or path. Without trusted proxies, all of these headers are ignored.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from flask import Request

from kafkasse.process.limits import TrustedProxies

MAX_CHARS = 300
FORWARDED_PREFIX = "HTTP_X_FORWARDED_PREFIX"  # in the WSGI environ
_SCHEME = re.compile("https?")
_HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]+)?")
_PREFIX = re.compile(r"(?:/(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._~-]+)+/?")  # without the segments "." and ".."


class PublicUrl(NamedTuple):
    """The parts of the URL. `prefix` is the path that the proxy removed, without a slash at the end, or ""."""

    scheme: str
    host: str
    prefix: str

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.host}"


def public_url(request: Request, proxies: TrustedProxies) -> PublicUrl:
    """Return the URL of the server in this request."""
    # The app has a ProxyFix of its own, which has changed the request already.
    is_fixed = "werkzeug.proxy_fix.orig" in request.environ
    if is_fixed or not proxies.forwarded(request.remote_addr or "", request.headers.get("X-Forwarded-For", "")):
        return PublicUrl(request.scheme, request.host, "")

    def forwarded(name: str, pattern: re.Pattern[str], default: str) -> str:
        value = request.headers.get(f"X-Forwarded-{name}", "").rpartition(",")[2].strip()
        return value if len(value) <= MAX_CHARS and pattern.fullmatch(value) else default

    prefix = forwarded("Prefix", _PREFIX, "").rstrip("/")
    if f"{request.root_path}/".startswith(f"{prefix}/"):  # other middleware has added it
        prefix = ""
    return PublicUrl(forwarded("Proto", _SCHEME, request.scheme), forwarded("Host", _HOST, request.host), prefix)
