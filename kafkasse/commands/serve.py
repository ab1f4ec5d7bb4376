"""`kafkasse serve`: run gunicorn with this project's configuration.

The options reach gunicorn as environment variables, so that the Procfile, `gunicorn -c gunicorn.conf.py wsgi:app` and this
command behave the same. Before gunicorn starts, this module checks the configuration and the address, so that it can report
a problem in one sentence.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import click

from kafkasse import config_file
from kafkasse.commands import options
from kafkasse.config import Config
from kafkasse.errors import CommandError
from kafkasse.process.runtime import OPERATIONS_BIND

BIND_DEFAULT = "127.0.0.1:6917"
APP = "kafkasse.app:create_app()"
SETTINGS = "python:kafkasse.server.gunicorn_conf"

EPILOG = f"""\b
Examples:
  KAFKASSE_ALLOWED_TOPICS=orders KAFKASSE_PUBLIC=true kafkasse serve --bootstrap-servers kafka-1.example:9092
  kafkasse serve kafkasse.yaml

\b
See also:
  kafkasse check     check the configuration and list what would be served
  kafkasse config    print the effective settings and the source of each

Each setting is a line in the file that FILE, --config or {config_file.VARIABLE} names; most are also environment
variables, such as KAFKASSE_ALLOWED_TOPICS. docs/configuration.md describes all settings.
"""


def _reject_port(ctx: click.Context, parameter: click.Parameter, port: str | None) -> None:
    if port is not None:
        raise click.UsageError(
            f"Use --bind HOST:{port} instead of --port, or set PORT={port} to listen on all addresses."
        )


@click.command(epilog=EPILOG)
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path))
@click.option("--bootstrap-servers", metavar="HOST:PORT,...", help="Kafka's addresses (KAFKASSE_BOOTSTRAP_SERVERS).")
@click.option(
    "--bind",
    metavar="HOST:PORT",
    help=f"The address to listen on (KAFKASSE_BIND; or set PORT to listen on all addresses) [default: {BIND_DEFAULT}]",
)
@click.option(
    "--workers", metavar="N", type=click.IntRange(min=1), help="Worker processes (WEB_CONCURRENCY) [default: 1]"
)
@click.option("--config", metavar="FILE", type=click.Path(path_type=Path), help="The same as FILE.")
@click.option("--port", hidden=True, expose_value=False, callback=_reject_port)
def command(
    file: Path | None, bootstrap_servers: str | None, bind: str | None, workers: int | None, config: Path | None
) -> None:
    """Stream topics over HTTP as Server-Sent Events.

    This runs gunicorn, a web server for production. Ctrl-C or SIGTERM stops it. FILE is a YAML file of settings.
    """
    environ = _environment(bootstrap_servers, bind, workers, options.configuration(file, config))
    _check_workers(environ)
    Config.load(environ).check_servable()
    for source, variable in (("--bind or KAFKASSE_BIND", "KAFKASSE_BIND"), (OPERATIONS_BIND, OPERATIONS_BIND)):
        if address := environ.get(variable):
            _check_free(address, source)
    os.execve(sys.executable, [sys.executable, "-m", "gunicorn", "-c", SETTINGS, APP], environ)  # noqa: S606 - no shell is wanted


def _environment(
    bootstrap_servers: str | None, bind: str | None, workers: int | None, config: Path | None
) -> dict[str, str]:
    environ = dict(os.environ)
    if bind or not (environ.get("PORT") or environ.get("KAFKASSE_BIND")):
        environ["KAFKASSE_BIND"] = bind or BIND_DEFAULT
    if bootstrap_servers:
        environ["KAFKASSE_BOOTSTRAP_SERVERS"] = bootstrap_servers
    if workers is not None:
        environ["WEB_CONCURRENCY"] = str(workers)
    if config:
        environ[config_file.VARIABLE] = str(config)
    return environ


def _check_workers(environ: dict[str, str]) -> None:
    workers = environ.get("WEB_CONCURRENCY", "1")
    if not (workers.isascii() and workers.isdigit() and int(workers[:9])):
        raise CommandError(
            f"WEB_CONCURRENCY must be a whole number from 1 to 1000, not {workers[:60]!r}. Example: WEB_CONCURRENCY=2"
        )


def _check_free(bind: str, source: str) -> None:
    host, _, port = bind.rpartition(":")
    if bind.startswith(("unix:", "fd://")):
        return
    if not host or not port.isdecimal():
        raise CommandError(f"{bind!r} is not an address to listen on; {source} needs HOST:PORT, such as 127.0.0.1:9090")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), int(port)))
        except (OSError, OverflowError) as error:
            raise CommandError(f"cannot listen on {bind}: {error}; choose another address with {source}") from None
