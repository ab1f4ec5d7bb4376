"""The Flask blueprint of the streams: checks each request completely, then opens its stream.

StreamService.respond() shows the whole path of a request. It detects every failure that can be detected before the first
byte; the response is then an HTTP status with a JSON body. This module does not touch the host app's own routes, error
handlers and sessions.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from sys import intern
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from flask import Blueprint, Response, current_app, make_response, request
from gevent import Timeout
from werkzeug.exceptions import HTTPException

from kafkasse.access import Guards, Visitor
from kafkasse.config import Config
from kafkasse.config.rules import OPEN_ROUTE
from kafkasse.errors import (
    UNEXPECTED,
    ConfigurationError,
    InvalidParameter,
    KafkasseError,
    ServerStopping,
    TooManyRejections,
)
from kafkasse.feed import Feeds, Reader
from kafkasse.feed.feeds import ring_limits
from kafkasse.feed.start import resolve
from kafkasse.log import Log, Partition
from kafkasse.process import runtime
from kafkasse.process.limits import StreamLimits
from kafkasse.process.open_streams import ENVIRON_KEY, OPENED_KEY, StreamEnd, StreamInfo, StreamRegistry
from kafkasse.process.telemetry import request_id, traces
from kafkasse.records.filter import Selection, parse_query
from kafkasse.records.frame.record_view import RecordView
from kafkasse.records.registry import open_registry
from kafkasse.route import Route
from kafkasse.settings import SchemaRegistrySettings, WebSettings
from kafkasse.web import ticket_endpoint
from kafkasse.web.catalog import Catalog
from kafkasse.web.compression import IDENTITY, Coding, negotiate
from kafkasse.web.console import Console
from kafkasse.web.encoders import Encoders
from kafkasse.web.headers import ALL_METHODS, DEFAULT_HEADERS, READ_METHODS, STREAM_HEADERS, CorsPolicy
from kafkasse.web.host_session import keep_unchanged_session
from kafkasse.web.id_size import check_id_size
from kafkasse.web.identify import Identifier
from kafkasse.web.observer import Observer
from kafkasse.web.request import StreamRequest, parse_request
from kafkasse.web.revocations import Revocations
from kafkasse.web.skipped_records import FilterFailures, SkippedRecords
from kafkasse.web.stream import Stream, with_jitter
from kafkasse.web.stream_response import forbid_compression, stream_response_class
from kafkasse.web.throttle import RejectionThrottle
from kafkasse.web.value_schemas import ValueSchemas
from kafkasse.web.wsgi_server import WsgiServer, is_test_client

if TYPE_CHECKING:  # its packages are optional
    from kafkasse.records.registry.lookup import SchemaRegistry

UNAVAILABLE = 503
MAX_STATE_AGE_S = 1.0  # of the state of a cluster for operators
_limits_of_blueprints: WeakSet[StreamLimits] = WeakSet()  # of this process


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The objects that all requests of one route share.

    Attributes:
        settings: the general settings, overridden by those of the route.
        cors: the origins whose pages may read the route.
        limits: counts the streams of the route.
    """

    settings: WebSettings
    cors: CorsPolicy
    limits: StreamLimits

    @classmethod
    def of(cls, route: Route, config: Config) -> Endpoint:
        """Return the endpoint of a route of a configuration."""
        settings = config.web_of(route)
        cors = CorsPolicy(route.cors_origins, route.cors_credentials)
        limits = StreamLimits(settings.max_streams, settings.max_streams_per_client, scope="This route")
        return cls(settings, cors, limits)


