"""A schema registry for tests: an HTTP server that speaks the part of Confluent's REST API that kafkasse uses."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import uuid
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from google.protobuf.descriptor_pb2 import FileDescriptorProto

Answer = tuple[int, Any]  # the status, and the JSON of the body
_numbers = count()


class Registry:
    """A registry on a free port of 127.0.0.1. Close it after use.

    Attributes:
        path: the path of its URL.
        login: the user name and password that each request must have; None: none.
        failure: returns the answer to a request instead of the registry, or None for the usual answer.
        has_guids: whether schemas have GUIDs, which old registries lack.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[str] = []
        self.login: tuple[str, str] | None = None
        self.failure: Callable[[], Answer | None] = lambda: None
        self.has_guids = True
        self._schemas: list[dict[str, Any]] = []
        self._subjects: dict[str, list[int]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        if tls is not None:
            # The handshake happens in the thread of the connection, so that a client that fails delays no other client.
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        # A process, such as a JVM, may cache the schemas of an earlier registry that had the same port.
        self.path = f"/{next(_numbers)}"
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self._server.server_port}{self.path}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def register(
        self,
        subject: str,
        schema: Any,
        kind: str = "AVRO",
        references: Sequence[tuple[str, str, int]] = (),
    ) -> int:
        """Add a version to a subject, and return the ID of the schema.

        Args:
            schema: JSON, or the descriptor of a Protobuf file.
            kind: AVRO, JSON or PROTOBUF.
            references: the name, subject and version of the schemas to which the schema refers.
        """
        text = base64.b64encode(schema.SerializeToString()).decode() if kind == "PROTOBUF" else json.dumps(schema)
        named = [{"name": name, "subject": other, "version": version} for name, other, version in references]
        entry = {"schema": text, "references": named}
        self._schemas.append(entry if kind == "AVRO" else {**entry, "schemaType": kind})  # as by Confluent
        self._subjects.setdefault(subject, []).append(len(self._schemas))
        return len(self._schemas)

    def guid(self, schema_id: int) -> uuid.UUID:
        """Return the GUID of a schema."""
        return uuid.UUID(int=schema_id)

    def answer(self, path: str, login: str | None) -> Answer:
        """Return the answer to a request."""
        self.requests.append(path)
        if (failure := self.failure()) is not None:
            return failure
        if self.login is not None and login != "Basic " + base64.b64encode(":".join(self.login).encode()).decode():
            return 401, {"error_code": 401, "message": "Unauthorized"}
        url = urlsplit(path)
        match [unquote(part) for part in url.path.strip("/").split("/")]:
            case ["schemas", "ids", text] if int(text) < 2**31:  # larger numbers are not an Integer of Java
                content = self._by_id(int(text))
            case ["schemas", "guids", text] if self.has_guids:
                content = self._by_id(uuid.UUID(text).int)
            case ["subjects", subject, "versions", version]:
                content = self._by_version(subject, version)
            case _:
                return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
        if content.get("schemaType") == "PROTOBUF" and parse_qs(url.query).get("format") != ["serialized"]:
            return 200, {**content, "schema": 'syntax = "proto3"; // the text of the file'}
        return (404 if "error_code" in content else 200), content

    def _by_id(self, schema_id: int) -> dict[str, Any]:
        if 1 <= schema_id <= len(self._schemas):
            return self._schemas[schema_id - 1]
        return {"error_code": 40403, "message": "Schema not found"}

    def _by_version(self, subject: str, version: str) -> dict[str, Any]:
        if subject not in self._subjects:
            return {"error_code": 40401, "message": "Subject not found."}
        ids = self._subjects[subject]
        number = len(ids) if version == "latest" else int(version)
        if not 1 <= number <= len(ids):
            return {"error_code": 40402, "message": "Version not found."}
        return {**self._schemas[ids[number - 1] - 1], "subject": subject, "version": number, "id": ids[number - 1]}


def _handler(registry: Registry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, content = registry.answer(self.path.removeprefix(registry.path), self.headers.get("Authorization"))
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(body)))
            # Otherwise, this thread would also answer for a later registry at this port.
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    return Handler


# Producers.


def framed(schema_id: int, data: bytes) -> bytes:
    """Return a value in Confluent's wire format."""
    return b"\0" + schema_id.to_bytes(4, "big") + data


def proto_file(name: str, package: str = "", imports: Sequence[str] = ()) -> FileDescriptorProto:
    """Return an empty .proto file in the syntax proto3."""
    return FileDescriptorProto(name=name, package=package, syntax="proto3", dependency=imports)
