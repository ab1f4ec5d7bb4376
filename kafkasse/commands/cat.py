"""`kafkasse cat`: a stream in the terminal, which goes on by itself after every break.

Events go to stdout, one line each; what becomes of the connection goes to stderr. It reads the Server-Sent Events of
any server and never looks into an id: of kafkasse's own it knows only that `error` and `gap` are about the stream.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPResponse, InvalidURL
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from kafkasse import __version__
from kafkasse.errors import CommandError
from kafkasse.sse import Event, EventTooLarge, Parser

SILENCE_S_MAX = 60.0  # heartbeats come sooner, so a connection that is silent for longer is dead
RETRY_S = 1.0  # between two connections, until the stream says otherwise by `retry:`
BACKOFF_S_MAX = 30.0
ASKED_S_MAX = 300.0  # of `retry:` and Retry-After: a nonsensical one must not stop us for ever
DOUBLINGS_MAX = 10
CHUNK_BYTES_MAX = 64 * 1024
PROBLEM_BYTES_MAX = 64 * 1024
DETAIL_CHARS_MAX = 500
PASSING_STATUSES = (408, 425, 429)  # the client's fault by number, but they heal by waiting

FORMATS: dict[str, Callable[[Event], str]] = {
    "data": lambda event: event.data,
    "event": lambda event: json.dumps(event._asdict(), ensure_ascii=False, separators=(",", ":")),
    "id": lambda event: event.id,
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("url", metavar="URL", help="the stream, such as http://127.0.0.1:6917/topn/updates")
    start = parser.add_mutually_exclusive_group()
    start.add_argument("--last-event-id", metavar="ID", default="", help="go on after the event that had this id")
    start.add_argument("--since", metavar="WHEN", help="start at this time, ISO 8601, such as 2026-01-31T12:00:00Z")
    parser.add_argument("--count", metavar="N", type=_count, help="stop after N events")
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="data",
        help="what to print of an event: its data as it came (the default), all of it as one JSON object "
        "(type, data, id), or only its id",
    )


def run(args: argparse.Namespace) -> int:
    """Print events until there are `--count`, Ctrl-C or a reader that has gone away. Returns the exit code."""
    stream = Stream(_address(args.url, args.since), args.last_event_id)
    try:
        for number, event in enumerate(stream.events(), start=1):
            _print(FORMATS[args.format](event))
            stream.last_event_id = event.id  # not before: what was never printed must come again
            if number == args.count:
                break
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:  # `| head` has all that it wanted
        return 0
    if stream.last_event_id:
        _status("go on with: " + shlex.join(["kafkasse", "cat", args.url, "--last-event-id", stream.last_event_id]))
    return 0


class Stream:
    """The events of one URL for ever, over as many connections as that takes.

    `last_event_id` is where the next connection begins. The caller sets it to the id of each event that is dealt with.
    """

    def __init__(self, url: str, last_event_id: str) -> None:
        self.last_event_id = last_event_id
        self._url = url
        self._retry_s = RETRY_S
        self._failures = 0

    def events(self) -> Iterator[Event]:
        """Yield each event once.

        Raises:
            CommandError: trouble that waiting does not mend.
        """
        while True:
            try:
                yield from self._connection()
                trouble = _Passing("the stream ended")
            except _Passing as passing:
                trouble = passing
            wait_s = _wait_s(self._failures, self._retry_s, trouble.retry_after_s)
            _status(f"{trouble}; trying again in {wait_s:.1f} s")
            time.sleep(wait_s)
            self._failures += 1

    def _connection(self) -> Iterator[Event]:
        parser = Parser(last_event_id=self.last_event_id)
        with self._open() as response:
            _status(f"connected to {self._url}")
            opened_s = time.monotonic()
            try:
                for chunk in _chunks(response):
                    yield from self._received(parser, chunk)
            finally:
                if parser.retry_ms is not None:
                    self._retry_s = parser.retry_ms / 1000
                if time.monotonic() - opened_s > BACKOFF_S_MAX:  # long enough not to be a failure, even without events
                    self._failures = 0

    def _received(self, parser: Parser, chunk: bytes) -> Iterator[Event]:
        try:
            for event in parser.receive(chunk):
                if event.type == "error":
                    self.last_event_id = event.id
                    raise _ended(event)
                if event.type == "gap":
                    _status(f"records are gone: {_one_line(event.data)}")
                else:
                    yield event
                self._failures = 0
        except EventTooLarge as error:
            raise CommandError(f"{self._url}: {error}") from None
        self.last_event_id = parser.last_event_id  # an id alone moves it too

    def _open(self) -> HTTPResponse:
        headers = {"Accept": "text/event-stream", "User-Agent": f"kafkasse/{__version__}"}
        if self.last_event_id:
            # http.client writes Latin-1; browsers, and so servers, mean UTF-8.
            headers["Last-Event-ID"] = self.last_event_id.encode().decode("latin-1")
        request = Request(self._url, headers=headers)  # noqa: S310  (_address() let only http and https pass)
        try:
            response: HTTPResponse = urlopen(request, timeout=SILENCE_S_MAX)  # noqa: S310  (as above)
        except HTTPError as refusal:
            with refusal:
                raise _refused(self._url, refusal) from None
        except (InvalidURL, ValueError) as error:
            raise CommandError(f"{self._url} cannot be asked for: {error}") from None
        except (OSError, HTTPException) as error:
            raise _unreachable(self._url, error) from None
        return _event_stream(self._url, response)


class _Passing(Exception):
    """Trouble that may be over at the next try, in `retry_after_s` seconds at the soonest."""

    def __init__(self, why: str, retry_after_s: float = 0) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


def _event_stream(url: str, response: HTTPResponse) -> HTTPResponse:
    kind = response.headers.get_content_type()
    if response.status != 200 or kind != "text/event-stream":
        response.close()
        raise CommandError(f"{url} answered {response.status} with {kind}, which is no event stream")
    return response


def _chunks(response: HTTPResponse) -> Iterator[bytes]:
    try:
        while chunk := response.read1(CHUNK_BYTES_MAX):
            yield chunk
    except TimeoutError:
        raise _Passing(f"nothing came for {SILENCE_S_MAX:.0f} s") from None
    except (OSError, HTTPException):
        raise _Passing("the connection broke") from None


def _refused(url: str, refusal: HTTPError) -> Exception:
    raw = b""
    with suppress(OSError, HTTPException):
        raw = refusal.read(PROBLEM_BYTES_MAX)
    detail = _detail(_problem(raw)) or refusal.reason
    return _trouble(
        refusal.code,
        f"{url} answered {refusal.code}: {_one_line(detail)}",
        _retry_after_s(refusal.headers.get("Retry-After", ""), datetime.now(UTC)),
    )


def _ended(event: Event) -> Exception:
    problem = _problem(event.data)
    status = problem.get("status")
    detail = _detail(problem) or "the server did not say why"
    return _trouble(status if isinstance(status, int) else 500, f"the stream ended: {_one_line(detail)}")


def _trouble(status: int, sentence: str, retry_after_s: float = 0) -> Exception:
    if status >= 500 or status in PASSING_STATUSES:
        return _Passing(sentence, retry_after_s)
    return CommandError(sentence)


def _unreachable(url: str, error: OSError | HTTPException) -> Exception:
    reason = error.reason if isinstance(error, URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return CommandError(f"{url} is not to be trusted: {reason.verify_message}")
    if isinstance(reason, OSError) and reason.strerror:
        return _Passing(f"{url} cannot be reached: {reason.strerror}")
    return _Passing(f"{url} cannot be reached: {_one_line(str(reason) or type(reason).__name__)}")


def _problem(raw: str | bytes) -> dict[str, Any]:
    try:
        problem = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return problem if isinstance(problem, dict) else {}


def _detail(problem: dict[str, Any]) -> str:
    return str(problem.get("detail") or problem.get("title") or "")


def _one_line(text: str) -> str:
    """`text` of a stranger, without what would break the line or command the terminal."""
    words = " ".join(text[:DETAIL_CHARS_MAX].split())
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in words)


def _retry_after_s(value: str, now: datetime) -> float:
    """Seconds that a Retry-After field asks for, as a number or a date; 0 where it says neither."""
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        return (parsedate_to_datetime(value) - now).total_seconds()
    except (ValueError, TypeError):
        return 0


def _wait_s(failures: int, retry_s: float, retry_after_s: float) -> float:
    """Seconds until the next try: not before what was asked for, doubled with each failure, spread by half as much."""
    backoff_s = min(BACKOFF_S_MAX, retry_s * 2.0 ** min(failures, DOUBLINGS_MAX))
    asked_s = min(ASKED_S_MAX, max(retry_s, retry_after_s))
    return max(backoff_s, asked_s) * random.uniform(1, 1.5)  # noqa: S311  (no secret, only not all at once)


def _address(url: str, since: str | None) -> str:
    """`url` as it goes on the wire, with `since` in its query."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise CommandError(f"{url} is not an address: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise CommandError(f"{url} is not the address of a stream: it should begin with http:// or https://")
    query = "&".join(filter(None, [parts.query, urlencode({"since": since}) if since else ""]))
    return quote(urlunsplit(parts._replace(query=query, fragment="")), safe="%/:=&?~+!$,;'@()*[]")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a number of events")
    return int(text)


def _print(line: str) -> None:
    try:
        sys.stdout.buffer.write(line.encode() + b"\n")
        sys.stdout.buffer.flush()
    except OSError as error:
        # What could not be written is still in the buffer, and Python would stumble over it again at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise CommandError(f"cannot write to stdout: {error.strerror}") from None


def _status(sentence: str) -> None:
    sys.stderr.write(sentence + "\n")
    sys.stderr.flush()
