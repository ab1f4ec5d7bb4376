"""`make release` changes the version in all places, or nothing."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

import kafkasse
from tests.project.release import BUILT, ROOT, UNRELEASED, VERSIONS, CannotRelease, current_version, missing, release

TODAY = date(2027, 1, 31)
CHANGES = "### Added\n\n- A feature.\n"
CHANGELOG = f"# Changelog\n\n{UNRELEASED}\n{CHANGES}\n## [1.9.0] - 2026-12-01\n\n- Older.\n"

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.fixture
def project(tmp_path: Path, run: Callable[..., str]) -> Path:
    """A repository at version 1.9.0 with an unreleased change."""
    for name, text in VERSIONS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(f"first{text.format('1.9.0')}last")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    run("git", "init", "-q", cwd=tmp_path)
    commit(run, tmp_path)
    return tmp_path


def commit(run: Callable[..., str], project: Path) -> None:
    run("git", "add", "--all", cwd=project)
    author = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    run("git", *author, "commit", "-q", "--allow-empty", "-m", "a change", cwd=project)


def contents(project: Path) -> dict[str, str]:
    return {name: (project / name).read_text() for name in (*VERSIONS, "CHANGELOG.md")}


def test_sets_the_version_and_cuts_the_section(project):
    changed = release(project, "1.10.0", TODAY)

    assert changed
    assert contents(project) == {
        **{name: f"first{text.format('1.10.0')}last" for name, text in VERSIONS.items()},
        "CHANGELOG.md": CHANGELOG.replace(UNRELEASED, f"{UNRELEASED}\n## [1.10.0] - 2027-01-31\n"),
    }


def test_no_other_file_for_users_contains_the_version():
    """Otherwise, the docs of a release would name the wheel of the previous one."""
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.*"), *ROOT.glob("deploy/**/*.*")]
    named = re.compile(rf"kafkasse[-: ]{re.escape(kafkasse.__version__)}")

    found = {file.relative_to(ROOT).as_posix() for file in files if named.search(file.read_text(errors="ignore"))}
    assert found <= VERSIONS.keys()


def test_the_same_version_again_changes_nothing(project):
    """The command may be repeated, also before its result is committed."""
    release(project, "1.10.0", TODAY)
    once = contents(project)

    changed = release(project, "1.10.0", date(2027, 2, 1))

    assert not changed
    assert once == contents(project)


def test_the_current_version_can_be_released_if_it_has_no_section(project, run):
    """The first release has the version that the project began with."""
    (project / "CHANGELOG.md").write_text(f"# Changelog\n\n{UNRELEASED}\n{CHANGES}")
    commit(run, project)

    release(project, "1.9.0", TODAY)

    assert f"# Changelog\n\n{UNRELEASED}\n## [1.9.0] - 2027-01-31\n\n{CHANGES}" == contents(project)["CHANGELOG.md"]


INVALID = ["", "2", "2.0", "v2.0.0", "2.0.0rc1", "2.0.0.1", "02.0.0", "2.0.0 ", "-1.0.0"]


@pytest.mark.parametrize(
    ("versions", "new_file", "error"),
    [
        (INVALID, "", r"not a version such as 0\.2\.0"),
        (["1.8.10"], "", r"1\.8\.10 is older than the current version, 1\.9\.0"),  # compared as numbers
        (["2.0.0"], "notes.txt", r"Commit them first:\n\?\? notes\.txt"),
    ],
)
def test_an_error_changes_nothing(project, versions, new_file, error):
    """A release needs a valid, newer version, and contains only what is committed."""
    if new_file:
        (project / new_file).touch()

    for version in versions:
        with pytest.raises(CannotRelease, match=error):
            release(project, version, TODAY)

    assert CHANGELOG == contents(project)["CHANGELOG.md"]


def test_a_release_needs_changes(project, run):
    """A second release without an entry in CHANGELOG.md is an error."""
    release(project, "2.0.0", TODAY)
    commit(run, project)

    with pytest.raises(CannotRelease, match="no unreleased changes"):
        release(project, "2.0.1", TODAY)


def test_all_files_have_the_same_version(root):
    """The version is where `make release` expects it, and CHANGELOG.md has no section for a newer one."""
    sections = re.findall(r"^## \[(.+?)\]", (root / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert kafkasse.__version__ == current_version(root)
    for name, text in VERSIONS.items():
        assert 1 == (root / name).read_text().count(text.format(kafkasse.__version__)), name
    assert "Unreleased" == sections[0]
    assert sections[1:2] in ([], [kafkasse.__version__])


@pytest.fixture
def built(project: Path) -> Path:
    """A project whose release is complete."""
    release(project, "1.10.0", TODAY)
    for name in (*(f"release/{template.format('1.10.0')}" for template in BUILT), "site/index.html"):
        file = project / "build" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    (project / "tests/compatibility/1.10").mkdir(parents=True)
    return project


def test_a_release_needs_every_file(built):
    """An empty or outdated file is as bad as a missing one."""
    assert [] == missing(built)

    (built / "build/release/sbom.cdx.json").write_text("")
    (built / "build/release/kafkasse-1.10.0.tgz").rename(built / "build/release/kafkasse-1.9.0.tgz")
    (built / "tests/compatibility/1.10").rmdir()
    (built / "build/site/index.html").unlink()

    assert [
        "build/release/kafkasse-1.10.0.tgz is missing.",
        "build/release/sbom.cdx.json is missing.",
        "build/site/index.html is missing.",
        "build/release/kafkasse-1.9.0.tgz does not belong to version 1.10.0.",
        "tests/compatibility/1.10 is missing. Run: python -m tests.compatibility.record 1.10",
    ] == missing(built)


def test_a_release_has_one_version_and_a_section_in_the_changelog(built):
    (built / "kafkasse/assets/javascript/package.json").write_text("{}")
    (built / "CHANGELOG.md").write_text(CHANGELOG)

    assert [
        "kafkasse/assets/javascript/package.json has another version than 1.10.0.",
        "CHANGELOG.md has no section for 1.10.0. Run: make release VERSION=1.10.0",
    ] == missing(built)
