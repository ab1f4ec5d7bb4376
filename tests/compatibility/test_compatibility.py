"""Files that earlier versions have written. Never change such a file, and never change a test so that it accepts less.

record.py writes the files of a new version. See COMPATIBILITY.md.
"""

from __future__ import annotations

import json
import logging
import re
from base64 import b64decode
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import yaml

import kafkasse
from kafkasse import Config
from kafkasse.access.api_keys import ApiKeys
from kafkasse.archive import with_archive
from kafkasse.log import Partition, Topic
from kafkasse.log.memory import MemoryLog
from kafkasse.pipelines.definition.catalog import TOPN
from kafkasse.pipelines.manifest import CheckpointManifest
from kafkasse.records.position import LATEST, Place, Position, parse, stream_offset
from tests.compatibility.record import FORMS_OF_FINITE_READS, names

FOLDER = Path(__file__).parent
VERSIONS = sorted(folder.name for folder in FOLDER.iterdir() if (folder / "event_ids.json").exists())
OF_EACH_VERSION = {
    *("archive.zip", "checkpoint.zip"),
    *("api_key.json", "event_ids.json", "kafkasse.yaml", "names.json", "pipeline.json"),
}
A, B, OTHER = Partition("orders", 0), Partition("orders", 1), Partition("payments.eu", 0)
INT64_MAX, TIME_MS = 2**63 - 1, 1_790_000_000_000
IDS = {"orders": "kQ3d8y1Z", "payments.eu": ""}
AT_12 = {A: Place(12), B: Place(INT64_MAX), OTHER: Place(0)}
POSITIONS = {
    "offsets": Position(AT_12, topic_ids=IDS),
    "leader epochs": Position(AT_12 | {A: Place(12, None, 5)}, topic_ids=IDS),
    "timestamps": Position(AT_12 | {A: Place(timestamp=TIME_MS)}, topic_ids=IDS),
    "both": Position(AT_12 | {A: Place(12, TIME_MS)}, topic_ids=IDS),
    "some partitions": Position(AT_12, topic_ids=IDS, partial_topics=frozenset({"orders"})),
    "without a leader": Position(AT_12 | {Partition("orders", 2): Place(timestamp=TIME_MS)}, topic_ids=IDS),
}
OF_KAFKASSE = [
    Position({A: Place(12), B: Place(7)}, partial_topics=frozenset({"orders"})),
    Position({A: Place(timestamp=TIME_MS)}, partial_topics=frozenset({"orders"})),
    Position({A: Place(LATEST)}, partial_topics=frozenset({"orders"})),
    Position({OTHER: Place(12)}, named_topics=("orders",), partial_topics=frozenset({"payments.eu"})),
]
POSITIONS |= {f"KafkaSSE, {number}": position for number, position in enumerate(OF_KAFKASSE)}

each_version = pytest.mark.parametrize("version", VERSIONS)


def test_each_release_has_its_files():
    """A release must not be without them: `python -m tests.compatibility.record` writes them."""
    (current,) = re.findall(r"^\d+\.\d+", kafkasse.__version__)

    assert current in VERSIONS
    assert [OF_EACH_VERSION] * len(VERSIONS) == [{file.name for file in (FOLDER / each).iterdir()} for each in VERSIONS]


@each_version
def test_event_ids_keep_their_meaning(version):
    """A client sends back the ID or the offset that it received before the upgrade, in any of the forms."""
    ids = json.loads((FOLDER / version / "event_ids.json").read_text())

    read = {each["form"]: (stream_offset.parse if "finite read" in each["form"] else parse)(each["id"]) for each in ids}

    expected = POSITIONS | {f"{form}, compact": POSITIONS[form] for form in POSITIONS if "KafkaSSE" not in form}
    assert expected | {f"{form}, finite read": POSITIONS[form] for form in FORMS_OF_FINITE_READS} == read


@each_version
def test_configurations_are_valid(version):
    """The file has nearly all settings. Each of them is also a variable."""
    file = FOLDER / version / "kafkasse.yaml"
    settings = yaml.safe_load(file.read_text())
    plain = {name: value for name, value in settings.items() if isinstance(value, (bool, int, float, str))}
    variables = {f"KAFKASSE_{name.upper()}": str(value).lower() for name, value in plain.items()}

    config = Config.load({}, file)
    config.check_servable()

    assert "mine" in {route.name for route in config.routes}
    Config.load(variables | {"KAFKASSE_ALLOWED_TOPICS": "orders"}).check_servable()
    assert len(settings) > 40


