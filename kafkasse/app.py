"""Composition: connects the routes of kafkasse/web to a log. Users call blueprint(); wsgi.py serves create_app()."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any

from flask import Blueprint, Flask, Response, request
from gevent.monkey import is_module_patched
from werkzeug.exceptions import HTTPException

from kafkasse.archive import check_packages, with_archive
from kafkasse.config import Config
from kafkasse.errors import KafkasseError, MethodNotAllowed, NotFound
from kafkasse.kafka.version import check_version
from kafkasse.log import Log
from kafkasse.process.loop_thread import loop_thread
from kafkasse.process.runtime import OPERATIONS_BIND
from kafkasse.process.telemetry import request_id
from kafkasse.web.blueprint import add_request_id, streams_blueprint
from kafkasse.web.headers import DEFAULT_HEADERS
from kafkasse.web.operations import add_operations
from kafkasse.web.pages import PAGE_STREAM, pages
from kafkasse.web.service import StreamService

__all__ = ["open_kafka_log"]  # for code that wraps the log; `kafkasse` exports blueprint()

# The classes of Flask's own errors that have a page. All others have the type about:blank, which is a status alone.
FLASK_ERRORS: dict[int, type[KafkasseError]] = {404: NotFound, 405: MethodNotAllowed, 500: KafkasseError}


def blueprint(config: Config | None = None, log: Log | None = None, name: str = "kafkasse") -> Blueprint:
    """Create a Flask blueprint that serves the streams. It can be registered at any prefix of any app.

    Args:
        config: settings and hooks; loaded from the environment if omitted.
        log: the log to read, such as a MemoryLog or a wrapper of app.open_kafka_log(config). None: the Kafka cluster of the
            setting `kafka`.
        name: the blueprint's name, for an app that registers more than one.

    Raises:
        ConfigurationError: a setting is not valid, there is nothing to serve, a route does not set its access, the
            installed version of kafka-python does not work, or a package that the settings need is not installed.
    """
    config = config or Config.load()
    settings = {"operations_access": config.access.operations_access, OPERATIONS_BIND: os.environ.get(OPERATIONS_BIND)}
    if ignored := " and ".join(name for name, value in settings.items() if value):
        problem = (
            "A blueprint has no endpoints for operators, so remove %s. Add an endpoint for the metrics to your app."
        )
        config.hooks.logger.warning(problem, ignored)
    console = config.web.console is True
    created = _blueprint(config, log, name, catalog=config.web.catalog is True or console, console=console)
    created.after_request(add_request_id)
    return created


def _blueprint(config: Config, log: Log | None, name: str, *, catalog: bool, console: bool) -> Blueprint:
    config.check_servable()
    for warning in config.warnings():
        config.hooks.logger.warning("%s", warning)
    if log is None:
        check_version()
    if log is None and is_module_patched("socket"):
        import kafkasse.kafka.log  # noqa: F401 - takes 0.15 s; in the first request, it would block the event loop

    if config.feed.archive or config.feed.archives:
        check_packages()

    def open_log(cluster: str) -> Log:
        opened = log if log is not None and not cluster else open_kafka_log(config, cluster)
        return with_archive(opened, config.archive(cluster), config.topic_prefix(cluster))

    return streams_blueprint(config, open_log, name, catalog, console)


def open_kafka_log(config: Config, cluster: str = "") -> Log:
    """Open a Kafka cluster: one of the setting `clusters`, or "" for that of the setting `kafka`.

    kafka-python is not imported at the top, because it hangs if it is imported before gevent patches the standard library.

    Raises:
        ConfigurationError: this thread has no event loop, because gevent has not patched, or kafka-python
            does not have one of the settings.
    """
    from kafkasse.kafka.log import KafkaLog, check_patched

    if not loop_thread.is_current:
        check_patched()
    settings = replace(config.kafka, topic_prefix=config.topic_prefix(cluster))
    return KafkaLog(settings, config.kafka_settings(cluster))


def create_app(config: Config | None = None, log: Log | None = None) -> Flask:
    """Create a Flask app that serves /{topics}, the named routes, the demo's page, and the endpoints under /-/.

    Raises:
        ConfigurationError: a setting is not valid, there is nothing to serve, or a route does not set its access.
    """
    config = config or Config.load()
    app = Flask("kafkasse", static_folder=None)
    app.url_map.merge_slashes = False  # see streams_blueprint()
    catalog = config.web.catalog is not False
    console = config.web.console if config.web.console is not None else catalog
    app.register_blueprint(_blueprint(config, log, "kafkasse", catalog=catalog, console=console))
    if any(route.path == f"/{PAGE_STREAM}" for route in config.routes):
        app.register_blueprint(pages())
    service: StreamService = app.extensions["kafkasse"]["kafkasse"]
    add_operations(app, service)
    app.register_error_handler(HTTPException, lambda error: as_problem(service, error))
    app.after_request(complete_headers)
    return app


def complete_headers(response: Response) -> Response:
    """Add the request's ID, and forbid sniffing and, unless the response has its own Cache-Control, caching."""
    add_request_id(response)
    for name, text in DEFAULT_HEADERS.items():
        response.headers.setdefault(name, text)
    return response


def as_problem(service: StreamService, error: HTTPException) -> Any:
    """Convert one of Flask's own errors, such as 404 for an unknown path, to the JSON body of kafkasse's errors."""
    if too_many := service.responder.throttle():
        return service.responder.reject(too_many)
    response = Response(status=error.code or 500, content_type="application/problem+json")
    response.headers.extend((name, value) for name, value in error.get_headers() if name != "Content-Type")
    response.headers.update(service.cors_headers(request.headers.get("Origin")))
    detail = error.description or error.name
    if error_class := FLASK_ERRORS.get(response.status_code):
        name = error_class.__name__
        problem = error_class(detail).problem(service.urls.problem_types())
    else:
        name, status = type(error).__name__, response.status_code
        problem = KafkasseError(detail, type="about:blank", title=error.name, status=status, name=name).problem()
    service.responder.record_rejection(response.status_code, name)
    response.data = json.dumps(problem | {"request_id": request_id.request_id(request.environ)})
    return response
