"""The settings of access: which combinations are errors, and what the errors say."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from kafkasse.access import Grant
from kafkasse.config import Config
from kafkasse.errors import ConfigurationError

JWT = {"jwks_url": "https://id.example/jwks.json", "issuer": "i", "audience": "a", "algorithms": ["RS256"]}
ROUTE = {"path": "/r", "topics": ["t"]}
GUARDS = {"a": {"jwt": JWT}}


def guard(**jwt: Any) -> dict[str, Any]:
    """A guard whose setting `jwt` has these members; None removes one."""
    return {"guards": {"a": {"jwt": {name: value for name, value in {**JWT, **jwt}.items() if value is not None}}}}


def route(**members: Any) -> dict[str, Any]:
    return {"guards": GUARDS, "routes": {"r": {**ROUTE, **members}}}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"guards": {"a": 5}}, "guards.a must be a mapping with either jwt or api_keys."),
        ({"guards": {"a": {}}}, "guards.a must be a mapping with either jwt or api_keys."),
        ({"guards": {"a": {"jwt": JWT, "api_keys": {"file": "f"}}}}, "guards.a must be a mapping with either jwt or"),
        ({"guards": {"a": {"jwtt": JWT}}}, "guards.a.jwtt is not a setting of a guard: did you mean jwt?"),
        (
            {"guards": {"public": {"jwt": JWT}}, "operations_access": ["public"]},
            "operations_access contains public, which means everyone, not the guard public: rename the guard.",
        ),
        ({"guards": {"A": {"jwt": JWT}}}, "guards.A is not a valid name: a name consists of lowercase letters"),
        ({"guards": {"a": {"api_keys": {}}}}, "guards.a.api_keys needs file."),
        ({"guards": {"a": {"jwt": JWT, "cookie": "token"}}}, "guards.a.cookie must be a name that starts with __Host-"),
        (guard(issuer=None), "guards.a.jwt needs issuer."),
        (guard(audience=None), "guards.a.jwt needs audience."),
        (guard(audience=[]), "guards.a.jwt.audience must be text, or a list of texts"),
        (guard(algorithms=None), "guards.a.jwt needs algorithms."),
        (guard(algorithms=[]), "guards.a.jwt.algorithms must be a list of algorithms"),
        (guard(algorithms=["none"]), "guards.a.jwt.algorithms[0] must be one of RS256, "),
        (guard(algorithms=["RS256", "HS256"]), "guards.a.jwt.algorithms[1] is HS256, which needs secret_file instead"),
        (
            guard(jwks_url=None, secret_file="f"),  # noqa: S106 - a path
            "guards.a.jwt.algorithms[0] is RS256, which needs jwks_url or jwks_file",
        ),
        (guard(jwks_url=None), "guards.a.jwt must contain exactly one of jwks_url, jwks_file, secret_file."),
        (guard(jwks_file="f"), "guards.a.jwt must contain exactly one of jwks_url, jwks_file, secret_file."),
        (guard(jwks_url="http://id.example/"), "guards.a.jwt.jwks_url must start with https://, unless it is a URL of"),
        (guard(jwks_url="http://localhost.evil.example/"), "guards.a.jwt.jwks_url must start with https://"),
        (guard(jwks_url="https://me:hunter2@id.example/"), "guards.a.jwt.jwks_url must start with https://"),
        (guard(jwks_url="file:///etc/passwd"), "guards.a.jwt.jwks_url must start with https://"),
        (guard(jwks_url="https://[/"), "guards.a.jwt.jwks_url must start with https://"),
        (guard(leeway_s=301), "guards.a.jwt.leeway_s must be a number from 0 to 300, not 301."),
        (route(access=["b"]), "routes.r.access[0] is b, which is not one of the guards. They are: a."),
        (route(access=[]), "routes.r.access must be public, or a list of guards, not an empty list."),
        (route(access="private"), "routes.r.access must be public, or a list of guards, not 'private'."),
        (route(access=[{"claims": {}}]), "routes.r.access[0] needs guard."),
        (route(access=[{"guard": "a", "clams": {}}]), "routes.r.access[0].clams is not a setting"),
        (route(access=[{"guard": "a", "claims": {"x": "y"}}]), "routes.r.access[0].claims.x must be a list of values"),
        ({"access": ["a"]}, "access[0] is a, which is not one of the guards. They are: none."),
        ({"guards": GUARDS, "access": ["a"], "public": True}, "public cannot be true if access is set: remove one"),
    ],
)
def test_a_setting_that_is_not_valid(problems, settings, problem):
    """The error names the setting and what is wrong, and contains no password."""
    (message,) = problems(**settings)

    assert message.startswith(f"The argument {problem}")
    assert "hunter2" not in message


@pytest.mark.parametrize(
    "url", ["http://localhost:8080/x", "http://127.0.0.1/x", "http://[::1]/x", "https://id.example"]
)
def test_keys_may_come_from_this_machine_without_tls(url):
    Config(**guard(jwks_url=url))


def test_a_route_overrides_the_general_access():
    """The setting access applies to /{topics} and to the routes without an access of their own."""
    routes = {
        "general": {**ROUTE, "path": "/general"},
        "own": {**ROUTE, "path": "/own", "access": [{"guard": "a", "claims": {"admin": [True], "level": [1, "2"]}}]},
        "open": {**ROUTE, "path": "/open", "access": "public"},
    }

    config = Config(guards=GUARDS, access=["a"], routes=routes)

    claims = (("admin", ("true",)), ("level", ("1", "2")))
    assert {"general": (Grant("a"),), "own": (Grant("a", claims),), "open": (), "topics": (Grant("a"),)} == {
        route.name: route.access for route in config.routes
    }


def test_guards_can_be_selected_by_a_variable():
    """KAFKASSE_ACCESS contains the names of guards. The guards themselves are in the file or in code."""
    config = Config.load({"KAFKASSE_ACCESS": "a, b"}, guards={"a": {"jwt": JWT}, "b": lambda _: None})

    assert (Grant("a"), Grant("b")) == config.routes[-1].access


def test_a_missing_package_is_an_error_that_names_the_extra(monkeypatch):
    """Without PyJWT, the server does not start, unless no guard uses it."""
    for name in ("kafkasse.access.jwt_guard", "kafkasse.access.keys"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "jwt", None)

    with pytest.raises(
        ConfigurationError, match=r'guards.a.jwt needs the package jwt: run pip install "kafkasse\[jwt\]"'
    ):
        Config(access=["a"], allowed_topics=["t"], **guard()).check_servable()


@pytest.mark.parametrize(("algorithm", "min_bytes"), [("HS256", 32), ("HS384", 48), ("HS512", 64)])
def test_a_secret_that_is_too_short_for_all_algorithms_is_an_error_at_startup(tmp_path, algorithm, min_bytes):
    """With such a key, PyJWT rejects every token of the algorithm (RFC 7518, section 3.2)."""
    file = tmp_path / "secret"
    settings = guard(jwks_url=None, secret_file=str(file), algorithms=sorted({"HS512", algorithm}))
    config = Config(access=["a"], allowed_topics=["t"], **settings)

    file.write_text("s" * min_bytes)
    config.check_servable()
    file.write_text("s" * (min_bytes - 1))
    with pytest.raises(ConfigurationError, match=f"the secret must have at least {min_bytes} bytes for {algorithm}."):
        config.check_servable()


def test_the_files_of_guards_are_checked_at_startup(tmp_path):
    """`kafkasse check` and `kafkasse serve` find a missing or short secret. The message does not show the path."""
    file = tmp_path / "hunter2"
    settings = guard(jwks_url=None, secret_file=str(file), algorithms=["HS256"])

    for text, problem in ((None, "the file cannot be read"), ("short\n", "the secret must have at least 32 bytes")):
        if text is not None:
            file.write_text(text)
        with pytest.raises(ConfigurationError, match=problem) as rejected:
            Config(access=["a"], allowed_topics=["t"], **settings).check_servable()
        assert rejected.value.detail.startswith("guards.a.jwt.secret_file: ")
        assert "hunter2" not in rejected.value.detail


def test_a_secret_in_place_of_a_path_is_masked():
    """Users may write the secret itself into secret_file. Other settings of guards are shown, whatever their names are."""
    config = Config(
        guards={"tokens": {"jwt": {**JWT, "jwks_url": "https://id.example/"}}, "b": lambda _: None},
        ticket_secret_file="hunter2",  # noqa: S106 - a test
    )
    secret = guard(jwks_url=None, secret_file="hunter2", algorithms=["HS256"])  # noqa: S106 - a test

    shown = {setting.name: setting.value for setting in config.effective()}

    assert ("https://id.example/", "********") == (shown["guards.tokens.jwt.jwks_url"], shown["ticket_secret_file"])
    assert "hunter2" not in f"{config!r} {shown} {Config(**secret)!r} {list(Config(**secret).effective())}"
