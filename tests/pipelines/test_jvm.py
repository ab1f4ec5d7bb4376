"""Spark's JVM is started with the options of Spark's launcher, an archive of its classes, and a temporary directory."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from kafkasse.pipelines import jvm
from kafkasse.pipelines.temporary import directory
from kafkasse.tools.java import class_archive, jars, runtime
from kafkasse.tools.java.class_archive import ArchiveProcess
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
LAUNCHER_OPTION = re.compile(rb"--[\w-]+=[\w./=-]+|-[DX][\w:.+-]+(?:=\w+)?")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache for archives. The jars still come from the cache of the machine."""
    found = jvm.connector_jars()
    monkeypatch.setattr(jvm, "connector_jars", lambda: found)
    monkeypatch.setattr(jars, "cache_directory", lambda: tmp_path / "cache")
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


def options(path: Path) -> str:
    """The options with which the JVM of this directory starts."""
    path.mkdir()
    jvm.write_launcher(path, "512m", [], [])
    return (path / "options").read_text()


def creation(path: Path, classes: str = "") -> ArchiveProcess:
    """The process that creates the archive when the JVM of this directory has ended. It has recorded these classes."""
    (path / "classes").write_text(classes)
    process = jvm.create_archive(path)
    assert process
    return process


def test_has_the_options_of_sparks_launcher():
    """A new version of PySpark may need other options. Only the vector module is left out."""
    [launcher] = Path(pyspark.__file__).parent.glob("jars/spark-launcher_*.jar")
    with zipfile.ZipFile(launcher) as archive:
        code = archive.read("org/apache/spark/launcher/JavaModuleOptions.class")

    expected = {option.decode() for option in LAUNCHER_OPTION.findall(code)} - {"--add-modules=jdk.incubator.vector"}

    assert expected == set(jvm.MODULE_OPTIONS)


@pytest.mark.processes
def test_creates_the_archive_from_the_recorded_classes(cache, tmp_path):
    """The first JVM records its classes, and the JVMs after the creation of the archive load them from it."""
    first = options(tmp_path / "first")
    creation(tmp_path / "first", "java/lang/Object id: 0\norg/apache/spark/SparkConf id: 1\n").wait()
    [archive] = cache.glob("*.jsa")
    second = options(tmp_path / "second")
    java = [str(runtime.java_executable()), f"@{tmp_path / 'second' / 'options'}", "-Xshare:on", "-version"]

    used = subprocess.run(java, capture_output=True, text=True, timeout=60)

    assert "-XX:DumpLoadedClassList=" in first
    assert f"-XX:SharedArchiveFile={archive}" in second
    assert 0 == used.returncode, used.stdout + used.stderr


@pytest.mark.processes
def test_an_archive_that_is_not_complete_at_the_end_is_removed(cache, tmp_path, monkeypatch):
    """The pipeline does not wait for the archive, and leaves no part of it. One that starts meanwhile creates none."""
    monkeypatch.setattr(class_archive, "DUMP", "touch {new}; sleep 600; touch {archive}")
    options(tmp_path / "first")
    first = creation(tmp_path / "first")
    wait_until(lambda: list(cache.glob("*.new")))
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "classes").touch()

    assert jvm.create_archive(tmp_path / "second") is None, "two processes create the archive at once"
    first.stop()

    assert [".lock"] == [path.suffix for path in cache.iterdir()]
    assert [] == list(tmp_path.glob("*/classes"))


@pytest.mark.processes
def test_an_archive_that_cannot_be_created_is_removed(cache, tmp_path, monkeypatch):
    """For example, the disk is full. The part of the archive would occupy the disk until the next attempt."""
    options(tmp_path / "first")
    jvm.archive().path.with_suffix(".new").write_text("the first half")
    monkeypatch.setattr(runtime, "java_executable", lambda: Path("/bin/false"))

    creation(tmp_path / "first").wait()

    assert [".lock"] == [path.suffix for path in cache.iterdir()]


@pytest.mark.processes
def test_deletes_archives_of_old_versions(cache, tmp_path, monkeypatch):
    """An upgrade of Java or Spark leaves an archive of 160 MB. A start that uses an archive keeps it."""
    monkeypatch.setattr(class_archive, "DUMP", "touch {archive}")
    unused, used = cache / "spark-1.jsa", jvm.archive().path
    for path in (unused, used):
        path.touch()
        os.utime(path, (0, 0))
    options(tmp_path / "first")
    used = used.rename(cache / "spark-2.jsa")
    options(tmp_path / "second")

    creation(tmp_path / "second").wait()

    assert [used, jvm.archive().path] == sorted(cache.glob("*.jsa"), key=lambda path: path.stat().st_mtime)


@pytest.mark.processes
def test_the_archive_belongs_to_one_set_of_jars_and_options(cache, monkeypatch):
    """Another connector has an archive of its own, so that a JVM never uses classes of another version."""
    names = [jvm.archive().path]
    monkeypatch.setattr(jvm, "connector_jars", lambda: [Path("/other.jar")])
    names.append(jvm.archive().path)

    assert 2 == len(set(names))
    assert {cache} == {name.parent for name in names}


def test_the_docs_explain_the_versions_of_spark_and_its_connector():
    """Spark and its connector have different versions, so an update of either must not go unnoticed.

    docs/pipelines.md explains the pairing. Update the docs, the lock file and this test together.
    """
    lock = json.loads((ROOT / "kafkasse/tools/java/jars.lock.json").read_text())["groups"]["spark-kafka"]
    versions = {module.split(":")[1]: module.split(":")[2] for module in lock["modules"]}
    docs = (ROOT / "docs/pipelines.md").read_text()

    assert "4.3.0" == pyspark.__version__
    assert "4.2.0" == versions["spark-sql-kafka-0-10_2.13"] == versions["spark-token-provider-kafka-0-10_2.13"]
    for version in ("Spark 4.3.0", "connector 4.2.0", f"kafka-clients {versions['kafka-clients']}"):
        assert version in docs


PREFIX = "kafkasse-test-"
HOLD = """
import sys, time
from kafkasse.pipelines.temporary import directory
with directory(sys.argv[1]) as path:
    (path / "file").write_text("text")
    print(path, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@contextmanager
def other_process(parent: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process, and the directory that it uses."""
    command, environment = [sys.executable, "-c", HOLD, PREFIX], {**os.environ, "TMPDIR": str(parent)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def test_a_temporary_directory_is_removed_at_the_end(parent):
    with directory(PREFIX) as path:
        (path / "file").write_text("text")

    assert path.name.startswith(PREFIX)
    assert not path.exists()


@pytest.mark.processes
def test_keeps_the_directory_of_a_running_process_and_removes_that_of_a_killed_one(parent):
    """Two pipelines on one machine do not disturb each other."""
    with other_process(parent) as (process, used):
        with directory(PREFIX) as path:
            assert {path, used} == set(parent.iterdir())
        assert "text" == (used / "file").read_text()
        process.kill()
        process.wait()
        assert used.exists()

        with directory(PREFIX) as path:
            assert [path] == list(parent.iterdir())


def test_does_not_follow_links(parent, tmp_path_factory):
    """A link with our prefix, which any user of the machine can create, does not make kafkasse remove its target."""
    target = tmp_path_factory.mktemp("target")
    (target / "kafkasse.lock").touch()
    (parent / f"{PREFIX}link").symlink_to(target)

    with directory(PREFIX):
        pass

    assert target.exists()
