"""`kafkasse streams`: list the open streams of the running servers, or end one.

It asks each worker through its Unix socket, so it needs neither a port nor a login, only the same user on the same machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from kafkasse.commands.table import print_table
from kafkasse.errors import CommandError
from kafkasse.process import control, runtime
from kafkasse.process.log_line import one_line
from kafkasse.tools.progress import waiting

COLUMNS = ("id", "route", "client", "visitor", "age_s", "events", "bytes", "lag_records", "state")
SILENT = "kafka_silent_s"  # a column only while Kafka does not answer
MAX_CELL_CHARS = 40
WAITING = "waiting for the server's workers"

EPILOG = """\b
Examples:
  kafkasse streams
  kafkasse streams --json
  kafkasse streams end 12345-67
"""


@click.group(epilog=EPILOG, invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per stream, with all members.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """List the open streams of all workers of all running servers of this user.

    A server must run on this machine, with kafkasse's worker, as kafkasse serve does, and as the same user, unless you
    are root. If it has another KAFKASSE_RUNTIME_DIR or XDG_RUNTIME_DIR, set the same one here. stderr names the servers
    that were found.

    If a worker does not answer within 5 seconds, the command prints the streams of the others, prints the process ID of the
    silent worker on stderr, and exits with code 1.
    """
    if ctx.invoked_subcommand is not None:
        return
    servers = _servers()
    streams: list[dict[str, Any]] = []
    silent: list[Path] = []
    with waiting(WAITING):
        for name, sockets in servers:
            of_server, silent_there = control.list_streams(sockets)
            streams += [stream | {"server": name} for stream in of_server]
            silent += silent_there
    streams.sort(key=lambda stream: float(stream["opened_at"]))
    if as_json:
        for stream in streams:
            click.echo(json.dumps(stream))
    else:
        for name, _ in servers:
            click.echo(f"Server: {name}", err=True)
        if streams:
            more = [SILENT] * any(stream.get(SILENT) for stream in streams) + ["server"] * (len(servers) > 1)
            columns = [*COLUMNS, *more]
            print_table([columns, *([_cell(stream.get(column)) for column in columns] for stream in streams)])
        elif not silent:
            click.echo("There are no open streams.")
    if silent:
        raise CommandError(f"{_silent(silent)}; the list does not contain their streams")


@command.command()
@click.argument("stream_id", metavar="ID")
def end(stream_id: str) -> None:
    """End one stream. Its client receives its last event ID, and may reconnect.

    \b
    Example:
      kafkasse streams end 12345-67
    """
    with waiting(WAITING):
        is_found, silent = control.end_stream([socket for _, sockets in _servers() for socket in sockets], stream_id)
    if not is_found and silent:
        raise CommandError(f"{_silent(silent)}; no other worker has an open stream {stream_id}")
    if not is_found:
        raise CommandError(f"there is no open stream {stream_id}; run kafkasse streams for a list")
    click.echo(f"The stream {stream_id} ends.")


def _servers() -> list[tuple[str, list[Path]]]:
    """Return the name of each server of this user, and the sockets of its workers."""
    folders = runtime.folders()
    servers = [(runtime.name(folder), sockets) for folder in folders if (sockets := runtime.sockets(folder))]
    if folders and not servers:
        names = ", ".join(map(runtime.name, folders))
        raise CommandError(f"no worker has loaded the app; wait, or read the log of the server: {names}")
    if not servers:
        raise CommandError(
            f"found no server of this user in {runtime.base()}; start the server with kafkasse's worker"
            " (gunicorn -c python:kafkasse.server.gunicorn_conf MODULE:APP). If the server has another directory,"
            f" set {runtime.BASE_VARIABLE} to that directory"
        )
    return servers


def _silent(sockets: list[Path]) -> str:
    pids = ", ".join(str(runtime.worker_pid(socket)) for socket in sockets)
    return f"no answer within {control.TIMEOUT_S:.0f} s from the workers with these process IDs: {pids}"


def _cell(value: Any) -> str:
    """Return the text of a member. A finite read has no lag, and a visitor's name comes from a token."""
    return one_line("" if value is None else str(value), MAX_CELL_CHARS) or "-"
