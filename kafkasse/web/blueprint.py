"""The Flask blueprint of the streams: connects the URLs of a configuration to its StreamService and its Catalog.

This package does not touch the host app's own routes, error handlers and sessions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from flask import Blueprint, Response, request

from kafkasse.config import Config
from kafkasse.log import Log
from kafkasse.process.open_streams import OPENED_KEY
from kafkasse.process.telemetry import request_id
from kafkasse.records.registry import open_registry
from kafkasse.settings import SchemaRegistrySettings
from kafkasse.web.catalog import Catalog
from kafkasse.web.service import StreamService
from kafkasse.web.ticket_endpoint import add_tickets
from kafkasse.web.value_schemas import ValueSchemas

if TYPE_CHECKING:  # its packages are optional
    from kafkasse.records.registry.lookup import SchemaRegistry


def streams_blueprint(
    config: Config, open_log: Callable[[str], Log], name: str, catalog: bool, console: bool
) -> Blueprint:
    """Create a blueprint that serves the routes of `config` and, if they are on, the catalog and the console.

    Users call kafkasse.blueprint(). StreamService describes the other arguments.
    """
    registries = _schema_registries(config)
    service = StreamService(config, open_log, name, registries, catalog)
    # The documents name schemas by topic, so they can contain those of only one registry.
    described = {
        cluster: registry for cluster, registry in registries.items() if cluster not in config.route.schema_registries
    }
    blueprint = Blueprint(name, __name__)
    Catalog(service, ValueSchemas(described)).add_rules(blueprint, catalog, console)
    service.bind(blueprint)
    if service.tickets is not None:
        add_tickets(blueprint, service, service.tickets)
    blueprint.teardown_request(close_failed)
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


def _schema_registries(config: Config) -> dict[str, SchemaRegistry]:
    """Return the schema registries by cluster, without those that no route uses. Clusters may share one.

    Raises:
        ConfigurationError: a package that the schema registries need is not installed.
    """
    opened: dict[SchemaRegistrySettings, SchemaRegistry] = {}
    registries = {}
    for cluster in {route.cluster for route in config.routes if route.decoder == "registry"}:
        if (settings := config.schema_registry(cluster)) is not None:
            registries[cluster] = opened[settings] = opened.get(settings) or open_registry(
                settings, config.hooks.logger
            )
    return registries
