"""Response headers: protection against sniffing and caching, and CORS, which lets pages of other origins read the streams.

This module does not import Flask, because the worker imports it before it loads the app.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Without nosniff, a browser could run a producer's data, or a name that an error message repeats, as a script or a page.
NO_SNIFFING = {"X-Content-Type-Options": "nosniff"}
DEFAULT_HEADERS = {"Cache-Control": "no-store", **NO_SNIFFING}
NOT_STORED = "private, no-store"  # the Cache-Control of a response that is only for one visitor
STREAM_HEADERS = {"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no", **NO_SNIFFING}
READ_METHODS = "GET, HEAD, OPTIONS"
# The methods of our URL rules, also those that we reject, because Flask's own 405 response lacks our JSON body.
ALL_METHODS = ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"]
ANY = "*"
MAX_ACCEPT_CHARS = 2048  # of Accept and of Accept-Encoding; parsing 32 KB takes 50 ms
# A page cannot read other headers of our responses, and needs none of them.
_EXPOSED = {
    "Access-Control-Expose-Headers": "ETag, Link, Retry-After, Stream-Cursor, Stream-Next-Offset, Stream-Up-To-Date, "
    "X-Request-ID"
}
_PREFLIGHT = {
    "Access-Control-Allow-Methods": READ_METHODS,
    # Content-Type, so that a page that sends POST with JSON can read the error that shows the GET request to send instead.
    "Access-Control-Allow-Headers": "Last-Event-ID, Cache-Control, Authorization, Content-Type, If-None-Match",
    "Access-Control-Max-Age": "86400",
}


@dataclass(frozen=True, slots=True)
class CorsPolicy:
    """The origins whose pages may read the streams of one blueprint or route."""

    origins: tuple[str, ...]  # or ANY
    credentials: bool = False  # whether browsers may send cookies and other credentials with these requests

    def allows_credentials(self, origin: str | None) -> bool:
        """Return whether a page of this origin may send cookies."""
        return self.credentials and origin in self.origins

    def headers(self, origin: str | None, is_preflight: bool = False) -> Mapping[str, str]:
        """Return the headers of a response. `Vary` is included if another origin would get other headers."""
        if ANY in self.origins:
            allowed = {"Access-Control-Allow-Origin": ANY}
        elif origin in self.origins:
            allowed = {"Access-Control-Allow-Origin": str(origin), "Vary": "Origin"}
            if self.credentials:
                allowed["Access-Control-Allow-Credentials"] = "true"
        else:
            return {"Vary": "Origin"} if self.origins else {}
        return allowed | (_PREFLIGHT if is_preflight else _EXPOSED)
