"""Spark's JVM is started with the options of Spark's launcher and a temporary directory."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from kafkasse.errors import CommandError
from kafkasse.pipelines.spark import jvm, private_spark
from kafkasse.pipelines.spark.session import session
from kafkasse.pipelines.spark.temporary_directory import temporary_directory
from kafkasse.pipelines.supervisor import RunStopped, StopRequests

ROOT = Path(__file__).parents[2]
LAUNCHER_OPTION = re.compile(rb"--[\w-]+=[\w./=-]+|-[DX][\w:.+-]+(?:=\w+)?")


def test_has_the_options_of_sparks_launcher():
    """A new version of PySpark may need other options. Only the vector module is left out."""
    [launcher] = Path(pyspark.__file__).parent.glob("jars/spark-launcher_*.jar")
    with zipfile.ZipFile(launcher) as archive:
        code = archive.read("org/apache/spark/launcher/JavaModuleOptions.class")

    expected = {option.decode() for option in LAUNCHER_OPTION.findall(code)} - {"--add-modules=jdk.incubator.vector"}

    assert expected == set(jvm.MODULE_OPTIONS)


def test_the_docs_explain_the_versions_of_spark_and_its_connector():
    """Spark and its connector have different versions, so an update of either must not go unnoticed.

    docs/pipelines-python.md explains the pairing. Update the docs, the lock file and this test together.
    """
    lock = json.loads((ROOT / "kafkasse/tools/java/jars.lock.json").read_text())["groups"]["spark-kafka"]
    versions = {module.split(":")[1]: module.split(":")[2] for module in lock["modules"]}
    docs = (ROOT / "docs/pipelines-python.md").read_text()

    assert "4.3.0" == pyspark.__version__
    assert "4.2.0" == versions["spark-sql-kafka-0-10_2.13"] == versions["spark-token-provider-kafka-0-10_2.13"]
    for version in ("Spark 4.3.0", "connector 4.2.0", f"kafka-clients {versions['kafka-clients']}"):
        assert version in docs


def test_other_users_cannot_see_the_settings(tmp_path):
    """They see the command line of each process. A setting may contain a password."""
    command = jvm.Jvm(tmp_path)._command({"spark.hadoop.fs.s3a.secret.key": "secret"}, [], [])

    assert "secret" not in " ".join(command)
    properties = Path(command[command.index("--properties-file") + 1])
    assert "spark.hadoop.fs.s3a.secret.key=secret\n" == properties.read_text()
    assert 0o600 == properties.stat().st_mode & 0o777


PREFIX = "kafkasse-test-"
HOLD = """
import sys, time
from kafkasse.pipelines.spark.temporary_directory import temporary_directory
with temporary_directory(sys.argv[1]) as path:
    (path / "file").write_text("text")
    print(path, flush=True)
    time.sleep(600)
"""


def test_a_path_that_contains_a_colon_is_an_error(monkeypatch):
    """Otherwise, Java would find no classes, and report only that the first one it needs is missing."""
    monkeypatch.setattr(private_spark, "JAR", Path("/a:b/operators.jar"))

    with pytest.raises(CommandError, match=r"Java cannot use /a:b/operators.jar, because the path contains ':'"):
        jvm.spark_classpath([])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_download_of_the_jars(monkeypatch, number):
    """It may take minutes, or wait for the download of another process. The command gets the signal afterwards."""
    stop, downloaded = StopRequests(), []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(jvm, "connector_jars", lambda: (signal.raise_signal(number), downloaded.append("jars")))
    stop.install()
    try:
        with pytest.raises(RunStopped), session("test"):
            pass
    finally:
        for of, handler in handlers.items():
            signal.signal(of, handler)

    assert not downloaded
    assert stop.wait(0.0)
    assert stop.interrupted == (number == signal.SIGINT)


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
    with temporary_directory(PREFIX) as path:
        (path / "file").write_text("text")

    assert path.name.startswith(PREFIX)
    assert not path.exists()


@pytest.mark.processes
def test_keeps_the_directory_of_a_running_process_and_removes_that_of_a_killed_one(parent):
    """Two pipelines on one machine do not disturb each other."""
    with other_process(parent) as (process, used):
        with temporary_directory(PREFIX) as path:
            assert {path, used} == set(parent.iterdir())
        assert "text" == (used / "file").read_text()
        process.kill()
        process.wait()
        assert used.exists()

        with temporary_directory(PREFIX) as path:
            assert [path] == list(parent.iterdir())


def test_does_not_follow_links(parent, tmp_path_factory):
    """A link with our prefix, which any user of the machine can create, does not make kafkasse remove its target."""
    target = tmp_path_factory.mktemp("target")
    (target / "kafkasse.lock").touch()
    (parent / f"{PREFIX}link").symlink_to(target)

    with temporary_directory(PREFIX):
        pass

    assert target.exists()
