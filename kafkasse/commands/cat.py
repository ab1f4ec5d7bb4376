"""`kafkasse cat`: print streams in the terminal and resume after every interruption.

Events go to stdout. Messages about the connection go to stderr.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from queue import Queue
from threading import Thread

import click

from kafkasse.commands.event_source import EventSource, address
from kafkasse.commands.pretty import pretty
from kafkasse.errors import CommandError
from kafkasse.process.log_line import one_line
from kafkasse_client.sse import Event

POSITIONS = ("{}", '{"snapshot":"complete"}')  # the data of kafkasse's own position events, which contain no record
SAVE_INTERVAL_S = 1.0
MAX_QUEUED_EVENTS = 100

EPILOG = """\b
Examples:
  kafkasse cat http://127.0.0.1:6917/topn/updates
  kafkasse cat http://127.0.0.1:6917/countries --since 2026-01-31T12:00:00Z --max 10
  kafkasse cat http://127.0.0.1:6917/countries --output json --where key=FR
  kafkasse cat http://127.0.0.1:6917/countries --position-file countries.json

\b
Exit codes:
  0    --max events were printed, or the reader of the pipe has exited
  1    an error that a retry would not fix
  2    wrong usage
  130  Ctrl-C or SIGTERM
"""


def _json(event: Event, url: str) -> str:
    """Return an event on one line. Data that is JSON is copied, so that numbers keep their digits."""
    try:
        json.loads(event.data)
        data = event.data.replace("\n", " ")  # outside of strings, where JSON allows line breaks
    except (ValueError, RecursionError):
        data = json.dumps(event.data, ensure_ascii=False)
    names = {"url": url, "type": event.type, "id": event.id} if url else {"type": event.type, "id": event.id}
    return json.dumps(names, ensure_ascii=False, separators=(",", ":"))[:-1] + f',"data":{data}}}'


def _pretty(event: Event, url: str) -> str:
    text = pretty(event, color=sys.stdout.isatty() and not os.environ.get("NO_COLOR"))
    return f"{url}  {text}" if url else text


# The second argument is the URL if there are several, otherwise "".
OUTPUTS: dict[str, Callable[[Event, str], str]] = {
    "pretty": _pretty,
    "json": _json,
    "raw": lambda event, _: event.data,
    "id": lambda event, _: event.id,
}


def _pairs(_: click.Context, param: click.Parameter, values: Sequence[str]) -> list[tuple[str, str]]:
    """Split the values of an option. The error does not quote the value, which may be a secret."""
    pairs = []
    for text in values:
        name, separator, value = text.partition(":" if param.name == "headers" else "=")
        if not (separator and name.strip() and text.isprintable() and text.isascii()):
            raise click.BadParameter(f"the form is {param.metavar}, in ASCII and on one line.")
        # The server ignores parameters that it does not know, so the stream would not be filtered.
        if param.name == "where" and not re.fullmatch(r"key|(header|field)\..+", name):
            raise click.BadParameter(f"{name!r} is not a part of a record: use key, header.NAME or field.NAME.")
        pairs.append((name.strip(), value.strip()))
    return pairs


@click.command(epilog=EPILOG)
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
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
    urls: tuple[str, ...],
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
    """Print the streams at one or several URLs.

    The command reconnects after every interruption and resumes after the last event that it printed. On Ctrl-C or
    SIGTERM, it prints how to resume later, and ends. Messages about the connection go to stderr. The output has colors
    only on a terminal, and NO_COLOR=1 disables them.
    """
    if last_event_id and (since or position_file or len(urls) > 1):
        raise click.UsageError("--last-event-id needs a single URL, and neither --since nor --position-file.")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as after Ctrl-C, save the position
    if cookies:
        headers = [*headers, ("Cookie", "; ".join(f"{name}={value}" for name, value in cookies))]
    positions = Positions(position_file, dict.fromkeys(urls, last_event_id))
    query = [*where, *([("filter", filter)] if filter else [])]
    sources = {}
    for url in urls:
        start = [("since", since)] if since and not positions.ids[url] else []
        sources[url] = EventSource(address(url, query + start), positions.ids[url], dict(headers), token_file, _status)
    formatted = OUTPUTS[output or ("pretty" if sys.stdout.isatty() else "raw")]
    options = [word for name, value in where for word in ("--where", f"{name}={value}")]
    options += [*(["--filter", filter] if filter else []), *(["--token-file", str(token_file)] if token_file else [])]
    try:
        _print_events(sources, positions, formatted, maximum)
    except KeyboardInterrupt:
        positions.save()
        _show_how_to_resume(positions, options, has_headers=bool(headers))
        raise click.Abort from None
    except BrokenPipeError:  # the reader of the pipe, such as head, has exited
        positions.save()
    except CommandError:
        positions.save()
        raise
    else:
        positions.save()
        _show_how_to_resume(positions, options, has_headers=bool(headers))


class Positions:
    """The ID of the last printed event of each URL, and the file that stores them, if there is one.

    Raises:
        CommandError: the file cannot be read or written, or is not a position file.
    """

    def __init__(self, file: Path | None, start: Mapping[str, str]) -> None:
        self.file = file
        self.ids = dict(start)
        self._stored: dict[str, str] = {}
        self._saved_at_s = time.monotonic()
        if file and file.exists():
            self._stored = self._read(file)
            self.ids |= {url: self._stored[url] for url in start if url in self._stored}

    def printed(self, url: str, last_event_id: str) -> None:
        """Remember a position, and store all of them if the file is older than SAVE_INTERVAL_S."""
        self.ids[url] = last_event_id
        if self.file and time.monotonic() - self._saved_at_s > SAVE_INTERVAL_S:
            self.save()

    def save(self) -> None:
        """Replace the file atomically: after an interruption or a power failure, it has the old or the new positions."""
        if not self.file:
            return
        new = self.file.with_name(f"{self.file.name}.new")
        try:
            with new.open("w") as out:
                out.write(json.dumps(self._stored | self.ids, indent=2))
                out.flush()
                os.fsync(out.fileno())
            new.replace(self.file)
        except OSError as error:
            with suppress(OSError):
                new.unlink(missing_ok=True)
            raise CommandError(f"the position file {self.file} cannot be written: {error.strerror}") from None
        self._saved_at_s = time.monotonic()

    @staticmethod
    def _read(file: Path) -> dict[str, str]:
        try:
            stored = json.loads(file.read_text())
        except OSError as error:
            raise CommandError(f"the position file {file} cannot be read: {error.strerror}") from None
        except ValueError:
            stored = None
        if not isinstance(stored, dict) or not all(isinstance(position, str) for position in stored.values()):
            raise CommandError(f"{file} is not a position file: it must be a JSON object of URLs and event IDs")
        return stored


def _print_events(
    sources: Mapping[str, EventSource],
    positions: Positions,
    formatted: Callable[[Event, str], str],
    maximum: int | None,
) -> None:
    printed = 0
    with closing(_events(sources)) as events:
        for url, event in events:
            if event.type == "gap":
                _status(f"records are missing: {one_line(event.data)}")
            elif event.type != "position" or event.data not in POSITIONS:
                _print(formatted(event, url if len(sources) > 1 else ""))
                printed += 1
            positions.printed(url, event.id)  # after printing, so that an event that was not printed is sent again
            if printed == maximum:
                return


def _events(sources: Mapping[str, EventSource]) -> Generator[tuple[str, Event], None, None]:
    """Yield the events of all sources as they arrive. If there are several, each has a thread."""
    if len(sources) == 1:
        ((url, source),) = sources.items()
        yield from ((url, event) for event in source.events())
        return
    queue: Queue[tuple[str, Event | Exception]] = Queue(MAX_QUEUED_EVENTS)

    def read(url: str, source: EventSource) -> None:
        try:
            for event in source.events():
                queue.put((url, event))
        except Exception as error:  # noqa: BLE001 - raised in the main thread
            queue.put((url, error))

    for url, source in sources.items():
        Thread(target=read, args=(url, source), daemon=True).start()
    try:
        while True:
            url, item = queue.get()
            if isinstance(item, Exception):
                raise item
            yield url, item
    finally:
        for source in sources.values():
            source.stop()  # a thread that writes to stderr while the process exits could crash it


def _show_how_to_resume(positions: Positions, options: Sequence[str], has_headers: bool) -> None:
    same = " with the same headers and cookies" if has_headers else ""  # not printed, because they may be secrets
    if positions.file:
        words = ["kafkasse", "cat", *positions.ids, *options, "--position-file", str(positions.file)]
        _status(f"resume{same} with: {shlex.join(words)}")
        return
    for url, last_event_id in positions.ids.items():
        if last_event_id:
            words = ["kafkasse", "cat", url, *options, "--last-event-id", last_event_id]
            _status(f"resume{same} with: {shlex.join(words)}")


def _print(line: str) -> None:
    try:
        sys.stdout.buffer.write(line.encode() + b"\n")
        sys.stdout.buffer.flush()
    except OSError as error:
        # The rest of the line is still in the buffer, and Python would fail to flush it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise CommandError(f"cannot write to stdout: {error.strerror}") from None


def _status(sentence: str) -> None:
    click.echo(sentence, err=True)
