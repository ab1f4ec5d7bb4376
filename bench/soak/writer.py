"""Who writes in a soak: numbered records, at a steady rate. Knows no stream."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from gevent.event import Event
from kafka import KafkaProducer

from bench.soak.records import Place, value

TURN_S = 0.05
PREFILL_TURN = 200  # records of each partition that are sent together


class Writer:
    """Writes to these partitions alone, and nobody else does.

    Attributes:
        ends: by partition, how many records the broker has acknowledged.
    """

    def __init__(self, bootstrap_servers: str, places: Iterable[Place]) -> None:
        self.ends = dict.fromkeys(places, 0)
        self._producer = KafkaProducer(bootstrap_servers=bootstrap_servers, acks="all", linger_ms=2)

    def fill(self, each: int) -> None:
        """Append so many records to each partition."""
        for begun in range(0, each, PREFILL_TURN):
            self._append(list(self.ends), min(PREFILL_TURN, each - begun))

    def run(self, per_s: float, over: Event) -> None:
        """Append `per_s` records a second, to all partitions in turn, until it is over."""
        places = list(self.ends)
        began, written = time.monotonic(), 0
        while not over.wait(TURN_S):
            due = int((time.monotonic() - began) * per_s)
            self._append([places[at % len(places)] for at in range(written, due)])
            written = due

    def close(self) -> None:
        self._producer.close()

    def _append(self, places: Iterable[Place], each: int = 1) -> None:
        ends = dict(self.ends)
        sent = []
        for place in places:
            for _ in range(each):
                sent.append((ends[place], self._send(place, ends[place])))
                ends[place] += 1
        self._producer.flush()
        for n, future in sent:
            if n != (offset := future.get().offset):
                raise RuntimeError(f"record {n} stands at offset {offset}: somebody else writes to these topics")
        self.ends = ends

    def _send(self, place: Place, n: int) -> Any:
        return self._producer.send(place[0], value(place, n), partition=place[1])
