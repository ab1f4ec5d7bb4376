"""The catalog of a blueprint: a list of its streams, an OpenAPI and an AsyncAPI document, and a page for each error.

The catalog shows a visitor only streams that the visitor may know of: those whose guards accept the credentials of the
request. A public stream needs no credentials. The setting `listed` of a route overrides this. The pages of errors are always
served, because the `type` of an error is the URL path of its page.

The pages work without scripts, and their Content-Security-Policy forbids everything but their own style.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Callable
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

from flask import Blueprint, Response, request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from kafkasse.access import PUBLIC
from kafkasse.errors import MethodNotAllowed, NotFound, pages
from kafkasse.route import Route
from kafkasse.web.console import Console
from kafkasse.web.describe.asyncapi import asyncapi
from kafkasse.web.describe.openapi import openapi
from kafkasse.web.describe.security import schemes_of
from kafkasse.web.describe.streams import StreamDescription, describe
from kafkasse.web.headers import DEFAULT_HEADERS, MAX_ACCEPT_CHARS
from kafkasse.web.public_url import ASYNCAPI_TYPE, OPENAPI_TYPE, PROBLEM_ENDPOINT
from kafkasse.web.responder import json_response
from kafkasse.web.service import RULE_OPTIONS, StreamService
from kafkasse.web.value_schemas import ValueSchemas

TEMPLATES = Path(__file__).parent / "templates"
MAX_DOCUMENTS = 32  # in the cache; they differ by the streams that the visitor may see
_HEADERS = {"token": ' -H "Authorization: Bearer $TOKEN"', "cookie": ' -H "Cookie: $COOKIE"', "": ""}
_CODE = re.compile("`([^`]*)`")


class Catalog:
    """Describes the streams of one blueprint."""

    def __init__(self, service: StreamService, schemas: ValueSchemas) -> None:
        self._service = service
        self._schemas = schemas
        self._console: Console | None = None
        self._document = lru_cache(MAX_DOCUMENTS)(self._create_document)

    def add_rules(self, blueprint: Blueprint, catalog: bool, console: bool) -> None:
        """Add the URLs to a blueprint: those of the catalog and of the console only if they are on."""
        rules = {"/-/problems/<problem>": (PROBLEM_ENDPOINT, self._problem_page)}
        if catalog:
            rules |= {
                "/-/catalog": ("-catalog", self._catalog),
                "/-/openapi.json": ("-openapi", self._openapi),
                "/-/asyncapi.json": ("-asyncapi", self._asyncapi),
                "/": ("-root", self._root),
            }
        if console:
            self._console = Console(self._service)
            rules |= {
                "/-/console/features": ("-console-features", self._console.features),
                "/-/console/check": ("-console-check", self._console.check),
                "/-/console/<file>": ("-console-file", self._console.file),
            }
        for path, (endpoint, respond) in rules.items():
            view = self._view(respond)
            blueprint.add_url_rule(path, endpoint, view, **RULE_OPTIONS, strict_slashes=False)

    def _view(self, respond: Callable[[], Response]) -> Callable[..., Any]:
        return lambda **_: self._service.responder.answer(partial(_read_only, respond))

    def _problem_page(self) -> Response:
        error = pages().get((request.view_args or {})["problem"])
        if error is None:
            raise NotFound("There is no error with this name.")
        return _page("problem.html", error=error)

    # The streams.

    def _visible(self) -> tuple[Route, ...]:
        """Return the routes that the visitor of the current request may know of."""
        accepted: dict[tuple[Any, ...], bool] = {}  # cached, because checking a credential takes time
        routes = []
        for route in self._service.config.routes:
            is_listed = route.listed
            if is_listed is None:
                guards = route.access, route.cors_origins, route.cors_credentials
                if guards not in accepted:
                    accepted[guards] = self._service.may_open(route)
                is_listed = accepted[guards]
            if is_listed and (route.topics or route.allowed):
                routes.append(route)
        return tuple(routes)

    def _describe(self, route: Route) -> StreamDescription:
        config = self._service.config
        schemes = schemes_of(route, config.access.guards, config.access.tickets)
        return describe(route, config.web_of(route).position_events, schemes, self._schemas.of(route))

    # The responses.

    def _root(self) -> Response:
        response = self._console.page() if self._console is not None and _prefers_html() else self._catalog()
        response.vary.add("Accept")
        return response

    def _catalog(self) -> Response:
        root = self._service.urls.root
        base = self._service.urls.public().origin + root
        streams = [_as_json(self._describe(route), base) for route in self._visible()]
        documents = {"openapi": f"{root}/-/openapi.json", "asyncapi": f"{root}/-/asyncapi.json"}
        if _prefers_html():
            response = _page("catalog.html", streams=streams, documents=documents, catalog=f"{root}/-/catalog")
        else:
            response = json_response({"streams": streams, "documents": documents})
        response.headers.update(self._service.urls.links())
        response.vary.add("Accept")
        return response

    def _openapi(self) -> Response:
        server = json.dumps({"url": self._service.urls.root or "/"})
        return self._with_server("openapi", '"servers": [', server, OPENAPI_TYPE)

    def _asyncapi(self) -> Response:
        url = self._service.urls.public()
        server = {"host": url.host, "protocol": url.scheme, "pathname": self._service.urls.root or "/"}
        return self._with_server("asyncapi", '"servers": {', f'"http": {json.dumps(server)}, ', ASYNCAPI_TYPE)

    def _with_server(self, kind: str, place: str, server: str, content_type: str) -> Response:
        """Return a document with the address of the server, which is not in the cache: clients choose the headers."""
        before, marker, after = self._current_document(kind).partition(place)
        return Response(f"{before}{marker}{server}{after}\n", content_type=content_type)

    def _current_document(self, kind: str) -> str:
        routes = self._visible()
        for route in routes:
            self._schemas.of(route)  # may change the version
        return self._document(kind, routes, self._schemas.version)

    def _create_document(self, kind: str, routes: tuple[Route, ...], version: int) -> str:
        streams = [self._describe(route) for route in routes]
        if kind == "openapi":
            return json.dumps(openapi(streams, self._service.config.web))
        return json.dumps(asyncapi(streams))


def _read_only(respond: Callable[[], Response]) -> Response:
    """Respond to GET and HEAD."""
    if request.method not in ("GET", "HEAD"):
        raise MethodNotAllowed(f"{request.method} is not supported. Use GET.")
    response = respond()
    for name, text in DEFAULT_HEADERS.items():
        response.headers.setdefault(name, text)
    return response


def _prefers_html() -> bool:
    if len(request.headers.get("Accept", "")) > MAX_ACCEPT_CHARS:
        return False
    return request.accept_mimetypes.best_match(["application/json", "text/html"]) == "text/html"


def _as_json(stream: StreamDescription, base: str) -> dict[str, Any]:
    """Return the entry of a stream in the catalog. `base` is the URL of the blueprint."""
    url = base + stream.example_path
    return {
        "name": stream.name,
        "path": stream.path,
        "url": base + stream.path,
        "description": stream.description,
        "topics": list(stream.topics),
        "groups": {name: list(topics) for name, topics in stream.groups.items()},
        "parameters": list(stream.parameters),
        "format": stream.format,
        "start": stream.start,
        "access": list(stream.access) or [PUBLIC],
        "credentials": stream.credentials,
        "filters": dict(stream.filters),
        "fields": list(stream.fields),
        "events": list(stream.events),
        "schemas": dict(stream.schemas),
        "examples": {
            "curl": f"curl -N{_HEADERS[stream.credentials]} {shlex.quote(url)}",
            **_page_example(stream, json.dumps(url)),
        },
    }


def _page_example(stream: StreamDescription, url: str) -> dict[str, str]:
    if stream.is_public or stream.accepts_cookies:
        text = f"const source = new EventSource({url});\n"
        return {"eventsource": f'{text}source.addEventListener("message", (event) => console.log(event.data));'}
    text = 'import { Stream } from "./kafkasse.js"; // EventSource cannot send a token.\n'
    return {"javascript": f"{text}for await (const event of new Stream({url}, {{ token }})) console.log(event.data);"}


# HTML.


@cache
def _templates() -> tuple[Environment, str]:
    """Return the templates, and the Content-Security-Policy that permits their style and nothing else."""
    style = (TEMPLATES / "style.css").read_text("utf-8")
    templates = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined)
    templates.globals["style"] = Markup(style)  # noqa: S704 - our own file
    templates.filters["prose"] = _prose
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return templates, (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _prose(text: str) -> Markup:
    """Return a sentence as HTML. Words in backquotes are code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped


def _page(template: str, **values: Any) -> Response:
    templates, policy = _templates()
    response = Response(templates.get_template(template).render(values), content_type="text/html; charset=utf-8")
    response.headers["Content-Security-Policy"] = policy
    response.headers["Referrer-Policy"] = "no-referrer"
    return response