def streams_blueprint(
    config: Config, open_log: Callable[[str], Log], name: str, catalog: bool, console: bool
) -> Blueprint:
    """Create a blueprint that serves the routes of `config`. Users call kafkasse.blueprint().

    Args:
        config: settings and hooks.
        open_log: opens the log of a cluster. The first request calls it, because importing an app must not connect to Kafka.
        name: the blueprint's name, under which app.extensions["kafkasse"] holds the StreamService.
        catalog: whether the blueprint serves its catalog.
        console: whether it serves the console, too.
    """
    service = StreamService(config, open_log, name, catalog, console)
    blueprint = Blueprint(name, __name__)
    service.catalog.add_rules(blueprint)
    for route in config.routes:
        blueprint.add_url_rule(
            route.url_rule,
            route.name,
            service.view(route),
            methods=ALL_METHODS,
            provide_automatic_options=False,
            # werkzeug's redirects to a path with other slashes repeat the request's Host header, which a client can forge.
            merge_slashes=False,
            strict_slashes=not route.path.endswith("/"),
        )
    if config.access.tickets:
        blueprint.add_url_rule(
            ticket_endpoint.PATH,
            ticket_endpoint.ENDPOINT,
            service.ticket_view,
            methods=ALL_METHODS,
            provide_automatic_options=False,
        )
    blueprint.after_request(add_request_id)
    blueprint.teardown_request(close_failed)
    blueprint.record_once(lambda state: state.app.extensions.setdefault("kafkasse", {}).update({name: service}))
    return blueprint


def add_request_id(response: Response) -> Response:
    """Add the request's ID to a response."""
    response.headers[request_id.HEADER] = request_id.request_id(request.environ)
    return response


def close_failed(error: BaseException | None) -> None:
    """Close the stream of a request that failed after the stream was opened, for example in a hook of the host app.

    Otherwise, the traceback would keep the stream open until the next garbage collection.
    """
    if error is None:
        return
    for opened in request.environ.get(OPENED_KEY, ()):
        if (stream := opened()) is not None:
            stream.close()


