"""The requests of the web console, and the files of the demo page, without a browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from kafkasse import Visitor
from kafkasse.app import create_app
from kafkasse.config import Config
from kafkasse.errors import ConfigurationError
from kafkasse.log.memory import MemoryLog
from kafkasse.process.open_streams import OPERATIONS_KEY
from tests.support.server import ROOT
from tests.web.clients import HTML, client_of

VALIDATORS = {"If-None-Match": "ETag", "If-Modified-Since": "Last-Modified"}  # Flask 2.0 sends no ETag
FILES = ROOT / "kafkasse/assets/console"
ASSETS = sorted(path.name for path in (FILES / "assets").iterdir())
DEMO = sorted(path.name for path in (ROOT / "kafkasse/assets/demo/assets").iterdir())
TYPES = {"": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
ROUTES: dict[str, Any] = {
    "orders": {"path": "/orders", "topics": ["orders"], "access": "public", "client_filters": ["key", "filter"]},
    "mine": {"path": "/mine/{id}", "topics": ["orders"], "access": ["staff"], "where": {"key": "{id}"}},
}
GUARDS = {"staff": lambda request: Visitor("ann") if request.headers.get("Authorization") == "Bearer ann" else None}


def app(**settings: Any) -> FlaskClient:
    log = MemoryLog()
    log.create("orders")
    return create_app(Config(**{"routes": ROUTES, "guards": GUARDS, **settings}), log).test_client()


def mounted(**settings: Any) -> FlaskClient:
    return client_of(MemoryLog(), routes=ROUTES, guards=GUARDS, allowed_topics=[], public=False, **settings)


class TestWhereItIsServed:
    def test_browsers_get_the_page_and_programs_the_catalog(self):
        """Both are at the root of a standalone server."""
        client = app()

        page, catalog = client.get("/", headers=HTML), client.get("/")

        assert ("text/html", "application/json") == (page.mimetype, catalog.mimetype)
        assert "-/console/app.js" in page.text
        assert ["orders"] == [stream["name"] for stream in catalog.get_json()["streams"]]
        assert {"Accept"} == set(page.vary) == set(catalog.vary)

    @pytest.mark.parametrize("settings", [{"console": False}, {"catalog": False}])
    def test_can_be_turned_off(self, settings):
        """It needs the catalog. Without the console, browsers get the catalog as a page without scripts."""
        client = app(**settings)

        assert "/-/console/" not in client.get("/", headers=HTML).text
        assert 404 == client.get("/-/console/app.js").status_code
        with pytest.raises(ConfigurationError, match="console needs the catalog"):
            Config(console=True, catalog=False, allowed_topics=["*"], public=True)

    def test_a_blueprint_serves_it_only_on_request(self):
        for path in ("/", "/-/console/app.js", "/-/catalog"):
            assert 404 == mounted().get(f"/streams{path}").status_code
            assert 404 == mounted(catalog=True).get("/streams/-/console/app.js").status_code
            assert 200 == mounted(console=True).get(f"/streams{path}", headers=HTML).status_code

    @pytest.mark.parametrize(("path", "base"), [("/streams", "streams/"), ("/streams/", "./")])
    def test_the_root_needs_no_slash_at_the_end(self, path, base):
        """The page finds its files from both URLs of the root, without a redirect, which would repeat the Host header."""
        text = mounted(console=True).get(path, headers=HTML).text

        assert f'src="{base}-/console/app.js"' in text
        assert {base} == set(re.findall(r'(?:href|src)="([^"#]*?/)-/', text))


class TestFiles:
    @pytest.fixture
    def client(self) -> FlaskClient:
        routes = ROUTES | {"topn": {"path": "/topn/updates", "topics": ["orders"], "access": "public"}}
        return app(routes=routes)

    @pytest.mark.parametrize(
        "path",
        [
            *("/", "/-/demo"),
            *[f"/-/console/{name}" for name in [*ASSETS, "kafkasse.js", "pipelines.js", "shared.css", "slots.js"]],
            *[f"/-/page/{name}" for name in [*DEMO, "kafkasse.js"]],
        ],
    )
    def test_headers(self, client, path):
        """Every file forbids inline scripts and sniffing, has the type that browsers then require, and gets a 304."""
        response = client.get(path, headers=HTML)

        assert (200, TYPES[Path(path).suffix]) == (response.status_code, response.mimetype)
        policy = response.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
        assert ("nosniff", "no-cache") == (
            response.headers["X-Content-Type-Options"],
            response.headers["Cache-Control"],
        )
        known = {name: response.headers[header] for name, header in VALIDATORS.items() if header in response.headers}
        revalidated = client.get(path, headers=HTML | known)
        assert (304, b"") == (revalidated.status_code, revalidated.data)

    @pytest.mark.parametrize("file", [FILES / "index.html", *[FILES / "assets" / name for name in ASSETS]])
    def test_text_never_becomes_html(self, file):
        """No script inserts HTML or runs text, and no file loads anything from another origin."""
        text = file.read_text()

        assert [] == re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|DOMParser", text
        )
        assert [] == re.findall(r"""(?:src|href|from|import)[= (]*["'](?:https?:)?//""", text)
        assert [] == re.findall(r"localStorage|sessionStorage|indexedDB|document\.cookie", text)

    @pytest.mark.parametrize("name", ["", "index.html", "../index.html", "%2e%2e/index.html", "missing.js"])
    @pytest.mark.parametrize("folder", ["console", "page"])
    def test_serves_only_its_own_files(self, client, folder, name):
        assert 404 == client.get(f"/-/{folder}/{name}").status_code

    def test_about_leads_to_what_the_demo_shows_and_how_it_works(self, client):
        """The URL is relative, so that it is right under any prefix."""
        response = client.get("/about")

        assert (302, "-/demo#how") == (response.status_code, response.headers["Location"])
        page = client.get("/-/demo").text
        assert "The three largest countries of each continent" in page
        assert '<section class="how" id="how"' in page

    def test_the_demo_credits_the_data(self, client):
        """The page names GeoNames and its license, and Natural Earth, and loads nothing from other sites."""
        text = client.get("/-/demo").text

        credited = {"https://www.geonames.org/", "https://www.naturalearthdata.com/"}
        assert credited | {"https://creativecommons.org/licenses/by/4.0/"} == set(re.findall(r"https://[^\"]+", text))
        assert re.search(r"<(script|link|img)[^>]+https?:", text) is None


class TestFeatures:
    def test_operators_are_recognized(self):
        """The console shows the link to the operations only to those who may use it, or could after a sign-in."""
        client = app(operations_access=["staff"], tickets=True)

        def operations(**headers: str) -> Any:
            return client.get("/-/console/features", headers=headers).get_json()["operations"]

        assert (False, True) == (operations(), operations(Authorization="Bearer ann"))
        assert app().get("/-/console/features").get_json() == {
            "guards": True,
            "tickets": False,
            "operations": None,
            "demo": False,
        }
        at_second_address = app().get("/-/console/features", environ_overrides={OPERATIONS_KEY: True})
        assert at_second_address.get_json()["operations"]

    def test_a_blueprint_has_no_operations(self):
        features = mounted(console=True, operations_access=["public"]).get("/streams/-/console/features").get_json()

        assert features["operations"] is None


class TestCheck:
    """The console checks a query while its user types."""

    @pytest.mark.parametrize(
        ("query", "name"),
        [
            ("path=/orders&key=a", None),
            ("path=/orders&filter=value.n > 1", None),
            ("path=/orders&filter=value.n >", "InvalidFilterError"),
            ("path=/orders&field.n=1", "InvalidParameterError"),
            ("path=/orders&since=soon", "InvalidParameterError"),
            ("path=/orders&last_event_id=x", "InvalidAssignmentError"),
            ("path=/a/b", "InvalidParameterError"),
            ("path=/mine/7", "UnauthorizedError"),
        ],
    )
    def test_reports_the_problem_of_a_query(self, query, name):
        """The response contains the error that a request for the stream would get."""
        response = app().get(f"/-/console/check?{query}")

        assert 200 == response.status_code
        assert name == (response.get_json()["problem"] or {}).get("name")

    def test_uses_the_credentials_of_the_visitor(self):
        """A visitor can check only the queries of streams that the visitor may read."""
        headers = {"Authorization": "Bearer ann"}

        for client, prefix in [(app(), ""), (mounted(console=True), "/streams")]:
            response = client.get(f"{prefix}/-/console/check?path=/mine/7", headers=headers)
            assert {"problem": None} == response.get_json()

    def test_opens_no_stream(self):
        """A check counts neither as a stream nor as a rejected request."""
        client = app(max_rejections_per_s=0.001)

        for _ in range(50):
            client.get("/-/console/check?path=/orders&filter=(")

        assert 0 == client.get("/-/health").get_json()["streams"]
        assert 200 == client.get("/-/console/check?path=/orders").status_code
