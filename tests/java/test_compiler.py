"""The jar with the Java classes of the pipelines."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from kafkasse.errors import CommandError
from kafkasse.java import compiler, jars


def test_the_jar_was_compiled_from_the_sources() -> None:
    """Run `make jar` after a change of the Java sources."""
    assert compiler.sources_hash() == compiler.hash_in_jar()


@pytest.fixture
def ecj(processes: None) -> None:
    """The compiler of `make jar`."""
    try:
        jars.fetch("java-compiler")
    except CommandError as error:
        pytest.skip(f"the compiler of `make jar` cannot be downloaded: {error.detail}")


def test_the_jar_contains_only_what_the_compiler_writes(ecj: None, tmp_path: Path) -> None:
    """Compiling the sources again gives the same bytes."""
    compiler.compile_jar(tmp_path / "again.jar")

    assert (tmp_path / "again.jar").read_bytes() == compiler.JAR.read_bytes()


def test_an_error_in_a_source_is_reported(ecj: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "SOURCES", tmp_path)
    (tmp_path / "Wrong.java").write_text("class Wrong { int number = text; }")

    with pytest.raises(CommandError, match="text cannot be resolved"):
        compiler.compile_jar(tmp_path / "wrong.jar")


def test_the_jar_is_reproducible() -> None:
    """Its entries are sorted and have no time, and zlib does not affect their bytes."""
    with zipfile.ZipFile(compiler.JAR) as archive:
        entries = archive.infolist()[1:]

    assert sorted(entry.filename for entry in entries) == [entry.filename for entry in entries]
    assert {(compiler.FIRST_TIME, zipfile.ZIP_STORED)} == {(entry.date_time, entry.compress_type) for entry in entries}
