"""The service behind one blueprint: checks each request for a stream completely, then opens the stream.

This package does not touch the host app's own routes, error handlers and sessions.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from sys import intern
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

from flask import Blueprint, Request, Response, after_this_request, current_app, make_response, request, url_for
from flask.blueprints import BlueprintSetupState
from gevent import Timeout
from gevent.lock import BoundedSemaphore
from werkzeug.exceptions import HTTPException
from werkzeug.routing import RequestRedirect

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
    Unauthorized,
)
from kafkasse.feed import Feeds, Reader
from kafkasse.feed.chunks import Chunk, Start
from kafkasse.feed.feeds import ring_limits
from kafkasse.feed.shared_chunks import ReadWaits, SharedChunks, SharedRead
from kafkasse.feed.start import resolve
from kafkasse.log import Log, Partition, Topic
from kafkasse.process import runtime
from kafkasse.process.limits import StreamLimits, TrustedProxies, subscriber
from kafkasse.process.open_streams import (
    OPENED_KEY,
    OPERATIONS_KEY,
    PARK_KEY,
    EndReason,
    StreamEnd,
    StreamInfo,
    streams,
)
from kafkasse.process.stream_services import stream_services
from kafkasse.process.telemetry import request_id, traces
from kafkasse.records.encoder import Encoder
from kafkasse.records.filter import Selection, parse_query
from kafkasse.records.frame.record_view import RecordView
from kafkasse.records.position import Position
from kafkasse.route import Route
from kafkasse.settings import WebSettings
from kafkasse.web import event_poll, finite_reads
from kafkasse.web.compression import IDENTITY, Coding, negotiate
from kafkasse.web.encoders import Encoders
from kafkasse.web.headers import ALL_METHODS, DEFAULT_HEADERS, READ_METHODS, STREAM_HEADERS, CorsPolicy
from kafkasse.web.host_session import keep_unchanged_session
from kafkasse.web.id_size import check_id_size, check_offset_size
from kafkasse.web.identify import Identifier, open_tickets
from kafkasse.web.long_poll import Answer, LongPoll
from kafkasse.web.observer import Observer
from kafkasse.web.open_read import FINITE_READ, OpenRead
from kafkasse.web.public_url import FORWARDED_PREFIX, PublicUrl, public_url
from kafkasse.web.request import FiniteRead, Live, StreamRequest, is_finite_read, parse_request
from kafkasse.web.revocations import Revocations
from kafkasse.web.stream import Stream, with_jitter
from kafkasse.web.stream_response import (
    UNCOMPRESSED,
    PollResponse,
    has_werkzeugs_response,
    poll_response_class,
    stream_response_class,
)
from kafkasse.web.throttle import RejectionThrottle
from kafkasse.web.wsgi_server import WsgiServer, is_test_client

if TYPE_CHECKING:  # its packages are optional
    from kafkasse.records.registry.lookup import SchemaRegistry

UNAVAILABLE = 503
GUARD_RETRY_S = "5"  # after a guard of the application has failed
MAX_STATE_AGE_S = 1.0  # of the state of a cluster for operators
OPENAPI_TYPE = "application/vnd.oai.openapi+json;version=3.2"
ASYNCAPI_TYPE = "application/vnd.aai.asyncapi+json;version=3.0.0"
# Endpoints that no route can have, because the name of a route starts with a letter.
PROBLEM_ENDPOINT = "-problem"
TICKET_ENDPOINT = "-ticket"
TICKET_PATH = "/-/ticket"
# werkzeug's redirects to a path with other slashes repeat the Host header, which a client can forge.
RULE_OPTIONS: Mapping[str, Any] = {
    "methods": ALL_METHODS,
    "provide_automatic_options": False,
    "merge_slashes": False,
}
# The number of cached roots. A proxy could send a new prefix with each request.
MAX_ROOTS = 100


class Opening(NamedTuple):
    """A request for a stream or a finite read that was identified and parsed."""

    route: Route
    visitor: Visitor
    parsed: StreamRequest
    selection: Selection
    address: str  # of the client
    client: str  # whom the limits count: subscriber(address)
    environ: dict[str, Any]
    began_at: float  # when the request arrived, as in time.monotonic()

    @property
    def info(self) -> StreamInfo:
        """The description of a stream that opens now."""
        own_id = request_id.request_id(self.environ)
        return StreamInfo.new(own_id, self.route.name, self.address, self.visitor.name, self.began_at)


class Target(NamedTuple):
    """The stream that a request names in its query: its route, the path parameters of the route, and its complete path."""

    route: Route
    parameters: Mapping[str, Any]
    path: str


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The objects that all requests of one route share."""

    settings: WebSettings  # the general settings, overridden by those of the route
    cors: CorsPolicy
    limits: StreamLimits

    @classmethod
    def of(cls, route: Route, config: Config, whole: StreamLimits) -> Endpoint:
        """Return the endpoint of a route of a configuration."""
        settings = config.web_of(route)
        limits = StreamLimits(settings.max_streams, settings.max_streams_per_client, whole)
        return cls(settings, CorsPolicy(route.cors_origins, route.cors_credentials), limits)


