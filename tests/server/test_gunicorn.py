"""What platforms and operators do with gunicorn: signals, a worker that hangs, and addresses other than IPv4."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import ssl
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.support.certificates import Authority
from tests.support.client import Client, fetch, numbers
from tests.support.server import KILLED, Server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes

TICKING = "tests.support.apps:ticking()"


def ends_with_a_retry_time(stream: Client) -> bool:
    """Read the stream to its end. Return whether it tells the client when to reconnect."""
    stream.rest()
    return b"retry: " in stream.body[-600:]


def test_workers_are_added_and_removed():
    """SIGTTIN adds a worker, and all streams continue. SIGTTOU ends the oldest worker, whose clients reconnect."""
    with Server(TICKING) as server, Client(server.port, "/t").ready() as stream:
        first = server.worker
        os.kill(server.pid, signal.SIGTTIN)
        wait_until(lambda: len(server.workers()) == 2)
        before, *_ = numbers(stream.events(1))
        assert list(range(before + 1, before + 51)) == numbers(stream.events(50))

        os.kill(server.pid, signal.SIGTTOU)

        assert ends_with_a_retry_time(stream)
        wait_until(lambda: len(server.workers()) == 1)
        assert first not in server.workers()
        with Client(server.port, "/t").ready() as again:
            assert again.events(1)


def test_logs_can_be_rotated(tmp_path):
    """After SIGUSR1, the server writes to a new file. No stream ends."""
    log, rotated = tmp_path / "access.log", tmp_path / "access.log.1"
    with Server(TICKING, KAFKASSE_ACCESS_LOG=str(log)) as server, Client(server.port, "/t").ready() as stream:
        fetch(server.port, "/-/health?n=1")
        wait_until(lambda: "n=1" in log.read_text())
        log.rename(rotated)

        os.kill(server.pid, signal.SIGUSR1)
        wait_until(log.exists)
        fetch(server.port, "/-/health?n=2")

        wait_until(lambda: "n=2" in log.read_text() + rotated.read_text())
        stream.events(1)
        before, *_ = numbers(stream.events(1))
        assert [before + 1] == numbers(stream.events(1))


def test_a_worker_that_hangs_is_replaced():
    """gunicorn kills it after its timeout. Its clients lose their connections, and reconnect to the next worker."""
    with Server(TICKING, GUNICORN_CMD_ARGS="--timeout 2") as server, Client(server.port, "/t").ready() as stream:
        server.expect("WORKER TIMEOUT", KILLED)
        first = server.worker

        os.kill(first, signal.SIGSTOP)  # as a hook that blocks the event loop
        wait_until(lambda: server.workers() not in ([first], []))

        with pytest.raises((HTTPException, OSError)):
            stream.rest()
        with Client(server.port, "/t").ready() as again:
            assert again.events(1)


def test_a_new_certificate_is_used_after_a_reload(tmp_path):
    """gunicorn serves HTTPS. After SIGHUP, it reads the files of the certificate again."""
    authority, certificate, key = Authority(), tmp_path / "certificate.pem", tmp_path / "key.pem"
    context = ssl.create_default_context(cadata=authority.certificate)
    context.check_hostname = False  # the certificate names no host

    def issue() -> str:
        issued, private = authority.issue("a")
        certificate.write_text(issued)
        key.write_text(private)
        return issued

    def served() -> str:
        address = "127.0.0.1", server.port
        with socket.create_connection(address) as connection, context.wrap_socket(connection) as encrypted:
            return ssl.DER_cert_to_PEM_cert(encrypted.getpeercert(binary_form=True) or b"")

    old = issue()
    with Server(TICKING, GUNICORN_CMD_ARGS=f"--certfile {certificate} --keyfile {key}") as server:
        assert old == served()
        first = server.workers()
        new = issue()

        server.reload()
        wait_until(lambda: len(server.workers()) == 1 and server.workers() != first)

        wait_until(lambda: new == served())


Break = Callable[[Server, Path], None]


def empty_certificate(_: Server, folder: Path) -> None:
    (folder / "certificate.pem").write_text("")


def remove_log_folder(_: Server, folder: Path) -> None:
    shutil.rmtree(folder / "log")


def kill_while_loading(_: Server, folder: Path) -> None:
    (folder / "failure").touch()


def use_all_descriptors(server: Server, _: Path) -> None:
    count = len(list(Path(f"/proc/{server.pid}/fd").iterdir()))  # their numbers start at 0 and have no gap
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (count, count))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (empty_certificate, "SSLError"),
        (remove_log_folder, "access.log"),
        (kill_while_loading, "ended the process"),
        (use_all_descriptors, "Too many open files"),
    ],
)
def test_a_reload_that_fails_changes_nothing(tmp_path, damage, reason):
    """The workers continue, and the master still obeys signals."""
    authority, certificate, key = Authority(), tmp_path / "certificate.pem", tmp_path / "key.pem"
    for file, text in zip((certificate, key), authority.issue("a"), strict=True):
        file.write_text(text)
    (tmp_path / "log").mkdir()
    options = f"--certfile {certificate} --keyfile {key} --access-logfile {tmp_path}/log/access.log"
    with Server("tests.support.apps:fragile()", GUNICORN_CMD_ARGS=options, FAILS=str(tmp_path / "failure")) as server:
        server.expect(f"The configuration was not reloaded.*{reason}")
        ssl.get_server_certificate(("127.0.0.1", server.port))  # the worker has started
        workers = server.workers()
        damage(server, tmp_path)

        server.reload()

        wait_until(lambda: "was not reloaded" in server.log)
        assert workers == server.workers()


def test_a_log_that_cannot_be_reopened_ends_nothing(tmp_path):
    """The folder may be missing when logs are rotated. The server opens the file at the next rotation."""
    log = tmp_path / "log" / "access.log"
    log.parent.mkdir()
    with Server(TICKING, KAFKASSE_ACCESS_LOG=str(log)) as server, Client(server.port, "/t").ready() as stream:
        server.expect("A file of the log cannot be opened")
        shutil.rmtree(log.parent)

        os.kill(server.pid, signal.SIGUSR1)
        wait_until(lambda: server.log.count("A file of the log cannot be opened") == 2)  # the master and its worker

        assert stream.events(50)
        log.parent.mkdir()
        os.kill(server.pid, signal.SIGUSR1)
        wait_until(log.exists)


def test_a_worker_that_cannot_be_started_does_not_end_the_others(tmp_path):
    """The master tries again. Here, it has no temporary directory; it could also have too many processes."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    environment = {"TMPDIR": str(folder), "KAFKASSE_RUNTIME_DIR": str(tmp_path / "run"), "WEB_CONCURRENCY": "2"}
    with Server(TICKING, **environment) as server:
        wait_until(lambda: len(server.workers()) == 2)
        server.expect(KILLED, "A worker cannot be started")
        folder.rmdir()

        os.kill(server.worker, signal.SIGKILL)
        wait_until(lambda: "cannot be started" in server.log)

        with Client(server.port, "/t").ready() as stream:
            folder.mkdir()
            wait_until(lambda: len(server.workers()) == 2)
            assert stream.events(50)