class StreamService:
    """The state behind one blueprint: its configuration, counters, feeds and open streams.

    Attributes:
        config: settings and hooks.
        observer: the metrics and log lines of this blueprint.
        registry: the open streams, unless the worker provides its own registry.
        catalog: describes the streams.
        identifier: identifies the visitors of requests.
        may_operate: whether the visitor may use the endpoints for operators; see web/console.py.
    """

    may_operate: Callable[[], bool | None] | None = None

    def __init__(
        self, config: Config, open_log: Callable[[str], Log], name: str, catalog: bool = False, console: bool = False
    ) -> None:
        self.config = config
        self.observer = Observer([route.name for route in config.routes], config.hooks.logger)
        self._filter_failures = FilterFailures(self.observer.metrics, config.hooks.logger)
        registries = _schema_registries(config)
        skipped = SkippedRecords(self.observer.metrics, config.hooks.logger)
        self._encoders = Encoders(config, skipped.add, registries)
        # The documents name schemas by topic, so they can contain those of only one registry.
        described = {name: each for name, each in registries.items() if name not in config.route.schema_registries}
        self.catalog = Catalog(self, catalog, Console(self) if console else None, ValueSchemas(described))
        self.registry = StreamRegistry()
        self._open_log = open_log
        self._feeds: dict[str, Feeds] = {}  # by cluster
        self._feeds_locks = {route.cluster: Lock() for route in config.routes}
        # The clusters of the routes. Empty as soon as one of them has answered; see check_ready().
        self._clusters_to_reach = tuple({route.cluster for route in config.routes if route.topics or route.allowed})
        self._ring_limits = ring_limits(config.feed)
        self._routes = {route.name: route for route in config.routes}
        self._endpoints = {name: Endpoint.of(route, config) for name, route in self._routes.items()}
        self._guards = Guards(config.access.guards, config.hooks.logger)
        self._tickets = ticket_endpoint.open_tickets(config, name)
        self.identifier = Identifier(self._guards, self._tickets)
        self._revocations = Revocations(self._guards)
        web = config.web
        self._throttle = RejectionThrottle(web.max_rejections_per_s)
        self._server = WsgiServer(web.max_streams, config.hooks.logger)
        self._limits = StreamLimits(web.max_streams, web.max_streams_per_client, web.trusted_proxies)
        _limits_of_blueprints.add(self._limits)
        self._on_close = self._stream_closed  # one object for all streams, because each bound method takes 64 bytes

    def view(self, route: Route) -> Callable[..., Any]:
        """Return the view function of a route."""

        def view(topics: str = "", **parameters: str) -> Any:
            keep_unchanged_session()
            return self.answer(lambda: self._traced_response(route, topics, parameters))

        return view

    def _traced_response(self, route: Route, topics: str, parameters: Mapping[str, str]) -> Response:
        opening = traces.start_opening(route.name, request_id.request_id(request.environ), request.headers.items())
        try:
            response = self.respond(route, topics, parameters, opening.end)
        except Exception as error:
            opening.fail(type(error).__name__, getattr(error, "status", 500))
            raise
        if not isinstance(response.response, Stream):
            opening.end()
        return response

    def answer(self, respond: Callable[[], Response]) -> Any:
        """Return the response of a function, or the response to the error that it raises."""
        try:
            return self._with_cors(respond())
        except KafkasseError as error:
            return self.reject_slowly(error)
        except HTTPException:  # a guard of the application called flask.abort()
            raise
        except Exception as error:  # noqa: BLE001 - failed() logs it
            self.observer.failed(request_id.request_id(request.environ), error)
            return self.reject_slowly(KafkasseError(UNEXPECTED))

    def may_open(self, route: Route) -> bool:
        """Return whether the credentials of the current request open a route, for at least some path parameters."""
        anywhere = replace(route, access=tuple(grant.on_any_path() for grant in route.access))
        try:
            self._identify(anywhere, {})
        except (KafkasseError, HTTPException):
            return False
        return True

    @property
    def has_tickets(self) -> bool:
        """Whether the server issues tickets."""
        return self._tickets is not None

    def check_query(self, own_path: str) -> None:
        """Check a request for a stream without opening it. It is in the query, and its path in the parameter `path`.

        Args:
            own_path: the path of the current request below the blueprint's prefix.

        Raises:
            KafkasseError: the stream would be rejected. Topics and limits are not checked.
        """
        found = ticket_endpoint.target(request, self._routes, own_path)
        if found is None:
            raise InvalidParameter("path must be the path of a stream. Example: ?path=/orders")
        parameters = dict(found.parameters)
        self._parse(found.route, parameters.pop("topics", ""), parameters)

    def problem_types(self) -> str:
        """Return the start of the `type` of an error: the URL path of the pages of errors."""
        return intern(f"{self.catalog.root}/-/problems/")  # each open stream has it

    def ticket_view(self, **_: str) -> Any:
        """Answer a request for a ticket; see web/ticket_endpoint.py. The parameters are those of the app's prefix."""
        return self.answer(self._issue_ticket)

    def _issue_ticket(self) -> Response:
        if request.method == "OPTIONS":
            return Response(status=204, headers={"Allow": ticket_endpoint.METHODS, **DEFAULT_HEADERS})
        assert self._tickets is not None  # noqa: S101 - otherwise the endpoint does not exist
        route, parameters, path = ticket_endpoint.check_request(request, self._ticket_target())
        visitor = self._identify(route, parameters)
        return ticket_endpoint.response(self._tickets, visitor, path)

    def _ticket_target(self) -> ticket_endpoint.Target | None:
        return ticket_endpoint.target(request, self._routes)

    def respond(
        self,
        route: Route,
        topics: str,
        parameters: Mapping[str, str],
        on_open: Callable[[], object] = lambda: None,
    ) -> Response:
        """Identify the visitor, parse the request, select the records, check the topics, and open the stream.

        Args:
            route: the route that the request matched.
            topics: the topics in the path of the open route, separated by commas.
            parameters: the path parameters of the route.
            on_open: called when the stream's first bytes have been sent.

        Raises:
            KafkasseError: the request is rejected. The error has the status of the response.
        """
        if request.method == "OPTIONS":
            return Response(status=204, headers={"Allow": READ_METHODS, **DEFAULT_HEADERS})
        began_at = time.monotonic()
        self._server.check(request.environ)
        settings = self._endpoints[route.name].settings
        visitor, parsed, selection = self._parse(route, topics, parameters)
        registry = StreamRegistry.of(request.environ, self.registry)
        if registry.stopping and request.method == "GET":
            return self._ended_response(route, parsed)
        feeds = self._get_feeds(route.cluster)
        position = route.adapt(parsed.position, feeds.matching(route, parsed.position, began_at))
        names = position.topics
        found = feeds.describe([name for name in names if route.allows(name)], position=position, since=began_at)
        route.check(names, found)
        check_id_size(route, position, found, settings)
        address = self._client_address()
        self._enter(route, address)
        coding = negotiate(request.accept_encodings, settings.compression)
        if request.method == "HEAD":
            try:
                resolve(feeds.log, position, found, route.start, parsed.since)  # rejects what GET rejects
            finally:
                self._leave(route.name, address)
            return self._stream_response(route, parsed, (), coding)
        try:
            encoder = self._encoders.get(route, parsed.wire, selection, address, feeds.drop_idle)
            problem_types = self.problem_types()
            reader = feeds.open(route, position, found, encoder, parsed.since, address, selection.selector)
        except BaseException:
            self._leave(route.name, address)
            raise
        self._call_handler("ready", list(found))
        info = StreamInfo.new(request_id.request_id(request.environ), route.name, address, visitor.name, began_at)
        self.observer.opened(info)
        stream = Stream(
            reader,
            settings,
            registry,
            request.environ.get("gunicorn.socket"),
            self._on_close,
            self.config.hooks.logger,
            problem_types=problem_types,
            expires_at=visitor.expires_at,
            info=info,
            on_open=on_open,
            coding=coding,
            ends=_ends_in_test(feeds, reader),
        )
        self._revocations.add(stream, visitor)
        request.environ.setdefault(OPENED_KEY, []).append(ref(stream))
        return self._stream_response(route, parsed, stream, coding)

    def check_ready(self) -> None:
        """Check that this worker is not stopping, and that a Kafka cluster has answered a worker of this gunicorn once.

        Later failures of Kafka do not count. They affect all processes, so a platform would remove all of them at once, and
        clients would get the platform's errors instead of ours. A worker that starts while Kafka is down is ready, too,
        because a probe may reach any worker. With several clusters, one that cannot be reached must not affect the routes of
        the others.

        Raises:
            ServerStopping: the process is stopping.
            KafkasseError: no cluster has answered yet. The error is that of the last cluster.
        """
        self._running_registry()
        if runtime.is_ready():
            self._clusters_to_reach = ()
        failure: KafkasseError | None = None
        for cluster in self._clusters_to_reach:
            try:
                self._get_feeds(cluster).topic_names()
            except KafkasseError as error:
                failure = error
            else:
                self._clusters_to_reach = ()
                runtime.set_ready()
                return
        if failure is not None:
            raise failure

    def cluster_states(self) -> list[dict[str, str]]:
        """Return the state of each Kafka cluster of the routes: `reachable`, or `unavailable` with the reason."""
        states = []
        for cluster in sorted({route.cluster for route in self._routes.values() if route.topics or route.allowed}):
            try:
                self._get_feeds(cluster).topic_names(MAX_STATE_AGE_S)
                states.append({"name": cluster, "state": "reachable", "detail": ""})
            except KafkasseError as error:
                states.append({"name": cluster, "state": "unavailable", "detail": error.detail})
        return states

    def _running_registry(self) -> StreamRegistry:
        """Return the open streams of this process.

        Raises:
            ServerStopping: the process is stopping.
        """
        registry = StreamRegistry.of(request.environ, self.registry)
        if registry.stopping:
            raise ServerStopping("This server is stopping. Retry after 1 s.", retry_after_s=1)
        return registry

    def _ended_response(self, route: Route, parsed: StreamRequest) -> Response:
        """Return a stream that has ended: its client reconnects to another worker. After a 503, a browser would give up."""
        body = parsed.wire.opening + parsed.wire.retry(with_jitter(self._endpoints[route.name].settings.retry_ms))
        return self._stream_response(route, parsed, [body], IDENTITY)

    def _stream_response(self, route: Route, parsed: StreamRequest, body: Any, coding: Coding) -> Response:
        headers = STREAM_HEADERS | self.catalog.links(route)
        create = stream_response_class(current_app.response_class)  # type: ignore[arg-type]  # a class is hashable
        response = create(body, headers=headers, content_type=parsed.content_type, direct_passthrough=True)
        if self._endpoints[route.name].settings.compression:
            response.vary.add("Accept-Encoding")
        if coding.name:
            response.content_encoding = coding.name
        forbid_compression(response)
        return response

    def throttle(self) -> TooManyRejections | None:
        """Wait until the current request may be rejected. Return the error to send instead, if any; see web/throttle.py."""
        try:
            self._throttle.delay(self._client_address())
        except TooManyRejections as error:
            return error
        return None

    def reject_slowly(self, error: KafkasseError) -> Any:
        """Return the response to a request that gets no stream. A client that repeats such requests waits for it.

        Only status 503 is prompt: many clients may share an address, and all of them return while Kafka recovers.
        """
        return self.reject(error if error.status == UNAVAILABLE else self.throttle() or error)

    def reject(self, error: KafkasseError) -> Any:
        """Return the response to a request that gets no stream."""
        self.record_rejection(error.status, type(error).__name__)
        if error.status >= 500:
            self._call_handler("event.error", error)
        # The Kafka adapter has logged the errors that kafka-python caused.
        if isinstance(error, ConfigurationError) and not _has_foreign_cause(error):
            self.observer.misconfigured(error.detail)
        response = self._response_of_hook(error)
        return self._with_cors(self.problem_response(error)) if response is None else response

    def record_rejection(self, status: int, error: str) -> None:
        """Count and log the current request, which gets no stream. `error` is the name of a class."""
        own_id, route = request_id.request_id(request.environ), _endpoint_name()
        self.observer.rejected(own_id, route, self._client_address(), status, error)

    def problem_response(self, error: KafkasseError) -> Response:
        """Return an error as a response with the error's status."""
        problem = error.problem(self.problem_types()) | {"request_id": request_id.request_id(request.environ)}
        body = json.dumps(problem, ensure_ascii=False) + "\n"
        headers = error.headers | {"Link": f'<{problem["type"]}>; rel="help"'}
        response = Response(body, error.status, headers, content_type="application/problem+json")
        response.headers.update(DEFAULT_HEADERS)
        return response

    def _response_of_hook(self, error: KafkasseError) -> Response | None:
        """Return the response of the application's hook, or None if there is no hook, or if it returns None or fails."""
        hook = self.config.hooks.on_connect_error
        if hook is None:
            return None
        try:
            result = hook(error)
            return None if result is None else self._with_cors(make_response(result))
        except HTTPException:  # from flask.abort()
            raise
        except Exception:
            self.config.hooks.logger.exception("The hook on_connect_error failed.")
            return None

    def _with_cors(self, response: Response) -> Response:
        origin = request.headers.get("Origin")
        headers = dict(self._cors_policy().headers(origin, is_preflight=request.method == "OPTIONS"))
        if headers.pop("Vary", None):
            response.vary.add("Origin")  # the response of a hook may vary by another header too
        if "Access-Control-Allow-Methods" in headers:
            headers["Access-Control-Allow-Methods"] = response.headers.get("Allow", READ_METHODS)
        response.headers.update(headers)
        return response

    def _cors_policy(self) -> CorsPolicy:
        """Return the policy of the current request's route, or the policy of the open route if there is none."""
        name = _endpoint_name()
        if name == ticket_endpoint.ENDPOINT and (found := self._ticket_target()):
            name = found.route.name
        return self._endpoints.get(name, self._endpoints[OPEN_ROUTE]).cors

    def _get_feeds(self, cluster: str) -> Feeds:
        """Return the feeds of a cluster. A cluster that cannot be opened does not delay the routes of another one."""
        with self._feeds_locks[cluster]:
            if cluster not in self._feeds:
                feeds = Feeds(self._open_log(cluster), self.config.feed, limits=self._ring_limits)
                self._feeds[cluster] = feeds
                self.observer.observe(feeds, has_worker=ENVIRON_KEY in request.environ)
            return self._feeds[cluster]

    def _client_address(self) -> str:
        return self._limits.client(request.remote_addr or "", request.headers.get("X-Forwarded-For", ""))

    def _enter(self, route: Route, address: str) -> None:
        """Count a new stream.

        Raises:
            ServerFull, TooManyStreams: the server or the route has too many streams.
        """
        self._server.check_capacity(sum(limits.count for limits in _limits_of_blueprints))
        self._limits.enter(address)
        try:
            self._endpoints[route.name].limits.enter(address)
        except BaseException:
            self._limits.leave(address)
            raise

    def _leave(self, route: str, address: str) -> None:
        self._limits.leave(address)
        self._endpoints[route].limits.leave(address)

    def _stream_closed(self, stream: Stream, end: StreamEnd) -> None:
        self._leave(stream.info.route, stream.info.client)
        self.observer.closed(stream.info, end)
        self._call_handler("disconnected", stream.topics)

    def _parse(
        self, route: Route, topics: str, parameters: Mapping[str, str]
    ) -> tuple[Visitor, StreamRequest, Selection]:
        """Identify the visitor, parse the request, and select the records."""
        visitor = self._identify(route, parameters)
        parsed = parse_request(request, route, topics, self._endpoints[route.name].settings)
        return visitor, parsed, self._select(route, visitor, parameters)

    def _identify(self, route: Route, parameters: Mapping[str, str]) -> Visitor:
        """Return the visitor whom the current request identifies to the guards of a route."""
        return self.identifier.identify(request, route, parameters, self._endpoints[route.name].cors)

    def _select(self, route: Route, visitor: Visitor, parameters: Mapping[str, str]) -> Selection:
        """Return the records that the route, the path parameters, the visitor's claims and the query select."""
        query = parse_query(request.args.items(multi=True), route.client_filters, route.sends)

        def on_failure(view: RecordView, reason: str) -> None:
            self._filter_failures.add(route.name, view.topic, view.partition, view.offset, reason)

        return route.where.select(parameters, visitor.claims, query, on_failure)

    def _call_handler(self, event: str, argument: Any) -> None:
        handler = self.config.hooks.kafka_event_handlers.get(event)
        if handler is not None:
            try:
                handler(argument)
            except (Exception, Timeout):  # a handler may let a gevent.Timeout escape
                self.config.hooks.logger.exception("The handler of %s failed.", event)


