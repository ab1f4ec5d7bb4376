"""JSON Web Tokens that a guard accepts. tests/attacks/test_guards.py has those that it must reject."""

from __future__ import annotations

import time

import pytest

from kafkasse.access import InvalidToken
from kafkasse.access.jwt_guard import JwtGuard
from kafkasse.access.keys import KeySetFile
from tests.access.conftest import LOGGER
from tests.support.issuer import SETTINGS, key_set, public_jwk, token


@pytest.mark.parametrize("kid", ["rsa-1", "ec-1", "ed-1"])
def test_accepts_a_token_of_each_key_type(guard, kid):
    """The visitor has the subject, the claims and the expiry time. One of the audiences is the configured one."""
    visitor = guard.identify(token(kid, sub="ada", role="admin", exp=4_000_000_000, aud=["shop", "other"]))

    assert ("customers", "ada", 4_000_000_000) == (visitor.guard, visitor.name, visitor.expires_at)
    assert "admin" == visitor.claims["role"]


def test_keys_in_the_header_of_a_token_are_ignored(guard, monkeypatch):
    """Nothing is fetched. A token of the issuer is valid with these members too, because some issuers write them."""

    def connect(*_: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr("socket.socket.connect", connect)
    headers = {"jku": "http://127.0.0.1:1/", "x5u": "http://127.0.0.1:1/", "jwk": public_jwk("rsa-attacker")}

    assert "ada" == guard.identify(token(headers=headers)).name
    with pytest.raises(InvalidToken):
        guard.identify(token("rsa-attacker", headers={**headers, "kid": "rsa-1"}))


def test_the_clocks_may_differ_by_the_leeway(jwks_file):
    """A token is accepted `leeway_s` before nbf and after exp, and its visitor expires as much later."""
    guard = JwtGuard("customers", {**SETTINGS, "leeway_s": 20}, KeySetFile("jwks_file", str(jwks_file), LOGGER))
    now = int(time.time())

    visitor = guard.identify(token(exp=now - 10, nbf=now + 10, iat=now + 10))

    assert now + 10 == visitor.expires_at
    with pytest.raises(InvalidToken, match="expired"):
        guard.identify(token(exp=now - 30))


def test_a_changed_key_file_takes_effect(guard, jwks_file, monkeypatch, caplog):
    """Tokens of the new key are accepted, and those of the removed key are not. An invalid file changes nothing."""
    monkeypatch.setattr("kafkasse.access.watched_file.CHECK_INTERVAL_S", 0)
    jwks_file.write_bytes(key_set("rsa-2"))

    assert "ada" == guard.identify(token("rsa-2")).name
    with pytest.raises(InvalidToken, match="The key that signed the token is unknown"):
        guard.identify(token("rsa-1"))

    jwks_file.write_text("{}")
    assert "ada" == guard.identify(token("rsa-2")).name
    assert "jwks_file: this is not a JSON Web Key Set. The last valid content stays in effect." == caplog.messages[-1]
