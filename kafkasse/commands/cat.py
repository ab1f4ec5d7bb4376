"""`kafkasse cat`: print a stream in the terminal and resume after every interruption.

Events go to stdout. Messages about the connection go to stderr.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import click

from kafkasse.commands import discard_stdout, stop_at_signals
from kafkasse.commands.event_source import address, events
from kafkasse.commands.pretty import pretty
from kafkasse.errors import CommandError
from kafkasse.process.log_line import one_line
from kafkasse_client import Event, FileStore

POSITIONS = ("{}", '{"snapshot":"complete"}')  # the data of kafkasse's own position events, which contain no record
SAVE_INTERVAL_S = 1.0

EPILOG = """\b
Examples:
  kafkasse cat http://127.0.0.1:6917/topn/updates
  kafkasse cat http://127.0.0.1:6917/countries --since 2026-01-31T12:00:00Z --max 10
  kafkasse cat http://127.0.0.1:6917/countries --output json --where key=FR
  kafkasse cat http://127.0.0.1:6917/countries --position-file countries.position

\b
Exit codes:
  0    --max events were printed, or the reader of the pipe has exited
  1    an error that a retry would not fix
  2    wrong usage
  130  Ctrl-C, SIGTERM or SIGHUP
"""


def _json(event: Event) -> str:
    """Return an event on one line. Data that is JSON is copied, so that numbers keep their digits."""
    data = json.dumps(event.data, ensure_ascii=False)
    if event.type != "base64":  # which may also be a valid number
        with suppress(ValueError, RecursionError):
            json.loads(event.data, parse_constant=_reject)
            data = event.data.replace("\n", " ")  # outside of strings, where JSON allows line breaks
    names = {"type": event.type, "id": event.id}
    return json.dumps(names, ensure_ascii=False, separators=(",", ":"))[:-1] + f',"data":{data}}}'


def _reject(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON, but Python's json accepts it")


OUTPUTS: dict[str, Callable[[Event], str]] = {
    "pretty": lambda event: pretty(event, color=sys.stdout.isatty() and not os.environ.get("NO_COLOR")),
    "json": _json,
    "raw": lambda event: event.data,
    "id": lambda event: event.id,
}


def _pairs(_: click.Context, param: click.Parameter, values: Sequence[str]) -> list[tuple[str, str]]:
    """Split the values of an option. The error does not quote the value, which may be a secret."""
    pairs = []
    for text in values:
        name, separator, value = text.partition(":" if param.name == "headers" else "=")
        # A query may contain any character.
        ascii_part, charset = (name, "with an ASCII name") if param.name == "where" else (text, "in ASCII")
        if not (separator and name.strip() and text.isprintable() and ascii_part.isascii()):
            raise click.BadParameter(f"the form is {param.metavar}, {charset} and on one line.")
        # The server ignores parameters that it does not know, so the stream would not be filtered.
        if param.name == "where" and not re.fullmatch(r"key|(header|field)\..+", name):
            raise click.BadParameter(f"{name!r} is not a part of a record: use key, header.NAME or field.NAME.")
        pairs.append((name.strip(), value.strip()))
    return pairs


@click.command(epilog=EPILOG)
@click.argument("url")
@click.option("--last-event-id", metavar="ID", default="", help="Start after the event with this ID.")
@click.option("--since", metavar="TIME", help="Start at this time, in ISO 8601, such as 2026-01-31T12:00:00Z.")
@click.option(
    "--position-file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Save the position in this file, and resume from it in the next run.",
)
@click.option(
    "--where",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_pairs,
    help="Only records with key=VALUE, header.NAME=VALUE or field.NAME=VALUE, if the route allows it. Repeatable.",
)
@click.option("--filter", metavar="CEL", help="Only records for which this expression is true, if the route allows it.")
@click.option(
    "-H",
    "--header",
    "headers",
    metavar="'NAME: VALUE'",
    multiple=True,
    callback=_pairs,
    help="Send this header field. Repeatable.",
)
@click.option(
    "--cookie", "cookies", metavar="NAME=VALUE", multiple=True, callback=_pairs, help="Send this cookie. Repeatable."
)
@click.option(
    "--token-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A file with a token or an API key. It is read for each connection, so another program can renew the token.",
)
@click.option("--max", "maximum", metavar="N", type=click.IntRange(min=1), help="Stop after N events.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(list(OUTPUTS)),
    help="pretty: time, position and key, then the indented value; json: one JSON object (type, id, data) per event;"
    " raw: only the data; id: only the ID  [default: pretty on a terminal, otherwise raw]",
)
def command(
    url: str,
    last_event_id: str,
    since: str | None,
    position_file: Path | None,
    where: list[tuple[str, str]],
    filter: str | None,
    headers: list[tuple[str, str]],
    cookies: list[tuple[str, str]],
    token_file: Path | None,
    maximum: int | None,
    output: str | None,
) -> None:
    """Print the stream at URL.

    The command reconnects after every interruption and resumes after the last event that it printed. On Ctrl-C,
    SIGTERM or SIGHUP, it prints how to resume later, and ends. Messages about the connection go to stderr. The output has
    colors only on a terminal, and NO_COLOR=1 disables them.
    """
    if last_event_id and (since or position_file):
        raise click.UsageError("--last-event-id cannot be combined with --since or --position-file.")
    if sys.stdout is None:
        raise CommandError("stdout is closed, so nothing can be printed")
    stop_at_signals(signal.default_int_handler)  # as after Ctrl-C, save the position
    if cookies:
        headers = [*headers, ("Cookie", "; ".join(f"{name}={value}" for name, value in cookies))]
    position = PositionFile(position_file, last_event_id)
    query = [*where, *([("filter", filter)] if filter else [])]
    start = [("since", since)] if since and not position.id else []
    stream = events(address(url, query + start), position.id, dict(headers), token_file, _status)
    formatted = OUTPUTS[output or ("pretty" if sys.stdout.isatty() else "raw")]
    options = [word for name, value in where for word in ("--where", f"{name}={value}")]
    others = {"--filter": filter, "--token-file": token_file, "--output": output}
    options += [word for name, value in others.items() if value for word in (name, str(value))]
    try:
        try:
            with closing(stream):
                _print_events(stream, position, formatted, maximum)
        finally:
            position.save()
    except BrokenPipeError:  # the reader of the pipe, such as head, has exited
        return
    except KeyboardInterrupt:
        _show_how_to_resume(url, position, options, has_headers=bool(headers))
        raise click.Abort from None
    _show_how_to_resume(url, position, options, has_headers=bool(headers))


class PositionFile:
    """The ID of the last printed event, and the file that stores it, if there is one. Stream also reads such a file.

    Raises:
        CommandError: the file cannot be read or written, or is not a position file.
    """

    def __init__(self, file: Path | None, start: str) -> None:
        self.file = file
        self.id = start
        self._saved_at_s = -math.inf  # the topic may be quiet after the first event, so save its position at once
        if file:
            self.id = self._read(file)

    def printed(self, last_event_id: str) -> None:
        """Remember a position, and store it if the file is older than SAVE_INTERVAL_S."""
        self.id = last_event_id
        if time.monotonic() - self._saved_at_s > SAVE_INTERVAL_S:
            self.save()

    def save(self) -> None:
        """Replace the file as a whole, if there is one: after an interruption, it has the old or the new position."""
        if not self.file or not self.id:
            return
        try:
            FileStore(self.file).save(self.id)
        except OSError as error:
            raise CommandError(f"the position file {self.file} cannot be written: {error.strerror}") from None
        self._saved_at_s = time.monotonic()

    @staticmethod
    def _read(file: Path) -> str:
        try:
            text = FileStore(file).load() or ""
        except OSError as error:
            raise CommandError(f"the position file {file} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            text = "\n"
        except ValueError as error:
            raise CommandError(str(error)) from None
        if len(text.splitlines()) > 1 or not text.isprintable():
            raise CommandError(f"{file} is not a position file: it must contain an event ID and nothing else")
        return text


def _print_events(
    events: Iterator[Event], position: PositionFile, formatted: Callable[[Event], str], maximum: int | None
) -> None:
    printed = 0
    for event in events:
        if event.type == "gap":
            _status(f"records are missing: {one_line(event.data)}")
        elif event.type != "position" or event.data not in POSITIONS:
            _print(formatted(event))
            printed += 1
        position.printed(event.id)  # after printing, so that an event that was not printed is sent again
        if printed == maximum:
            return


def _show_how_to_resume(url: str, position: PositionFile, options: Sequence[str], has_headers: bool) -> None:
    same = " with the same headers and cookies" if has_headers else ""  # not printed, because they may be secrets
    if position.file:
        options = [*options, "--position-file", str(position.file)]
    elif position.id:
        options = [*options, "--last-event-id", position.id]
    else:
        return
    _status(f"resume{same} with: {shlex.join(['kafkasse', 'cat', url, *options])}")


def _print(line: str) -> None:
    try:
        sys.stdout.buffer.write(line.encode() + b"\n")
        sys.stdout.buffer.flush()
    except OSError as error:
        discard_stdout()
        if isinstance(error, BrokenPipeError):
            raise
        raise CommandError(f"cannot write to stdout: {error.strerror}") from None


def _status(sentence: str) -> None:
    click.echo(sentence, err=True)
