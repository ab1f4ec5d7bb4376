"""A client for HTTP/1.1 and HTTP/2, with or without TLS: curl, whose output is read as it arrives."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

import gevent

from kafkasse_client.sse import Event, Parser
from tests.support.client import Client
from tests.support.waiting import TIMEOUT_S

OPTIONS = {  # the scheme and curl's option for each kind of client
    "http1": ("http", "--http1.1"),
    "https1": ("https", "--http1.1"),
    "https2": ("https", "--http2"),
    "http2": ("http", "--http2-prior-knowledge"),
}


class Curl(Client):
    """One request, and the part of its response that has been read so far.

    Args:
        kind: a key of OPTIONS.
        url: without the scheme.
        options: more options of curl.
        headers: header fields of the request, with underscores in place of hyphens.

    Attributes:
        exit_code: curl's, after the end of the response. 0: the response is complete.
    """

    def __init__(self, kind: str, url: str, *options: str, **headers: str) -> None:
        scheme, option = OPTIONS[kind]
        fields = [word for name, text in headers.items() for word in ("-H", f"{name.replace('_', '-')}: {text}")]
        self._header_file = tempfile.NamedTemporaryFile()  # noqa: SIM115 - close() closes it
        words = ["curl", "--silent", "--no-buffer", "--insecure", "--path-as-is", "--globoff", option]
        words += ["--dump-header", self._header_file.name, *options, *fields, f"{scheme}://{url}"]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, bufsize=0)
        self.exit_code: int | None = None
        self.body = bytearray()
        self._parser = Parser()
        self._events: list[Event] = []

    @property
    def headers(self) -> dict[str, str]:
        """The header fields of the response. Their names are in lower case."""
        lines = re.findall(r"^([^:\s]+): (.*?)\r?$", self._head(), re.MULTILINE)
        return {name.lower(): text for name, text in lines}

    @property
    def status(self) -> int:
        return int((re.findall(r"^HTTP/\S+ (\d+)", self._head(), re.MULTILINE) or ["0"])[-1])

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self._header_file.close()

    def _head(self) -> str:
        return Path(self._header_file.name).read_text()

    def _read(self) -> bytes:
        with gevent.Timeout(TIMEOUT_S):
            chunk = self._process.stdout.read(1 << 20)
            if not chunk:
                self.exit_code = self._process.wait()
        return self._received(chunk)
