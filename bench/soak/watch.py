"""What a worker holds, from outside and, for what only it knows, by the page of the soak's app."""

from __future__ import annotations

import json
import time
from collections import Counter
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from gevent.event import Event

from bench.servers import Server as Processes
from bench.soak.verdict import Sample
from tests.support.server import Server

ANSWER_S_MAX = 60.0


class Watch:
    """Takes samples of a server's worker.

    Attributes:
        samples: so far.
    """

    def __init__(self, server: Server, kafka_port: int) -> None:
        self.samples: list[Sample] = []
        self._server = server
        self._worker = Processes("kafkasse", server.port, (server.worker,), b"")
        self._kafka_port = kafka_port
        self._began = time.monotonic()

    def run(self, every_s: float, over: Event) -> None:
        """Take one every so many seconds until it is over."""
        while not over.wait(every_s):
            self.samples.append(self.look())

    def look(self) -> Sample:
        inside = self._ask("/-/inside")
        return Sample(
            round(time.monotonic() - self._began, 1),
            self._worker.memory_bytes() / 2**20,
            len(list(Path(f"/proc/{self._server.worker}/fd").iterdir())),
            self._worker.sockets_to(self._kafka_port),
            self._ask("/-/health")["streams"],
            inside["greenlets"],
            inside["objects"],
            self._worker.cpu_s(),
            Counter(inside["types"]),
        )

    def _ask(self, path: str) -> Any:
        http = HTTPConnection("127.0.0.1", self._server.port, timeout=ANSWER_S_MAX)
        try:
            http.request("GET", path)
            return json.loads(http.getresponse().read())
        finally:
            http.close()
