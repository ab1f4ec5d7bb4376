"""Hostile tokens and tickets: none of them opens a stream, and none of them appears in the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import jwt
import pytest

from kafkasse.access.api_keys import create_key
from tests.access.conftest import environment
from tests.attacks.kit import answers, request
from tests.attacks.tokens import NOT_VALID, TOKENS, bearer
from tests.support.client import fetch
from tests.support.issuer import SECRET, SETTINGS, key_set, payload, token
from tests.support.server import Server


class Guarded(NamedTuple):
    server: Server
    key: str


@pytest.fixture(scope="module")
def guarded(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A server whose topic `t` is guarded by tokens with public keys and by API keys, and `/secret` by a shared secret."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "jwks.json").write_bytes(key_set("rsa-1", "ec-1", "ed-1"))
    key, line = create_key("partner")
    (folder / "keys").write_text(line)
    variables = environment(
        folder,
        {
            "issuer": {"jwt": {**SETTINGS, "jwks_file": str(folder / "jwks.json"), "leeway_s": 0}},
            "partners": {"api_keys": {"file": str(folder / "keys")}},
        },
        access=["issuer", "partners"],
        allowed_topics=["t"],
        routes={
            "secret": {"path": "/secret", "topics": ["t"], "access": ["customers"]},
            "other": {"path": "/other", "topics": ["t"], "access": ["issuer"]},
        },
        max_rejections_per_s=0,
    )
    with Server("tests.support.apps:in_memory()", **variables) as server:
        yield Guarded(server, key)
    assert "Traceback" not in server.log


def answer(guarded: Guarded, path: str, *lines: bytes) -> str:
    (only,) = answers(guarded.server.port, request(path, *lines))
    return only


@pytest.mark.parametrize("table", TOKENS)
def test_hostile_tokens(guarded, table):
    """Each token gets the answer of the table, and the log does not contain it."""
    for case in TOKENS[table]:
        lines = case.create()

        assert case.answer == answer(guarded, "/t", *lines), case.name
        words = b" ".join(lines).split()
        assert [] == [word for word in words if len(word) > 20 and word.decode("latin-1") in guarded.server.log]


@pytest.mark.parametrize("kid", ["rsa-1", "ec-1", "ed-1"])
def test_valid_tokens_are_accepted(guarded, kid):
    """The attacks fail because of the attack, and not because the guard rejects every token."""
    assert "200 stream" == answer(guarded, "/t", *bearer(lambda: token(kid))())
    assert "200 stream" == answer(guarded, "/t", *bearer(lambda: token(kid, headers={"kid": None}))())


def test_a_valid_api_key_is_accepted(guarded):
    """The route of its guard accepts it, and other routes reject it."""
    line = f"Authorization: Bearer {guarded.key}".encode()

    assert ("200 stream", NOT_VALID) == (answer(guarded, "/t", line), answer(guarded, "/secret", line))


def test_guards_do_not_accept_the_tokens_of_other_guards(guarded):
    """A guard with a shared secret rejects tokens with public keys, and the reverse."""
    with_secret = bearer(lambda: jwt.encode(payload(), SECRET, "HS256"))()
    with_key = bearer(token)()

    assert ("200 stream", NOT_VALID) == (answer(guarded, "/secret", *with_secret), answer(guarded, "/t", *with_secret))
    assert NOT_VALID == answer(guarded, "/secret", *with_key)


def test_tickets_that_were_changed(guarded):
    """A ticket is bound to its path, and no changed ticket is accepted. The attempts do not use up the ticket."""
    headers = {"Authorization": f"Bearer {token()}"}
    ticket = fetch(guarded.server.port, "/-/ticket?path=/t", "POST", **headers).json["ticket"]
    last = "A" if ticket[-3] != "A" else "B"
    changed = [
        "",
        ticket[:-4],
        ticket[:-3] + last + ticket[-2:],
        ticket[1:],
        ticket + ticket,
        ticket[:10] + "AAAA" + ticket[14:],
        "x" * 7000,
        "%00",
        "%ff%fe",
    ]

    assert {NOT_VALID} == {answer(guarded, f"/t?ticket={forgery}") for forgery in changed}
    assert NOT_VALID == answer(guarded, f"/other?ticket={ticket}")
    assert NOT_VALID == answer(guarded, f"/secret?ticket={ticket}")
    assert ["200 stream", NOT_VALID] == [answer(guarded, f"/t?ticket={ticket}") for _ in range(2)]


def test_unidentified_visitors_learn_nothing_about_topics(guarded):
    """The responses for a topic that exists, one that does not, and an invalid request are the same."""
    paths = ("/t", "/missing", "/t,missing", "/t?timestamp=x", "/t?lastEventId=x", "/other", "/secret")
    problems = [fetch(guarded.server.port, path).json for path in paths]

    assert len(paths) == len({problem.pop("request_id") for problem in problems})
    assert [problems[0]] * len(paths) == problems
