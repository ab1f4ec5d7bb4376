"""The keys that verify tokens: a secret in a file, or a JSON Web Key Set (RFC 7517) in a file or at a URL.

A key set at a URL is cached:

    older than REFRESH_S          it is fetched again in the background
    older than MAX_AGE_S          it is no longer used; requests get 503 until it can be fetched
    a token names an unknown key  it is fetched again, at most once in COOLDOWN_S
    it could not be fetched       it is fetched again after RETRY_S
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from threading import Lock, Thread
from typing import Any, NamedTuple, Protocol

import gevent
import jwt

from kafkasse.access.visitor import InvalidToken
from kafkasse.access.watched_file import WatchedFile
from kafkasse.errors import AccessUnavailable

MIN_SECRET_BYTES = {"": 32, "HS256": 32, "HS384": 48, "HS512": 64}  # RFC 7518, section 3.2; "": of tickets
MIN_RSA_BITS = 2048
MAX_KEYS = 100
MAX_KEY_SET_BYTES = 1024 * 1024
FETCH_TIMEOUT_S = 5.0
REFRESH_S = 600.0
MAX_AGE_S = 3600.0
COOLDOWN_S = 30.0
RETRY_S = 5.0

_KEY_TYPES = {
    "RS256": "RSA", "RS384": "RSA", "RS512": "RSA", "PS256": "RSA", "PS384": "RSA", "PS512": "RSA",
    "ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "EdDSA": "Ed25519",
}  # fmt: skip


class KeySource(Protocol):
    """Finds the key that verifies a token."""

    def find(self, kid: object, algorithm: str) -> Any:
        """Return the key for one of the guard's algorithms.

        `kid` is the key ID in the header of the token, which anyone may have written; None if there is none.

        Raises:
            InvalidToken: there is no such key.
            AccessUnavailable: the keys cannot be fetched.
        """


class PublicKey(NamedTuple):
    """A key of a key set. `type` is RSA or the name of a curve; `algorithm` is "" if the key fits several."""

    kid: str | None
    type: str
    algorithm: str
    key: Any


KeySet = Sequence[PublicKey]


class SecretFile:
    """A secret that is shared with the issuer, and long enough for at least one of the guard's algorithms."""

    def __init__(self, setting: str, path: str, logger: logging.Logger, algorithms: Iterable[str]) -> None:
        parse = partial(parse_secret, algorithm=min(algorithms))
        self._file = WatchedFile(setting, path, parse, logger)

    def find(self, kid: object, algorithm: str) -> bytes:
        """Return the secret, whatever the key ID is. The configuration allows only the algorithms HS256 to HS512."""
        return self._file.content


class KeySetFile:
    """A key set in a file."""

    def __init__(self, setting: str, path: str, logger: logging.Logger) -> None:
        self._file = WatchedFile(setting, path, parse_key_set, logger)

    def find(self, kid: object, algorithm: str) -> Any:
        """See KeySource."""
        return _find(self._file.content, kid, algorithm)


