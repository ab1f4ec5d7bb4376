"""Archives of the classes that a JVM loads (class data sharing, AppCDS), because loading classes takes most of its start.

The first JVM records which classes it loads. A process in the background creates the archive, and the next JVMs load their
classes from it. The name of an archive contains a hash of the Java version, the jars and the options, so it never serves
other classes. This module does not depend on what the JVM runs.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from kafkasse.tools.java import jars, runtime

UNUSED_S = 30 * 86_400.0  # an archive of 60 to 160 MB that no JVM has used for so long belongs to an old version
# Create the archive with a temporary name: a JVM must never see half an archive. Only G1 adds objects to it, which JVMs with
# any collector can use.
DUMP = "nice -n 19 {java} -XX:+UseG1GC @{options} -Xshare:dump >/dev/null 2>&1 && mv {new} {archive} || rm -f {new}"


class ClassArchive:
    """The archive of one kind of JVM, whether it exists or not.

    Args:
        name: the kind of JVM. Archives of the same kind that are no longer used are deleted.
        classpath: the jars that the archive covers. Other jars may follow them on the classpath of a JVM.
        options: the options of the JVM that decide which modules it can access.
        versions: anything else that decides which classes the archive contains.

    Attributes:
        path: the file.
    """

    def __init__(self, name: str, classpath: str, options: Sequence[str], versions: Iterable[str] = ()) -> None:
        release = runtime.java_home() / "release"
        java = release.read_text() if release.exists() else str(release)
        content = "\n".join([java, classpath, *options, *versions])
        self._name, self._classpath, self._options = name, classpath, options
        self.path = jars.cache_directory() / f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:16]}.jsa"

    def option(self, classes: Path) -> str:
        """Return the option of a JVM that uses the archive, or that writes its classes to a file if there is no archive."""
        if not self.path.exists():
            return f"-XX:DumpLoadedClassList={classes}"
        with suppress(OSError):  # the cache may be read-only
            os.utime(self.path)
        return f"-XX:SharedArchiveFile={self.path}"  # Java ignores an archive that does not fit

    def create(self, classes: Path) -> ArchiveProcess | None:
        """Start to create the archive, unless it exists or another process creates it.

        Before it starts, it deletes the archives that no JVM has used for UNUSED_S.

        Args:
            classes: the file of option(), which is deleted when it is no longer needed. The options of the process are
                written to the same directory.

        Raises:
            OSError: the cache cannot be written.
        """
        if self.path.exists() or not classes.exists():
            return None
        lock = self.path.with_suffix(".lock").open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            classes.unlink()
            return None
        for old in self.path.parent.glob(f"{self._name}-*.jsa"):
            if time.time() - old.stat().st_mtime > UNUSED_S:
                old.unlink(missing_ok=True)
        new = self.path.with_suffix(".new")
        list_option, file_option = f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={new}"
        options = classes.with_name("archive-options")
        write_options(options, [*self._options, list_option, file_option, "-cp", self._classpath])
        command = filled(DUMP, java=runtime.java_executable(), options=options, new=new, archive=self.path)
        return ArchiveProcess(command, new, lock, [classes, options])


class ArchiveProcess:
    """A process that creates an archive. It does not outlive its parent, unless the parent is killed.

    Args:
        command: a command for the shell.
        new: the unfinished archive.
        lock: the locked file. The process has it open too, so the lock lasts until both have ended.
        inputs: the files that only this process needs.
    """

    def __init__(self, command: str, new: Path, lock: IO[str], inputs: Sequence[Path] = ()) -> None:
        self._new, self._lock, self._inputs = new, lock, inputs
        self._process = subprocess.Popen(["sh", "-c", command], pass_fds=[lock.fileno()], start_new_session=True)  # noqa: S603, S607

    def wait(self) -> None:
        """Wait until the archive exists, or until it could not be created."""
        self._process.wait()

    def stop(self) -> None:
        """End the process, and remove its files except a finished archive."""
        with self._lock:
            if self._process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
                self._new.unlink(missing_ok=True)
        for file in self._inputs:
            file.unlink(missing_ok=True)


def filled(script: str, **paths: Path) -> str:
    """Replace the names in braces by the quoted paths."""
    return script.format(**{name: shlex.quote(str(path)) for name, path in paths.items()})


def write_options(path: Path, options: Sequence[str]) -> Path:
    """Write options of a JVM to a file, which `java @path` reads."""
    path.write_text("".join(f'"{option.replace(chr(92), chr(92) * 2)}"\n' for option in options))
    return path
