"""`kafkasse serve`: gunicorn with this project's configuration.

Settings go on to gunicorn through the environment, so that the Procfile, `gunicorn -c gunicorn.conf.py wsgi:app` and this
command do the same thing. What can be checked is checked before, to say it in one sentence.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from pathlib import Path

from kafkasse.config import FILE_VARIABLE, Config
from kafkasse.errors import CommandError

BIND_DEFAULT = "127.0.0.1:6917"
APP = "kafkasse.app:create_app()"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--bootstrap-servers", metavar="H:P", help="Kafka (KAFKASSE_BOOTSTRAP_SERVERS)")
    parser.add_argument("--bind", metavar="H:P", help=f"where to listen (KAFKASSE_BIND, or PORT; {BIND_DEFAULT})")
    parser.add_argument("--workers", metavar="N", type=int, help="worker processes (WEB_CONCURRENCY; 1)")
    parser.add_argument("--config", metavar="FILE", type=Path, help=f"a YAML file of settings ({FILE_VARIABLE})")


def run(args: argparse.Namespace) -> int:
    """Become gunicorn. Returns only by an error.

    Raises:
        CommandError: the address cannot be listened on.
        ConfigurationError: a setting is not valid.
    """
    environ = _environment(args)
    Config.load(environ)
    if "KAFKASSE_BIND" in environ:
        _check_free(environ["KAFKASSE_BIND"])
    os.execve(sys.executable, [sys.executable, "-m", "gunicorn", "-c", str(gunicorn_conf()), APP], environ)  # noqa: S606 - no shell is wanted


def gunicorn_conf() -> Path:
    """This project's gunicorn.conf.py: beside this module in the wheel, at the top level of a checkout."""
    packaged = Path(__file__).parents[1] / "server" / "gunicorn.conf.py"
    return packaged if packaged.exists() else Path(__file__).parents[2] / "gunicorn.conf.py"


def _environment(args: argparse.Namespace) -> dict[str, str]:
    environ = dict(os.environ)
    if args.bind or ("PORT" not in environ and "KAFKASSE_BIND" not in environ):
        environ["KAFKASSE_BIND"] = args.bind or BIND_DEFAULT
    if args.bootstrap_servers:
        environ["KAFKASSE_BOOTSTRAP_SERVERS"] = args.bootstrap_servers
    if args.workers is not None:
        environ["WEB_CONCURRENCY"] = str(args.workers)
    if args.config:
        environ[FILE_VARIABLE] = str(args.config)
    return environ


def _check_free(bind: str) -> None:
    host, _, port = bind.rpartition(":")
    if bind.startswith("unix:"):
        return
    if not host or not port.isdigit():
        raise CommandError(f"--bind takes HOST:PORT, such as {BIND_DEFAULT}; {bind!r} is none.")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), int(port)))
        except (OSError, OverflowError) as error:
            raise CommandError(f"Cannot listen on {bind}: {error}. Choose another address with --bind.") from None
