"""The endpoints of a standalone server for platforms and operators.

/-/health (liveness) and /-/ready (readiness) are for a platform's probes, and everyone can use them.

/-/metrics, /-/streams and /-/status are not public. They are served at the address KAFKASSE_OPERATIONS_BIND. At the public
address, they exist only if operations_access is set.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial, wraps
from pathlib import Path
from typing import Any

from flask import Flask, Response, abort, request

from kafkasse.access import grants
from kafkasse.access.grant import PUBLIC
from kafkasse.errors import KafkasseError
from kafkasse.process import control, runtime
from kafkasse.process.open_streams import OPERATIONS_KEY, streams
from kafkasse.route import Route
from kafkasse.web.headers import CorsPolicy
from kafkasse.web.responder import json_response
from kafkasse.web.service import StreamService

MAX_LIMIT_DIGITS = 9


def add_operations(app: Flask, service: StreamService) -> None:
    """Add the endpoints to an app."""
    access = service.config.access.operations_access
    route = Route("-operations", "/-/", None, access=grants([grant for grant in access if grant != PUBLIC]))
    policy = CorsPolicy(())  # no page of another origin may use a cookie here

    def is_served() -> bool:
        return bool(request.environ.get(OPERATIONS_KEY) or access)

    def authorize() -> None:
        if not request.environ.get(OPERATIONS_KEY) and PUBLIC not in access:
            service.identify(route, {}, policy)

    def may_operate() -> bool | None:
        if not is_served():
            return None
        try:
            authorize()
        except KafkasseError:
            return False
        return True

    service.may_operate = may_operate

    def guarded(view: Callable[..., Response]) -> Callable[..., Any]:
        @wraps(view)
        def check(**arguments: str) -> Any:
            if not is_served():
                abort(404)
            try:
                authorize()
            except KafkasseError as error:
                return service.responder.reject_slowly(error)
            return view(service, **arguments)

        return check

    app.add_url_rule("/-/health", "health", partial(health, service))
    app.add_url_rule("/-/ready", "ready", partial(ready, service))
    app.add_url_rule("/-/metrics", "metrics", guarded(metrics))
    app.add_url_rule("/-/status", "status", guarded(status))
    app.add_url_rule("/-/streams", "streams", guarded(list_streams))
    app.add_url_rule("/-/streams/<stream_id>", "end_stream", guarded(end_stream), methods=["DELETE"])


def health(service: StreamService) -> Response:
    """Report that the event loop runs. Neither Kafka nor a shutdown matters, because a restart would not help."""
    return json_response({"status": "ok", "streams": len(streams)})


def ready(service: StreamService) -> Response:
    """Report whether this worker should receive requests; see Clusters.check_ready()."""
    try:
        service.clusters.check_ready()
    except KafkasseError as error:
        return service.responder.problem_response(error)
    return json_response({"status": "ok"})


def metrics(service: StreamService) -> Response:
    """Return the metrics of all workers for Prometheus."""
    return Response(service.observer.render(), content_type="text/plain; version=0.0.4; charset=utf-8")


def status(service: StreamService) -> Response:
    """Return the process IDs of the workers, and whether each Kafka cluster answers."""
    return json_response({"workers": runtime.worker_pids() or [os.getpid()], "clusters": service.clusters.states()})


def list_streams(service: StreamService) -> Response:
    """Return the open streams of all workers (with ?limit=, the first ones), and the workers that did not answer."""
    sockets = runtime.worker_sockets()
    silent: list[Path] = []
    lines = control.stream_lines(sockets, silent) if sockets else control.registry_lines(streams)
    if "limit" in request.args:
        if not (limit := request.args["limit"]).isdecimal() or len(limit) > MAX_LIMIT_DIGITS:
            abort(
                400, f"The parameter limit must be a number from 0 to {10**MAX_LIMIT_DIGITS - 1}. Example: ?limit=100"
            )
        lines = _first(lines, int(limit))
    return Response(_json_streams(lines, silent), content_type="application/json")


def end_stream(service: StreamService, stream_id: str) -> Response:
    """End a stream of any worker. Its client receives its last event ID and may reconnect."""
    sockets = runtime.worker_sockets()
    is_found, silent = control.end_stream(sockets, stream_id) if sockets else (streams.end(stream_id), [])
    if silent:
        abort(503, f"No worker that answered has this stream. These workers did not answer: {_pids(silent)}.")
    if not is_found:
        abort(404, "This server has no open stream with this ID. It may have ended, or belong to another server.")
    return Response(status=204)


def _first(groups: Iterable[list[bytes]], limit: int) -> Iterator[list[bytes]]:
    """Yield the first lines of groups of lines."""
    for lines in groups:
        yield lines[: max(0, limit)]
        limit -= len(lines)
        if limit <= 0:
            return


def _json_streams(lines: Iterable[list[bytes]], silent: list[Path]) -> Iterator[bytes]:
    """Yield a JSON object with the streams, which are JSON already, and the silent workers, known at the end."""
    start = b'{"streams": ['
    for group in filter(None, lines):
        yield start + b",\n".join(group)
        start = b",\n"
    yield (start if start.startswith(b"{") else b"") + b'], "silent_workers": %b}\n' % _pids(silent).encode()


def _pids(sockets: list[Path]) -> str:
    return json.dumps([runtime.worker_pid(socket) for socket in sockets])
