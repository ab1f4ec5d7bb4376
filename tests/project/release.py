"""`make release VERSION=0.2.0`: set the version, and turn the unreleased changes of CHANGELOG.md into its section.

The files stay uncommitted, so that someone can read the change first. Nothing is tagged, pushed or uploaded.
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
    "kafkasse/javascript/package.json": '\n  "version": "{}",\n',
    "deploy/kubernetes/kafkasse.yaml": " registry.example/kafkasse:{}\n",
}
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