def test_a_second_master_that_cannot_start_ends_nothing(tmp_path):
    """The working directory may have been removed together with an old release. The Unix socket stays, too."""
    release = tmp_path / "release"
    release.mkdir()
    with TemporaryDirectory() as folder:
        options = f"--chdir {release} --bind 127.0.0.1:0 --bind unix:{folder}/socket"
        with Server(TICKING, GUNICORN_CMD_ARGS=options) as server, Client(server.port, "/t").ready() as stream:
            server.expect("The second gunicorn cannot be started")
            release.rmdir()

            os.kill(server.pid, signal.SIGUSR2)
            wait_until(lambda: "cannot be started" in server.log and len(server.workers()) == 1)

            assert stream.events(50)
            assert Path(folder, "socket").exists()


class OverSocket(HTTPConnection):
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.host)


def only_client(connect: Callable[[], HTTPConnection], **headers: str) -> Any:
    """Open a stream. Return its address according to the list of streams."""
    stream, operator = connect(), connect()
    try:
        stream.request("GET", "/t", headers=headers)
        response = stream.getresponse()
        response.read(1)
        operator.request("GET", "/-/streams")
        [listed] = json.loads(operator.getresponse().read())["streams"]
    finally:
        stream.close()
        operator.close()
    assert (200, "text/event-stream") == (response.status, response.headers.get_content_type())
    return listed["client"]


def test_serves_ipv6_and_a_unix_socket():
    """A proxy on the same machine connects without an address. It is trusted, because only local processes can connect."""
    with TemporaryDirectory() as folder:  # the path of a Unix socket must be short
        path = f"{folder}/socket"
        options = f"--bind [::1]:0 --bind unix:{path}"
        with Server(TICKING, GUNICORN_CMD_ARGS=options, KAFKASSE_TRUSTED_PROXIES="1") as server:
            assert "::1" == only_client(lambda: HTTPConnection("::1", server.port, timeout=60))
            assert "192.0.2.7" == only_client(lambda: OverSocket(path), **{"X-Forwarded-For": "192.0.2.7"})
