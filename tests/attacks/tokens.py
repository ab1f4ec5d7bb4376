"""Hostile tokens, and the answer that each must get. README.md lists them.

The guard of the attacked stream accepts RS256, ES256 and EdDSA with the keys rsa-1, ec-1 and ed-1. Imports nothing from
kafkasse.
"""

# ruff: noqa: E501 - each token is one line
from __future__ import annotations

import base64
import hmac
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.support.issuer import AUDIENCE, ISSUER, key_set, payload, private_key, public_jwk, token

NOT_VALID, NOT_A_TOKEN = "401 UnauthorizedError", "400 BadRequestError"


class HostileToken(NamedTuple):
    """What a client sends in the Authorization header.

    Attributes:
        name: what the token tries.
        create: returns the header lines; creating a token may need a key.
        answer: the answer that it must get.
    """

    name: str
    create: Callable[[], tuple[bytes, ...]]
    answer: str = NOT_VALID


def encoded(data: bytes | Mapping[str, Any]) -> str:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def forged(
    header: bytes | Mapping[str, Any], claims: bytes | Mapping[str, Any] | None = None, key: bytes | None = None
) -> str:
    """Return a token with any header, signed with HS256 if there is a key, and otherwise with an empty signature."""
    parts = f"{encoded(header)}.{encoded(payload() if claims is None else claims)}"
    return f"{parts}.{encoded(hmac.digest(key, parts.encode(), 'sha256')) if key is not None else ''}"


def bearer(create: Callable[[], str]) -> Callable[[], tuple[bytes, ...]]:
    return lambda: (b"Authorization: Bearer " + create().encode(),)


def line(text: str) -> Callable[[], tuple[bytes, ...]]:
    return lambda: (text.encode(),)


def with_claims(**claims: Any) -> Callable[[], tuple[bytes, ...]]:
    """Return a token that the issuer has signed, with these claims."""
    return bearer(lambda: token(**claims))


def with_header(signer: str = "rsa-1", /, **header: Any) -> Callable[[], tuple[bytes, ...]]:
    """Return a token that the issuer has signed, with these members of the header."""
    return bearer(lambda: token(signer, headers=header))


def by_attacker(**header: Any) -> Callable[[], tuple[bytes, ...]]:
    """Return a token with the ID of a known key, signed with a key of the attacker."""
    return bearer(lambda: token("rsa-attacker", headers={"kid": "rsa-1", **header}))


