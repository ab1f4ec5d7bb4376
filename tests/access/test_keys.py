"""Key sets at a URL: caching, rotation, outages, and hostile responses."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import gevent
import pytest

from kafkasse.access import InvalidToken
from kafkasse.access.keys import COOLDOWN_S, MAX_AGE_S, REFRESH_S, RETRY_S, KeySetUrl, fetch_bytes, parse_key_set
from kafkasse.errors import AccessUnavailable
from tests.access.conftest import LOGGER, served
from tests.support.issuer import key_set, public_jwk
from tests.support.waiting import wait_until


class Issuer:
    def __init__(self) -> None:
        self.now, self.fetches, self.is_down = 0.0, 0, False
        self.keys = key_set("rsa-1")
        self.source = KeySetUrl("guards.a.jwt.jwks_url", "https://id.example/", LOGGER, self._fetch, lambda: self.now)

    def _fetch(self, url: str) -> bytes:
        self.fetches += 1
        gevent.sleep(0)  # as a request over the network
        if self.is_down:
            raise OSError("connection refused")
        return self.keys


@pytest.fixture
def issuer() -> Issuer:
    return Issuer()


def test_the_keys_are_fetched_once(issuer):
    """Many requests at once, and later ones, share one fetch."""
    gevent.joinall([gevent.spawn(issuer.source.find, "rsa-1", "RS256") for _ in range(10)], raise_error=True)

    assert 1 == issuer.fetches


def test_an_unknown_key_causes_one_fetch_per_cooldown(issuer):
    """Clients cannot make the server fetch the keys again and again. A key that was added is found."""
    issuer.source.find("rsa-1", "RS256")
    issuer.now += COOLDOWN_S

    for n in range(100):
        with pytest.raises(InvalidToken):
            issuer.source.find(f"rsa-{n + 2}", "RS256")
    assert 2 == issuer.fetches

    issuer.keys = key_set("rsa-2")
    issuer.now += COOLDOWN_S
    assert issuer.source.find("rsa-2", "RS256")
    with pytest.raises(InvalidToken):
        issuer.source.find("rsa-1", "RS256")


def test_old_keys_are_fetched_again_in_the_background(issuer):
    """After REFRESH_S, a request still gets the old key at once, and a removed key becomes unknown soon."""
    issuer.source.find("rsa-1", "RS256")
    issuer.keys = key_set("rsa-2")
    issuer.now += REFRESH_S + 1

    issuer.source.find("rsa-1", "RS256")

    wait_until(lambda: issuer.fetches == 2)
    assert issuer.source.find("rsa-2", "RS256")  # waits for the end of the fetch
    with pytest.raises(InvalidToken):
        issuer.source.find("rsa-1", "RS256")


def test_keys_survive_an_outage_for_a_limited_time(issuer, caplog):
    """The keys stay in use for MAX_AGE_S. After that, requests get 503 until the issuer is available again."""
    issuer.source.find("rsa-1", "RS256")
    issuer.is_down = True

    issuer.now = MAX_AGE_S
    assert issuer.source.find("rsa-1", "RS256")
    wait_until(lambda: issuer.fetches == 2)
    issuer.now = MAX_AGE_S + RETRY_S + 1
    with pytest.raises(AccessUnavailable) as unavailable:
        issuer.source.find("rsa-1", "RS256")

    assert 1 <= int(unavailable.value.headers["Retry-After"]) <= RETRY_S
    assert ["guards.a.jwt.jwks_url: the keys cannot be fetched: connection refused"] == caplog.messages
    caplog.set_level(logging.INFO)
    issuer.is_down = False
    issuer.now += RETRY_S
    assert issuer.source.find("rsa-1", "RS256")
    assert ["guards.a.jwt.jwks_url: the keys can be fetched again."] == caplog.messages[1:]


def test_an_outage_at_the_start_is_temporary(issuer):
    """An unknown key may be new, so the client should retry. The keys are fetched again after RETRY_S."""
    issuer.is_down = True
    for _ in range(10):
        with pytest.raises(AccessUnavailable):
            issuer.source.find("rsa-1", "RS256")
    assert 1 == issuer.fetches

    issuer.is_down = False
    issuer.now += RETRY_S
    assert issuer.source.find("rsa-1", "RS256")

    issuer.is_down = True
    issuer.now += COOLDOWN_S
    with pytest.raises(AccessUnavailable):
        issuer.source.find("rsa-2", "RS256")


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\xff", b"[]", b"{}", b'{"keys": 5}', b'{"keys": []}', b"[" * 100_000),
        b'{"keys": [5, null, {}, {"kty": "RSA"}, {"kty": [], "crv": {}}]}',
        json.dumps({"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "a"}]}).encode(),
        *(
            json.dumps({"keys": [public_jwk("rsa-1", **member)]}).encode()
            for member in ({"use": "enc"}, {"d": "AQAB"}, {"alg": "HS256"}, {"alg": ["RS256"]}, {"n": "AQAB"})
        ),
        json.dumps({"keys": [public_jwk("rsa-1")] * 101}).encode(),
    ],
    ids=len,
)
def test_a_key_set_without_usable_keys(data):
    """Symmetric, private, short and unknown keys are not used, and text that is not a key set is an error."""
    with pytest.raises(ValueError, match=r"key set|Key Set"):
        parse_key_set(data)


def test_fetches_a_key_set_over_http():
    with served([key_set("ec-1")]) as url:
        assert key_set("ec-1") == fetch_bytes(url)


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        ("302 Found", [("Location", "http://127.0.0.1:1/")], b""),
        ("404 Not Found", [], b""),
        ("200 OK", [], b"x" * (1024 * 1024 + 1)),
    ],
)
def test_rejects_redirects_errors_and_large_responses(status, headers, body):
    """A redirect is never followed, because it could lead to a server without TLS."""
    with served([body], status, headers) as url, pytest.raises((OSError, ValueError)):
        fetch_bytes(url)


def test_a_slow_response_does_not_block_the_event_loop(monkeypatch):
    """The request to a server that sends one byte at a time fails after FETCH_TIMEOUT_S. Meanwhile, other greenlets run."""
    monkeypatch.setattr("kafkasse.access.keys.FETCH_TIMEOUT_S", 2)
    turns: list[int] = []

    def body() -> Iterator[bytes]:
        while True:
            turns.append(1)
            yield b"x"
            gevent.sleep(0.05)

    with served(body()) as url, pytest.raises(gevent.Timeout):
        fetch_bytes(url)
    assert len(turns) > 3
