"""Nothing prevents kafkasse from running on macOS, on which we do not test it."""

from __future__ import annotations

import ast
import fcntl
import socket
import sys
from collections.abc import Iterator
from importlib.util import find_spec, module_from_spec
from typing import Any

import pytest

# Names that Python has on Linux but not on macOS: https://docs.python.org/3/library/ lists each with its availability.
LINUX_ONLY = {
    "os": {
        "copy_file_range", "eventfd", "fdatasync", "fallocate", "getrandom", "memfd_create", "pidfd_open", "pipe2",
        "posix_fadvise", "posix_fallocate", "preadv", "prlimit", "pwritev", "sched_getaffinity", "sched_setaffinity",
        "sched_setscheduler", "setns", "setresuid", "splice", "timerfd_create", "unshare",
    },
    "resource": {"RLIMIT_NICE", "RLIMIT_RTPRIO", "RLIMIT_SIGPENDING", "RUSAGE_THREAD", "prlimit"},
    "select": {"EPOLLIN", "EPOLLOUT", "epoll"},
    "signal": {"SIGPOLL", "SIGPWR", "SIGRTMAX", "SIGRTMIN", "SIGSTKFLT", "sigtimedwait", "sigwaitinfo"},
    "socket": {
        "AF_NETLINK", "AF_PACKET", "AF_VSOCK", "MSG_ERRQUEUE", "MSG_MORE", "SOCK_CLOEXEC", "SOCK_NONBLOCK",
        "SO_DOMAIN", "SO_MARK", "SO_PEERCRED", "SO_PRIORITY", "SO_PROTOCOL", "TCP_CORK",
        "TCP_DEFER_ACCEPT", "TCP_INFO", "TCP_KEEPCNT", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_NOTSENT_LOWAT", "TCP_QUICKACK",
        "TCP_SYNCNT", "TCP_USER_TIMEOUT",
    },
    "time": {"CLOCK_BOOTTIME", "CLOCK_TAI"},
}  # fmt: skip
GUARDED = {("socket", "TCP_INFO")}  # by sys.platform


def linux_only_names(source: str) -> Iterator[tuple[str, str]]:
    """Yield the module and the name of each use, such as `os.memfd_create` or `from select import epoll`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used = [(node.value.id, node.attr)]
        elif isinstance(node, ast.ImportFrom):
            used = [((node.module or "").removeprefix("gevent."), alias.name) for alias in node.names]
        else:
            continue
        yield from (pair for pair in used if pair[1] in LINUX_ONLY.get(pair[0], ()))


def test_no_module_needs_names_that_only_linux_has(root):
    """A name that macOS lacks is used only after a check of the platform. No path starts with /proc."""
    sources = {path: path.read_text() for path in [*(root / "kafkasse").rglob("*.py"), *root.glob("*.py")]}

    assert GUARDED == {name for source in sources.values() for name in linux_only_names(source)}
    assert [] == [file for file, source in sources.items() if "/proc/" in source]


def test_finds_names_that_only_linux_has():
    source = "import os\nfrom gevent.select import epoll\nos.memfd_create('a')\nos.read(0, 1)\n"

    assert {("select", "epoll"), ("os", "memfd_create")} == set(linux_only_names(source))


@pytest.fixture
def client_socket(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module as on a system without Linux's socket options."""
    for name in LINUX_ONLY["socket"]:
        monkeypatch.delattr(socket, name, raising=False)
    monkeypatch.setattr(sys, "platform", "darwin")
    spec = find_spec("kafkasse.web.client_socket")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("queued", [OSError("not supported"), b"\1\0\0\0"])
def test_a_socket_without_linux_options_is_not_silent(client_socket, queued, monkeypatch):
    """If the system does not report unacknowledged bytes or the last acknowledgment, the client counts as alive."""

    def ioctl(*_: object) -> bytes:
        if isinstance(queued, OSError):
            raise queued
        return queued

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        silence = client_socket.SilenceDetector(client, timeout_s=1e-6)

        assert [False] * 3 == [silence.is_silent() for _ in range(3)]