def _public_pem() -> bytes:
    return bytes(private_key("rsa-1").public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def _signature(data: bytes, kid: str = "ec-1") -> str:
    header, claims, _ = token(kid).split(".")
    return f"{header}.{claims}.{encoded(data)}"


def _changed_claims() -> str:
    header, _, signature = token().split(".")
    return f"{header}.{encoded(payload(sub='admin'))}.{signature}"


def _with_b64() -> str:
    """Return a token of the issuer that PyJWT cannot create: b64 is true, as in every token, and critical."""
    text = forged({"alg": "RS256", "kid": "rsa-1", "crit": ["b64"], "b64": True}).rstrip(".")
    return f"{text}.{encoded(private_key('rsa-1').sign(text.encode(), PKCS1v15(), SHA256()))}"


def _twice() -> tuple[bytes, ...]:
    return (b"Authorization: Bearer " + token().encode(),) * 2


def _now() -> int:
    return int(time.time())


ALGORITHMS = [
    *(
        HostileToken(f"`alg: {name}` without a signature", bearer(lambda name=name: forged({"alg": name, "kid": "rsa-1"})))
        for name in ("none", "None", "NONE", "nOnE", "")
    ),
    HostileToken("No `alg`", bearer(lambda: forged({"kid": "rsa-1"}))),
    *(
        HostileToken(f"`alg` is {json.dumps(value)}", bearer(lambda value=value: forged({"alg": value, "kid": "rsa-1"})))
        for value in (None, 5, ["RS256"], {"a": 1})
    ),
    HostileToken("HS256 with the public key in PEM", bearer(lambda: forged({"alg": "HS256", "kid": "rsa-1"}, key=_public_pem()))),
    HostileToken("HS256 with the key set", bearer(lambda: forged({"alg": "HS256"}, key=key_set("rsa-1", "ec-1", "ed-1")))),
    HostileToken("HS256 with an empty key", bearer(lambda: forged({"alg": "HS256", "kid": "rsa-1"}, key=b""))),
    HostileToken("RS384, which the issuer supports and the guard does not", bearer(lambda: token(algorithm="RS384"))),
    HostileToken("PS256 with a key for RS256", bearer(lambda: token(algorithm="PS256"))),
    HostileToken("RS256 with the ID of an ES256 key", with_header("rsa-1", kid="ec-1")),
    HostileToken("ES256 with the ID of an RSA key", with_header("ec-1", kid="rsa-1")),
    HostileToken("EdDSA with the ID of an RSA key", with_header("ed-1", kid="rsa-1")),
]  # fmt: skip

KEYS = [
    HostileToken("A key of the attacker with the ID of a known key", by_attacker()),
    HostileToken("An unknown key ID", by_attacker(kid="rsa-attacker")),
    HostileToken("No key ID and an unknown key", by_attacker(kid=None)),
    *(
        HostileToken(f"The key ID {json.dumps(value)[:30]}", bearer(lambda value=value: forged({"alg": "RS256", "kid": value})))
        for value in ("../../../dev/null", "' OR 1=1 --", "", 5, ["rsa-1"], {"a": 1}, "k" * 3000)
    ),
    HostileToken("The attacker's key in `jwk`", bearer(lambda: token("rsa-attacker", headers={"kid": "rsa-1", "jwk": public_jwk("rsa-attacker")}))),
    HostileToken("The attacker's key set at `jku`", by_attacker(jku="http://127.0.0.1:1/jwks.json")),
    HostileToken("The attacker's certificate at `x5u`", by_attacker(x5u="http://127.0.0.1:1/x.pem")),
    HostileToken("The attacker's certificate in `x5c`", by_attacker(x5c=["MIIB"])),
]  # fmt: skip

SIGNATURES = [
    HostileToken("Changed claims", bearer(_changed_claims)),
    HostileToken("An empty signature", bearer(lambda: _signature(b""))),
    HostileToken("An ES256 signature of zeros", bearer(lambda: _signature(bytes(64)))),
    HostileToken("An ES256 signature in DER", bearer(lambda: _signature(encode_dss_signature(1, 1)))),
    HostileToken("An Ed25519 signature of zeros", bearer(lambda: _signature(bytes(64), "ed-1"))),
    HostileToken("A signature of 4 KB", bearer(lambda: _signature(b"x" * 4000, "rsa-1"))),
    HostileToken("A signature that is cut off", bearer(lambda: token()[:-4])),
]

CLAIMS = [
    HostileToken("Expired a minute ago", lambda: with_claims(exp=_now() - 60)()),
    HostileToken("Without `exp`", with_claims(exp=None)),
    HostileToken("`exp` is text", with_claims(exp="soon")),
    HostileToken("`exp` is negative", with_claims(exp=-1)),
    HostileToken("`exp` is a list", with_claims(exp=[4_000_000_000])),
    HostileToken("`exp` is NaN", with_claims(exp=float("nan"))),
    HostileToken("`exp` is Infinity", with_claims(exp=float("inf"))),
    HostileToken("Valid in an hour (`nbf`)", lambda: with_claims(nbf=_now() + 3600)()),
    HostileToken("Issued in an hour (`iat`)", lambda: with_claims(iat=_now() + 3600)()),
    HostileToken("`nbf` is text", with_claims(nbf="soon")),
    HostileToken("Another audience", with_claims(aud="bank")),
    HostileToken("An audience that starts like ours", with_claims(aud=f"{AUDIENCE}-admin")),
    HostileToken("Several other audiences", with_claims(aud=["bank", "post"])),
    HostileToken("No audience", with_claims(aud=None)),
    HostileToken("An empty list of audiences", with_claims(aud=[])),
    HostileToken("An audience in a list in a list", with_claims(aud=[[AUDIENCE]])),
    HostileToken("An audience in a mapping", with_claims(aud={AUDIENCE: 1})),
    HostileToken("Another issuer", with_claims(iss="https://evil.example/")),
    HostileToken("An issuer that starts like ours", with_claims(iss=f"{ISSUER}evil")),
    HostileToken("An issuer without the slash at its end", with_claims(iss=ISSUER.rstrip("/"))),
    HostileToken("Several issuers", bearer(lambda: forged({"alg": "RS256"}, {**payload(), "iss": [ISSUER]}))),
    HostileToken("No issuer", with_claims(iss=None)),
    HostileToken("`sub` is a number", with_claims(sub=5)),
    HostileToken("`crit` with an unknown extension", with_header(crit=["x"], x=1)),
    HostileToken("`crit` with `b64`", bearer(_with_b64)),
    HostileToken("`crit` is empty", with_header(crit=[])),
]

TEXTS = [
    HostileToken("An empty token", line("Authorization: Bearer"), NOT_A_TOKEN),
    HostileToken("Text that is no token", line("Authorization: Bearer secret")),
    HostileToken("Only dots", line("Authorization: Bearer ..")),
    HostileToken("Four parts", bearer(lambda: token() + ".x")),
    HostileToken("Five parts, as an encrypted token has", bearer(lambda: "a.b.c.d.e")),
    HostileToken("A header that is not JSON", bearer(lambda: forged(b"{"))),
    HostileToken("A header that is a list", bearer(lambda: forged(b"[]"))),
    HostileToken("A header that is nested deeply", bearer(lambda: forged(b"[" * 5000))),
    HostileToken(
        "Claims that are nested deeply", bearer(lambda: forged({"alg": "RS256", "kid": "rsa-1"}, b'{"a":' * 1000))
    ),
    HostileToken("Claims that are a list", bearer(lambda: forged({"alg": "RS256", "kid": "rsa-1"}, b"[]"))),
    HostileToken("A number with 4,000 digits", bearer(lambda: forged(b'{"alg":' + b"9" * 4000 + b"}"))),
    HostileToken("A token of 9 KB", with_claims(x="x" * 6000)),
    HostileToken("A token of 60 KB", with_claims(x="x" * 45_000)),
    HostileToken("Two headers", _twice, NOT_A_TOKEN),
    HostileToken("Two tokens in one header", bearer(lambda: f"{token()} {token()}"), NOT_A_TOKEN),
    HostileToken("A tab after Bearer", lambda: (b"Authorization: Bearer\t" + token().encode(),), NOT_A_TOKEN),
    HostileToken("A colon after Bearer", lambda: (b"Authorization: Bearer: " + token().encode(),), NOT_A_TOKEN),
    HostileToken("Bearer without a space", lambda: (b"Authorization: Bearer" + token().encode(),), NOT_A_TOKEN),
    HostileToken("Quotes around the token", bearer(lambda: f'"{token()}"'), NOT_A_TOKEN),
    HostileToken("Bytes that are not ASCII", lambda: (b"Authorization: Bearer \xff\xfe",), NOT_A_TOKEN),
    HostileToken("Another scheme", lambda: (b"Authorization: Basic " + token().encode(),)),
    HostileToken("A token in a header of another name", lambda: (b"X-Authorization: Bearer " + token().encode(),)),
]

API_KEYS = [
    HostileToken("An unknown API key", line("Authorization: Bearer kafkasse_" + "k" * 43)),
    HostileToken("Only the start of an API key", line("Authorization: Bearer kafkasse_")),
    HostileToken("The hash of an API key", line("Authorization: Bearer " + "0" * 64)),
    HostileToken("An API key of 50 KB", line("Authorization: Bearer kafkasse_" + "k" * 50_000)),
]

TOKENS = {
    "Algorithms": ALGORITHMS,
    "Keys": KEYS,
    "Signatures": SIGNATURES,
    "Claims": CLAIMS,
    "Text": TEXTS,
    "API keys": API_KEYS,
}
