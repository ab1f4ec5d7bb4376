"""A pipeline continues with the state that an earlier version has stored. See tests/compatibility."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

from kafkasse.pipelines.definition.catalog import TOPN
from tests.compatibility.test_compatibility import FOLDER, decoded, each_version
from tests.pipelines.spark.runs import Runs
from tests.pipelines.topics import country, read, top


def move(checkpoint: Path, target: Path) -> None:
    """Move a checkpoint. Spark stores absolute paths in the metadata of its state, with a checksum beside each file."""
    shutil.copytree(checkpoint, target)
    for file in target.glob("state/*/_metadata/v2/0"):
        file.write_text(re.sub(r'file:[^"]*(?=/state/)', f"file:{target}", file.read_text()))
        file.with_name(".0.crc").unlink()


@each_version
def test_a_pipeline_continues_with_a_checkpoint_of_an_earlier_version(version, spark, topics, tmp_path):
    """The state contains the countries that the earlier version has read, so a new one gets its rank among them."""
    cluster, runs = topics.cluster, Runs(spark, topics, tmp_path)
    for topic in ("golden-countries", "golden-topn"):
        cluster.create(topic)
    for key, value, headers in map(decoded, json.loads((FOLDER / version / "pipeline.json").read_text())["source"]):
        cluster.send("golden-countries", value, key=key, headers=headers)
    pipeline = replace(TOPN, source="golden-countries", sink="golden-topn")
    with ZipFile(FOLDER / version / "checkpoint.zip") as file:
        file.extractall(tmp_path / "earlier")
    (stored,) = Path(tmp_path / "earlier").iterdir()  # its name contains the IDs of the topics
    move(stored, Path(runs.checkpoint(pipeline)))
    key, value = country("FR", 5)

    with runs.running(pipeline):
        cluster.send("golden-countries", value, key=key)
        (result,) = read(topics, "golden-topn", 1)

    cluster.delete("golden-countries")
    cluster.delete("golden-topn")
    assert ["FR", "DE", "IT"] == top(result.value)
