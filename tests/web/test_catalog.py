"""The catalog and the pages of errors, as browsers and programs receive them."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any

import pytest
from flask import Blueprint, Flask, Request
from flask.testing import FlaskClient

import kafkasse.web.catalog
from kafkasse import Visitor, schemas
from kafkasse.app import blueprint, create_app
from kafkasse.config import Config
from kafkasse.errors import pages
from kafkasse.log.memory import MemoryLog
from tests.web.clients import HTML, client_of

HOSTILE = "</p><script>alert(1)</script>"
ROUTES: dict[str, Any] = {
    "prices": {"path": "/prices", "topics": ["prices"], "format": "value", "start": "snapshot", "description": HOSTILE},
    "hidden": {"path": "/hidden", "topics": ["secrets"], "listed": False},
}
DOCUMENTS = ["/", "/-/catalog", "/-/openapi.json", "/-/asyncapi.json"]


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    log.create("prices")
    return log


def mounted(log: MemoryLog, prefix: str | None = "/streams", **settings: Any) -> FlaskClient:
    return client_of(log, prefix, **{"routes": ROUTES, "catalog": True, "allowed_topics": [], **settings})


class TestCatalog:
    def test_describes_each_stream_to_programs(self, log):
        """As JSON, also to a client whose header `Accept` is very long: parsing 32 KB would stall the event loop."""
        client = mounted(log)
        response = client.get("/streams/")

        (stream,) = response.get_json()["streams"]
        assert "application/json" == response.mimetype
        assert "application/json" == client.get("/streams/", headers={"Accept": "text/html," * 3000}).mimetype
        expected = {"name": "prices", "path": "/prices", "url": "http://localhost/streams/prices", "topics": ["prices"]}
        expected |= {"format": "value", "start": "snapshot", "access": ["public"], "description": HOSTILE}
        assert expected == {name: stream[name] for name in expected}
        assert {"message", "delete", "base64", "position", "gap", "error"} == set(stream["events"])
        assert "curl -N http://localhost/streams/prices" == stream["examples"]["curl"]
        assert 'new EventSource("http://localhost/streams/prices")' in stream["examples"]["eventsource"]

    def test_is_a_page_for_people(self, log):
        """A browser receives HTML that loads nothing, and in which no text of the operator or client is markup."""
        response = mounted(log).get("/streams/", headers=HTML | {"Host": "<script>alert(2)</script>"})

        assert "text/html" == response.mimetype
        assert "Accept" in response.headers["Vary"]
        assert "<script" not in response.text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in response.text
        style = re.findall(r"<style>(.*?)</style>", response.text, re.DOTALL)[0]
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        policy = dict(
            directive.strip().split(" ", 1) for directive in response.headers["Content-Security-Policy"].split(";")
        )
        assert ("'none'", f"'sha256-{digest}'") == (policy["default-src"], policy["style-src"])
        assert {"default-src", "style-src", "base-uri", "form-action", "frame-ancestors"} == policy.keys()
        assert not re.search(r"<(script|img|link|iframe)|style=|\son\w+=|url\(|@import", response.text)

    def test_does_not_show_streams_that_are_not_listed(self, log):
        """The name, path and topics of a stream with `listed: false` are in no document."""
        client = mounted(log)

        for path in DOCUMENTS:
            for headers in ({}, HTML):
                text = client.get(f"/streams{path}", headers=headers).text
                assert "prices" in text
                assert "hidden" not in text
                assert "secrets" not in text

    def test_shows_guarded_streams_only_to_visitors_who_may_open_them(self, log):
        """Without valid credentials, no document contains the stream. `listed: true` shows it to everyone."""

        def session(request: Request) -> Visitor | None:
            return Visitor() if request.headers.get("Authorization") == "Bearer good" else None

        shown = {"shown": {"path": "/shown", "topics": ["prices"], "listed": True}}
        guarded = {name: {**route, "access": ["session"]} for name, route in (ROUTES | shown).items()}
        client = mounted(log, routes=guarded, guards={"session": session})

        for path in DOCUMENTS:
            stranger = client.get(f"/streams{path}").text
            visitor = client.get(f"/streams{path}", headers={"Authorization": "Bearer good"}).text
            assert (False, True) == ("/prices" in stranger, "/shown" in stranger)
            assert (True, True) == ("/prices" in visitor, "/shown" in visitor)

    @pytest.mark.parametrize(
        ("guard", "credentials", "header", "page"),
        [
            ({"api_keys": {"file": "keys"}}, "token", '-H "Authorization: Bearer $TOKEN"', "javascript"),
            (
                {"api_keys": {"file": "keys"}, "cookie": "__Host-key"},
                "token",
                '-H "Authorization: Bearer $TOKEN"',
                "eventsource",
            ),
            (lambda _: Visitor(), "cookie", '-H "Cookie: $COOKIE"', "eventsource"),
        ],
    )
    def test_the_example_sends_what_the_guard_accepts(
        self, log, tmp_path, monkeypatch, guard, credentials, header, page
    ):
        """A login of the app usually ignores tokens. EventSource sends only cookies."""
        (tmp_path / "keys").touch()
        monkeypatch.chdir(tmp_path)
        routes = {"prices": {"path": "/prices", "topics": ["prices"], "access": ["guard"], "listed": True}}

        (stream,) = mounted(log, routes=routes, guards={"guard": guard}).get("/streams/").json["streams"]

        assert credentials == stream["credentials"]
        assert f"curl -N {header} http://localhost/streams/prices" == stream["examples"]["curl"]
        assert {"curl", page} == stream["examples"].keys()
        assert '"http://localhost/streams/prices"' in stream["examples"][page]

    def test_shows_a_stream_that_a_visitor_may_open_for_some_parameter(self, log):
        """A claim that must equal a path parameter does not hide the route. Other claims do."""
        routes = {}
        for name, claims in {"own": {"id": ["{customer}"]}, "staff": {"role": ["admin"]}}.items():
            access = [{"guard": "login", "claims": claims}]
            routes[name] = {"path": f"/{name}/{{customer}}", "topics": ["prices"], "access": access}
        client = mounted(log, routes=routes, guards={"login": lambda _: Visitor(claims={"id": "7"})})

        assert ["own"] == [stream["name"] for stream in client.get("/streams/").json["streams"]]

    @pytest.mark.parametrize("name", ["catalog", "openapi", "problem", "root"])
    def test_a_route_may_have_any_name(self, log, name):
        client = mounted(log, routes={name: {"path": "/own", "topics": ["prices"]}})

        assert [name] == [stream["name"] for stream in client.get("/streams/-/catalog").json["streams"]]
        assert 200 == client.head("/streams/own").status_code

    def test_lists_the_topics_that_clients_may_choose(self, log):
        """The open route is listed with its topics and patterns, and only if there are any."""
        client = mounted(log, allowed_topics=["prices", "events.*"])

        assert [["prices"], ["prices", "events.*"]] == [
            stream["topics"] for stream in client.get("/streams/").json["streams"]
        ]
        assert [["prices"]] == [stream["topics"] for stream in mounted(log).get("/streams/").json["streams"]]

    @pytest.mark.parametrize("path", DOCUMENTS)
    def test_accepts_only_requests_that_read(self, log, path):
        """Other methods get our JSON error. The documents depend on the visitor, so no cache may store them."""
        client = mounted(log)

        head = client.head(f"/streams{path}")
        assert 200 == head.status_code
        assert ("nosniff", "no-store") == (head.headers["X-Content-Type-Options"], head.headers["Cache-Control"])
        assert 204 == client.options(f"/streams{path}").status_code
        refused = client.post(f"/streams{path}", json={})
        assert (405, "MethodNotAllowedError") == (refused.status_code, refused.get_json()["name"])

    def test_creates_a_document_once(self, log, monkeypatch):
        """Requests with the same view of the streams share one document, whatever Host header they send."""
        created = []
        for name in ("openapi", "asyncapi"):
            original = getattr(kafkasse.web.catalog, name)

            def count(*args: Any, name: str = name, original: Any = original) -> Any:
                created.append(name)
                return original(*args)

            monkeypatch.setattr(kafkasse.web.catalog, name, count)
        client = mounted(log)

        for host in ("a.example", "b.example"):
            for name in ("openapi", "asyncapi"):
                document = client.get(f"/streams/-/{name}.json", headers={"Host": host})
                assert name == "openapi" or host in document.text

        assert ["openapi", "asyncapi"] == created


class TestWhereItIsServed:
    @pytest.mark.parametrize("path", DOCUMENTS)
    def test_a_mounted_blueprint_serves_it_only_on_request(self, log, path):
        """By default, a blueprint leaves its root to the host app. The app of wsgi.py has no other use for its root."""
        for catalog, in_blueprint, in_app in [(None, 404, 200), (False, 404, 404), (True, 200, 200)]:
            app = create_app(Config(public=True, routes=ROUTES, catalog=catalog), log)
            assert in_blueprint == mounted(log, catalog=catalog).get(f"/streams{path}").status_code
            assert in_app == app.test_client().get(path).status_code

    @pytest.mark.parametrize(
        ("prefix", "path"), [(None, ""), ("/streams", "/streams"), ("/<tenant>/streams", "/acme/streams")]
    )
    def test_all_urls_contain_the_prefix(self, log, prefix, path):
        """Both URLs of the root respond without a redirect, which would repeat the Host header."""
        client = mounted(log, prefix)
        environ = {"SCRIPT_NAME": "/mounted"}

        response = client.get(f"{path}/-/catalog", environ_overrides=environ)

        assert {200} == {client.get(root).status_code for root in (path, f"{path}/")}
        links = re.findall(r"<([^>]+)>", response.headers["Link"])
        assert links
        for link in [*links, *response.get_json()["documents"].values()]:
            assert link.startswith(f"/mounted{path}/-/")
            assert 200 == client.get(link.removeprefix("/mounted"), environ_overrides=environ).status_code

    def test_two_registrations_of_a_blueprint_have_their_own_urls(self, log):
        app = Flask("host")
        streams = blueprint(Config(public=True, routes=ROUTES, catalog=True), log)
        parent = Blueprint("parent", __name__, url_prefix="/parent")
        parent.register_blueprint(streams, url_prefix="/streams")
        app.register_blueprint(parent)
        app.register_blueprint(streams, url_prefix="/again", name="again")
        client = app.test_client()

        for path in ("/parent/streams", "/again"):
            assert f"{path}/-/openapi.json" == client.get(f"{path}/-/catalog").get_json()["documents"]["openapi"]


class TestLinks:
    def test_a_stream_links_to_its_description(self, log):
        """Browsers hide the header from pages of other origins unless the server exposes it."""
        assert "Link" not in mounted(log, catalog=False).head("/streams/prices").headers
        client = mounted(log, cors_origins=["https://shop.example"])
        for path in ("/streams/-/catalog", "/streams/prices"):
            headers = client.head(path, headers={"Origin": "https://shop.example"}).headers
            assert "https://shop.example" == headers["Access-Control-Allow-Origin"]
            assert "Link" in headers["Access-Control-Expose-Headers"]

        links = headers["Link"]
        assert '</streams/-/openapi.json>; rel="service-desc"' in links
        assert '</streams/-/catalog>; rel="service-doc"' in links
        assert '</streams/-/catalog#prices>; rel="describedby"' in links


class TestErrors:
    """The `type` of an error is the URL path of a page that explains it."""

    @pytest.mark.parametrize("catalog", [True, False])
    @pytest.mark.parametrize("prefix", [None, "/streams"])
    @pytest.mark.parametrize("path", ["/missing", "/prices?since=x", "/-/problems/nothing"])
    def test_the_type_leads_to_a_page(self, log, prefix, path, catalog):
        """The page has the cause and the fix. It is there even if the catalog is off."""
        client = mounted(log, prefix, catalog=catalog, allowed_topics=["*"])
        refused = client.get(f"{prefix or ''}{path}")
        problem = refused.get_json()

        page = client.get(problem["type"])

        assert schemas.first_error("problem", problem) is None
        assert f'<{problem["type"]}>; rel="help"' == refused.headers["Link"]
        assert (200, "text/html") == (page.status_code, page.mimetype)
        assert problem["title"] in page.text
        assert "Fix" in page.text

    def test_every_error_has_a_page(self, log):
        """Words in backquotes are code, and nothing else is markup."""
        client = mounted(log)

        for name, error in pages().items():
            page = client.get(f"/streams/-/problems/{name}").text
            assert error.title in page
            assert "`" not in page

    def test_an_error_event_has_the_same_type(self, log):
        client = mounted(log, metadata_refresh_s=0.05, heartbeat_s=0.05)
        body = b""
        with client.get("/streams/prices?timestamp=0", buffered=False) as stream:
            for chunk in stream.response:
                body += chunk
                if b"position" in body and log.describe(["prices"]):
                    log.delete("prices")

        assert b'"type":"/streams/-/problems/topic-gone"' in body

    @pytest.mark.parametrize(
        ("method", "path", "expected"),
        [
            ("GET", "/a/b", "/-/problems/not-found"),
            ("PROPFIND", "/-/health", "/-/problems/method-not-allowed"),
            ("GET", "/-/bug", "/-/problems/kafkasse-error"),
        ],
    )
    def test_errors_of_flask_have_pages(self, log, method, path, expected):
        app = create_app(Config(public=True, routes=ROUTES), log)
        app.add_url_rule("/-/bug", view_func=lambda: 1 / 0)
        client = app.test_client()

        problem = client.open(path, method=method).get_json()

        assert expected == problem["type"]
        assert schemas.first_error("problem", problem) is None
        assert "division" not in str(problem)
        assert 200 == client.get(expected).status_code
