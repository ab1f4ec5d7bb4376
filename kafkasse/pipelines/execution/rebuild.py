"""Rebuild the sinks of a pipeline: compute all results from the start beside the running version, then switch over.

    1. old version ─▶ sink               new version ─▶ sink.rebuild-1, with its own checkpoint, until it has caught up
    2. the old version ends              new version ─▶ sink.rebuild-1, until it has caught up again
    3. sink.rebuild-1 ─▶ sink: the latest result of each key, and a tombstone for each key of the pipeline that has none
    4. new version ─▶ sink

The records of the new version have a higher generation (contract.GENERATION), so all of them are newer than those of the old
one. An interrupted rebuild continues where it stopped.
"""

from __future__ import annotations

import json
import logging
import time
from datetime import UTC, datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from kafkasse.errors import CommandError
from kafkasse.pipelines import next_offsets
from kafkasse.pipelines.checkpoints import checkpoint as checkpoints
from kafkasse.pipelines.checkpoints import lease, sink_versions
from kafkasse.pipelines.checkpoints.lease import MARKER, SILENCE_S
from kafkasse.pipelines.execution import runner, start
from kafkasse.pipelines.execution.run import Run
from kafkasse.pipelines.kafka import contract, tables, topics
from kafkasse.pipelines.kafka.admin import COMPACTED, Admin
from kafkasse.pipelines.manifest import FILE, CheckpointManifest
from kafkasse.pipelines.next_offsets import NextOffsets
from kafkasse.pipelines.pipeline import Mode
from kafkasse.pipelines.spark import failures
from kafkasse.pipelines.spark.files import Files
from kafkasse.pipelines.spark.listener import Listener, listening
from kafkasse.pipelines.supervisor import StopRequests

POLL_INTERVAL_S = 0.5
COPIED = "copied"  # the content of the file PENDING when the sinks contain all results, but the topics still exist

logger = logging.getLogger("kafkasse.pipeline")


def rebuild(run: Run, stop: StopRequests, observer: runner.RunObserver) -> bool:
    """Rebuild the sinks. Afterwards, the pipeline can run as usual.

    Args:
        stop: a stop request ends the rebuild; another call continues it.
        observer: receives the progress of the new version until it has caught up.

    Returns:
        Whether the rebuild is complete.

    Raises:
        CommandError, Interrupted: see runner.Attempt.start().
    """
    first = run.first_checkpoint()
    if run.files.read(f"{first}/{FILE}") is None:
        return True  # the first run computes everything anyway
    if latest := run.pipeline.latest_sources:
        raise CommandError(
            f"the pipeline {run.pipeline.name} cannot be rebuilt, because it reads {', '.join(latest)} with start: latest; "
            "the rebuild would read no record and remove all results from the sinks. Set another start, or use another "
            "--checkpoint"
        )
    return _Rebuild(run, first, stop, observer).run_steps()


def unfinished(run: Run) -> str | None:
    """Return the newest checkpoint of an unfinished rebuild, or None if there is none."""
    files = run.files
    paths = _of_pipeline(files, run.first_checkpoint())
    pending = [path for path in paths if files.exists(f"{path}/{checkpoints.PENDING}")]
    return max(pending, key=lambda path: files.changed_at_ms(path) or 0, default=None)


def _of_pipeline(files: Files, first: str) -> list[str]:
    """Return all checkpoints of a pipeline."""
    directory, _, name = first.rpartition("/")
    return [f"{directory}/{other}" for other in files.names(directory) if checkpoints.first_of(other) == name]


