"""The guard of the fast tests: a test without the marker `processes` cannot start a process or leave this machine."""

from __future__ import annotations

import os
import socket
import subprocess

import pytest

from tests.support.guard import NotAllowed

ELSEWHERE = ("192.0.2.1", 80)  # reserved for documentation: no machine has this address


def test_a_fast_test_cannot_start_a_process():
    """The error names the marker that allows it."""
    with pytest.raises(NotAllowed, match=r"pytest\.mark\.processes"):
        subprocess.run(["true"], check=True)
    with pytest.raises(NotAllowed, match=r"pytest\.mark\.processes"):
        os.system("true")  # noqa: S605


def test_a_fast_test_cannot_use_the_network():
    """Connections to other machines fail. Connections to this one are allowed."""
    with pytest.raises(NotAllowed, match="network"):
        socket.create_connection(ELSEWHERE, timeout=1)

    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        pass


def test_the_shell_does_not_configure_the_tests():
    """Variables such as KAFKASSE_ALLOWED_TOPICS in the developer's shell are removed."""
    allowed = {"KAFKASSE_CACHE_DIR", "KAFKASSE_IVY_SETTINGS"}

    assert set() == {name for name in os.environ if name.startswith(("KAFKASSE_", "KAFKA_"))} - allowed
