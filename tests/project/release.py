"""`make release VERSION=0.2.0`: set the version, and turn the unreleased changes of CHANGELOG.md into its section.

The files stay uncommitted, so that someone can read the change first. Nothing is tagged, pushed or uploaded. With --check,
it checks that everything is built that is uploaded: `make release-check`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
# The files that contain the version, and the text around it.
VERSIONS = {
    "pyproject.toml": '\nversion = "{}"\n',
    "kafkasse/__init__.py": '\n__version__ = "{}"\n',
    "kafkasse_client/pyproject.toml": '\nversion = "{}"\n',
    "kafkasse_client/__init__.py": '\n__version__ = "{}"\n',
    "kafkasse/assets/javascript/package.json": '\n  "version": "{}",\n',
    "deploy/kubernetes/kafkasse.yaml": " registry.example/kafkasse:{}\n",
    "docs/install.md": "./wheels/kafkasse-{}-py3",
    "docs/javascript.md": "./kafkasse-{}.tgz",
    "docs/operations.md": "`kafkasse {}`",
    "docs/tutorial.md": "./wheels/kafkasse-{}-py3",
    "examples/tutorial/requirements.txt": "./wheels/kafkasse-{}-py3",
}
# What is uploaded, in build/release: the output of `make dist` and `make image`. The site is in build/site.
BUILT = (
    "kafkasse-{}-py3-none-any.whl",
    "kafkasse-{}.tar.gz",
    "kafkasse_client-{}-py3-none-any.whl",
    "kafkasse_client-{}.tar.gz",
    "kafkasse-{}.tgz",
    "sbom.cdx.json",
    "image.json",
)
UNRELEASED = "## [Unreleased]\n"


class CannotRelease(Exception):
    """The reason, and what to do about it."""


def release(root: Path, version: str, today: date) -> bool:
    """Return False if an earlier call has already prepared this version.

    Raises:
        CannotRelease: the version is not a newer one, nothing is unreleased, or there are uncommitted changes.
    """
    current, changelog = current_version(root), (root / "CHANGELOG.md").read_text()
    if not re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}", version):
        raise CannotRelease(f"{version!r} is not a version such as 0.2.0. Run: make release VERSION=0.2.0")
    if _numbers(version) < _numbers(current):
        raise CannotRelease(f"{version} is older than the current version, {current}. Choose a newer one.")
    if f"\n## [{version}]" in changelog:
        return False
    if not changelog.partition(UNRELEASED)[2].partition("\n## [")[0].strip():
        raise CannotRelease("CHANGELOG.md has no unreleased changes. Describe the changes below [Unreleased] first.")
    if changed := _git(root, "status", "--porcelain"):
        raise CannotRelease(f"There are uncommitted changes. Commit them first:\n{changed}")
    for name, text in VERSIONS.items():
        _replace(root / name, text.format(current), text.format(version))
    _replace(root / "CHANGELOG.md", UNRELEASED, f"{UNRELEASED}\n## [{version}] - {today}\n")
    return True


def missing(root: Path) -> list[str]:
    """Return what a release of the current version lacks, as sentences."""
    version, built = current_version(root), root / "build/release"
    files = [built / name.format(version) for name in BUILT] + [root / "build/site/index.html"]
    absent = [
        f"{file.relative_to(root)} is missing." for file in files if not file.is_file() or not file.stat().st_size
    ]
    expected = {file.name for file in files}
    others = [] if not built.is_dir() else sorted(file.name for file in built.iterdir() if file.name not in expected)
    absent += [f"build/release/{name} does not belong to version {version}." for name in others]
    for name, text in VERSIONS.items():
        if text.format(version) not in (root / name).read_text():
            absent.append(f"{name} has another version than {version}.")
    if f"\n## [{version}]" not in (root / "CHANGELOG.md").read_text():
        absent.append(f"CHANGELOG.md has no section for {version}. Run: make release VERSION={version}")
    folder = ".".join(version.split(".")[:2])
    if not (root / "tests/compatibility" / folder).is_dir():
        absent.append(f"tests/compatibility/{folder} is missing. Run: python -m tests.compatibility.record {folder}")
    return absent


def current_version(root: Path) -> str:
    """Return the version in pyproject.toml."""
    (version,) = re.findall(r'^version = "(.+)"$', (root / "pyproject.toml").read_text(), re.MULTILINE)
    return str(version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _replace(file: Path, old: str, new: str) -> None:
    file.write_text(file.read_text().replace(old, new, 1))


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True).stdout


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        problems = missing(ROOT)
        print("\n".join(problems) or f"Everything for {current_version(ROOT)} is in build/release and build/site.")
        return int(bool(problems))
    version = " ".join(sys.argv[1:])
    try:
        is_new = release(ROOT, version, datetime.now(UTC).date())
    except CannotRelease as error:
        print(f"make release: {error}", file=sys.stderr)
        return 1
    if is_new:
        print(f"Set the version to {version}. Read the change (git diff), then follow RELEASING.md.")
    else:
        print(f"CHANGELOG.md already has a section for {version}. Nothing was changed.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
