"""Download and verify the jars of Kafka and of Spark's Kafka connector. Only files listed in jars.lock.json are used.

The lock file lists the coordinate, size and SHA-256 of each jar. If the user's cache lacks a jar, Ivy downloads it. Ivy is
part of PySpark and knows the public registry, so this module names no registry; a company with a mirror sets it in an Ivy
settings file. A jar is used only after its hash has been verified. tests/project/lock_jars.py writes the lock file.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import quoteattr

from kafkasse.errors import CommandError
from kafkasse.tools.java import runtime
from kafkasse.tools.progress import Progress
from kafkasse.tools.supervised_process import SupervisedProcess

LOCK_FILE = Path(__file__).with_name("jars.lock.json")
STALL_TIMEOUT_S = 60.0  # a download that makes no progress for this long is aborted
POLL_INTERVAL_S = 0.2

# Ivy's public resolver without POMs and checksum files: the lock file already lists the jars and has stronger checksums.
# Fetching Kafka's jars takes 5 s instead of 29 s.
PINNED_SETTINGS = """<ivysettings>
  <property name="ivy.checksums" value=""/>
  <settings defaultResolver="public"/>
  <resolvers><ibiblio name="public" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""


class Jar(NamedTuple):
    """An entry of the lock file. `coordinate` is organisation:module:version, as in Maven and Ivy."""

    coordinate: str
    file: str
    size_bytes: int
    sha256: str

    def matches(self, path: Path) -> bool:
        """Whether this file exists and has the SHA-256 of this jar."""
        try:
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256
        except FileNotFoundError:
            return False


def cache_directory() -> Path:
    """Return the directory of the downloaded jars: $KAFKASSE_CACHE_DIR, or else kafkasse/ in the user's cache.

    Raises:
        CommandError: the path cannot be used.
    """
    named = os.environ.get("KAFKASSE_CACHE_DIR") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/kafkasse"
    try:
        directory = Path(named).expanduser().absolute()
    except RuntimeError:
        raise _cache_unusable(Path(named), "the home directory of the user is unknown") from None
    if os.pathsep in str(directory):
        raise _cache_unusable(directory, f"Java cannot use a path that contains {os.pathsep!r}")
    return directory


def locked(group: str) -> list[Jar]:
    """Return the lock file's entries of this group: `kafka` or `spark-kafka`."""
    return [Jar(**line) for line in read_lock()["groups"][group]["jars"]]


def fetch(group: str) -> list[Path]:
    """Return the verified jar files of this group, after downloading those that the cache lacks.

    If the cache has all of them, this needs no network, no Java and no write access to the cache.

    Raises:
        CommandError: the network, disk space or a permission is missing, or a downloaded jar has the wrong hash.
    """
    directory = cache_directory()
    try:
        if missing := _missing(group, directory):
            directory.mkdir(parents=True, exist_ok=True)
            with _exclusive_lock(directory / "fetch.lock"):
                _fetch(group, missing, directory)
        return [directory / jar.file for jar in locked(group)]
    except OSError as error:
        raise _cache_unusable(directory, error.strerror or str(error)) from error


def _missing(group: str, directory: Path) -> list[Jar]:
    return [jar for jar in locked(group) if not jar.matches(directory / jar.file)]


def _fetch(group: str, missing: list[Jar], directory: Path) -> None:
    """Download with Ivy. Ivy keeps its files in `ivy/` until all are complete, so an interrupted download is resumed."""
    missing = [jar for jar in missing if not jar.matches(directory / jar.file)]  # another process may have fetched some
    if not missing:
        return
    ivy = directory / "ivy"
    settings = os.environ.get("KAFKASSE_IVY_SETTINGS")
    downloaded = _run_ivy(
        [jar.coordinate for jar in missing], ivy, settings, sum(jar.size_bytes for jar in missing), group
    )
    for jar in missing:
        if not jar.matches(downloaded / jar.file):
            shutil.rmtree(ivy)
            raise CommandError(
                f"the downloaded {jar.file} was deleted because its SHA-256 differs from the one in {LOCK_FILE.name}; try "
                "again, and if the error persists, ask the operator of your proxy or mirror"
            )
        (downloaded / jar.file).replace(directory / jar.file)
    shutil.rmtree(ivy)