@each_version
def test_public_names_stay(version):
    """There may be new exports, declarations, metrics and labels. The types of metrics stay."""
    stored = json.loads((FOLDER / version / "names.json").read_text())
    now = names()

    assert {} == _lost(stored["exports"], now["exports"])
    assert {} == _lost(stored["declarations"], now["declarations"])
    assert {} == _lost(stored["metrics"], now["metrics"])


def test_samples_import_only_public_names():
    """The next release records these names in names.json."""
    samples = "\n".join(page.read_text() for page in FOLDER.parents[1].glob("docs/*.md"))
    imports = re.findall(r"^from (kafkasse[\w.]*) import (\w.*)$", samples, re.MULTILINE)
    used = {
        module: [name for each, text in imports if each == module for name in text.split(", ")] for module, _ in imports
    }

    assert len(used) > 3
    assert {} == _lost(used, names()["exports"])


def _lost(before: dict[str, list[str]], after: dict[str, list[str]]) -> dict[str, set[str]]:
    """Return what each entry no longer contains."""
    lost = {name: set(parts) - set(after.get(name, ())) for name, parts in before.items()}
    return {name: parts for name, parts in lost.items() if parts}


@each_version
def test_api_keys_are_valid(version, tmp_path):
    stored = json.loads((FOLDER / version / "api_key.json").read_text())
    (tmp_path / "keys").write_text(stored["file"])

    guard = ApiKeys("partners", str(tmp_path / "keys"), logging.getLogger())

    assert stored["owner"] == guard.identify(stored["key"]).name


@each_version
def test_archives_are_readable(version, tmp_path):
    """Kafka has removed the records since. A reader gets their keys, values, headers and timestamps."""
    pytest.importorskip("pyarrow")
    with ZipFile(FOLDER / version / "archive.zip") as file:
        file.extractall(tmp_path)
    (directory,) = tmp_path.glob("topic=golden-archive/topic_id=*")
    kafka = MemoryLog()
    kafka.create("golden-archive")
    kafka._topics["golden-archive"] = Topic(1, directory.name.removeprefix("topic_id=")[:8])
    for _ in range(5):
        kafka.append("golden-archive", b"removed")
    kafka.drop_before("golden-archive", 5)

    at = Partition("golden-archive", 0)
    records: list[Any] = []
    with closing(with_archive(kafka, str(tmp_path))) as log:
        log.describe(["golden-archive"])
        with closing(log.cursor({at: 0})) as cursor:
            while len(records) < 5:
                records += [record for batch in cursor.poll(1) for record in batch.records]

    stored = [(n, TIME_MS + n, b"k%d" % n, b'{"n":%d}' % n, [("h", b"x")]) for n in range(4)]
    stored += [(4, TIME_MS + 4, b"k0", None, [])]
    assert stored == [
        (record.offset, record.timestamp, record.key, record.value, list(record.headers)) for record in records
    ]


@each_version
def test_manifests_of_checkpoints_fit_the_pipeline(version):
    """The pipeline of the demo accepts the checkpoint. A test with Spark also continues with it."""
    with ZipFile(FOLDER / version / "checkpoint.zip") as file:
        (name,) = (name for name in file.namelist() if name.endswith("/kafkasse.json"))
        manifest = CheckpointManifest.parse(file.read(name).decode(), name)

    assert manifest.state
    assert [] == manifest.changes(replace(TOPN, source="golden-countries", sink="golden-topn"), manifest.state)


def decoded(record: dict[str, Any]) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]:
    """Return the key, the value and the headers of a record in pipeline.json."""

    def data(text: str | None) -> bytes | None:
        return None if text is None else b64decode(text)

    return data(record["key"]), data(record["value"]), [(name, data(text)) for name, text in record["headers"]]


@each_version
def test_dead_letters_can_be_replayed(version, cluster, run):
    """The original record is written to its source topic."""
    files = json.loads((FOLDER / version / "pipeline.json").read_text())
    ((key, value, headers),) = map(decoded, files["dead_letters"])
    source = cluster.create("golden-countries-replayed")
    headers = [(name, source.encode() if text == b"golden-countries" else text or b"") for name, text in headers]
    letters = cluster.create("golden-topn.dead-letters-replayed")
    cluster.send(letters, value, key=key, headers=headers)

    done = run("pipeline", "replay-dead-letters", letters, "--bootstrap-servers", cluster.bootstrap_servers)

    assert (0, f"1 records written to {source}\n") == done[:2]
    (replayed,) = cluster.records(source)
    bad = decoded(files["source"][-1])
    assert bad == (replayed.key, replayed.value, list(replayed.headers))
