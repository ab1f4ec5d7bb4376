"""An app in which the official conformance suite of Durable Streams can create the streams that it reads.

kafkasse only reads. This adapter creates a topic for PUT, and produces records for PUT and POST. A record is a JSON array
with one message of a JSON stream, or with the base64 text of the bytes of another stream. All reads are requests to
kafkasse, whose status and headers are returned unchanged, except for Content-Type; the adapter only removes these arrays
from the body. kafkasse requires `offset`, so the adapter adds `offset=-1` to a request without it.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from flask import Flask
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import TopicAlreadyExistsError
from werkzeug.test import Client
from werkzeug.wrappers import Request, Response

from kafkasse.app import create_app
from kafkasse.config import Config

PREFIX = "/v1/stream/"
JSON = "application/json"
MAX_BYTES = 500_000  # Kafka's limit for a record is 1 MB
HEADERS = {"X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "same-origin"}
Environ = dict[str, Any]


def app() -> Adapter:
    config = Config.load()
    return Adapter(create_app(config), config.kafka.kafka["bootstrap_servers"])


class Adapter:
    """A WSGI app."""

    def __init__(self, kafkasse: Flask, bootstrap_servers: list[str]) -> None:
        self._kafkasse = kafkasse
        self._settings = {"bootstrap_servers": bootstrap_servers, "retry_backoff_ms": 10}
        self._types: dict[str, str] = {}  # the content type of each stream
        self._clients: tuple[KafkaAdminClient, KafkaProducer] | None = None

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        request = Request(environ)
        if not request.path.startswith(PREFIX):
            return self._kafkasse(environ, start_response)
        topic = re.sub(r"[^\w.-]", "_", request.path.removeprefix(PREFIX))
        match request.method:
            case "PUT":
                response = self._create(topic, request)
            case "POST":
                response = self._append(topic, request)
            case "DELETE":
                response = self._delete(topic)
            case _:
                return self._read(topic, request, start_response)
        response.headers.update(HEADERS)
        return response(environ, start_response)

    # Writes.

    @property
    def _admin(self) -> KafkaAdminClient:
        return self._open()[0]

    def _open(self) -> tuple[KafkaAdminClient, KafkaProducer]:
        if self._clients is None:
            self._clients = KafkaAdminClient(**self._settings), KafkaProducer(**self._settings, linger_ms=0)
        return self._clients

    def _create(self, topic: str, request: Request) -> Response:
        content_type = request.headers.get("Content-Type", "application/octet-stream").lower()
        known = self._types.get(topic)
        if known is not None:
            return self._created(topic, 200 if known == content_type else 409)
        with suppress(TopicAlreadyExistsError):
            self._admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}})
        self._types[topic] = content_type
        if not self._produce(topic, request, is_creation=True):
            return Response(status=400)
        return self._created(topic, 201, Location=request.base_url)

    def _created(self, topic: str, status: int, **headers: str) -> Response:
        headers |= {"Stream-Next-Offset": self._end_of(topic)}
        return Response(status=status, headers=headers, content_type=self._types[topic])

    def _append(self, topic: str, request: Request) -> Response:
        content_type = request.headers.get("Content-Type", "").lower()
        if topic not in self._types:
            return Response(status=404)
        if not content_type or not request.data:
            return Response(status=400)
        if content_type.partition(";")[0] != self._types[topic].partition(";")[0]:
            return Response(status=409)
        if len(request.data) > MAX_BYTES:
            return Response(status=413)
        if not self._produce(topic, request):
            return Response(status=400)
        return Response(status=204, headers={"Stream-Next-Offset": self._end_of(topic)})

    def _produce(self, topic: str, request: Request, is_creation: bool = False) -> bool:
        """Append the messages of a request. Return False if they are invalid."""
        messages: list[Any] = [base64.b64encode(request.data).decode()] if request.data else []
        if self._types[topic].startswith(JSON) and request.data:
            try:
                value = json.loads(request.data)
            except ValueError:
                return False
            messages = value if isinstance(value, list) else [value]
            if not (messages or is_creation):
                return False
        producer = self._open()[1]
        for sent in [producer.send(topic, json.dumps([message]).encode()) for message in messages]:
            sent.get(timeout=20)
        return True

    def _delete(self, topic: str) -> Response:
        if self._types.pop(topic, None) is None:
            return Response(status=404)
        self._admin.delete_topics([topic])
        return Response(status=204)

    def _end_of(self, topic: str) -> str:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:  # the description of a topic that did not exist is stored for a second
            response = Client(self._kafkasse).head(f"/{topic}?offset=now", buffered=True)
            if response.status_code == 200:
                return response.headers["Stream-Next-Offset"]
            time.sleep(0.05)
        raise TimeoutError(topic)

    # Reads.

    def _read(self, topic: str, request: Request, start_response: Any) -> Iterable[bytes]:
        environ, query = request.environ, request.query_string.decode()
        if "offset" not in request.args and "live" not in request.args:
            query = f"offset=-1&{query}" if query else "offset=-1"
        content_type = self._types.get(topic, "")
        is_json = content_type.startswith(JSON)
        environ |= {"PATH_INFO": f"/{topic}", "QUERY_STRING": query, "REQUEST_URI": f"/{topic}?{query}"}
        head: list[Any] = []

        def start(status: str, headers: list[tuple[str, str]], *_: Any) -> None:
            head[:] = status, dict(headers)

        body = self._kafkasse(environ, start)
        status, headers = head
        if headers.get("Content-Type") == "text/event-stream":
            start_response(status, list(headers.items()))
            return _Closing(_events(body, is_json), body)
        data = b"".join(body)
        getattr(body, "close", lambda: None)()
        if headers.get("Content-Type") == JSON:
            headers["Content-Type"] = content_type
            if request.method == "GET":
                data = _unpacked(data, is_json)
                headers["Content-Length"] = str(len(data))
        start_response(status, list(headers.items()))
        return [data]


class _Closing:
    """A body that closes another one."""

    def __init__(self, parts: Iterator[bytes], body: Any) -> None:
        self._parts, self._body = parts, body

    def __iter__(self) -> Iterator[bytes]:
        return self._parts

    def close(self) -> None:
        self._body.close()


def _unpacked(data: bytes, is_json: bool) -> bytes:
    messages = [message for (message,) in json.loads(data)]
    return json.dumps(messages).encode() if is_json else b"".join(map(base64.b64decode, messages))


def _events(parts: Iterable[bytes], is_json: bool) -> Iterator[bytes]:
    buffer = b""
    for part in parts:
        *complete, buffer = (buffer + part).split(b"\n\n")
        events = []
        for event in complete:
            name, *lines = event.split(b"\n")
            if name == b"event: data":
                data = _unpacked(b"".join(line.removeprefix(b"data:") for line in lines), is_json)
                data = re.sub(rb"\r\n|\r|\n", b"\n", data)
                lines = [b"data:" + line for line in data.split(b"\n")]
            events.append(b"\n".join([name, *lines]) + b"\n\n")
        yield b"".join(events)
