"""A simulation of a cluster with an archive: retention removes records that may or may not have been archived before.

Compaction and erasure change the files of the archive while clients read them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import patch

from kafkasse.log import Log
from kafkasse.log import Partition as LogPartition
from kafkasse.route import StartAt
from tests.history.checker import Bounds
from tests.history.draws import Draws
from tests.history.simulated_log import CLUSTERS_WITH_IDS
from tests.history.simulation import Simulation
from tests.history.wire import Partition

ROW_GROUP_BYTES = 200  # a few records


class ArchiveSimulation(Simulation):
    """Half of the simulations have clients that start at the earliest record, which may be archived."""

    _clusters = CLUSTERS_WITH_IDS

    def __init__(self, draws: Draws, **settings: Any) -> None:
        from kafkasse.archive.directory import ArchiveDirectory  # needs pyarrow

        self.directory = ArchiveDirectory(Path())  # play() creates it
        super().__init__(draws, late_reconnects=True, truncates=True, **settings)
        if self.draws.chance(5):
            self._route = replace(self._route, start=StartAt.EARLIEST)

    def _readable_log(self) -> Log:
        from kafkasse.archive.log import ArchivedLog, ArchiveReader

        return ArchivedLog(self.log, ArchiveReader(self.directory))

    def play(self, steps: int) -> list[str]:
        from kafkasse.archive import log, parquet

        with (
            tempfile.TemporaryDirectory(prefix="kafkasse-archive-") as directory,
            closing(self._feeds.log),
            patch.object(parquet, "ROW_GROUP_BYTES", ROW_GROUP_BYTES),
            patch.multiple(log, MAX_LOOKUP_S=None, MAX_MANIFEST_AGE_S=-inf),  # its clock would keep manifests for ever
        ):
            self.directory.path = Path(directory)
            self.directory.create()
            return super().play(steps)

    def _more_moves(self) -> Iterable[Callable[[], None]]:
        return *super()._more_moves(), self.archive, self.archive, self.retain, self.retain, self.compact

    def archive(self, partition: Partition | None = None) -> None:
        """Archive some of the records that are not archived yet, as one commit."""
        from tests.support.archive import archive

        topic, at = partition or self._any_partition()
        if self.log.offset_ranges([LogPartition(topic, at)]):  # it has a leader
            archive(self.directory.path, self.log, topic, partition=at)

    def retain(self) -> None:
        """Remove the oldest records of a partition from Kafka."""
        partition = self._any_partition()
        if self.drops and self.ends[partition]:
            self.drop_before(partition, self.draws.between(self.firsts[partition], self.ends[partition] + 1))

    def compact(self) -> None:
        from kafkasse.archive.maintenance import compact

        for directory in self.directory.topics():
            compact(directory)
            directory.remove_unlisted(min_age_s=-60)

    def drop_before(self, partition: Partition, first: int) -> None:
        """Remove records from Kafka. Some of them may not be archived.

        After a truncation, archive all of them first. Otherwise, the archive would keep lost records, and nothing in Kafka
        would show that they were lost (docs/faults.md).
        """
        if self._epochs[partition] and not self.log.offset_ranges([LogPartition(*partition)]):
            return  # a partition without a leader cannot be archived
        if self._epochs[partition] or self.draws.chance(7):
            self.archive(partition)
        super().drop_before(partition, first)

    def truncate_at(self, partition: Partition, end: int) -> None:
        if end > self.firsts[partition]:
            super().truncate_at(partition, end)

    def _held(self, partition: Partition, bounds: Bounds) -> Bounds:
        topic, at = partition
        manifest = self.directory.topic(topic, self.log.describe([topic])[topic].topic_id).read()
        entries = [entry for entry in manifest.partitions.get(at, ()) if entry.start < bounds.first]
        held = [(entry.start, min(entry.end, bounds.first)) for entry in entries] + [(bounds.first, bounds.end)]
        holes = [(before[1], after[0]) for before, after in pairwise(held) if before[1] < after[0]]
        return bounds._replace(first=held[0][0], holes=tuple(holes))