@contextmanager
def _exclusive_lock(path: Path) -> Iterator[None]:
    """Hold the lock on this file. The system releases it when the process ends, so no stale lock remains."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.stderr.write("waiting for another kafkasse process that is downloading jars\n")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run_ivy(coordinates: list[str], ivy: Path, settings: str | None, size_bytes: int, group: str) -> Path:
    """Download exactly these coordinates with Ivy. Returns the directory with the jars."""
    if settings and not Path(settings).is_file():
        raise CommandError(
            f"KAFKASSE_IVY_SETTINGS is {settings}, which is not a file; set it to the path of an Ivy settings file"
        )
    with tempfile.TemporaryDirectory(prefix="kafkasse-") as name:
        work = Path(name)
        (work / "ivy.xml").write_text(ivy_xml(coordinates))
        (work / "settings.xml").write_text(PINNED_SETTINGS)
        words = ["-settings", settings or str(work / "settings.xml"), "-ivy", str(work / "ivy.xml")]
        words += ["-retrieve", str(ivy / "jars" / "[artifact]-[revision].[ext]")]
        call_ivy(words, ivy / "cache", work, Progress(f"fetching {group}", size_bytes))
    return ivy / "jars"


def ivy_xml(coordinates: Iterable[str], *, transitive: bool = False) -> str:
    """Return an Ivy file with these dependencies and, if `transitive`, theirs."""
    lines = []
    for coordinate in coordinates:
        organisation, module, version = map(quoteattr, coordinate.split(":"))
        lines.append(
            f'<dependency org={organisation} name={module} rev={version} transitive="{str(transitive).lower()}"'
            ' conf="default->default"/>'
        )
    return (
        '<ivy-module version="2.0"><info organisation="kafkasse" module="jars"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(lines)}</dependencies></ivy-module>"
    )


def call_ivy(words: list[str], cache: Path, work: Path, progress: Progress) -> None:
    """Run Ivy.

    Args:
        words: its arguments, except that of the cache.
        cache: the directory of its cache, which contains unfinished downloads.
        work: the directory of its options and its log.
        progress: shows the size of the cache.

    Raises:
        CommandError: Ivy has failed.
    """
    cache.mkdir(parents=True, exist_ok=True)
    # Pass the options in a file: they may contain a proxy's password, and all users of the machine can read command lines.
    options = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *runtime.network_options(cache.parents[1])]
    command = [
        str(runtime.java_executable()),
        f"@{runtime.write_options(work / 'options', options)}",
        "-jar",
        str(_ivy_jar()),
        "-cache",
        str(cache),
        *words,
    ]
    log = work / "log"
    with progress, log.open("wb") as out:
        # An Ivy that outlives this process would disturb the one that resumes the download.
        process = SupervisedProcess(command, scratch=str(work), stdout=out, stderr=out)
        try:
            stalled = _watch(process, log, cache, progress)
        finally:
            process.kill()
    if stalled or process.wait():
        raise CommandError(_explain(log.read_text(errors="replace"), stalled=stalled))


def _watch(process: SupervisedProcess, log: Path, cache: Path, progress: Progress) -> bool:
    """Wait for Ivy to end and show its progress. Returns True if Ivy stalled instead."""
    last_sizes, progress_at_s = (-1, -1), time.monotonic()
    while time.monotonic() - progress_at_s < STALL_TIMEOUT_S:
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL_INTERVAL_S)
        downloaded = _size_bytes(cache)
        progress.show(downloaded, f"{downloaded / 1e6:.1f} MB")
        if process.ended():
            return False
        sizes = (log.stat().st_size, downloaded)
        if sizes != last_sizes:
            last_sizes, progress_at_s = sizes, time.monotonic()
    return True


def _size_bytes(directory: Path) -> int:
    """Return the total size of the jars. Files may be added, removed or renamed at the same time."""
    total = 0
    for path in directory.rglob("*.jar*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def _ivy_jar() -> Path:
    pyspark = find_spec("pyspark")
    jars = sorted(Path(pyspark.origin).parent.glob("jars/ivy-*.jar")) if pyspark and pyspark.origin else []
    if not jars:
        raise CommandError(
            "PySpark is required, because its Ivy downloads the jars; run pip install '.[broker]' in kafkasse's folder"
        )
    return jars[-1]


def _explain(log: str, *, stalled: bool) -> str:
    """Summarize Ivy's log of hundreds of lines in one sentence. Host names and addresses of the registry are left out."""
    if "No space left on device" in log:
        return str(_cache_unusable(cache_directory(), os.strerror(errno.ENOSPC)).detail)
    if "proxy requires authentication" in log:
        return "the proxy rejected the user name or the password; correct them in HTTPS_PROXY"
    if "PKIX" in log or "SSLHandshakeException" in log:
        return (
            "the jar registry's certificate is not trusted; set SSL_CERT_FILE to the file with your company's "
            "certificates and try again"
        )
    missing = re.search(r":: (\S+)#(\S+);(\S+): not found", log)
    if stalled or "Server access error" in log or not missing:
        return (
            "cannot reach the jar registry; check the network, set HTTPS_PROXY if you use a proxy, or set "
            "KAFKASSE_IVY_SETTINGS to an Ivy settings file that names your mirror; then try again to resume the download"
        )
    return (
        f"the registry lacks {':'.join(missing.groups())}; if it is a mirror, add another resolver to its Ivy settings"
    )


def _cache_unusable(directory: Path, reason: str) -> CommandError:
    return CommandError(
        f"cannot use the cache {directory} ({reason}); correct that, or set KAFKASSE_CACHE_DIR to another directory"
    )


def read_lock() -> dict[str, Any]:
    """Return the content of the lock file."""
    lock: dict[str, Any] = json.loads(LOCK_FILE.read_text())
    return lock