def _endpoint_name() -> str:
    """Return the name of the current request's route, or "" if there is none, without the names of blueprints."""
    return (request.endpoint or "").rpartition(".")[2]


def _ends_in_test(feeds: Feeds, reader: Reader) -> Mapping[Partition, int] | None:
    """Return the offsets at which the stream ends if Flask's test client requested it, otherwise None."""
    if not (current_app.testing and is_test_client(request.environ)):
        return None
    return {each: held.end for each, held in feeds.log.offset_ranges(reader.partitions).items()}


def _schema_registries(config: Config) -> dict[str, SchemaRegistry]:
    """Return the schema registries by cluster, without those that no route uses. Clusters may share one.

    Raises:
        ConfigurationError: a package that the schema registries need is not installed.
    """
    opened: dict[SchemaRegistrySettings, SchemaRegistry] = {}
    found = {}
    for cluster in {route.cluster for route in config.routes if route.decoder == "registry"}:
        if (settings := config.schema_registry(cluster)) is not None:
            found[cluster] = opened[settings] = opened.get(settings) or open_registry(settings, config.hooks.logger)
    return found


def _has_foreign_cause(error: BaseException) -> bool:
    """Return whether an exception of another library caused the error. Feeds raise copies whose cause is the original."""
    cause = error.__cause__
    return cause is not None and (not isinstance(cause, KafkasseError) or _has_foreign_cause(cause))
