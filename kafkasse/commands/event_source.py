"""The stream of `kafkasse cat`: a client of kafkasse_client whose messages are sentences for the terminal."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

import requests

from kafkasse import __version__
from kafkasse.errors import CommandError
from kafkasse.process.log_line import one_line
from kafkasse.tools.progress import waiting
from kafkasse_client import Event, State, Stream, StreamError


def events(
    url: str,
    last_event_id: str,
    headers: Mapping[str, str],
    token_file: Path | None,
    report: Callable[[str], None],
) -> Generator[Event, None, None]:
    """Yield each event of a stream once, except `error` events. Reconnect after every interruption.

    Args:
        url: an address from address().
        last_event_id: the position to start from; "" if there is none.
        headers: further header fields. The target of a redirect does not receive them.
        token_file: a file with a bearer token, which is read for each connection.
        report: receives sentences about the connection.

    Raises:
        CommandError: a permanent failure, which a retry would not fix.
    """

    def show(state: State) -> None:
        if state.name == "open":
            report(f"connected to {url}")
        elif state.name == "retrying":
            report(f"{url}: {one_line(state.reason)}; retrying in {state.wait_s:.1f} s")

    token = None if token_file is None else lambda _: _token(token_file)
    session = _Session(url, headers)
    try:
        yield from Stream(url, token=token, last_event_id=last_event_id, session=session, on_state=show)
    except (StreamError, requests.RequestException) as error:
        raise CommandError(f"{url}: {one_line(str(error))}") from None


class _Session(requests.Session):
    """Trusts the certificates of the system, and sends the user's header fields to the target of no redirect."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        super().__init__()
        self._label = f"connecting to {url}"
        self._of_user = {"Authorization", *headers}
        self.headers.update({"User-Agent": f"kafkasse/{__version__}", **headers})
        self.auth = lambda request: request  # without it, requests would send a login of ~/.netrc
        paths = ssl.get_default_verify_paths()
        self.verify = paths.cafile or paths.capath or True

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        with waiting(self._label):
            return super().send(request, **options)

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        """Remove the user's header fields. requests calls this before it follows a redirect."""
        for name in self._of_user:
            prepared_request.headers.pop(name, None)


def _token(file: Path) -> str:
    """Return the token in a file. The error does not quote the file, which may contain anything."""
    try:
        text = file.read_text("ascii").strip()
    except OSError as error:
        raise StreamError(f"the token file {file} cannot be read: {error.strerror}") from None
    except ValueError:
        text = ""
    if len(text.split()) != 1:
        raise StreamError(f"the token file {file} must contain one token and nothing else")
    return text


def address(url: str, parameters: Sequence[tuple[str, str]]) -> str:
    """Return `url` with special characters encoded and with more parameters in its query.

    Raises:
        CommandError: `url` is not an http or https URL.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise CommandError(f"{url} is not a valid URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise CommandError(f"{url} is not the URL of a stream: it must begin with http:// or https:// and a host name")
    query = "&".join(filter(None, [parts.query, urlencode(parameters)]))
    return quote(urlunsplit(parts._replace(query=query, fragment="")), safe="%/:=&?~+!$,;'@()*[]")
