"""An app for gunicorn whose topic changes as an operator, or Kafka, changes topics, and that remembers all records."""

from __future__ import annotations

import time
from typing import Any

from flask import Flask

from kafkasse.app import create_app
from kafkasse.config import Config
from kafkasse.feed.core import chunk as core
from kafkasse.log import OffsetRange, Partition
from kafkasse.log.memory import MemoryLog

TOPIC, PARTITIONS, RECORDS = "t", 3, 20


class Changes:
    """The changes of a topic, each of which is followed by new records."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.stored: list[list[Any]] = []  # see StoredRecord, without headers
        self.bounds: list[list[Any]] = []
        self._partitions = PARTITIONS
        self._versions = [(0, 0)] * (PARTITIONS + 1)  # how often the topic was recreated, and the partition truncated
        self._create()
        self.append(60 * RECORDS)

    def _create(self) -> None:
        self.log.create(TOPIC, self._partitions)
        for partition in range(self._partitions):
            self.log.elect_leader(TOPIC, partition)

    def append(self, count: int = RECORDS) -> None:
        for n in range(count):
            for partition in range(self._partitions):
                offset = self.log.append(TOPIC, b'{"n":%d}' % n, partition, timestamp=n)
                self.stored.append([TOPIC, partition, offset, n, None, f'{{"n":{n}}}', *self._versions[partition]])
        self._note()

    def _note(self) -> None:
        now = time.monotonic()
        for partition in range(self._partitions):
            held = self._held(partition)
            self.bounds.append([TOPIC, partition, now, now, held.start, held.end])

    def _held(self, partition: int) -> OffsetRange:
        return self.log.offset_ranges([Partition(TOPIC, partition)])[Partition(TOPIC, partition)]

    def retain(self) -> None:
        """Remove records that no client has received."""
        self.append()
        for partition in range(self._partitions):
            self.log.drop_before(TOPIC, self._held(partition).end - 3, partition)
        self.append()

    def truncate(self) -> None:
        """Lose the last records of two partitions, and write others."""
        for partition in (0, 1):
            recreated, truncated = self._versions[partition]
            end = self._held(partition).end - 5
            kept = [row for row in self.stored if row[1] == partition and tuple(row[6:]) == (recreated, truncated)]
            self._versions[partition] = recreated, truncated + 1
            self.stored += [[*row[:6], *self._versions[partition]] for row in kept if row[2] < end]
            self.log.truncate(TOPIC, end, partition)
        self.append()

    def recreate(self) -> None:
        self.log.delete(TOPIC)
        self._versions = [(recreated + 1, 0) for recreated, _ in self._versions]
        self._create()
        self.append()

    def grow(self) -> None:
        self._partitions += 1
        self.log.create(TOPIC, self._partitions)
        self.log.elect_leader(TOPIC, self._partitions - 1)
        self.append()


def app() -> Flask:
    changes = Changes()
    app = create_app(Config.load(cors_origins=["*"], metadata_refresh_s=0.1), changes.log)

    @app.post("/-/change/<name>")
    def change(name: str) -> dict[str, Any]:
        getattr(changes, name)()
        return {"stored": changes.stored, "bounds": changes.bounds}

    return app


def upgraded() -> Flask:
    """kafkasse, as if a later version had other chunks."""
    core.BLOCK_OFFSETS, core.MAX_CHUNK_BYTES = 700, 20_000
    return create_app()
