"""The stream of `kafkasse cat`: a client of kafkasse_client whose messages are sentences for the terminal.

Only functions import requests and Stream. requests opens a socket when it is imported, to find out if the machine has IPv6.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

from kafkasse import __version__
from kafkasse.errors import CommandError
from kafkasse.process.log_line import one_line
from kafkasse.tools.progress import waiting
from kafkasse_client import Event, State, StreamError

if TYPE_CHECKING:
    import requests


def events(
    url: str, last_event_id: str, headers: Mapping[str, str], token_file: Path | None, report: Callable[[str], None]
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
    import requests
    from urllib3.exceptions import LocationParseError

    from kafkasse_client import Stream

    def show(state: State) -> None:
        if state.name == "open":
            report(f"connected to {url}")
        elif state.name == "retrying":
            report(f"{url}: {one_line(state.reason)}; retrying in {state.wait_s:.1f} s")

    token = None if token_file is None else lambda _: _token(token_file)
    session = _session(url, headers)
    try:
        yield from Stream(url, token=token, last_event_id=last_event_id, session=session, on_state=show)
    except (StreamError, requests.RequestException, LocationParseError) as error:
        raise CommandError(f"{url}: {one_line(str(error))}") from None


def _session(url: str, headers: Mapping[str, str]) -> requests.Session:
    """Return a session that trusts the certificates of the system, and sends `headers` to the target of no redirect."""
    import requests

    class Session(requests.Session):
        def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
            with waiting(f"connecting to {url}"):
                return super().send(request, **options)

        def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
            """Remove the user's header fields. requests calls this before it follows a redirect."""
            for name in ("Authorization", *headers):
                prepared_request.headers.pop(name, None)

    session = Session()
    session.headers.update({"User-Agent": f"kafkasse/{__version__}", **headers})
    session.auth = lambda request: request  # without it, requests would send a login of ~/.netrc
    paths = ssl.get_default_verify_paths()
    session.verify = paths.cafile or paths.capath or True
    return session


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
        CommandError: `url` is not an http or https URL, or contains a login, which requests would not send.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise CommandError(f"{url} is not a valid URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise CommandError(f"{url} is not the URL of a stream: it must begin with http:// or https:// and a host name")
    if "@" in parts.netloc:  # the URL is not shown, because it contains a password
        raise CommandError("the URL contains a login, which is not sent; pass it with -H 'Authorization: Basic ...'")
    query = "&".join(filter(None, [parts.query, urlencode(parameters)]))
    path, query = (quote(text, safe="%/:=&?~+!$,;'@()*[]") for text in (parts.path, query))
    return urlunsplit(parts._replace(path=path, query=query, fragment=""))  # requests encodes the name of the host
