"""The URL of the server behind proxies: which headers of which peers change it."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask
from werkzeug.middleware.proxy_fix import ProxyFix

import kafkasse
from kafkasse.log.memory import MemoryLog

FORWARDED = {
    "X-Forwarded-For": "192.0.2.1",
    "X-Forwarded-Proto": "https",
    "X-Forwarded-Host": "shop.example:8443",
    "X-Forwarded-Prefix": "/live/",
}
DIRECT = "http://localhost/streams/orders"
PUBLIC = "https://shop.example:8443/live/streams/orders"
ROUTE = {"path": "/orders", "topics": ["orders"], "access": "public"}


def url(trusted_proxies: Any, peer: str = "10.0.0.7", fix: bool = False, root: str = "", **headers: str) -> str:
    """Return the URL of the stream in the catalog."""
    app = Flask("host")
    config = kafkasse.Config(routes={"orders": ROUTE}, catalog=True, trusted_proxies=trusted_proxies)
    app.register_blueprint(kafkasse.blueprint(config, MemoryLog()), url_prefix="/streams")
    if fix:
        app.wsgi_app = ProxyFix(app.wsgi_app, x_host=1, x_prefix=1)
    sent = {name: text for name, text in (FORWARDED | headers).items() if text}
    client = app.test_client()
    response = client.get(
        "/streams/-/catalog", headers=sent, environ_overrides={"REMOTE_ADDR": peer, "SCRIPT_NAME": root}
    )
    return str(response.get_json()["streams"][0]["url"])


@pytest.mark.parametrize(
    ("trusted_proxies", "peer", "expected"),
    [
        (0, "10.0.0.7", DIRECT),
        (["10.1.0.0/16"], "10.0.0.7", DIRECT),
        (["10.0.0.0/16"], "10.0.0.7", PUBLIC),
        (["::1"], "", PUBLIC),  # a Unix socket
        (1, "10.0.0.7", PUBLIC),
    ],
)
def test_only_a_trusted_proxy_changes_the_url(trusted_proxies, peer, expected):
    """By default, no proxy is trusted, because any client can send these headers."""
    assert expected == url(trusted_proxies, peer)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("Host", "evil.example, shop.example:8443", PUBLIC),  # the nearest proxy appends its value
        ("Host", "shop.example/x", PUBLIC.replace("shop.example:8443", "localhost")),
        ("Host", 'a"b', PUBLIC.replace("shop.example:8443", "localhost")),
        ("Host", "[::1]:8443", PUBLIC.replace("shop.example:8443", "[::1]:8443")),
        ("Host", "a" * 301, PUBLIC.replace("shop.example:8443", "localhost")),
        ("Proto", "javascript", PUBLIC.replace("https", "http")),
        ("Prefix", "//evil.example", PUBLIC.replace("/live", "")),
        ("Prefix", "live", PUBLIC.replace("/live", "")),
        ("Prefix", "/a/b", PUBLIC.replace("/live", "/a/b")),
        ("Prefix", "/.a/b..", PUBLIC.replace("/live", "/.a/b..")),
        ("Prefix", "/a/../../evil", PUBLIC.replace("/live", "")),
        ("Prefix", "/a/.", PUBLIC.replace("/live", "")),
        ("For", "", DIRECT),  # a client that connects directly
        ("Prefix", "", PUBLIC.replace("/live", "")),
    ],
)
def test_a_header_counts_only_if_it_is_valid(name, value, expected):
    """A proxy that does not set a header may forward that of a client."""
    assert expected == url(1, **{f"X-Forwarded-{name}": value})


@pytest.mark.parametrize(
    ("root", "expected"), [("/live", "/live"), ("/live/app", "/live/app"), ("/liver", "/live/liver")]
)
def test_a_prefix_that_middleware_has_added_is_added_once(root, expected):
    assert PUBLIC.replace("/live", expected) == url(1, root=root)


def test_a_host_app_with_proxy_fix_needs_no_setting():
    """The prefix is added once."""
    assert {PUBLIC} == {url(0, fix=True), url(1, fix=True)}
