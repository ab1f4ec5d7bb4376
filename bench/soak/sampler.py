"""Sample the resources of a worker, from /proc and from the page /-/internals of the soak test's app."""

from __future__ import annotations

import json
import time
from collections import Counter
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from gevent.event import Event

from bench.servers import Server as Processes
from bench.soak.growth import Sample
from tests.support.server import Server

RESPONSE_TIMEOUT_S = 60.0


class Sampler:
    """Takes samples of a server's worker.

    Attributes:
        samples: the samples so far.
    """

    def __init__(self, server: Server, kafka_port: int) -> None:
        self.samples: list[Sample] = []
        self._server = server
        self._worker = Processes("kafkasse", server.port, (server.worker,), b"")
        self._kafka_port = kafka_port
        self._began = time.monotonic()

    def run(self, every_s: float, over: Event) -> None:
        """Take a sample every `every_s` seconds until `over` is set."""
        while not over.wait(every_s):
            self.samples.append(self.sample())

    def sample(self) -> Sample:
        """Return the resources that the worker holds now."""
        internals = self._get("/-/internals")
        return Sample(
            round(time.monotonic() - self._began, 1),
            self._worker.memory_bytes() / 2**20,
            len(list(Path(f"/proc/{self._server.worker}/fd").iterdir())),
            self._worker.sockets_to(self._kafka_port),
            self._get("/-/health")["streams"],
            internals["greenlets"],
            internals["objects"],
            self._worker.cpu_s(),
            Counter(internals["types"]),
        )

    def _get(self, path: str) -> Any:
        http = HTTPConnection("127.0.0.1", self._server.port, timeout=RESPONSE_TIMEOUT_S)
        try:
            http.request("GET", path)
            return json.loads(http.getresponse().read())
        finally:
            http.close()
