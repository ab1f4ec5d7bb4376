"""The warning about a personal route whose visitors can read its whole topic at another path."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kafkasse import Config, MemoryLog, blueprint

GUARDS = {"login": lambda _: None, "staff": lambda _: None}
MINE = {"path": "/me/orders", "topics": ["orders"], "access": ["login"], "where": {"key": "{claims.sub}"}}
OF_URL = {
    "path": "/customers/{id}",
    "topics": ["orders"],
    "access": [{"guard": "login", "claims": {"customer": ["{id}"]}}],
    "where": {"key": "{id}"},
}
ADMINS = {"guard": "login", "claims": {"role": ["admin"]}}


def warnings(mine: dict[str, Any] = MINE, **settings: Any) -> list[str]:
    routes = {"mine": mine, **settings.pop("routes", {})}
    return list(Config(guards=GUARDS, routes=routes, **settings).warnings())


def test_the_warning_names_the_topic_the_routes_and_the_remedy(caplog):
    """The blueprint logs it when it is created."""
    config = Config(guards=GUARDS, access=["login"], allowed_topics=["orders"], routes={"mine": MINE})

    blueprint(config, MemoryLog())
    (of_route,) = warnings(routes={"all": {"path": "/orders", "topics": ["orders"], "access": "public"}})

    warning = (
        "The route mine (/me/orders) sends each visitor only their own records of the topic orders, but the same visitors"
        " can read the whole topic at /{topics}. Remove orders from allowed_topics, or give /{topics} a stricter guard"
        " (access)."
    )
    assert ("kafkasse", logging.WARNING, warning) in caplog.record_tuples
    assert "at /orders. Remove orders from routes.all.topics, or give /orders a stricter guard (access)." in of_route


@pytest.mark.parametrize(
    "settings",
    [
        {"public": True},
        {"access": ["staff", "login"]},
        {"access": ["login"], "allowed_topics": ["ord*"]},
        {"access": ["login"], "mine": OF_URL},
        {"access": ["login"], "mine": {**MINE, "topics": ["orders*"]}},
        {"access": ["login"], "mine": {**MINE, "where": {"fields": {"customer": ["{claims.sub}", "all"]}}}},
        {"access": [ADMINS], "mine": {**MINE, "access": [ADMINS]}},
    ],
)
def test_warns_if_the_same_visitors_can_read_the_whole_topic(settings):
    """Also if allowed_topics or the route has a pattern, and if a path parameter selects the visitor's records."""
    (warning,) = warnings(**{"allowed_topics": ["orders"], **settings})

    assert "at /{topics}" in warning


@pytest.mark.parametrize(
    "settings",
    [
        {"access": ["staff"]},
        {"access": [ADMINS]},
        {"access": [{"guard": "login", "claims": {"customer": ["{id}"]}}], "mine": OF_URL},
        {"access": ["login"], "allowed_topics": ["prices"]},
        {"access": ["login"], "mine": {**MINE, "where": {"key": "news"}}},
        {"access": ["login"], "mine": {**OF_URL, "access": ["login"]}},
        # The operator has chosen which part of the topic everyone may see.
        *({"access": ["staff"], "routes": {"part": {"path": "/part", "topics": ["orders"], "access": "public", **part}}}
          for part in ({"where": {"key": "news"}}, {"fields": ["total"]}, {"redact": ["customer"]})),
        {"access": ["login"], "clusters": {"eu": {"bootstrap_servers": "eu:9092"}}, "mine": {**MINE, "cluster": "eu"}},
    ],
)  # fmt: skip
def test_does_not_warn_if_nobody_sees_more_than_intended(settings):
    """Another guard, other claims, another topic or cluster, and routes that send all visitors the same records."""
    assert [] == warnings(**{"allowed_topics": ["orders"], **settings})
