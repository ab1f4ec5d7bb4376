"""The blueprint: `app.register_blueprint(kafkasse.blueprint(config), url_prefix="/streams")`.

The whole way of a request is in Streams.answer(). Everything that can fail before the first byte fails there, as an HTTP
status with a JSON body; the host app's own routes, error handlers and session are left alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from threading import Lock
from typing import Any

from flask import Blueprint, Response, make_response, request

from kafkasse.config import Config
from kafkasse.errors import KafkasseError, ServerStopping
from kafkasse.feed import Feeds
from kafkasse.frame import Encoder, Wire
from kafkasse.log import Log
from kafkasse.metrics import Metrics
from kafkasse.route import Route
from kafkasse.web import stream
from kafkasse.web.limits import StreamLimits
from kafkasse.web.request import StreamRequest, read
from kafkasse.web.stream import Stream

METHODS = ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"]  # those we refuse, we refuse in our own words
# With nosniff no browser takes what a producer wrote, or a name that we repeat, for a script or a page.
NO_SNIFFING = {"X-Content-Type-Options": "nosniff"}
STREAM_HEADERS = {"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no", **NO_SNIFFING}
CORS_HEADERS = {
    "Access-Control-Allow-Methods": "GET, HEAD, OPTIONS",
    "Access-Control-Allow-Headers": "Last-Event-ID, Cache-Control, Authorization",
    "Access-Control-Max-Age": "86400",
    "Vary": "Origin",
}


def blueprint(config: Config, open_log: Callable[[], Log], name: str = "kafkasse") -> Blueprint:
    """The streams as a Flask blueprint, to be mounted at any prefix of any app.

    Args:
        config: settings and hooks; from the environment when left out.
        log: what to read, in place of the Kafka of the configuration (feed.memory.MemoryLog, say).
        name: the blueprint's name, for an app that mounts more than one.
    """
    streams = Streams(config, open_log)
    made = Blueprint(name, __name__)
    for route in streams.config.routes:
        made.add_url_rule(route.path, route.name, streams.view(route), methods=METHODS, provide_automatic_options=False)
    made.record_once(lambda state: state.app.extensions.setdefault("kafkasse", {}).update({name: streams}))
    return made


class Streams:
    """What one blueprint holds: its configuration, its counters and, from the first request on, its feeds."""

    def __init__(self, config: Config, open_log: Callable[[], Log]) -> None:
        self.config = config
        self.metrics = Metrics()
        self._open_log = open_log
        self._feeds: Feeds | None = None
        self._making_feeds = Lock()
        self._encoders: dict[tuple[str, type[Wire]], Encoder] = {}
        self._limits = StreamLimits(
            config.web.max_streams, config.web.max_streams_per_client, config.web.trusted_proxies
        )

    def view(self, route: Route) -> Callable[..., Any]:
        """The view function of a route."""

        def view(topics: str = "") -> Any:
            try:
                return self.answer(route, topics)
            except KafkasseError as error:
                return self._refuse(error)
            except Exception:
                self.config.hooks.logger.exception("a request failed")
                return self._refuse(KafkasseError("Something went wrong in this server. Its log says what."))

        return view

    def answer(self, route: Route, topics: str) -> Response:
        """The whole way: read the request, check it, find its topics, open the stream."""
        if request.method == "OPTIONS":
            return self._with_cors(Response(status=204, headers={"Allow": "GET, HEAD, OPTIONS"}))
        asked = read(request, route, topics, self.config.web)
        if stream.stopping():
            raise ServerStopping("This server is stopping. Come back in a moment.", retry_after_s=1)
        feeds = self._connect()
        allowed = [topic for topic in asked.position.topics if route.allows(topic)]
        found = feeds.describe(allowed)
        route.check(asked.position.topics, found)
        if request.method == "HEAD":
            return self._respond(asked, ())
        leave = self._limits.enter(request)
        try:
            reader = feeds.open(route, asked.position, found, self._encoder(route, asked.wire), asked.since)
        except BaseException:
            leave()
            raise
        self._tell("ready", list(found))
        self.metrics.count("streams_opened")
        client = request.environ.get("gunicorn.socket")
        return self._respond(
            asked, Stream(reader, asked.wire, self.config.web, client, self._on_end(list(found), leave))
        )

    def _respond(self, asked: StreamRequest, body: Any) -> Response:
        response = Response(body, headers=STREAM_HEADERS, content_type=asked.content_type, direct_passthrough=True)
        return self._with_cors(response)

    def _refuse(self, error: KafkasseError) -> Any:
        self.metrics.count("requests_refused", status=str(error.status))
        if error.status >= 500:
            self._tell("event.error", error)
        if self.config.hooks.on_connect_error is not None:
            answer = self.config.hooks.on_connect_error(error)
            if answer is not None:
                return make_response(answer)
        body = json.dumps(error.problem(), ensure_ascii=False) + "\n"
        response = Response(body, error.status, error.headers, content_type="application/problem+json")
        response.headers.update({"Cache-Control": "no-store", **NO_SNIFFING})
        return self._with_cors(response)

    def _with_cors(self, response: Response) -> Response:
        origin = request.headers.get("Origin")
        allowed = self.config.web.cors_origins
        if origin and (origin in allowed or "*" in allowed):
            response.headers.update(CORS_HEADERS)
            response.headers["Access-Control-Allow-Origin"] = "*" if "*" in allowed else origin
        return response

    def _connect(self) -> Feeds:
        with self._making_feeds:
            if self._feeds is None:
                self._feeds = Feeds(self._open_log(), self.config.feed)
            return self._feeds

    def _encoder(self, route: Route, wire: Wire) -> Encoder:
        """One for each route and wire: streams share what has the same encoder."""
        key = route.name, type(wire)
        if key not in self._encoders:
            hooks = self.config.hooks
            sparse = self.config.web.id_frequency == "run"
            self._encoders[key] = Encoder(
                route.format, wire, hooks.deserializer, hooks.filterer, self._skipped, sparse_ids=sparse
            )
        return self._encoders[key]

    def _skipped(self, topic: str, partition: int, offset: int, reason: str) -> None:
        self.metrics.count("records_skipped", topic=topic)
        self.config.hooks.logger.warning("skipped %s/%d offset %d: %s", topic, partition, offset, reason)

    def _on_end(self, topics: list[str], leave: Callable[[], None]) -> Callable[[], None]:
        def ended() -> None:
            leave()
            self.metrics.count("streams_closed")
            self._tell("disconnected", topics)

        return ended

    def _tell(self, event: str, about: Any) -> None:
        handler = self.config.hooks.kafka_event_handlers.get(event)
        if handler is not None:
            try:
                handler(about)
            except Exception:
                self.config.hooks.logger.exception("the handler of %s failed", event)
