"""The jars of Kafka and of Spark's Kafka connector: the very files that jars.lock.json names, or none.

The lock says for each jar its coordinate, size and SHA-256. What is missing in the user's cache is fetched by Ivy,
which PySpark brings along and which knows by itself where coordinates are found; so no registry's name stands here, and
a company that has a mirror says so in Ivy's own settings file. Nothing is used before its hash was seen to be right.

`python -m kafkasse.java.jars lock` resolves the lock's modules anew and writes what it finds into the lock.
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
from kafkasse.java import runtime
from kafkasse.progress import Progress

LOCK_FILE = Path(__file__).with_name("jars.lock.json")
OTHER_PROCESS_WAIT_MAX_S = 900.0
SILENCE_MAX_S = 60.0  # a download that moves nothing for so long is given up
LOOK_AGAIN_AFTER_S = 0.2

# Ivy's own public resolver without the POMs and checksum files that only a resolution needs: the lock already says
# which jars there are, and has better checksums. 5 s for Kafka's jars instead of 29 s.
PINNED_SETTINGS = """<ivysettings>
  <property name="ivy.checksums" value=""/>
  <settings defaultResolver="public"/>
  <resolvers><ibiblio name="public" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""


class Jar(NamedTuple):
    """One line of the lock. `coordinate` is organisation:module:version, as Maven and Ivy count them."""

    coordinate: str
    file: str
    size_bytes: int
    sha256: str

    def is_at(self, path: Path) -> bool:
        """Whether that file exists and is this jar, to the last bit."""
        try:
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256
        except FileNotFoundError:
            return False


def cache_directory() -> Path:
    """Where jars are kept between runs: $KAFKASSE_CACHE_DIR, else kafkasse/ in the user's cache."""
    if named := os.environ.get("KAFKASSE_CACHE_DIR"):
        return Path(named).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "kafkasse"


def locked(group: str) -> list[Jar]:
    """What the lock says of this group, `kafka` or `spark-kafka`."""
    return [Jar(**line) for line in _read_lock()["groups"][group]["jars"]]


def fetch(group: str) -> list[Path]:
    """The jars of this group as files, all verified; those that the cache lacks are fetched first.

    Without anything to fetch it needs neither the network nor Java nor a cache that can be written.

    Raises:
        CommandError: no network, no space, no permission, or a jar that is not the one of the lock.
    """
    directory = cache_directory()
    try:
        if missing := _missing(group, directory):
            directory.mkdir(parents=True, exist_ok=True)
            with _only_one(directory / "fetch.lock"):
                _fetch(group, missing, directory)
        return [directory / jar.file for jar in locked(group)]
    except OSError as error:
        raise _cache_unusable(directory, error.strerror or str(error)) from error


def _missing(group: str, directory: Path) -> list[Jar]:
    return [jar for jar in locked(group) if not jar.is_at(directory / jar.file)]


def _fetch(group: str, missing: list[Jar], directory: Path) -> None:
    """Ivy keeps what it has fetched in `ivy/` until all is there, so a run that is cut off is gone on with."""
    missing = [jar for jar in missing if not jar.is_at(directory / jar.file)]  # another process may have been at it
    if not missing:
        return
    ivy = directory / "ivy"
    settings = os.environ.get("KAFKASSE_IVY_SETTINGS")
    found = _run_ivy([jar.coordinate for jar in missing], ivy, settings, sum(jar.size_bytes for jar in missing), group)
    for jar in missing:
        if not jar.is_at(found / jar.file):
            shutil.rmtree(ivy)
            raise CommandError(
                f"the registry's {jar.file} is not the jar that kafkasse was made with (its SHA-256 differs) and was "
                "thrown away; try again, and if it stays so, ask whoever runs the proxy or mirror between"
            )
        (found / jar.file).replace(directory / jar.file)
    shutil.rmtree(ivy)


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Hold this file's lock. The system drops it with the process, so none is ever left behind."""
    with path.open("a") as file:
        deadline_s = time.monotonic() + OTHER_PROCESS_WAIT_MAX_S
        said = False
        while not _locks(file.fileno()):
            if not said:
                sys.stderr.write("waiting for another kafkasse, which is fetching jars\n")
                said = True
            if time.monotonic() > deadline_s:
                raise CommandError(
                    f"another kafkasse has been fetching jars for {OTHER_PROCESS_WAIT_MAX_S:.0f} s: end it"
                )
            time.sleep(LOOK_AGAIN_AFTER_S)
        yield


