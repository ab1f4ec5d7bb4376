"""Write numbered records at a steady rate. This module does not depend on streams."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from gevent.event import Event
from kafka import KafkaProducer

from bench.soak.records import Partition, value

WRITE_INTERVAL_S = 0.05
PREFILL_BATCH = 200  # records per partition that are sent together


class Writer:
    """The only producer of these partitions.

    Attributes:
        ends: the number of acknowledged records, by partition.
    """

    def __init__(self, bootstrap_servers: str, partitions: Iterable[Partition]) -> None:
        self.ends = dict.fromkeys(partitions, 0)
        self._producer = KafkaProducer(bootstrap_servers=bootstrap_servers, acks="all", linger_ms=2)

    def fill(self, each: int) -> None:
        """Append `each` records to each partition."""
        for start in range(0, each, PREFILL_BATCH):
            self._append(list(self.ends), min(PREFILL_BATCH, each - start))

    def run(self, per_s: float, over: Event) -> None:
        """Append `per_s` records per second, to all partitions in turn, until `over` is set."""
        partitions = list(self.ends)
        began, written = time.monotonic(), 0
        while not over.wait(WRITE_INTERVAL_S):
            due = int((time.monotonic() - began) * per_s)
            self._append([partitions[at % len(partitions)] for at in range(written, due)])
            written = due

    def close(self) -> None:
        self._producer.close()

    def _append(self, partitions: Iterable[Partition], each: int = 1) -> None:
        ends = dict(self.ends)
        sent = []
        for partition in partitions:
            for _ in range(each):
                sent.append((ends[partition], self._send(partition, ends[partition])))
                ends[partition] += 1
        self._producer.flush()
        for n, future in sent:
            if n != (offset := future.get().offset):
                raise RuntimeError(f"record {n} has offset {offset}: another producer writes to these topics")
        self.ends = ends

    def _send(self, partition: Partition, n: int) -> Any:
        return self._producer.send(partition[0], value(partition, n), partition=partition[1])
