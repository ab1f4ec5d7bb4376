"""The installed version of gunicorn has all private names that kafkasse uses. `make compat` installs other versions."""

from __future__ import annotations

import os
import pkgutil
import shutil
import socket
from contextlib import ExitStack, closing
from types import SimpleNamespace

import gevent
import pytest
from gevent.event import Event
from gunicorn.config import Config

from kafkasse.server.gunicorn_internals import NAMES, SharedListener, keep_settings, name_of_listener
from kafkasse.server.logger import Logger
from kafkasse.server.worker import Worker
from tests.support.waiting import wait_until


@pytest.mark.parametrize(("owner", "name"), [(owner, name) for owner in NAMES for name in NAMES[owner].split()])
def test_gunicorn_has_a_name(owner, name):
    """Otherwise, an update of gunicorn would fail later, for example at the first request or signal."""
    having = pkgutil.resolve_name(owner)

    assert any(hasattr(having, part) for part in name.split("|")), f"this version of gunicorn has no {owner}.{name}"


def test_the_methods_that_the_worker_overrides_are_listed():
    overridden = {name for name in vars(Worker) if any(name in vars(base) for base in Worker.__mro__[1:-1])}

    listed = " ".join(names for owner, names in NAMES.items() if owner.startswith("gunicorn.workers")).split()
    assert set() == {name for name in overridden if not name.startswith("__")} - set(listed)


def test_kept_settings_have_the_same_values():
    cfg = Config()
    before = {name: getattr(cfg, name) for name in cfg.settings}

    keep_settings(cfg)

    assert before == {name: getattr(cfg, name) for name in cfg.settings}
    assert set(cfg.settings) <= set(vars(cfg))


def test_an_error_log_that_cannot_be_reopened_stays_open(tmp_path):
    """An exception would end gunicorn's master."""
    file = tmp_path / "log" / "error.log"
    file.parent.mkdir()
    cfg = Config()
    cfg.set("errorlog", str(file))
    logger = Logger(cfg)
    (handler,) = logger.error_log.handlers
    shutil.rmtree(file.parent)

    logger.reopen_files()
    assert not handler.stream.closed
    file.parent.mkdir()
    logger.reopen_files()
    logger.error("rotated")

    assert "rotated" in file.read_text()


def test_the_address_for_operators_is_not_that_of_another_listener():
    """systemd may pass the sockets in another order. The public address must not have the endpoints for operators."""
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        names = [listener.getsockname() for listener in (first, second)]
        operations = f"127.0.0.1:{names[1][1]}"

        def name(*sockets: socket.socket) -> object:
            worker = SimpleNamespace(cfg=SimpleNamespace(address=names), sockets=sockets)
            return name_of_listener(worker, operations)

        assert (names[1], None) == (name(first, second), name(second, first))


def test_an_address_for_operators_with_the_port_of_another_address():
    with socket.create_server(("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        with socket.create_server(("127.0.0.2", port)) as second:
            cfg = SimpleNamespace(address=[("127.0.0.2", port), ("127.0.0.1", port)])
            worker = SimpleNamespace(cfg=cfg, sockets=[first, second])

            assert name_of_listener(worker, f"127.0.0.1:{port}") is None


def test_connections_wait_until_a_low_descriptor_is_free(caplog):
    """The higher ones are for connections to Kafka. One client may take the first of them."""
    accepted: list[object] = []
    may_end = Event()

    def handle(server: SharedListener, client: object, address: object) -> None:
        accepted.append(client)
        may_end.wait()

    with ExitStack() as clients, closing(gevent.socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        for _ in range(6):
            clients.enter_context(socket.create_connection(listener.getsockname()))
        os.close(lowest_free := os.dup(0))
        with closing(SharedListener(listener, handle, lambda _: True, lowest_free + 2)) as server:
            server.start()
            wait_until(lambda: "Too many open files. New connections wait." in caplog.text)
            before = len(accepted)
            may_end.set()
            wait_until(lambda: len(accepted) == 6)

    assert 1 <= before <= 3
