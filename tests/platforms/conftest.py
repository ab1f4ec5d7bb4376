"""The settings of gunicorn, which the files of the platforms must match."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.server import ROOT

RESERVE_S = 2  # between the end of gunicorn's graceful_timeout and SIGKILL


@pytest.fixture(scope="package")
def gunicorn(processes: None) -> dict[str, Any]:
    """gunicorn's settings, read in another process, because they patch the standard library and configure logging."""
    code = "import json, kafkasse.server.gunicorn_conf as c; print(json.dumps([c.graceful_timeout, c.timeout, c.bind]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, env={})
    settings = dict(zip(("graceful_timeout", "timeout", "bind"), json.loads(done.stdout), strict=True))
    return settings | {"shutdown_s": settings["graceful_timeout"] + RESERVE_S}
