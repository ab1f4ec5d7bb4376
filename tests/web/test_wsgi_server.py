"""kafkasse recognizes mod_wsgi, which needs Apache. tests/server/test_wsgi_servers.py runs the other servers."""

from __future__ import annotations

import logging
import sys
from types import ModuleType

import pytest

from kafkasse.errors import ConfigurationError
from kafkasse.web.wsgi_server import WsgiServer


def test_mod_wsgi_names_the_command_to_use(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The log names the command when the app is loaded, and each request for a stream is rejected."""
    monkeypatch.setitem(sys.modules, "mod_wsgi", ModuleType("mod_wsgi"))

    server = WsgiServer(1, logging.getLogger("kafkasse"))

    command = "gunicorn --worker-class kafkasse.server.worker.Worker"
    assert command in caplog.text
    with pytest.raises(ConfigurationError, match=command):
        server.check({"wsgi.multithread": True, "wsgi.multiprocess": True, "SERVER_SOFTWARE": "Apache/2.4.62"})