def _locks(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _run_ivy(coordinates: list[str], ivy: Path, settings: str | None, size_bytes: int, group: str) -> Path:
    """Have Ivy fetch exactly these. Returns the directory in which they are then."""
    if settings and not Path(settings).is_file():
        raise CommandError(f"KAFKASSE_IVY_SETTINGS names {settings}, which is not a file")
    with tempfile.TemporaryDirectory(prefix="kafkasse-") as name:
        work = Path(name)
        (work / "ivy.xml").write_text(_ivy_xml(coordinates, transitive=False))
        (work / "settings.xml").write_text(PINNED_SETTINGS)
        words = ["-settings", settings or str(work / "settings.xml"), "-ivy", str(work / "ivy.xml")]
        words += ["-retrieve", str(ivy / "jars" / "[artifact]-[revision].[ext]")]
        _call_ivy(words, ivy / "cache", work, Progress(f"fetching {group}", size_bytes))
    return ivy / "jars"


def _ivy_xml(coordinates: Iterable[str], *, transitive: bool) -> str:
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


def _call_ivy(words: list[str], cache: Path, work: Path, progress: Progress) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    # Options go by file: they may hold a proxy's password, and everybody on the machine can read command lines.
    options = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *runtime.network_options(cache.parents[1])]
    (work / "options").write_text("".join(f'"{option.replace(chr(92), chr(92) * 2)}"\n' for option in options))
    command = [str(runtime.java()), f"@{work / 'options'}", "-jar", str(_ivy_jar()), "-cache", str(cache), *words]
    log = work / "log"
    with progress, log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:  # noqa: S603
        try:
            silent = _watch(process, log, cache, progress)
        finally:
            process.kill()
    if silent or process.returncode:
        raise CommandError(_explain(log.read_text(errors="replace"), silent=silent))


def _watch(process: subprocess.Popen[bytes], log: Path, cache: Path, progress: Progress) -> bool:
    """Wait for Ivy while it gets on, telling how far it is. Returns whether it fell silent instead of ending."""
    seen, moved_at_s = (-1, -1), time.monotonic()
    while time.monotonic() - moved_at_s < SILENCE_MAX_S:
        with suppress(subprocess.TimeoutExpired):
            process.wait(LOOK_AGAIN_AFTER_S)
        here = _size_bytes(cache)
        progress.show(here, f"{here / 1e6:.1f} MB")
        if process.returncode is not None:
            return False
        now = (log.stat().st_size, here)
        if now != seen:
            seen, moved_at_s = now, time.monotonic()
    return True


def _size_bytes(directory: Path) -> int:
    """How much is there; files may come, go and change their names meanwhile."""
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
        raise CommandError("needs PySpark, whose Ivy fetches the jars; run: pip install 'kafkasse[broker]'")
    return jars[-1]


def _explain(log: str, *, silent: bool) -> str:
    """One sentence for what Ivy says in hundreds of lines. Strangers' host names and addresses stay out of it."""
    if "No space left on device" in log:
        return str(_cache_unusable(cache_directory(), os.strerror(errno.ENOSPC)).detail)
    if "proxy requires authentication" in log:
        return "the proxy between here and the jar registry wants a name and a password that are right: see HTTPS_PROXY"
    if "PKIX" in log or "SSLHandshakeException" in log:
        return (
            "the jar registry's certificate is not trusted here; name the file with your company's certificates "
            "by SSL_CERT_FILE and try again"
        )
    absent = re.search(r":: (\S+)#(\S+);(\S+): not found", log)
    if silent or "Server access error" in log or not absent:
        return (
            "cannot reach the registry that the jars come from; check the network, HTTPS_PROXY if there is a proxy, "
            "or name an Ivy settings file with your mirror by KAFKASSE_IVY_SETTINGS, and run this again: "
            "it goes on where it stopped"
        )
    return f"the registry has no {':'.join(absent.groups())}; if it is a mirror, its Ivy settings need another resolver"


def _cache_unusable(directory: Path, reason: str) -> CommandError:
    return CommandError(
        f"cannot use the cache {directory} ({reason}); mend that, or name another directory by KAFKASSE_CACHE_DIR"
    )


def _read_lock() -> dict[str, Any]:
    lock: dict[str, Any] = json.loads(LOCK_FILE.read_text())
    return lock


def write_lock() -> None:
    """Resolve each group's modules anew, with what they depend on where the lock says so, and write down what came."""
    lock = _read_lock()
    for group in lock["groups"].values():
        with tempfile.TemporaryDirectory(prefix="kafkasse-lock-") as name:
            group["jars"] = [jar._asdict() for jar in _resolve(group["modules"], group["transitive"], Path(name))]
    LOCK_FILE.write_text(json.dumps(lock, indent=2) + "\n")


def _resolve(modules: list[str], transitive: bool, work: Path) -> list[Jar]:
    (work / "ivy.xml").write_text(_ivy_xml(modules, transitive=transitive))
    found = work / "found"
    pattern = str(found / "[organisation]" / "[module]" / "[revision]" / "[artifact]-[revision].[ext]")
    words = ["-ivy", str(work / "ivy.xml"), "-retrieve", pattern]
    _call_ivy(words, work / "ivy" / "cache", work, Progress("resolving", 0))
    return sorted(_jar_of(path, ":".join(path.parent.relative_to(found).parts)) for path in found.rglob("*.jar"))


def _jar_of(path: Path, coordinate: str) -> Jar:
    content = path.read_bytes()
    return Jar(coordinate, path.name, len(content), hashlib.sha256(content).hexdigest())


if __name__ == "__main__":
    if sys.argv[1:] != ["lock"]:
        sys.exit("usage: python -m kafkasse.java.jars lock")
    write_lock()
    print(f"wrote {LOCK_FILE.name}")
