"""An issuer of JSON Web Tokens, with keys of each type."""

from __future__ import annotations

import json
import time
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ISSUER, AUDIENCE = "https://id.example/", "shop"
SECRET = b"a secret of the issuer with 32 bytes or more"
SETTINGS = {"issuer": ISSUER, "audience": AUDIENCE, "algorithms": ["RS256", "ES256", "EdDSA"]}


@cache
def private_key(kid: str) -> Any:
    """Return the private key with this ID; its first letters name its type. Creating an RSA key takes 50 ms."""
    if kid.startswith("rsa"):
        return rsa.generate_private_key(65_537, 2048)
    return ec.generate_private_key(ec.SECP256R1()) if kid.startswith("ec") else ed25519.Ed25519PrivateKey.generate()


def public_jwk(kid: str, **members: Any) -> dict[str, Any]:
    """Return a public key as a member of a key set."""
    key = private_key(kid).public_key()
    algorithm: Any = RSAAlgorithm if kid.startswith("rsa") else ECAlgorithm if kid.startswith("ec") else OKPAlgorithm
    jwk = algorithm.to_jwk(key, as_dict=True)
    return {**jwk, "kid": kid, "use": "sig", **members}


def key_set(*kids: str) -> bytes:
    """Return a key set with the public keys."""
    return json.dumps({"keys": [public_jwk(kid) for kid in kids]}).encode()


def token(kid: str = "rsa-1", algorithm: str = "", headers: dict[str, Any] | None = None, **claims: Any) -> str:
    """Return a token that is valid for a minute, unless `claims` say otherwise. A claim or a member of the header
    that is None is left out."""
    default = "RS256" if kid.startswith("rsa") else "ES256" if kid.startswith("ec") else "EdDSA"
    header = {name: value for name, value in {"kid": kid, **(headers or {})}.items() if value is not None}
    return jwt.encode(payload(**claims), private_key(kid), algorithm or default, header)


def payload(**claims: Any) -> dict[str, Any]:
    """Return the claims of a token that is valid for a minute; see token()."""
    now = int(time.time())
    whole = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "iat": now, "exp": now + 60, **claims}
    return {name: value for name, value in whole.items() if value is not None}
