"""The endpoints for a platform's probes: /-/health (liveness) and /-/ready (readiness). Everyone can use them."""

from __future__ import annotations

import json

from flask import Flask, Response, request

from kafkasse.errors import KafkasseError
from kafkasse.process.open_streams import StreamRegistry
from kafkasse.web.blueprint import StreamService


def add_health(app: Flask, service: StreamService) -> None:
    """Add the endpoints to an app."""
    app.add_url_rule("/-/health", "health", lambda: health(service))
    app.add_url_rule("/-/ready", "ready", lambda: ready(service))


def health(service: StreamService) -> Response:
    """Report that the event loop runs. Neither Kafka nor a shutdown matters, because a restart would not help."""
    streams = len(StreamRegistry.of(request.environ, service.registry))
    return Response(json.dumps({"status": "ok", "streams": streams}) + "\n", content_type="application/json")


def ready(service: StreamService) -> Response:
    """Report whether this worker should receive requests; see StreamService.check_ready()."""
    try:
        service.check_ready()
    except KafkasseError as error:
        return service.problem_response(error)
    return Response('{"status": "ok"}\n', content_type="application/json")