class _Rebuild:
    def __init__(self, run: Run, first: str, stop: StopRequests, observer: runner.RunObserver) -> None:
        self.run, self.first, self.stop, self.observer = run, first, stop, observer
        self.pipeline, self.files = run.pipeline, run.files

    def run_steps(self) -> bool:
        try:
            return self._run_steps()
        except failures.ChangedState:
            # An interrupted rebuild whose query has changed. Spark compares the state of its own operators.
            logger.warning("rebuild: restarting from the beginning, because the query has changed")
            return self._run_steps(continues=False)

    def _run_steps(self, *, continues: bool = True) -> bool:
        new, generation = self._begin(checkpoints.current(self.files, self.first), continues=continues)
        with lease.exclusive(self.files, new), lease.held(self.files, new):
            step = self.files.read(f"{new}/{checkpoints.PENDING}")
            if step is None:
                raise CommandError(f"another run has just rebuilt the pipeline {self.pipeline.name}")
            if step != COPIED and not self._write_results(new, generation):
                return False
            self._clean_up(new)
        logger.info("rebuild: complete; the checkpoint is %s", new)
        return True

    def _write_results(self, new: str, generation: int) -> bool:
        """Compute the results, and write them to the sinks. Returns False at a stop request."""
        suffix = checkpoints.rebuild_suffix(generation)
        sinks = self.pipeline.sink_topics
        with self.run.admin() as admin:
            for sink in sinks:
                _create_like(admin, sink, f"{sink}{suffix}")
        logger.info("rebuild: reading the sources from the start")
        for mode in runner.modes(self.run):
            with (
                listening(self.run.spark) as listener,
                start.started(self.run, new, self.stop, suffix, mode) as query,
            ):
                if not self._wait_for_start(query, new) or not self._catch_up(query, listener, mode):
                    return False
                if mode == self.pipeline.mode:
                    self.files.write(f"{self.first}/{checkpoints.POINTER}", new)
                    if not self._wait_for_end_of_others(new) or not self._catch_up(query, listener, mode):
                        return False
        for sink in sinks:
            self._copy(f"{sink}{suffix}", sink, generation)
        self.files.write(f"{new}/{checkpoints.PENDING}", COPIED)
        return True

    def _clean_up(self, new: str) -> None:
        """Delete the topics of the rebuild, earlier interrupted rebuilds and, at last, the marker of the rebuild."""
        self._delete_topics(new)
        for other in self._others(new):
            if self.files.exists(f"{other}/{checkpoints.PENDING}"):
                self._discard(other)
        self.files.delete(f"{new}/{checkpoints.PENDING}")

    def _begin(self, old: str, *, continues: bool) -> tuple[str, int]:
        """Return the new checkpoint, and its generation. Continue with that of an interrupted rebuild if it fits."""
        if self.files.exists(f"{old}/{checkpoints.PENDING}") and continues and self._fits(old):
            return old, self._manifest(old).generation
        newest = sink_versions.next_generation(self.run.spark, self.run.kafka, self.pipeline.sink_topics)
        generation = max(newest, self._manifest(old).generation + 1)
        new = f"{self.first}{checkpoints.rebuild_suffix(generation)}"
        if continues and self._fits(new):
            return new, generation
        self._discard(new)
        self.files.write(f"{new}/{checkpoints.PENDING}", "")
        self.files.write(f"{new}/{FILE}", checkpoints.new_manifest(self.pipeline, generation).text())
        return new, generation

    def _fits(self, unfinished: str) -> bool:
        """Return whether the pipeline can continue an interrupted rebuild.

        The pipeline may have changed since then, or the topics of the rebuild may have been deleted.
        """
        if self.files.read(f"{unfinished}/{FILE}") is None:
            return False
        _, state = start.query_of(self.run)
        reasons = [
            f"the pipeline has changed: {change}" for change in self._manifest(unfinished).changes(self.pipeline, state)
        ]
        if self.files.read(f"{unfinished}/{checkpoints.PENDING}") != COPIED:
            suffix = unfinished.removeprefix(self.first)
            with self.run.admin() as admin:
                missing = {f"{sink}{suffix}" for sink in self.pipeline.sink_topics} - admin.names()
            reasons += [f"the topic {topic} does not exist" for topic in sorted(missing)]
        if reasons:
            logger.warning("rebuild: restarting from the beginning, because %s", "; ".join(reasons))
        return not reasons

    def _discard(self, unfinished: str) -> None:
        """Delete the checkpoint and the topics of a rebuild."""
        with lease.exclusive(self.files, unfinished):
            self._delete_topics(unfinished)
            self.files.delete(unfinished)

    def _delete_topics(self, checkpoint: str) -> None:
        suffix = checkpoint.removeprefix(self.first)
        with self.run.admin() as admin:
            admin.delete(f"{sink}{suffix}" for sink in self.pipeline.sink_topics)

    def _manifest(self, checkpoint: str) -> CheckpointManifest:
        return CheckpointManifest.parse(self.files.read(f"{checkpoint}/{FILE}") or "", checkpoint)

    def _wait_for_start(self, query: StreamingQuery, new: str) -> bool:
        """Wait until the checkpoint has the first offsets, which are needed for the lag. Returns False at a stop request."""
        while not (offsets := checkpoints.start_offsets(self.files, new)) and query.isActive:
            if self.stop.wait(POLL_INTERVAL_S):
                return False
        self.observer.started(offsets)
        return True

    def _catch_up(self, query: StreamingQuery, listener: Listener, mode: Mode) -> bool:
        """Wait until the query has committed all records that the sources contain now. Returns False at a stop request."""
        with self.run.admin() as admin:
            ends = admin.ends(self.pipeline.source_topics)
        known_at = datetime.now(UTC)
        while not _has_reached(query, ends, known_at):
            if not query.isActive:
                if query.exception() is None and mode == "once":
                    return True
                raise runner.failure(self.run.spark, query)
            runner.pass_on(self.observer, listener.take())
            self.observer.polled()
            if self.stop.wait(POLL_INTERVAL_S):
                return False
        runner.pass_on(self.observer, listener.take())
        return True

    def _others(self, new: str) -> list[str]:
        """Return the other checkpoints of the pipeline."""
        return [path for path in _of_pipeline(self.files, self.first) if path != new]

    def _wait_for_end_of_others(self, new: str) -> bool:
        """Wait until the runs with other checkpoints have ended. They end by themselves: they have lost their lease."""
        seen, seen_at_s = self._markers(new), time.monotonic()
        while seen and time.monotonic() - seen_at_s < SILENCE_S:
            if self.stop.wait(POLL_INTERVAL_S):
                return False
            if (now := self._markers(new)) != seen:
                seen, seen_at_s = now, time.monotonic()
        return True

    def _markers(self, new: str) -> list[str]:
        """Return the content of the marker of each run with another checkpoint."""
        markers = (self.files.read(f"{other}/{MARKER}") for other in self._others(new))
        return [text for text in markers if text is not None]

    def _copy(self, staging: str, sink: str, generation: int) -> None:
        """Write the latest results of the new version to the sink, and a tombstone for each old result without a new one."""
        new = _latest(self.run, staging)
        # Other pipelines and producers may write other keys.
        prefix = f"{self.pipeline.name}/"
        is_own = F.exists(
            "headers",
            lambda header: (header["key"] == contract.PIPELINE) & header["value"].cast("string").startswith(prefix),
        )
        gone = _latest(self.run, sink).where(is_own & F.col("value").isNotNull()).join(new, "key", "left_anti")
        headers = contract.own_headers(self.pipeline, F.lit(generation * contract.GENERATION))
        tombstones = gone.select("key", F.lit(None).cast("binary").alias("value"), headers.alias("headers"))
        logger.info("rebuild: %d keys of %s have no result any more and get tombstones", tombstones.count(), sink)
        with self.run.admin() as admin:
            limit = admin.max_bytes([sink])[sink]
        options = topics.connector({"max.request.size": str(limit + contract.RECORD_OVERHEAD_BYTES)} | self.run.kafka)
        new.unionByName(tombstones).write.format("kafka").options(**options).option("topic", sink).save()


def _create_like(admin: Admin, topic: str, copy: str) -> None:
    """Create a compacted topic with the partitions of another one, if it does not exist."""
    fix = f"allow the pipeline to create it, or create it with the partitions of {topic} and cleanup.policy=compact"
    settings = COMPACTED | {"max.message.bytes": str(admin.max_bytes([topic])[topic])}
    admin.create(copy, fix, settings, len(admin.offsets(topic)))


def _latest(run: Run, topic: str) -> DataFrame:
    """Return the latest record of each key: `key`, `value` and `headers`."""
    return tables.newest(topics.read_now(run.spark, run.kafka, topic)).select("key", "value", "headers")


def _has_reached(query: StreamingQuery, ends: NextOffsets, known_at: datetime) -> bool:
    """Return whether a batch has committed these offsets, or a batch that began after `known_at` has found no record.

    Transaction markers at the end of a partition have offsets, but a query does not reach them.
    """
    progress = query.lastProgress
    if progress is None:
        return not any(ends.values())
    if progress.numInputRows == 0 and datetime.fromisoformat(progress.timestamp) > known_at:
        return True
    reached = next_offsets.of_progress(json.loads(progress.json))
    return all(reached.get(partition, 0) >= end for partition, end in ends.items())
