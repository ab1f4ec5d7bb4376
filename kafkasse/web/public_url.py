"""The URL at which clients reach the server, as the nearest of your own proxies describes it, and the paths of a blueprint.

The URL appears only in the catalog, the documents, and the links to them and to the errors. A client can send the headers
X-Forwarded-* itself, and a proxy that does not replace them forwards them. Only the last value of a header counts, and only
if it is a valid scheme, host or path. Without trusted proxies, all of these headers are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from sys import intern
from typing import NamedTuple

from flask import Blueprint, Request, current_app, url_for

from kafkasse.process.limits import TrustedProxies
from kafkasse.route import Route
from kafkasse.web.request import current_request

MAX_CHARS = 300
MAX_ROOTS = 100  # the number of cached roots; a proxy could send a new prefix with each request
OPENAPI_TYPE = "application/vnd.oai.openapi+json;version=3.2"
ASYNCAPI_TYPE = "application/vnd.aai.asyncapi+json;version=3.0.0"
PROBLEM_ENDPOINT = "-problem"  # no route can have this name, because that of a route starts with a letter
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


class BlueprintUrls:
    """The URLs of one blueprint for the client of the current request.

    Args:
        has_catalog: whether responses link to the documents of the catalog.

    Attributes:
        name: the name under which an app has registered it.
    """

    blueprint: Blueprint | None = None
    name = ""

    def __init__(self, proxies: TrustedProxies, has_catalog: bool) -> None:
        self._proxies = proxies
        self._has_catalog = has_catalog
        self._roots: dict[tuple[Hashable, ...], str] = {}  # see root

    def public(self) -> PublicUrl:
        """Return the URL of the server."""
        return public_url(current_request(), self._proxies)

    @property
    def root(self) -> str:
        """The URL path of the blueprint, without a slash at the end."""
        root = self._root_in_app()
        return self.public().prefix + root if FORWARDED_PREFIX in current_request().environ else root

    def _root_in_app(self) -> str:
        app, current = current_app._get_current_object(), current_request()  # type: ignore[attr-defined]
        key = app, current.blueprint, current.root_path
        if (root := self._roots.get(key)) is not None:
            return root
        # An error that Flask raises, such as 404, belongs to no blueprint or to that of the demo's page.
        is_own = app.blueprints.get(current.blueprint or "") is self.blueprint
        endpoint = f"{current.blueprint if is_own else self.name}.{PROBLEM_ENDPOINT}"
        (rule,) = app.url_map.iter_rules(endpoint)
        arguments = current.view_args or {}
        if not arguments.keys() >= rule.arguments - {"problem"} and (adapter := app.create_url_adapter(current)):
            _, arguments = adapter.match()  # the app's url_value_preprocessor() has removed some
        values = {name: value for name, value in arguments.items() if name in rule.arguments}
        # The app's url_defaults() may add values of the current visitor to the query.
        path = url_for(endpoint, **values | {"problem": "x"}).partition("?")[0]
        root = path.removesuffix("/-/problems/x")
        # The app may have registered the blueprint at a prefix that contains parameters.
        if rule.arguments == {"problem"} and root != path and len(self._roots) < MAX_ROOTS:
            self._roots[key] = root
        return root

    def problem_types(self, root: str | None = None) -> str:
        """Return the start of the `type` of an error: the URL path of the pages of errors. See links() for `root`."""
        return intern(f"{self.root if root is None else root}/-/problems/")  # each open stream has it

    def links(self, route: Route | None = None, root: str | None = None) -> dict[str, str]:
        """Return the header that links a response to the documents that describe the server and, if given, a route.

        `root` is the value of the property, if the caller has read it before.
        """
        if not self._has_catalog:
            return {}
        root = self.root if root is None else root
        described_by = f', <{root}/-/catalog#{route.name}>; rel="describedby"; type="text/html"' if route else ""
        return {
            "Link": f'<{root}/-/openapi.json>; rel="service-desc"; type="{OPENAPI_TYPE}", '
            f'<{root}/-/asyncapi.json>; rel="service-desc"; type="{ASYNCAPI_TYPE}", '
            f'<{root}/-/catalog>; rel="service-doc"; type="text/html"{described_by}'
        }
