"""The checkpoint of a pipeline: its manifest, and which checkpoint is in use after a rebuild."""

from __future__ import annotations

import json
import re
import time

import pyspark
from pyspark.sql import SparkSession

import kafkasse
from kafkasse.errors import CommandError
from kafkasse.pipelines import next_offsets
from kafkasse.pipelines.checkpoints import sink_versions
from kafkasse.pipelines.kafka.skipped_records import FILE as SKIPPED
from kafkasse.pipelines.kafka.skipped_records import Skipped
from kafkasse.pipelines.manifest import FILE, CheckpointManifest, RecordedState, plain_settings
from kafkasse.pipelines.next_offsets import NextOffsets
from kafkasse.pipelines.pipeline import Pipeline
from kafkasse.pipelines.spark.files import Files

POINTER = "kafkasse-current"  # in the first checkpoint of a pipeline: the path of the checkpoint that has replaced it
PENDING = "kafkasse-rebuild"  # in the checkpoint of a rebuild that is not complete

_REBUILD = re.compile(r"\.rebuild-\d+$")


def rebuild_suffix(generation: int) -> str:
    """Return the end of the names of a rebuild's checkpoint and topics."""
    return f".rebuild-{generation}"


def first_of(checkpoint: str) -> str:
    """Return the first checkpoint of a pipeline, given one of them."""
    return _REBUILD.sub("", checkpoint)


def of_dead_letters(checkpoint: str) -> str:
    """Return the checkpoint of the query for dead letters. It is inside the pipeline's checkpoint."""
    return f"{checkpoint}/dead-letters"


def current(files: Files, first: str) -> str:
    """Return the checkpoint in use, given the first checkpoint of a pipeline."""
    return files.read(f"{first}/{POINTER}") or first


def remove_unfinished(files: Files, checkpoint: str) -> None:
    """Remove the temporary files of a run that was killed while it wrote its offsets, a commit or a small file.

    Spark rejects a checkpoint without a commit if these directories contain any file, so the query would never start again.
    """
    for directory in ("", "offsets", "commits"):
        for name in files.names(f"{checkpoint}/{directory}"):
            if name.endswith(".tmp"):
                files.delete(f"{checkpoint}/{directory}/{name}")


def check_logs(files: Files, checkpoint: str) -> None:
    """Check the files that Spark reads first. A power failure can damage them. Raise CommandError if one is damaged."""
    for directory in ("offsets", "commits"):
        batches = sorted(int(name) for name in files.names(f"{checkpoint}/{directory}") if name.isdecimal())
        for batch in batches[-2:]:
            path = f"{checkpoint}/{directory}/{batch}"
            if not _is_complete(files.read(path) or ""):
                raise CommandError(
                    f"the file {path} is damaged; restore the checkpoint from a copy, or use another --checkpoint, which "
                    "writes all results again, from the oldest to the newest"
                )


def _is_complete(text: str) -> bool:
    """Return whether a text is that of a file in one of Spark's logs: a version, and lines of JSON."""
    version, *lines = text.splitlines() or [""]
    try:
        return version.startswith("v") and bool([json.loads(line) for line in lines if line != "-"])
    except ValueError:
        return False


def open_manifest(
    spark: SparkSession, pipeline: Pipeline, kafka: dict[str, str], checkpoint: str, state: RecordedState
) -> tuple[CheckpointManifest, bool]:
    """Check that the pipeline can continue with a checkpoint, and write the manifest.

    Args:
        state: the fields in the state of each operator of the pipeline's query.

    Returns:
        The manifest, and whether the checkpoint is new.

    Raises:
        CommandError: the state does not fit the pipeline.
    """
    files = Files(spark)
    text = files.read(f"{checkpoint}/{FILE}")
    if text is None:
        manifest = new_manifest(pipeline, sink_versions.next_generation(spark, kafka, pipeline.sink_topics))
    else:
        manifest = CheckpointManifest.parse(text, checkpoint)
        manifest.check(pipeline, state, checkpoint)
    manifest = manifest.updated(pipeline, state, kafkasse.__version__, pyspark.__version__)
    if manifest.text() != text:
        files.write(f"{checkpoint}/{FILE}", manifest.text())
    return manifest, text is None


def new_manifest(pipeline: Pipeline, generation: int) -> CheckpointManifest:
    """Return the manifest of a new checkpoint."""
    now_ms = time.time_ns() // 1_000_000
    versions = kafkasse.__version__, pyspark.__version__
    return CheckpointManifest(pipeline.name, plain_settings(pipeline), generation, now_ms, *versions)


def last_commit(files: Files, checkpoint: str) -> NextOffsets:
    """Return the offsets of the last commit, or {} if there was none."""
    batch = _last_batch(files, checkpoint)
    text = None if batch is None else files.read(f"{checkpoint}/offsets/{batch}")
    offsets: NextOffsets = {}
    for line in (text or "").splitlines()[2:]:  # the version, the metadata, and one line for each source
        if line.startswith("{"):
            offsets |= next_offsets.of_topics(json.loads(line))
    return offsets


def _last_batch(files: Files, checkpoint: str) -> int | None:
    return max((int(name) for name in files.names(f"{checkpoint}/commits") if name.isdecimal()), default=None)


def start_offsets(files: Files, checkpoint: str) -> NextOffsets:
    """Return the offsets with which the query starts: those of the last commit, or those of its first start."""
    if committed := last_commit(files, checkpoint):
        return committed
    offsets: NextOffsets = {}
    for source in files.names(f"{checkpoint}/sources"):
        text = files.read(f"{checkpoint}/sources/{source}/0") or ""
        offsets |= next_offsets.of_topics(json.loads(text[text.index("{") :])) if "{" in text else {}
    return offsets


def skipped(files: Files, checkpoint: str) -> Skipped:
    """Return the skipped records that the queries of a pipeline have not passed, and remove the others from the file."""
    path = f"{checkpoint}/{SKIPPED}"
    listed = Skipped.parse(files.read(path))
    letters = of_dead_letters(checkpoint)
    remaining = listed.after(last_commit(files, checkpoint))
    if files.exists(letters):  # the query for dead letters may be behind the pipeline's query
        remaining = remaining.plus(listed.after(last_commit(files, letters)).records)
    if remaining != listed:
        files.write(path, remaining.text())
    return remaining


def last_commit_ms(files: Files, checkpoint: str, manifest: CheckpointManifest) -> int:
    """Return the time of the last commit, or of the first start if there was none, in milliseconds since the epoch."""
    batch = _last_batch(files, checkpoint)
    text = None if batch is None else files.read(f"{checkpoint}/offsets/{batch}")
    if text is None:
        return manifest.created_at_ms
    began_at_ms = int(json.loads(text.splitlines()[1])["batchTimestampMs"])
    # The files of a copied checkpoint have the time of the copy, so the duration is about 0.
    planned_at_ms, committed_at_ms = (
        files.changed_at_ms(f"{checkpoint}/{log}/{batch}") for log in ("offsets", "commits")
    )
    return min(committed_at_ms or began_at_ms, began_at_ms + max(0, (committed_at_ms or 0) - (planned_at_ms or 0)))
