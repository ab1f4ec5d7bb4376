"""`kafkasse streams`: list the open streams of a running server, or end one.

It asks each worker through its Unix socket, so it needs neither a port nor a login, only the same user on the same machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from kafkasse.errors import CommandError
from kafkasse.log_line import one_line
from kafkasse.progress import waiting
from kafkasse.server import control, runtime

COLUMNS = ("id", "route", "client", "visitor", "age_s", "events", "bytes", "lag_records", "state")
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
    """List the open streams of all workers of a running server.

    The server must run on this machine, as the same user, and with gunicorn.conf.py, as kafkasse serve does. If it has
    another KAFKASSE_RUNTIME_DIR or XDG_RUNTIME_DIR, set the same one here.

    If a worker does not answer within 5 seconds, the command prints the streams of the others, names the worker on stderr,
    and exits with code 1.
    """
    if ctx.invoked_subcommand is not None:
        return
    with waiting(WAITING):
        streams, silent = control.list_streams(_sockets())
    if as_json:
        for stream in streams:
            click.echo(json.dumps(stream))
    elif streams:
        _print_table([[_cell(stream[column]) for column in COLUMNS] for stream in streams])
    elif not silent:
        click.echo("There are no open streams.")
    if silent:
        raise CommandError(f"{_silent(silent)}; the list does not contain the streams of a silent worker")


@command.command()
@click.argument("stream_id", metavar="ID")
def end(stream_id: str) -> None:
    """End one stream. Its client receives its last event ID, and may reconnect.

    \b
    Example:
      kafkasse streams end 12345-67
    """
    with waiting(WAITING):
        is_found, silent = control.end_stream(_sockets(), stream_id)
    if not is_found and silent:
        raise CommandError(f"{_silent(silent)}; no other worker has an open stream {stream_id}")
    if not is_found:
        raise CommandError(f"there is no open stream {stream_id}; run kafkasse streams for a list")
    click.echo(f"The stream {stream_id} ends.")


def _sockets() -> list[Path]:
    sockets = [socket for folder in runtime.folders() for socket in runtime.sockets(folder)]
    if not sockets:
        raise CommandError(
            f"found no server of this user in {runtime.base()}; start the server with kafkasse's gunicorn settings"
            " (gunicorn -c python:kafkasse.server.gunicorn_conf MODULE:APP). If the server has another directory,"
            f" set {runtime.BASE_VARIABLE} to that directory"
        )
    return sockets


def _silent(sockets: list[Path]) -> str:
    pids = ", ".join(str(runtime.worker_pid(each)) for each in sockets)
    return f"no answer within {control.TIMEOUT_S:.0f} s from the workers with these process IDs: {pids}"


def _cell(value: Any) -> str:
    return one_line(str(value), MAX_CELL_CHARS) or "-"  # a visitor's name comes from a token


def _print_table(rows: list[list[str]]) -> None:
    table = [list(COLUMNS), *rows]
    widths = [max(len(row[index]) for row in table) for index in range(len(COLUMNS))]
    for row in table:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
