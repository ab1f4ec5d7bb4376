"""Responses without records: errors as JSON, and the responses to OPTIONS. All responses get their CORS headers here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from flask import Response, after_this_request, make_response, request
from gevent import Timeout
from werkzeug.exceptions import HTTPException

from kafkasse.config import Config
from kafkasse.config.rules import OPEN_ROUTE
from kafkasse.errors import (
    UNEXPECTED,
    ConfigurationError,
    KafkasseError,
    OffsetGone,
    ServerFull,
    TooManyRejections,
    TooManySelections,
    TooManyStreams,
    Unauthorized,
)
from kafkasse.process.limits import TrustedProxies, subscriber
from kafkasse.process.open_streams import StreamInfo
from kafkasse.process.telemetry import request_id
from kafkasse.route import Route
from kafkasse.web.headers import DEFAULT_HEADERS, READ_METHODS, CorsPolicy
from kafkasse.web.long_poll import Answer
from kafkasse.web.observer import Observer
from kafkasse.web.public_url import BlueprintUrls
from kafkasse.web.request import current_request, endpoint_name
from kafkasse.web.target import TICKET_ENDPOINT, TICKET_PATH, find_target
from kafkasse.web.throttle import RejectionThrottle
from kafkasse.web.wsgi_server import WsgiServer

UNAVAILABLE = 503
_LIMITS = (ServerFull, TooManySelections, TooManyStreams)  # their details name the limit, and nothing of the request


class Responder:
    """Answers the requests of one blueprint that receive no records, and reports rejections to operators and the app.

    Attributes:
        cors: the policy of each route.
    """

    def __init__(
        self,
        config: Config,
        routes: Mapping[str, Route],
        observer: Observer,
        urls: BlueprintUrls,
        proxies: TrustedProxies,
        server: WsgiServer,
    ) -> None:
        self._hooks = config.hooks
        self._routes = routes
        self._observer = observer
        self._urls = urls
        self._proxies = proxies
        self._server = server
        self._throttle = RejectionThrottle(config.web.max_rejections_per_s)
        self.cors = {name: CorsPolicy(route.cors_origins, route.cors_credentials) for name, route in routes.items()}

    def client_address(self) -> str:
        """Return the address of the client of the current request."""
        current = current_request()
        return self._proxies.client(current.remote_addr or "", current.headers.get("X-Forwarded-For", ""))

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
            self._observer.failed(request_id.request_id(request.environ), error)
            return self.reject_slowly(KafkasseError(UNEXPECTED))

    def throttle(self) -> TooManyRejections | None:
        """Wait until the current request may be rejected. Return the error to send instead, if any; see web/throttle.py."""
        return self._too_many(self.client_address(), self._server.has_loop(request.environ))

    def _too_many(self, client: str, may_wait: bool) -> TooManyRejections | None:
        try:
            self._throttle.delay(subscriber(client), may_wait)
        except TooManyRejections as error:
            return error
        return None

    def reject_slowly(self, error: KafkasseError) -> Any:
        """Return the response to a request that gets no stream, after a delay if the client repeats such requests.

        Only status 503 is prompt: many clients may share an address, and all of them return while Kafka recovers.
        """
        return self.reject(error if error.status == UNAVAILABLE else self.throttle() or error)

    def reject(self, error: KafkasseError) -> Any:
        """Return the response to a request that gets no stream."""
        self._report(error, request_id.request_id(request.environ), endpoint_name(), self.client_address())
        response = self._response_of_hook(error)
        return self._with_cors(self.problem_response(error)) if response is None else response

    def rejected_by_worker(self, own_id: str, client: str, error: KafkasseError, reason: str) -> None:
        """Count and log a request that the worker rejected before an app received it."""
        self._observer.rejected(own_id, "", client, error.status, type(error).__name__, reason)

    def record_rejection(self, status: int, error: str) -> None:
        """Count and log the current request, which gets no stream. `error` is the name of a class."""
        own_id, route = request_id.request_id(request.environ), endpoint_name()
        self._observer.rejected(own_id, route, self.client_address(), status, error)

    def _report(self, error: KafkasseError, own_id: str, route: str, client: str) -> None:
        reason = error.detail if isinstance(error, _LIMITS) else error.reason if isinstance(error, Unauthorized) else ""
        self._observer.rejected(own_id, route, client, error.status, type(error).__name__, reason)
        if isinstance(error, OffsetGone):
            self._observer.gone(route, error)
        if error.status >= 500:
            self.call_handler("event.error", error)
        # The Kafka adapter has logged the errors that kafka-python caused.
        if isinstance(error, ConfigurationError) and not _has_foreign_cause(error):
            self._observer.misconfigured(error.detail)

    def problem_response(self, error: KafkasseError) -> Response:
        """Return an error as a response with the error's status."""
        return _problem(error, self._urls.problem_types(), request_id.request_id(request.environ))

    def failed_poll(self, problem_types: str, info: StreamInfo, error: Exception) -> Answer:
        """Return the error of a long poll that has waited. The request may have been released."""
        if not isinstance(error, KafkasseError):
            self._observer.failed(info.request_id, error)
            error = KafkasseError(UNEXPECTED)
        if error.status != UNAVAILABLE:
            error = self._too_many(info.client, may_wait=True) or error
        self._report(error, info.request_id, info.route, info.client)
        response = _problem(error, problem_types, info.request_id)
        headers = {**response.headers, "Content-Length": str(len(response.data))}
        replaced = {name.lower() for name in headers} | {"cross-origin-resource-policy"}
        return Answer(response.status, headers, replaced, (response.data,))

    def _response_of_hook(self, error: KafkasseError) -> Response | None:
        """Return the response of the application's hook, or None if there is no hook, or if it returns None or fails."""
        hook = self._hooks.on_connect_error
        if hook is None:
            return None
        try:
            result = hook(error)
            return None if result is None else self._with_cors(make_response(result))
        except HTTPException:  # from flask.abort()
            after_this_request(self._with_cors)
            raise
        except (Exception, Timeout):
            self._hooks.logger.exception("The hook on_connect_error failed.")
            return None

    def _with_cors(self, response: Response) -> Response:
        current = current_request()
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
        name = endpoint_name()
        if name == TICKET_ENDPOINT and (target := find_target(self._routes, TICKET_PATH)):
            name = target.route.name
        return self.cors.get(name, self.cors[OPEN_ROUTE])

    def cors_headers(self, origin: str | None) -> Mapping[str, str]:
        """Return the CORS headers of a response that no route sends: those of a route that allows the origin."""
        return max((policy.headers(origin) for policy in self.cors.values()), key=len)

    def call_handler(self, event: str, argument: Any) -> None:
        """Call the application's handler of one of KafkaSSE's events, if there is one."""
        handler = self._hooks.kafka_event_handlers.get(event)
        if handler is not None:
            try:
                handler(argument)
            except (Exception, Timeout):  # a handler may let a gevent.Timeout escape
                self._hooks.logger.exception("The handler of %s failed.", event)


def _has_foreign_cause(error: BaseException) -> bool:
    """Return whether an exception of another library caused the error. Feeds raise copies whose cause is the original."""
    cause = error.__cause__
    return cause is not None and (not isinstance(cause, KafkasseError) or _has_foreign_cause(cause))


def json_response(value: Any) -> Response:
    """Return a value as JSON, with status 200."""
    return Response(json.dumps(value) + "\n", content_type="application/json")


def _problem(error: KafkasseError, problem_types: str, own_id: str) -> Response:
    problem = error.problem(problem_types) | {"request_id": own_id}
    body = json.dumps(problem, ensure_ascii=False) + "\n"
    headers = error.headers | {"Link": f'<{problem["type"]}>; rel="help"'}
    response = Response(body, error.status, headers, content_type="application/problem+json")
    response.headers.update(DEFAULT_HEADERS)
    return response
