"""The service behind one blueprint: checks each request for a stream completely, then opens the stream.

This package does not touch the host app's own routes, error handlers and sessions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

from flask import Blueprint, Response, current_app, request
from flask.blueprints import BlueprintSetupState
from gevent import Timeout
from werkzeug.exceptions import HTTPException

from kafkasse.access import Guards, Visitor
from kafkasse.config import Config
from kafkasse.errors import UNEXPECTED, InvalidParameter, KafkasseError, Unauthorized
from kafkasse.feed.core.chunk import Chunk
from kafkasse.feed.core.chunk_start import ChunkStart
from kafkasse.feed.feeds import Feeds, OpenRequest
from kafkasse.feed.reader import Reader
from kafkasse.feed.shared_chunks import ReadWaits, SharedChunks, SharedRead
from kafkasse.feed.start import resolve
from kafkasse.log import Log, Offsets, Topic
from kafkasse.process.limits import StreamLimits, TrustedProxies, subscriber
from kafkasse.process.open_streams import OPENED_KEY, PARK_KEY, EndReason, StreamEnd, StreamInfo, streams
from kafkasse.process.stream_services import stream_services
from kafkasse.process.telemetry import request_id, traces
from kafkasse.records.encoder import Encoder
from kafkasse.records.filter import Selection, parse_query
from kafkasse.records.frame.record_view import RecordView
from kafkasse.records.position import Position
from kafkasse.route import Route
from kafkasse.settings import WebSettings
from kafkasse.web import event_poll, finite_reads
from kafkasse.web.clusters import Clusters
from kafkasse.web.compression import IDENTITY, Coding, negotiate
from kafkasse.web.encoders import Encoders
from kafkasse.web.headers import ALL_METHODS, STREAM_HEADERS, CorsPolicy
from kafkasse.web.host_session import keep_unchanged_session
from kafkasse.web.id_size import check_id_size, check_offset_size
from kafkasse.web.identify import TICKET, Identifier, open_tickets
from kafkasse.web.long_poll import LongPoll
from kafkasse.web.observer import Observer
from kafkasse.web.open_read import FINITE_READ, OpenRead
from kafkasse.web.public_url import BlueprintUrls
from kafkasse.web.request import (
    PARAMETERS,
    FiniteRead,
    LiveMode,
    StreamRequest,
    current_request,
    is_finite_read,
    parse_request,
)
from kafkasse.web.responder import Responder
from kafkasse.web.revocations import Revocations
from kafkasse.web.stream import StreamBody, with_jitter
from kafkasse.web.stream_response import (
    UNCOMPRESSED,
    PollResponse,
    has_werkzeugs_response,
    poll_response_class,
    stream_response_class,
)
from kafkasse.web.target import find_target
from kafkasse.web.wsgi_server import WsgiServer, is_test_client

if TYPE_CHECKING:  # its packages are optional
    from kafkasse.records.registry.lookup import SchemaRegistry

GUARD_RETRY_S = "5"  # after a guard of the application has failed
# werkzeug's redirects to a path with other slashes repeat the Host header, which a client can forge.
RULE_OPTIONS: Mapping[str, Any] = {"methods": ALL_METHODS, "provide_automatic_options": False, "merge_slashes": False}


class IdentifiedRequest(NamedTuple):
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


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The objects that all requests of one route share."""

    settings: WebSettings  # the general settings, overridden by those of the route
    limits: StreamLimits


