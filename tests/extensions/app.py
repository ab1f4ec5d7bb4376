"""Existing apps, each with one extension or middleware, that mount the streams of one log. One server serves them all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from tempfile import NamedTemporaryFile
from typing import Any

import flask_login
from cachelib import SimpleCache
from flask import Flask, Response, request, session
from flask_compress import Compress
from flask_cors import CORS
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address
from flask_session import Session
from flask_sqlalchemy import SQLAlchemy
from flask_talisman import Talisman
from opentelemetry.instrumentation.flask import FlaskInstrumentor
from opentelemetry.instrumentation.wsgi import OpenTelemetryMiddleware
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_flask_exporter import PrometheusMetrics
from sqlalchemy import text
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.middleware.proxy_fix import ProxyFix

import kafkasse
from kafkasse.access import Visitor
from kafkasse.log.memory import MemoryLog
from kafkasse.process.open_streams import streams as open_streams
from tests.extensions.names import ORIGIN

log = MemoryLog()
log.create("t")
calls: Counter[str] = Counter()  # "NAME.teardown" and "NAME.close": how often the hooks of the app NAME ran
spans = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
db = SQLAlchemy()
database = NamedTemporaryFile(suffix=".sqlite")  # noqa: SIM115 - until the process exits


def login(app: Flask) -> Any:
    """Flask-Login protects the streams of a route by a guard."""
    manager = flask_login.LoginManager(app)
    manager.user_loader(_user)

    def member(_: Any) -> Visitor | None:
        user = flask_login.current_user
        return Visitor(name=user.get_id()) if user.is_authenticated else None

    @app.post("/login")
    def log_in() -> str:
        flask_login.login_user(_user("ada"))
        return "welcome"

    @app.post("/logout")
    def log_out() -> str:
        user = flask_login.current_user.get_id()
        flask_login.logout_user()
        return str(kafkasse.end_streams(user))

    return mounted(app, public=False, guards={"member": member}, access=["member"])


def _user(name: str) -> flask_login.UserMixin:
    user = flask_login.UserMixin()
    user.id = name
    return user


def sessions(app: Flask) -> Any:
    """Flask-Session keeps sessions in a cache on the server."""
    app.config |= {"SESSION_TYPE": "cachelib", "SESSION_CACHELIB": SimpleCache()}
    Session(app)
    return plain(app)


def cors(app: Flask) -> Any:
    """Flask-CORS allows another origin to read all paths."""
    CORS(app, origins=[ORIGIN], supports_credentials=True)
    return mounted(app)


def both_cors(app: Flask) -> Any:
    """Flask-CORS, and kafkasse's own setting."""
    CORS(app, origins=[ORIGIN])
    return mounted(app, cors_origins=[ORIGIN])


def talisman(app: Flask) -> Any:
    Talisman(app, force_https=False)
    return mounted(app)


def limiter(app: Flask, limit: int = 1000) -> Any:
    Limiter(get_remote_address, app=app, default_limits=[f"{limit} per hour"], storage_uri="memory://")
    return mounted(app)


def limited(app: Flask) -> Any:
    return limiter(app, 2)


def compress(app: Flask) -> Any:
    app.config["COMPRESS_MIMETYPES"] = ["text/html", "text/event-stream", "application/x-ndjson"]
    Compress(app)
    return mounted(app)


def sqlalchemy(app: Flask) -> Any:
    """Each request uses a connection of a pool that has only one."""
    app.config["SQLALCHEMY_DATABASE_URI"] = f"sqlite:///{database.name}"
    app.config["SQLALCHEMY_ENGINE_OPTIONS"] = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 5}
    db.init_app(app)

    @app.before_request
    def query() -> None:
        db.session.execute(text("select 1"))

    return mounted(app)


def proxy_fix(app: Flask) -> Any:
    app.wsgi_app = ProxyFix(app.wsgi_app)  # type: ignore[method-assign]
    return mounted(app)


def otel_flask(app: Flask) -> Any:
    FlaskInstrumentor().instrument_app(app, tracer_provider=provider)
    return mounted(app)


def otel_wsgi(app: Flask) -> Any:
    app.wsgi_app = OpenTelemetryMiddleware(app.wsgi_app, tracer_provider=provider)  # type: ignore[method-assign]
    return mounted(app)


def prometheus(app: Flask) -> Any:
    PrometheusMetrics(app, registry=CollectorRegistry(), group_by="endpoint")
    return mounted(app)


def plain(app: Flask) -> Flask:
    """Mount the streams, and count the requests of each session."""

    @app.before_request
    def count() -> None:
        session["visits"] = session.get("visits", 0) + 1

    return mounted(app)


def lazy(app: Flask) -> Any:
    """Middleware that is a generator, and calls the app when the server asks for the first part."""
    wsgi_app = mounted(app).wsgi_app

    def middleware(environ: Any, start_response: Any) -> Any:
        yield from wsgi_app(environ, start_response)

    return middleware


def shouting(app: Flask) -> Any:
    """Middleware that changes each part of the body."""
    wsgi_app = mounted(app).wsgi_app

    def middleware(environ: Any, start_response: Any) -> Any:
        body = wsgi_app(environ, start_response)
        try:
            yield from (part.replace(b":ok", b":OK") for part in body)
        finally:
            body.close()

    return middleware


APPS: list[Callable[[Flask], Any]] = [
    login, sessions, cors, both_cors, talisman, limiter, limited, compress, sqlalchemy, proxy_fix, otel_flask, otel_wsgi,
    prometheus, plain, lazy, shouting,
]  # fmt: skip


def mounted(app: Flask, **settings: Any) -> Flask:
    """Mount the streams, and record the calls of hooks that run at the end of a request."""
    config = kafkasse.Config(allowed_topics=["*"], **{"public": True, **settings})
    app.register_blueprint(kafkasse.blueprint(config, log), url_prefix="/streams")

    @app.after_request
    def watch(response: Response) -> Response:
        response.call_on_close(lambda: calls.update([f"{app.name}.close"]))
        return response

    @app.teardown_request
    def record(_: BaseException | None) -> None:
        calls.update([f"{app.name}.teardown"])

    app.add_url_rule("/page", "page", lambda: f"visit {session.get('visits', 0)}")
    return app


def root() -> Flask:
    """The app that observes and controls the others."""
    app = Flask("root")

    @app.post("/records")
    def write() -> str:
        log.append("t", b'{"n":%s}' % request.headers["X-Number"].encode())
        return "written"

    @app.get("/status")
    def status() -> str:
        streams = list(open_streams.statuses())
        fields = {name: [stream[name] for stream in streams] for name in ("state", "client")}
        return json.dumps(fields | {"calls": calls, "spans": [span.name for span in spans.get_finished_spans()]})

    return app


def create() -> Any:
    """Return an app that mounts all others under their names."""
    apps = {}
    for configure in APPS:
        app = Flask(configure.__name__)
        app.secret_key = "for a test"  # noqa: S105
        apps[f"/{configure.__name__}"] = configure(app)
    return DispatcherMiddleware(root(), apps | {"/metrics": make_wsgi_app(CollectorRegistry())})