class StreamService:
    """The state behind one blueprint: its configuration, counters, feeds and open streams.

    Args:
        open_log: opens the log of a cluster. The first request calls it, because importing an app must not connect to Kafka.
        registries: the schema registries by cluster, as far as routes need them.
        has_catalog: whether responses link to the documents of the catalog.

    Attributes:
        tickets: issues tickets; None if the configuration does not use them.
        may_operate: whether the visitor may use the endpoints for operators, or None if this address does not have them. The
            attribute is None if the app has no such endpoints.
    """

    may_operate: Callable[[], bool | None] | None = None

    def __init__(
        self,
        config: Config,
        open_log: Callable[[str], Log],
        name: str,
        registries: Mapping[str, SchemaRegistry],
        has_catalog: bool,
    ) -> None:
        self.config = config
        self._has_catalog = has_catalog
        self.observer = Observer([route.name for route in config.routes], config.hooks.logger)
        self._encoders = Encoders(config, self.observer.skipped, registries)
        self._open_log = open_log
        self._feeds: dict[str, Feeds] = {}  # by cluster
        self._feeds_locks = {route.cluster: BoundedSemaphore() for route in config.routes}
        self._clusters = sorted({route.cluster for route in config.routes if route.topics or route.allowed})
        self._is_ready = False  # one of them has answered; see check_ready()
        self._ring_limits = ring_limits(config.feed)
        self._shared_chunks = SharedChunks(finite_reads.MAX_READ_S)
        self._routes = {route.name: route for route in config.routes}
        web = config.web
        self.limits = StreamLimits(web.max_streams, web.max_streams_per_client)
        self._endpoints = {name: Endpoint.of(route, config, self.limits) for name, route in self._routes.items()}
        self._guards = Guards(config.access.guards, config.hooks.logger)
        self.tickets = open_tickets(config, name)
        self._identifier = Identifier(self._guards, self.tickets)
        self._revocations = Revocations(self._guards)
        self._throttle = RejectionThrottle(web.max_rejections_per_s)
        self._server = WsgiServer(web.max_streams, config.hooks.logger)
        self._proxies = TrustedProxies(web.trusted_proxies)
        self._on_close = self._stream_closed  # one object for all streams, because each bound method takes 64 bytes
        self._blueprint: Blueprint | None = None
        self._blueprint_name = ""  # under which an app has registered the blueprint
        self._roots: dict[tuple[Hashable, ...], str] = {}  # see root
        stream_services.add(self)

    def bind(self, blueprint: Blueprint) -> None:
        """Serve the routes at this blueprint, and register this service as `app.extensions["kafkasse"][name]`."""
        self._blueprint = blueprint
        for route in self._routes.values():
            blueprint.add_url_rule(
                route.url_rule,
                route.name,
                self.view(route),
                **RULE_OPTIONS,
                strict_slashes=not route.path.endswith("/"),
            )
        blueprint.record_once(self._registered)

    def _registered(self, state: BlueprintSetupState) -> None:
        self._blueprint_name = f"{state.name_prefix}.{state.name}".lstrip(".")
        state.app.extensions.setdefault("kafkasse", {})[state.blueprint.name] = self

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
        except (Exception, Timeout) as error:
            opening.fail(type(error).__name__, getattr(error, "status", 500))
            raise
        if isinstance(response, PollResponse) or not isinstance(response.response, Stream):
            opening.end()
        return response

    def answer(self, respond: Callable[[], Response], methods: str = READ_METHODS) -> Any:
        """Return the response of a function, or the response to the error that it raises.

        The response to OPTIONS lists `methods` and is empty, except for the CORS headers.
        """
        try:
            if request.method == "OPTIONS":
                return self._with_cors(Response(status=204, headers={"Allow": methods, **DEFAULT_HEADERS}))
            return self._with_cors(respond())
        except KafkasseError as error:
            return self.reject_slowly(error)
        except HTTPException:  # a guard of the application called flask.abort()
            after_this_request(self._with_cors)
            raise
        except (Exception, Timeout) as error:  # noqa: BLE001 - failed() logs it; a Timeout may be the app's
            self.observer.failed(request_id.request_id(request.environ), error)
            return self.reject_slowly(KafkasseError(UNEXPECTED))

    def may_open(self, route: Route) -> bool:
        """Return whether the credentials of the current request open a route, for at least some path parameters."""
        anywhere = replace(route, access=tuple(grant.on_any_path() for grant in route.access))
        try:
            self.identify(anywhere, {})
        except (KafkasseError, HTTPException):
            return False
        return True

    def find_stream(self, own_path: str) -> Target | None:
        """Return the stream that the parameter `path` of the current request names, or None if there is no such stream.

        `own_path` is the path of the request below the blueprint's prefix.
        """
        adapter = current_app.create_url_adapter(request)
        path = request.args.get("path", "")
        if adapter is None or not path.startswith("/"):
            return None
        path = request.path.removesuffix(own_path) + path
        try:
            endpoint, parameters = adapter.match(path, "GET")
        except (HTTPException, RequestRedirect):
            return None
        blueprint, _, name = endpoint.rpartition(".")
        if blueprint != (request.endpoint or "").rpartition(".")[0] or name not in self._routes:
            return None
        return Target(self._routes[name], parameters, path)

    def check_query(self, own_path: str) -> None:
        """Check, without opening a stream, the request that the query describes. See find_stream().

        Raises:
            KafkasseError: the stream would be rejected. Topics and limits are not checked.
        """
        target = self.find_stream(own_path)
        if target is None:
            raise InvalidParameter("path must be the path of a stream. Example: ?path=/orders")
        parameters = dict(target.parameters)
        self._parse(target.route, parameters.pop("topics", ""), parameters, is_finite_read(_request()))

    @property
    def root(self) -> str:
        """The URL path of the blueprint for the client of the current request, without a slash at the end."""
        root = self._root_in_app()
        return self.public_url().prefix + root if FORWARDED_PREFIX in _request().environ else root

    def public_url(self) -> PublicUrl:
        """Return the URL of the server for the client of the current request."""
        return public_url(_request(), self._proxies)

    def _root_in_app(self) -> str:
        app, current = current_app._get_current_object(), _request()  # type: ignore[attr-defined]
        key = app, current.blueprint, current.root_path
        if (root := self._roots.get(key)) is not None:
            return root
        # An error that Flask raises, such as 404, belongs to no blueprint or to that of the demo's page.
        is_own = app.blueprints.get(current.blueprint or "") is self._blueprint
        endpoint = f"{current.blueprint if is_own else self._blueprint_name}.{PROBLEM_ENDPOINT}"
        (rule,) = app.url_map.iter_rules(endpoint)
        arguments = current.view_args or {}
        if not arguments.keys() >= rule.arguments - {"problem"} and (adapter := app.create_url_adapter(current)):
            _, arguments = adapter.match()  # the app's url_value_preprocessor() has removed some
        values = {name: value for name, value in arguments.items() if name in rule.arguments}
        # The app's url_defaults() may add values of the current visitor to the query.
        path = url_for(endpoint, **values | {"problem": "x"}).partition("?")[0]
        root = path.removesuffix("/-/problems/x")
        # The app may have registered the blueprint at a prefix that contains parameters.
        if rule.arguments == {"problem"} and root != path and len(self._roots) < MAX_ROOTS:
            self._roots[key] = root
        return root

    def problem_types(self) -> str:
        """Return the start of the `type` of an error: the URL path of the pages of errors."""
        return _problem_types(self.root)

    def links(self, route: Route | None = None, root: str | None = None) -> dict[str, str]:
        """Return the header that links a response to the documents that describe the server and, if given, a route.

        `root` is the property of this name, if the caller has read it.
        """
        if not self._has_catalog:
            return {}
        root = self.root if root is None else root
        described_by = f', <{root}/-/catalog#{route.name}>; rel="describedby"; type="text/html"' if route else ""
        return {
            "Link": f'<{root}/-/openapi.json>; rel="service-desc"; type="{OPENAPI_TYPE}", '
            f'<{root}/-/asyncapi.json>; rel="service-desc"; type="{ASYNCAPI_TYPE}", '
            f'<{root}/-/catalog>; rel="service-doc"; type="text/html"{described_by}'
        }

    def respond(
        self,
        route: Route,
        topics: str,
        parameters: Mapping[str, str],
        on_open: Callable[[], object] = lambda: None,
    ) -> Response:
        """Identify the visitor, parse the request, select the records, check the topics, and open the stream.

        Args:
            topics: the topics in the path of the open route, separated by commas.
            on_open: called when the stream's first bytes have been sent.

        Raises:
            KafkasseError: the request is rejected. The error has the status of the response.
        """
        began_at, current = time.monotonic(), _request()
        is_finite, is_head = is_finite_read(current), current.method == "HEAD"
        (self._server.check_finite if is_finite or is_head else self._server.check)(current.environ)
        visitor, parsed, selection = self._parse(route, topics, parameters, is_finite)
        address = self._client_address()
        opening = Opening(route, visitor, parsed, selection, address, subscriber(address), current.environ, began_at)
        if parsed.finite is not None:
            return self._finite_response(opening, parsed.finite)
        if streams.stopping and not is_head:
            return self._ended_response(route, parsed)
        compression = self._endpoints[route.name].settings.compression
        coding = negotiate(current.headers.get("Accept-Encoding", ""), compression) if compression else IDENTITY
        if is_head:
            response = self._stream_response(route, parsed, (), coding, self.root)
            response.automatically_set_content_length = False  # a stream has no length
            response.headers.update(self._server.runner(current.environ)(partial(self._find_end, opening)))
            return response
        return self._open_stream(opening, coding, on_open)

    def _open_stream(self, opening: Opening, coding: Coding, on_open: Callable[[], object]) -> Response:
        route, parsed, environ = opening.route, opening.parsed, opening.environ
        feeds, position, topics = self._enter(opening)
        try:
            encoder, root, selector = self._encoder(feeds, opening), self.root, opening.selection.selector
            reader = feeds.open(route, position, topics, encoder, parsed.since, opening.client, selector)
        except BaseException:
            self._endpoints[route.name].limits.leave(opening.client)
            raise
        self._call_handler("ready", list(topics))
        info = opening.info
        self.observer.opened(info)
        stream = Stream(
            reader,
            self._endpoints[route.name].settings,
            streams,
            environ.get("gunicorn.socket"),
            self._on_close,
            self.config.hooks.logger,
            problem_types=_problem_types(root),
            expires_at=opening.visitor.expires_at,
            info=info,
            on_open=on_open,
            coding=coding,
            ends=_ends_in_test(feeds, reader),
        )
        self._revocations.add(stream, opening.visitor)
        environ.setdefault(OPENED_KEY, []).append(ref(stream))
        return self._stream_response(route, parsed, stream, coding, root)

    def _encoder(self, feeds: Feeds, opening: Opening) -> Encoder:
        route, wire, selection = opening.route, opening.parsed.wire, opening.selection
        return self._encoders.get(route, wire, selection, opening.client, feeds.drop_idle)

    def _enter(self, opening: Opening) -> tuple[Feeds, Position, dict[str, Topic]]:
        """Check the topics and the limits, and count the stream. Call this in the event loop.

        Raises:
            KafkasseError: the request is rejected.
        """
        route, parsed, environ = opening.route, opening.parsed, opening.environ
        settings, limits = self._endpoints[route.name].settings, self._endpoints[route.name].limits
        feeds = self._get_feeds(route.cluster, OPERATIONS_KEY in environ)
        position, topics = self._describe(feeds, route, parsed.position, opening.began_at)
        check_id_size(route, position, topics, settings)
        if parsed.finite is not None and parsed.finite.offset:
            check_offset_size(position, topics, parsed.finite.other_bytes, *self._server.max_request_line(environ))
        self._server.check_capacity(sum(service.limits.count for service in stream_services))
        limits.enter(opening.client)
        return feeds, position, topics

    def _find_end(self, opening: Opening) -> Mapping[str, str]:
        """Return the header with the offset at the end of the log. There is none while a partition has no leader.

        Raises:
            KafkasseError: a request for the stream would be rejected.
        """
        feeds, position, topics = self._enter(opening)
        try:
            start = resolve(feeds.log, position, topics, opening.route.start, opening.parsed.since)
            return {} if start.pending else {"Stream-Next-Offset": feeds.chunks.end_offset(Start.of(start))}
        finally:
            self._endpoints[opening.route.name].limits.leave(opening.client)

    def _describe(
        self, feeds: Feeds, route: Route, position: Position, since: float
    ) -> tuple[Position, dict[str, Topic]]:
        """Complete a position, describe its topics, and check that clients may read them.

        Raises:
            TopicNotAvailable: a topic does not exist, or the route does not allow it.
            Unavailable: Kafka does not answer.
        """
        position = route.adapt(position, feeds.matching(route, position, since))
        names = position.topics
        topics = feeds.describe([name for name in names if route.allows(name)], position=position, since=since)
        route.check(names, topics)
        return position, topics

    def _finite_response(self, opening: Opening, finite: FiniteRead) -> Response:
        """Read a chunk in the event loop, and return it."""
        environ, route, is_head = opening.environ, opening.route, request.method == "HEAD"
        if finite.live is Live.SSE and not is_head:
            self._server.check(environ)
        run = self._server.runner(environ)

        def read() -> tuple[finite_reads.Source, Chunk | SharedRead | None, Iterable[bytes]]:
            feeds, position, topics = self._enter(opening)
            opened = self._open_read(opening, run)
            try:
                source = self._source(feeds, opening, opened)
                if finite.live is Live.EVENTS and not is_head:
                    return source, None, event_poll.read(source, position, topics, opening.parsed.since)
                return source, *source.first(finite, position, topics, opening.parsed.since, is_head)
            except ReadWaits as waiting:
                return source, waiting.read, ()
            except BaseException:
                opened.release(EndReason.ERROR)
                raise

        source, chunk, body = run(read)
        try:
            if chunk is None:
                response = event_poll.respond(body, opening.parsed.content_type)
            elif isinstance(chunk, SharedRead):
                response = self._poll_response(source, finite, chunk, opening)
            else:
                response = finite_reads.respond(source, finite, chunk, body)
            if not response.cache_control.public:  # a client may have chosen the prefix in the links; see public_url()
                response.headers.update(self.links(route))
        except BaseException:
            source.opened.close()
            raise
        if isinstance(response, PollResponse):
            return response
        response.call_on_close(source.opened.close)
        self._limit_write(response, environ, route)
        return response

    def _limit_write(self, response: Response, environ: Mapping[str, Any], route: Route) -> None:
        if (client := environ.get("gunicorn.socket")) is not None:
            client.settimeout(self._endpoints[route.name].settings.write_timeout_s)  # gunicorn has none
            response.call_on_close(lambda: client.settimeout(None))  # the next request may come later

    def _poll_response(
        self, source: finite_reads.Source, finite: FiniteRead, read: SharedRead, opening: Opening
    ) -> PollResponse:
        """Return the response to a long poll that waits."""
        headers = finite_reads.waiting_headers(source.max_age_s, finite.offset)
        create = poll_response_class(current_app.response_class)  # type: ignore[arg-type]  # a class is hashable
        response: PollResponse = create(headers=headers, content_type=finite_reads.JSON_TYPE)
        fail = partial(self._failed_poll, self.problem_types())
        timeout_s = self._endpoints[opening.route.name].settings.write_timeout_s
        poll = LongPoll(source.opened, read, finite.cursor, finite_reads.poll_answer, fail, timeout_s)
        environ, route = opening.environ, opening.route
        response.start(poll, lambda response: self._limit_write(response, environ, route))
        return response

    def _failed_poll(self, problem_types: str, info: StreamInfo, error: Exception) -> Answer:
        """Return the error of a long poll that has waited. The request may have been released."""
        if not isinstance(error, KafkasseError):
            self.observer.failed(info.request_id, error)
            error = KafkasseError(UNEXPECTED)
        if error.status != UNAVAILABLE:
            error = self._too_many(info.client, may_wait=True) or error
        self._report(error, info.request_id, info.route, info.client)
        response = self._problem(error, problem_types, info.request_id)
        headers = {**response.headers, "Content-Length": str(len(response.data))}
        replaced = {name.lower() for name in headers} | {"cross-origin-resource-policy"}
        return Answer(response.status, headers, replaced, (response.data,))

    def _open_read(self, opening: Opening, run: Callable[[Callable[[], Any]], Any]) -> OpenRead:
        """Return a finite read that was entered. Its release() undoes that."""

        info, guard = opening.info, opening.visitor.guard  # without the request, because the read may wait for long

        def unauthorized(detail: str) -> Unauthorized:
            return Unauthorized(detail, self._guards.challenges([guard], "invalid_token", detail))

        opened = OpenRead(info, opening.visitor, streams, unauthorized, run, self._read_closed)
        self.observer.opened(info, FINITE_READ)
        opening.environ.setdefault(OPENED_KEY, []).append(ref(opened))
        return opened

    def _source(self, feeds: Feeds, opening: Opening, opened: OpenRead) -> finite_reads.Source:
        """Return the records of a finite read."""
        self._revocations.add(opened, opening.visitor)
        route, selection, finite = opening.route, opening.selection, opening.parsed.finite
        hooks = self.config.hooks
        may_park = (
            finite is not None
            and finite.live is Live.LONG_POLL
            and PARK_KEY in opening.environ
            # These hooks may need the request.
            and hooks.on_connect_error is None
            and "event.error" not in hooks.kafka_event_handlers
            and has_werkzeugs_response(current_app.response_class)
        )
        return finite_reads.Source(
            feeds,
            self._shared_chunks,
            route,
            self._encoder(feeds, opening),
            selection.selector,
            (route.name, selection.filter, selection.dimensions, selection.selector),
            opening.client,
            0 if route.access else self._endpoints[route.name].settings.shared_cache_s,
            opened,
            lambda position: self._describe(feeds, route, position, time.monotonic()),
            may_park,
        )

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
        if streams.stopping:
            raise ServerStopping("This server is stopping. Retry after 1 s.", retry_after_s=1)
        self._is_ready = self._is_ready or runtime.is_ready()
        failure: KafkasseError | None = None
        for _, failure in () if self._is_ready else self._reach(request.environ):
            if failure is None:
                return
        if failure is not None:
            raise failure

    def cluster_states(self) -> list[dict[str, str]]:
        """Return the state of each Kafka cluster of the routes: `reachable`, or `unavailable` with the reason."""
        return [
            {"name": cluster, "state": "unavailable", "detail": failure.detail}
            if failure
            else {"name": cluster, "state": "reachable", "detail": ""}
            for cluster, failure in self._reach(request.environ)
        ]

    def reach_kafka(self) -> None:
        """Connect to Kafka before the first request. The adapter logs which clusters cannot be reached, and why."""
        for _ in self._reach({OPERATIONS_KEY: False}):
            pass

    def _reach(self, environ: Mapping[str, Any]) -> Iterator[tuple[str, KafkasseError | None]]:
        """Yield the name of each cluster of the routes, and the error if it does not answer."""
        run, has_worker = self._server.runner(environ), OPERATIONS_KEY in environ
        for cluster in self._clusters:
            failure = None
            try:
                run(partial(self._topic_names, cluster, has_worker))
                self._is_ready = True
                runtime.set_ready()
            except KafkasseError as error:
                failure = error
            yield cluster, failure

    def _topic_names(self, cluster: str, has_worker: bool) -> set[str]:
        return self._get_feeds(cluster, has_worker).topic_names(MAX_STATE_AGE_S)

    def _ended_response(self, route: Route, parsed: StreamRequest) -> Response:
        """Return a stream that has ended: its client reconnects to another worker. After a 503, a browser would give up."""
        body = parsed.wire.opening + parsed.wire.retry(with_jitter(self._endpoints[route.name].settings.retry_ms))
        return self._stream_response(route, parsed, [body], IDENTITY, self.root)

    def _stream_response(self, route: Route, parsed: StreamRequest, body: Any, coding: Coding, root: str) -> Response:
        headers = STREAM_HEADERS | self.links(route, root)
        headers |= {"Content-Encoding": coding.name} if coding.name else UNCOMPRESSED
        if self._endpoints[route.name].settings.compression:
            headers["Vary"] = "Accept-Encoding"
        create = stream_response_class(current_app.response_class)  # type: ignore[arg-type]  # a class is hashable
        return create(body, headers=headers, content_type=parsed.content_type, direct_passthrough=True)

    def throttle(self) -> TooManyRejections | None:
        """Wait until the current request may be rejected. Return the error to send instead, if any; see web/throttle.py."""
        return self._too_many(self._client_address(), self._server.has_loop(request.environ))

    def _too_many(self, client: str, may_wait: bool) -> TooManyRejections | None:
        try:
            self._throttle.delay(subscriber(client), may_wait)
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
        self._report(error, request_id.request_id(request.environ), _endpoint_name(), self._client_address())
        response = self._response_of_hook(error)
        return self._with_cors(self.problem_response(error)) if response is None else response

    def _report(self, error: KafkasseError, own_id: str, route: str, client: str) -> None:
        self.observer.rejected(own_id, route, client, error.status, type(error).__name__)
        if error.status >= 500:
            self._call_handler("event.error", error)
        # The Kafka adapter has logged the errors that kafka-python caused.
        if isinstance(error, ConfigurationError) and not _has_foreign_cause(error):
            self.observer.misconfigured(error.detail)

    def record_rejection(self, status: int, error: str) -> None:
        """Count and log the current request, which gets no stream. `error` is the name of a class."""
        own_id, route = request_id.request_id(request.environ), _endpoint_name()
        self.observer.rejected(own_id, route, self._client_address(), status, error)

    def problem_response(self, error: KafkasseError) -> Response:
        """Return an error as a response with the error's status."""
        return self._problem(error, self.problem_types(), request_id.request_id(request.environ))

    @staticmethod
    def _problem(error: KafkasseError, problem_types: str, own_id: str) -> Response:
        problem = error.problem(problem_types) | {"request_id": own_id}
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
            after_this_request(self._with_cors)
            raise
        except (Exception, Timeout):
            self.config.hooks.logger.exception("The hook on_connect_error failed.")
            return None

    def _with_cors(self, response: Response) -> Response:
        current = _request()
        origin = current.headers.get("Origin")
        headers = dict(self._cors_policy().headers(origin, is_preflight=current.method == "OPTIONS"))
        if not headers:
            return response
        if headers.pop("Vary", None):
            response.vary.add("Origin")  # the response of a hook may vary by another header too
        if "Access-Control-Allow-Methods" in headers:
            headers["Access-Control-Allow-Methods"] = response.headers.get("Allow", READ_METHODS)
        response.headers.update(headers)
        return response

    def _cors_policy(self) -> CorsPolicy:
        """Return the policy of the current request's route, or the policy of the open route if there is none."""
        name = _endpoint_name()
        if name == TICKET_ENDPOINT and (target := self.find_stream(TICKET_PATH)):
            name = target.route.name
        return self._endpoints.get(name, self._endpoints[OPEN_ROUTE]).cors

    def _get_feeds(self, cluster: str, has_worker: bool) -> Feeds:
        """Return the feeds of a cluster. A cluster that cannot be opened does not delay the routes of another one."""
        with self._feeds_locks[cluster]:
            if cluster not in self._feeds:
                feeds = Feeds(self._open_log(cluster), self.config.feed, limits=self._ring_limits)
                self._feeds[cluster] = feeds
                self.observer.observe(feeds, has_worker=has_worker)
            return self._feeds[cluster]

    def _client_address(self) -> str:
        current = _request()
        return self._proxies.client(current.remote_addr or "", current.headers.get("X-Forwarded-For", ""))

    def _stream_closed(self, stream: Stream, end: StreamEnd) -> None:
        self._endpoints[stream.info.route].limits.leave(subscriber(stream.info.client))
        self.observer.closed(stream.info, end)
        self._call_handler("disconnected", stream.topics)

    def _read_closed(self, info: StreamInfo, end: StreamEnd) -> None:
        self._endpoints[info.route].limits.leave(subscriber(info.client))
        self.observer.read_closed(info, end, FINITE_READ)

    def _parse(
        self, route: Route, topics: str, parameters: Mapping[str, str], is_finite: bool
    ) -> tuple[Visitor, StreamRequest, Selection]:
        """Identify the visitor, parse the request, and select the records."""
        visitor = self.identify(route, parameters)
        parsed = parse_request(_request(), route, topics, self._endpoints[route.name].settings, is_finite)
        return visitor, parsed, self._select(route, visitor, parameters)

    def identify(self, route: Route, parameters: Mapping[str, str], cors: CorsPolicy | None = None) -> Visitor:
        """Return the visitor whom the current request identifies to the guards of a route.

        Raises:
            KafkasseError: see Identifier.identify(), or a guard of the application has failed.
        """
        try:
            return self._identifier.identify(request, route, parameters, cors or self._endpoints[route.name].cors)
        except (KafkasseError, HTTPException):
            raise
        except (Exception, Timeout) as error:
            self.observer.failed(request_id.request_id(request.environ), error)
            failure = KafkasseError(UNEXPECTED)
            failure.headers["Retry-After"] = GUARD_RETRY_S  # so that clients retry: a database may be down
            raise failure from error

    def rejected_by_worker(self, own_id: str, client: str, error: KafkasseError, reason: str) -> None:
        """Count and log a request that the worker rejected before an app received it."""
        self.observer.rejected(own_id, "", client, error.status, type(error).__name__, reason)

    def cors_headers(self, origin: str | None) -> Mapping[str, str]:
        """Return the CORS headers of a response that no route sends: those of a route that allows the origin."""
        return max((endpoint.cors.headers(origin) for endpoint in self._endpoints.values()), key=len)

    def _select(self, route: Route, visitor: Visitor, parameters: Mapping[str, str]) -> Selection:
        """Return the records that the route, the path parameters, the visitor's claims and the query select."""
        current = _request()
        arguments = current.args.items(multi=True) if current.query_string else ()
        query = parse_query(arguments, route.client_filters, route.sends)

        def on_failure(view: RecordView, reason: str) -> None:
            self.observer.filter_failed(route.name, view.topic, view.partition, view.record.offset, reason)

        return route.where.select(parameters, visitor.claims, query, on_failure)

    def _call_handler(self, event: str, argument: Any) -> None:
        handler = self.config.hooks.kafka_event_handlers.get(event)
        if handler is not None:
            try:
                handler(argument)
            except (Exception, Timeout):  # a handler may let a gevent.Timeout escape
                self.config.hooks.logger.exception("The handler of %s failed.", event)


def _request() -> Request:
    """Return the current request. Each use of Flask's proxy would look it up again."""
    return request._get_current_object()  # type: ignore[attr-defined,no-any-return]


def _endpoint_name() -> str:
    """Return the name of the current request's route, or "" if there is none, without the names of blueprints."""
    return (request.endpoint or "").rpartition(".")[2]


def _problem_types(root: str) -> str:
    return intern(f"{root}/-/problems/")  # each open stream has it


def _ends_in_test(feeds: Feeds, reader: Reader) -> Mapping[Partition, int] | None:
    """Return the offsets at which the stream ends if Flask's test client requested it, otherwise None."""
    if not (is_test_client(request.environ) and current_app.testing):
        return None
    return {partition: offsets.end for partition, offsets in feeds.log.offset_ranges(reader.partitions).items()}


def _has_foreign_cause(error: BaseException) -> bool:
    """Return whether an exception of another library caused the error. Feeds raise copies whose cause is the original."""
    cause = error.__cause__
    return cause is not None and (not isinstance(cause, KafkasseError) or _has_foreign_cause(cause))