class StreamService:
    """The state behind one blueprint: its configuration, counters, feeds and open streams.

    Args:
        open_log: see Clusters.
        registries: the schema registries by cluster, as far as routes need them.
        has_catalog: see BlueprintUrls.

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
        web = config.web
        self.config = config
        self.observer = Observer([route.name for route in config.routes], config.hooks.logger)
        self.routes = {route.name: route for route in config.routes}
        self._encoders = Encoders(config, self.observer.skipped, registries)
        self._server = WsgiServer(web.max_streams, config.hooks.logger)
        self.clusters = Clusters(config, open_log, self.observer, self._server)
        self._shared_chunks = SharedChunks(finite_reads.MAX_READ_S)
        self.limits = StreamLimits(web.max_streams, web.max_streams_per_client)
        self._endpoints = {}
        for route in config.routes:
            own = config.web_of(route)
            limits = StreamLimits(own.max_streams, own.max_streams_per_client, self.limits)
            self._endpoints[route.name] = Endpoint(own, limits)
        self._guards = Guards(config.access.guards, config.hooks.logger)
        self.tickets = open_tickets(config, name)
        self._identifier = Identifier(self._guards, self.tickets)
        self._revocations = Revocations(self._guards)
        proxies = TrustedProxies(web.trusted_proxies)
        self.urls = BlueprintUrls(proxies, has_catalog)
        self.responder = Responder(config, self.routes, self.observer, self.urls, proxies, self._server)
        self._on_close = self._stream_closed  # one object for all streams, because each bound method takes 64 bytes
        # For the worker; see process/stream_services.py.
        self.reach_kafka = self.clusters.reach
        self.cors_headers = self.responder.cors_headers
        self.rejected_by_worker = self.responder.rejected_by_worker
        stream_services.add(self)

    def bind(self, blueprint: Blueprint) -> None:
        """Serve the routes at this blueprint, and register this service as `app.extensions["kafkasse"][name]`."""
        self.urls.blueprint = blueprint
        for route in self.routes.values():
            blueprint.add_url_rule(
                route.url_rule,
                route.name,
                self.view(route),
                **RULE_OPTIONS,
                strict_slashes=not route.path.endswith("/"),
            )
        blueprint.record_once(self._registered)

    def _registered(self, state: BlueprintSetupState) -> None:
        self.urls.name = f"{state.name_prefix}.{state.name}".lstrip(".")
        state.app.extensions.setdefault("kafkasse", {})[state.blueprint.name] = self

    def view(self, route: Route) -> Callable[..., Any]:
        """Return the view function of a route."""

        def view(topics: str = "", **parameters: str) -> Any:
            keep_unchanged_session()
            return self.responder.answer(lambda: self._traced_response(route, topics, parameters))

        return view

    def _traced_response(self, route: Route, topics: str, parameters: Mapping[str, str]) -> Response:
        opening = traces.start_opening(route.name, request_id.request_id(request.environ), request.headers.items())
        try:
            response = self.respond(route, topics, parameters, opening.end)
        except (Exception, Timeout) as error:
            opening.fail(type(error).__name__, getattr(error, "status", 500))
            raise
        if isinstance(response, PollResponse) or not isinstance(response.response, StreamBody):
            opening.end()
        return response

    def may_open(self, route: Route) -> bool:
        """Return whether the credentials of the current request open a route, for at least some path parameters."""
        anywhere = replace(route, access=tuple(grant.on_any_path() for grant in route.access))
        try:
            self.identify(anywhere, {})
        except (KafkasseError, HTTPException):
            return False
        return True

    def check_query(self, own_path: str) -> None:
        """Check, without opening a stream, the request that the query describes. See find_target().

        Raises:
            KafkasseError: the stream would be rejected. Topics and limits are not checked.
        """
        target = find_target(self.routes, own_path)
        if target is None:
            raise InvalidParameter("path must be the path of a stream. Example: ?path=/orders")
        parameters = dict(target.parameters)
        self._parse(target.route, parameters.pop("topics", ""), parameters, is_finite_read(current_request()))

    def respond(
        self, route: Route, topics: str, parameters: Mapping[str, str], on_open: Callable[[], object] = lambda: None
    ) -> Response:
        """Identify the visitor, parse the request, select the records, check the topics, and open the stream.

        Args:
            topics: the topics in the path of the open route, separated by commas.
            on_open: called when the stream's first bytes have been sent.

        Raises:
            KafkasseError: the request is rejected. The error has the status of the response.
        """
        began_at, current = time.monotonic(), current_request()
        is_finite, is_head = is_finite_read(current), current.method == "HEAD"
        (self._server.check_finite if is_finite or is_head else self._server.check)(current.environ)
        visitor, parsed, selection = self._parse(route, topics, parameters, is_finite)
        address = self.responder.client_address()
        opening = IdentifiedRequest(
            route, visitor, parsed, selection, address, subscriber(address), current.environ, began_at
        )
        if parsed.finite is not None:
            return self._finite_response(opening, parsed.finite)
        if streams.stopping and not is_head:
            return self._ended_response(route, parsed)
        compression = self._endpoints[route.name].settings.compression
        coding = negotiate(current.headers.get("Accept-Encoding", ""), compression) if compression else IDENTITY
        if is_head:
            response = self._stream_response(route, parsed, (), coding, self.urls.root)
            response.automatically_set_content_length = False  # a stream has no length
            response.headers.update(self._server.runner(current.environ)(partial(self._find_end, opening)))
            return response
        return self._open_stream(opening, coding, on_open)

    def _open_stream(self, opening: IdentifiedRequest, coding: Coding, on_open: Callable[[], object]) -> Response:
        route, parsed, environ = opening.route, opening.parsed, opening.environ
        feeds, position, topics = self._enter(opening)
        try:
            encoder, root, selector = self._encoder(feeds, opening), self.urls.root, opening.selection.selector
            wanted = OpenRequest(route, position, topics, encoder, parsed.since, opening.client, selector)
            reader = feeds.open(wanted)
        except BaseException:
            self._endpoints[route.name].limits.leave(opening.client)
            raise
        self.responder.call_handler("ready", list(topics))
        info = opening.info
        self.observer.opened(info)
        stream = StreamBody(
            reader,
            self._endpoints[route.name].settings,
            streams,
            environ.get("gunicorn.socket"),
            self._on_close,
            self.config.hooks.logger,
            problem_types=self.urls.problem_types(root),
            expires_at=opening.visitor.expires_at,
            info=info,
            on_open=on_open,
            coding=coding,
            ends=_ends_in_test(feeds, reader),
        )
        self._revocations.add(stream, opening.visitor)
        environ.setdefault(OPENED_KEY, []).append(ref(stream))
        return self._stream_response(route, parsed, stream, coding, root)

    def _encoder(self, feeds: Feeds, opening: IdentifiedRequest) -> Encoder:
        route, wire, selection = opening.route, opening.parsed.wire, opening.selection
        return self._encoders.get(route, wire, selection, opening.client, feeds.drop_idle)

    def _enter(self, opening: IdentifiedRequest) -> tuple[Feeds, Position, dict[str, Topic]]:
        """Check the topics and the limits, and count the stream. Call this in the event loop.

        Raises:
            KafkasseError: the request is rejected.
        """
        route, parsed, environ = opening.route, opening.parsed, opening.environ
        settings, limits = self._endpoints[route.name].settings, self._endpoints[route.name].limits
        feeds = self.clusters.feeds(route.cluster, environ)
        position, topics = self._describe(feeds, route, parsed.position, opening.began_at)
        check_id_size(route, position, topics, settings)
        if parsed.finite is not None and parsed.finite.offset:
            check_offset_size(position, topics, parsed.finite.other_bytes, *self._server.max_request_line(environ))
        self._server.check_capacity(sum(service.limits.count for service in stream_services))
        limits.enter(opening.client)
        return feeds, position, topics

    def _find_end(self, opening: IdentifiedRequest) -> Mapping[str, str]:
        """Return the header with the offset at the end of the log. There is none while a partition has no leader.

        Raises:
            KafkasseError: a request for the stream would be rejected.
        """
        feeds, position, topics = self._enter(opening)
        try:
            start = resolve(feeds.log, position, topics, opening.route.start, opening.parsed.since)
            return {} if start.pending else {"Stream-Next-Offset": feeds.chunks.end_offset(ChunkStart.of(start))}
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

    def _finite_response(self, opening: IdentifiedRequest, finite: FiniteRead) -> Response:
        """Read a chunk in the event loop, and return it."""
        environ, route, is_head = opening.environ, opening.route, request.method == "HEAD"
        if finite.live is LiveMode.SSE and not is_head:
            self._server.check(environ)
        run = self._server.runner(environ)

        def read() -> tuple[finite_reads.RecordSource, Chunk | SharedRead | None, Iterable[bytes]]:
            feeds, position, topics = self._enter(opening)
            opened = self._open_read(opening, run)
            try:
                source = self._source(feeds, opening, opened)
                if finite.live is LiveMode.EVENTS and not is_head:
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
            # A client may have chosen the prefix in the links; see web/public_url.py.
            if not response.cache_control.public:
                response.headers.update(self.urls.links(route))
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
        self, source: finite_reads.RecordSource, finite: FiniteRead, read: SharedRead, opening: IdentifiedRequest
    ) -> PollResponse:
        """Return the response to a long poll that waits."""
        headers = finite_reads.waiting_headers(source.max_age_s, finite.offset)
        create = poll_response_class(current_app.response_class)  # type: ignore[arg-type]  # a class is hashable
        response: PollResponse = create(headers=headers, content_type=finite_reads.JSON_TYPE)
        fail = partial(self.responder.failed_poll, self.urls.problem_types())
        timeout_s = self._endpoints[opening.route.name].settings.write_timeout_s
        poll = LongPoll(source.opened, read, finite.cursor, finite_reads.poll_answer, fail, timeout_s)
        environ, route = opening.environ, opening.route
        response.start(poll, lambda response: self._limit_write(response, environ, route))
        return response

    def _open_read(self, opening: IdentifiedRequest, run: Callable[[Callable[[], Any]], Any]) -> OpenRead:
        """Return a finite read that was entered. Its release() undoes that."""

        info, guard = opening.info, opening.visitor.guard  # without the request, because the read may wait for long

        def unauthorized(detail: str) -> Unauthorized:
            return Unauthorized(detail, self._guards.challenges([guard], "invalid_token", detail))

        opened = OpenRead(info, opening.visitor, streams, unauthorized, run, self._read_closed)
        self.observer.opened(info, FINITE_READ)
        opening.environ.setdefault(OPENED_KEY, []).append(ref(opened))
        return opened

    def _source(self, feeds: Feeds, opening: IdentifiedRequest, opened: OpenRead) -> finite_reads.RecordSource:
        """Return the records of a finite read."""
        self._revocations.add(opened, opening.visitor)
        route, selection, finite = opening.route, opening.selection, opening.parsed.finite
        hooks = self.config.hooks
        may_park = (
            finite is not None
            and finite.live is LiveMode.LONG_POLL
            and PARK_KEY in opening.environ
            # These hooks may need the request.
            and hooks.on_connect_error is None
            and "event.error" not in hooks.kafka_event_handlers
            and has_werkzeugs_response(current_app.response_class)
        )
        return finite_reads.RecordSource(
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

    def _ended_response(self, route: Route, parsed: StreamRequest) -> Response:
        """Return a stream that has ended: its client reconnects to another worker. After a 503, a browser would give up."""
        body = parsed.wire.opening + parsed.wire.retry(with_jitter(self._endpoints[route.name].settings.retry_ms))
        return self._stream_response(route, parsed, [body], IDENTITY, self.urls.root)

    def _stream_response(self, route: Route, parsed: StreamRequest, body: Any, coding: Coding, root: str) -> Response:
        headers = STREAM_HEADERS | self.urls.links(route, root)
        headers |= {"Content-Encoding": coding.name} if coding.name else UNCOMPRESSED
        if self._endpoints[route.name].settings.compression:
            headers["Vary"] = "Accept-Encoding"
        create = stream_response_class(current_app.response_class)  # type: ignore[arg-type]  # a class is hashable
        return create(body, headers=headers, content_type=parsed.content_type, direct_passthrough=True)

    def _stream_closed(self, stream: StreamBody, end: StreamEnd) -> None:
        self._endpoints[stream.info.route].limits.leave(subscriber(stream.info.client))
        self.observer.closed(stream.info, end)
        self.responder.call_handler("disconnected", stream.topics)

    def _read_closed(self, info: StreamInfo, end: StreamEnd) -> None:
        self._endpoints[info.route].limits.leave(subscriber(info.client))
        self.observer.read_closed(info, end, FINITE_READ)

    def _parse(
        self, route: Route, topics: str, parameters: Mapping[str, str], is_finite: bool
    ) -> tuple[Visitor, StreamRequest, Selection]:
        """Identify the visitor, parse the request, and select the records."""
        visitor = self.identify(route, parameters)
        parsed = parse_request(current_request(), route, topics, self._endpoints[route.name].settings, is_finite)
        return visitor, parsed, self._select(route, visitor, parameters)

    def identify(self, route: Route, parameters: Mapping[str, str], cors: CorsPolicy | None = None) -> Visitor:
        """Return the visitor whom the current request identifies to the guards of a route.

        Raises:
            KafkasseError: see Identifier.identify(), or a guard of the application has failed.
        """
        try:
            return self._identifier.identify(request, route, parameters, cors or self.responder.cors[route.name])
        except (KafkasseError, HTTPException):
            raise
        except (Exception, Timeout) as error:
            self.observer.failed(request_id.request_id(request.environ), error)
            failure = KafkasseError(UNEXPECTED)
            failure.headers["Retry-After"] = GUARD_RETRY_S  # so that clients retry: a database may be down
            raise failure from error

    def _select(self, route: Route, visitor: Visitor, parameters: Mapping[str, str]) -> Selection:
        """Return the records that the route, the path parameters, the visitor's claims and the query select."""
        current = current_request()
        arguments = current.args.items(multi=True) if current.query_string else ()
        query = parse_query(arguments, route.client_filters, route.sends, (*PARAMETERS, TICKET))

        def on_failure(view: RecordView, reason: str) -> None:
            self.observer.filter_failed(route.name, view.topic, view.partition, view.record.offset, reason)

        return route.where.select(parameters, visitor.claims, query, on_failure)


def _ends_in_test(feeds: Feeds, reader: Reader) -> Offsets | None:
    """Return the offsets at which the stream ends if Flask's test client requested it, otherwise None."""
    if not (is_test_client(request.environ) and current_app.testing):
        return None
    return {partition: offsets.end for partition, offsets in feeds.log.offset_ranges(reader.partitions).items()}
