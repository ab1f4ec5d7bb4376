"""Requests to a schema registry: Confluent's REST API, with a limit on the time and the size of each response.

This module does not retry and does not cache; see lookup.py. It knows neither Kafka nor the kinds of schemas.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import gevent

from kafkasse.process.loop_thread import loop_thread
from kafkasse.process.threads import Threads
from kafkasse.records.registry.wire_format import SchemaId
from kafkasse.settings import SchemaRegistrySettings

if TYPE_CHECKING:
    from requests.auth import AuthBase

MAX_RESPONSE_BYTES = 1_048_576
READ_BYTES = 65_536
MAX_THREADS = 4
MAX_ID = 2**31 - 1  # Confluent's registry responds to larger IDs as to an unknown path, which would end streams
TYPES = {"application/vnd.schemaregistry.v1+json", "application/json"}
# The error codes of Confluent's API for a subject, version or schema that does not exist.
NOT_FOUND_CODES = (40401, 40402, 40403)


class SchemaNotFound(Exception):
    """The registry has no such schema."""


class TemporaryFailure(Exception):
    """The registry does not answer, or is overloaded. The same request may succeed later."""


class Misconfigured(Exception):
    """The registry rejects our requests. An operator must change the configuration."""


class _UnknownPath(Misconfigured):
    """The registry has no such path, or the server at this URL is not a registry."""


class Reference(NamedTuple):
    """A reference from one schema to another.

    Attributes:
        name: the name that the schema uses: an Avro type, a path of a Protobuf import, or a $ref of JSON Schema.
        subject: the subject of the other schema.
        version: the version of the other schema.
    """

    name: str
    subject: str
    version: int


class RegisteredSchema(NamedTuple):
    """A schema as the registry returns it. `type` is AVRO, PROTOBUF or JSON."""

    type: str
    text: str
    references: tuple[Reference, ...]


class RegistryClient:
    """Sends requests to a schema registry. Its methods wait for I/O.

    Args:
        settings: the address, the login and the timeout.

    Attributes:
        url: the address.
    """

    def __init__(self, settings: SchemaRegistrySettings) -> None:
        import requests  # not at the top, because it binds a socket when it is imported

        self.url = settings.url
        self._settings = settings
        self._errors = requests.exceptions
        self._threads = Threads(MAX_THREADS)
        self._session = requests.Session()
        self._session.headers["Accept"] = ", ".join(sorted(TYPES))
        self._session.headers["Accept-Encoding"] = "identity"  # so that MAX_RESPONSE_BYTES limits what we read
        if settings.cert_file:
            self._session.cert = (settings.cert_file, settings.key_file) if settings.key_file else settings.cert_file

    def schema(self, schema_id: SchemaId, format: str = "") -> RegisteredSchema:
        """Return the schema with an ID or GUID. The format `serialized` makes a Protobuf schema a descriptor in base64.

        Raises:
            SchemaNotFound, TemporaryFailure, Misconfigured: see the classes.
        """
        if isinstance(schema_id, int):
            if schema_id > MAX_ID:
                raise SchemaNotFound
            return _schema(self._get(f"/schemas/ids/{schema_id}", format))
        try:
            return _schema(self._get(f"/schemas/guids/{schema_id}", format))
        except _UnknownPath:
            # An old registry has no GUIDs. Anyone may write a record with one, so it must not end streams. If the URL is
            # wrong, this request for an ID that no schema has fails in the same way.
            self._get("/schemas/ids/0", format)
            raise SchemaNotFound from None

    def version(self, subject: str, version: int | str, format: str = "") -> RegisteredSchema:
        """Return a version of a subject, even if it was deleted. `latest` is a version. Raises as schema()."""
        return _schema(self._get(f"/subjects/{quote(subject, safe='')}/versions/{version}", format, deleted="true"))

    def _get(self, path: str, format: str, **parameters: str) -> dict[str, Any]:
        """Return the JSON object at a path."""
        if format:
            parameters["format"] = format
        timeout_s = self._settings.timeout_s
        try:
            # The timeout of requests applies to each read, so a registry that sends single bytes could delay us for hours.
            with gevent.Timeout(timeout_s, TemporaryFailure(f"no response within {timeout_s:g} s")):
                status, body = self._send_without_blocking(path, parameters)
        except self._errors.SSLError as error:
            raise Misconfigured(f"TLS failed: {error}. Check its url, ca_file, cert_file and key_file.") from error
        except OSError as error:  # requests' exceptions, and files that cannot be read
            if isinstance(error, self._errors.RequestException):
                raise TemporaryFailure(f"{type(error).__name__}: {error}") from error
            reason = f"a file cannot be read: {error}. Check its password_file, ca_file, cert_file and key_file."
            raise Misconfigured(reason) from error
        return _object(status, body)

    def _send_without_blocking(self, path: str, parameters: Mapping[str, str]) -> tuple[int, bytes]:
        if not loop_thread.is_current:
            return self._send(path, parameters)
        # gevent has not patched the sockets of this process, so a request would block the event loop.
        return self._threads.run(self._send, path, parameters)

    def _send(self, path: str, parameters: Mapping[str, str]) -> tuple[int, bytes]:
        settings = self._settings
        # A redirect to another host must not receive the password, and a registry has no reason to redirect.
        with self._session.get(
            settings.url.rstrip("/") + path,
            params=parameters,
            auth=self._login(),
            timeout=settings.timeout_s,
            verify=settings.ca_file,  # the variable REQUESTS_CA_BUNDLE would override Session.verify
            allow_redirects=False,
            stream=True,
        ) as response:
            body = bytearray()
            for chunk in response.iter_content(READ_BYTES):
                body += chunk
                if len(body) > MAX_RESPONSE_BYTES:
                    raise Misconfigured(f"the response has more than {MAX_RESPONSE_BYTES} bytes")
            return response.status_code, bytes(body)

    def _login(self) -> AuthBase | None:
        """Return the user name and the password. The file is read each time, so that a changed password is used at once."""
        if self._settings.username is None:
            return None
        from requests.auth import HTTPBasicAuth

        password = Path(self._settings.password_file or "").read_text("utf-8").strip()
        return HTTPBasicAuth(self._settings.username.encode(), password.encode())


def _object(status: int, body: bytes) -> dict[str, Any]:
    """Return the JSON object of a response, or raise the error that the status stands for."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if status == 200 and isinstance(answer, dict):
        return answer
    if status == 404 and isinstance(answer, dict) and answer.get("error_code") in NOT_FOUND_CODES:
        raise SchemaNotFound
    if status == 429 or status >= 500:
        raise TemporaryFailure(f"it responded with status {status}")
    if status in (401, 403):
        raise Misconfigured(f"it responded with status {status}. Check its username and password_file.")
    reason = f"it responded with status {status}, and not as a schema registry. Check its url."
    raise _UnknownPath(reason) if status == 404 else Misconfigured(reason)


def _schema(answer: Mapping[str, Any]) -> RegisteredSchema:
    try:
        references = tuple(
            Reference(str(reference["name"]), str(reference["subject"]), int(reference["version"]))
            for reference in answer.get("references") or ()
        )
        return RegisteredSchema(str(answer.get("schemaType") or "AVRO"), str(answer["schema"]), references)
    except (KeyError, TypeError, ValueError) as error:
        raise Misconfigured("its response contains no schema. Check its url.") from error