class KeySetUrl:
    """A key set at an https URL, or at an http URL of this machine. Logs with `setting` why it cannot be fetched."""

    def __init__(
        self,
        setting: str,
        url: str,
        logger: logging.Logger,
        fetch: Callable[[str], bytes] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._setting, self._url, self._logger = setting, url, logger
        self._fetch_bytes, self._clock = fetch or fetch_bytes, clock
        self._lock = Lock()  # gevent patches it: a request that waits for it does not block the others
        self._keys: KeySet = ()
        self._fetched_at = self._tried_at = float("-inf")
        self._is_failing = False

    def find(self, kid: object, algorithm: str) -> Any:
        """See KeySource."""
        if self._age_s() > MAX_AGE_S:
            self._fetch()
            if self._age_s() > MAX_AGE_S:
                raise self._unavailable()
        elif self._age_s() > REFRESH_S and self._wait_s() <= 0:
            Thread(target=self._fetch, daemon=True).start()  # a greenlet if gevent has patched the standard library
        try:
            return _find(self._keys, kid, algorithm)
        except InvalidToken:
            if self._fetch():
                return _find(self._keys, kid, algorithm)
            raise self._unavailable() from None

    def _fetch(self) -> bool:
        """Fetch the keys, unless that was tried a short time ago. Return whether the last attempt succeeded."""
        with self._lock:  # waits if another request is fetching them
            if self._wait_s() > 0:
                return not self._is_failing
            self._tried_at = self._clock()
            try:
                self._keys = parse_key_set(self._fetch_bytes(self._url))
            except (OSError, ValueError, gevent.Timeout) as error:
                if not self._is_failing:
                    reason = "the request took too long" if isinstance(error, gevent.Timeout) else error
                    self._logger.warning("%s: the keys cannot be fetched: %s", self._setting, reason)
                self._is_failing = True
                return False
            if self._is_failing:
                self._logger.info("%s: the keys can be fetched again.", self._setting)
            self._fetched_at, self._is_failing = self._clock(), False
            return True

    def _age_s(self) -> float:
        return self._clock() - self._fetched_at

    def _wait_s(self) -> float:
        """Return the seconds until the keys may be fetched again."""
        return self._tried_at + (RETRY_S if self._is_failing else COOLDOWN_S) - self._clock()

    def _unavailable(self) -> AccessUnavailable:
        return AccessUnavailable(
            "The server cannot check tokens now, because the issuer's keys are unavailable.",
            retry_after_s=max(1, math.ceil(self._wait_s())),
        )


def fetch_bytes(url: str) -> bytes:
    """Return the body of a response. Redirects are errors, because they could lead to a server without TLS.

    Raises:
        OSError, ValueError, gevent.Timeout: there is no response with status 200 within FETCH_TIMEOUT_S seconds, or it is
            larger than MAX_KEY_SET_BYTES.
    """
    from http.client import HTTPException
    from urllib.request import HTTPRedirectHandler, Request, build_opener

    class NoRedirects(HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    request = Request(url, headers={"Accept": "application/jwk-set+json, application/json"})  # noqa: S310 - config checks it
    try:
        with (
            gevent.Timeout(FETCH_TIMEOUT_S),
            build_opener(NoRedirects).open(request, timeout=FETCH_TIMEOUT_S) as response,
        ):
            if response.status != HTTPStatus.OK:
                raise ValueError(f"the status is {response.status}")
            data: bytes = response.read(MAX_KEY_SET_BYTES + 1)
    except HTTPException as error:
        raise ValueError(type(error).__name__) from None
    if len(data) > MAX_KEY_SET_BYTES:
        raise ValueError(f"the response is larger than {MAX_KEY_SET_BYTES} bytes")
    return data


def parse_key_set(data: bytes) -> KeySet:
    """Return the public keys of a key set that can verify signatures. Keys that kafkasse does not support are left out.

    Raises:
        ValueError: this is not a key set, or no key is left.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    entries = value.get("keys") if isinstance(value, Mapping) else None
    if not isinstance(entries, list):
        raise ValueError("this is not a JSON Web Key Set.")
    if len(entries) > MAX_KEYS:
        raise ValueError(f"the key set has more than {MAX_KEYS} keys.")
    keys = [key for entry in entries if (key := _public_key(entry)) is not None]
    if not keys:
        raise ValueError(
            "the key set has no public key for signatures. Supported are RSA keys of at least "
            f"{MIN_RSA_BITS} bits, the curves P-256, P-384 and P-521, and Ed25519."
        )
    return keys


def _public_key(entry: Any) -> PublicKey | None:
    """Return a key of a key set, or None if it is secret, or not meant for signatures, or not supported.

    A symmetric key (oct) in a key set would let everyone who can read the set sign tokens.
    """
    if not isinstance(entry, Mapping) or entry.get("use", "sig") != "sig" or "d" in entry:
        return None
    key_type = "RSA" if entry.get("kty") == "RSA" else str(entry.get("crv"))
    if entry.get("kty") not in ("RSA", "EC", "OKP") or key_type not in _KEY_TYPES.values():
        return None
    algorithm = entry.get("alg", "")
    if algorithm and _KEY_TYPES.get(str(algorithm)) != key_type:
        return None
    try:
        key = jwt.PyJWK.from_dict(dict(entry)).key
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    if key_type == "RSA" and key.key_size < MIN_RSA_BITS:
        return None
    return PublicKey(entry.get("kid"), key_type, algorithm, key)


def _find(keys: KeySet, kid: object, algorithm: str) -> Any:
    fitting = [key for key in keys if key.type == _KEY_TYPES.get(algorithm) and key.algorithm in ("", algorithm)]
    if kid is not None:
        fitting = [key for key in fitting if key.kid == kid]
    if len(fitting) != 1:
        raise InvalidToken("The key that signed the token is unknown.")
    return fitting[0].key


def parse_secret(data: bytes, algorithm: str = "") -> bytes:
    """Return the secret in a file, without the line breaks at its end. Raise ValueError if it is too short."""
    secret, min_bytes = data.rstrip(b"\r\n"), MIN_SECRET_BYTES[algorithm]
    if len(secret) < min_bytes:
        purpose = algorithm and f" for {algorithm}"
        raise ValueError(
            f"the secret must have at least {min_bytes} bytes{purpose}. Create it with: openssl rand -hex 32"
        )
    return secret
