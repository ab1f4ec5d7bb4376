"""`python -m tests.project.lock_jars`: resolve the modules of jars.lock.json again, and write their jars to it."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path

from kafkasse.tools.java import jars
from kafkasse.tools.progress import Progress


def write_lock() -> None:
    """Resolve the modules of each group again, with their dependencies if the group is transitive, and rewrite the file."""
    lock = jars.read_lock()
    for group in lock["groups"].values():
        with tempfile.TemporaryDirectory(prefix="kafkasse-lock-") as name:
            group["jars"] = [jar._asdict() for jar in _resolve(group["modules"], group["transitive"], Path(name))]
    jars.LOCK_FILE.write_text(json.dumps(lock, indent=2) + "\n")


def _resolve(modules: list[str], transitive: bool, work: Path) -> list[jars.Jar]:
    (work / "ivy.xml").write_text(jars.ivy_xml(modules, transitive=transitive))
    folder = work / "found"
    pattern = str(folder / "[organisation]" / "[module]" / "[revision]" / "[artifact]-[revision].[ext]")
    words = ["-ivy", str(work / "ivy.xml"), "-retrieve", pattern]
    jars.call_ivy(words, work / "ivy" / "cache", work, Progress("resolving", 0))
    return sorted(_jar_of(path, ":".join(path.parent.relative_to(folder).parts)) for path in folder.rglob("*.jar"))


def _jar_of(path: Path, coordinate: str) -> jars.Jar:
    content = path.read_bytes()
    return jars.Jar(coordinate, path.name, len(content), hashlib.sha256(content).hexdigest())


if __name__ == "__main__":
    write_lock()
