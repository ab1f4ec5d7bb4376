"""Where the parts meet: the blueprint for the app of a user, and the app that wsgi.py serves."""

from __future__ import annotations

import json
from functools import partial

from flask import Blueprint, Flask, Response
from werkzeug.exceptions import HTTPException

from kafkasse.config import Config
from kafkasse.errors import KafkasseError, problem_type
from kafkasse.log import Log
from kafkasse.web import blueprint as web
from kafkasse.web.pages import pages
from kafkasse.web.stream import open_streams


def blueprint(config: Config | None = None, log: Log | None = None, name: str = "kafkasse") -> Blueprint:
    """Create the streams as a Flask blueprint, which can be registered at any prefix of any app.

    Args:
        config: settings and hooks; loaded from the environment if omitted.
        log: the log to read, such as a memory_log.MemoryLog; the Kafka cluster of the configuration if omitted.
        name: the blueprint's name, for an app that registers more than one.

    Raises:
        ConfigurationError: a setting is not valid, or there is nothing to serve.
    """
    config = config or Config.load()
    config.require_topics()
    open_log = (lambda: log) if log is not None else partial(open_kafka_log, config)
    return web.blueprint(config, open_log, name)


def open_kafka_log(config: Config) -> Log:
    """Open the Kafka cluster of the configuration. Imports kafka-python, which hangs if gevent has not patched before."""
    from kafkasse.kafka.log import KafkaLog, check_patched

    check_patched()
    return KafkaLog(config.kafka, config.kafka_settings())


def create_app(config: Config | None = None, log: Log | None = None) -> Flask:
    """A Flask app: /{topics} and the named routes, /-/health, /-/metrics, and the demo pages.

    Raises:
        ConfigurationError: a setting is not valid.
    """
    config = config or Config.load()
    app = Flask("kafkasse", static_folder=None)
    app.register_blueprint(blueprint(config, log))
    if config.web.pages:
        app.register_blueprint(pages())
    app.add_url_rule("/-/health", view_func=health)
    app.add_url_rule("/-/metrics", view_func=lambda: metrics(app))
    app.register_error_handler(HTTPException, as_problem)
    return app


def health() -> Response:
    """That the process answers. Kafka's absence does not make it unhealthy: restarting it would not help."""
    return Response(json.dumps({"status": "ok", "streams": open_streams()}) + "\n", content_type="application/json")


def metrics(app: Flask) -> Response:
    """Counters of this worker process, for Prometheus."""
    return Response(app.extensions["kafkasse"]["kafkasse"].metrics.render(), content_type="text/plain; version=0.0.4")


def as_problem(error: HTTPException) -> Response:
    """Flask's own errors in the words of ours: the clients of this app read JSON."""
    response = Response(status=error.code or 500, content_type="application/problem+json")
    response.headers.extend((name, value) for name, value in error.get_headers() if name != "Content-Type")
    response.headers.update(web.NO_SNIFFING)
    name = type(error).__name__
    told = {"type": problem_type(name), "title": error.name, "status": response.status_code, "name": name}
    response.data = json.dumps(KafkasseError(error.description or error.name, **told).problem())
    return response
