"""gunicorn.conf.py and wsgi.py report an invalid variable or configuration in one line, without a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "gunicorn", "-c", "gunicorn.conf.py", "wsgi:app"]


def check(option: str = "--check-config", **variables: str) -> subprocess.CompletedProcess[str]:
    """Load gunicorn's configuration and the app with this option and these variables. By default, it does not listen."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment["KAFKASSE_PUBLIC"] = "true"
    return subprocess.run(
        [*COMMAND, option], env=environment | variables, cwd=ROOT, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("PORT", "http", "PORT must be a whole number from 0 to 65535, not 'http'. Example: PORT=6917"),
        ("PORT", "65536", "PORT must be a whole number from 0 to 65535, not '65536'."),
        ("KAFKASSE_OPERATIONS_BIND", "127.0.0.1", "KAFKASSE_OPERATIONS_BIND must be an address with a port, not"),
        ("KAFKASSE_OPERATIONS_BIND", "9090", "KAFKASSE_OPERATIONS_BIND must be an address with a port, not '9090'."),
        ("WEB_CONCURRENCY", "0", "WEB_CONCURRENCY must be a whole number from 1 to 1000, not '0'."),
        ("KAFKASSE_LOG_LEVEL", "loud", "KAFKASSE_LOG_LEVEL must be one of debug, info, warning, error, critical, not"),
        ("KAFKASSE_ALOWED_TOPICS", "a",
         "KAFKASSE_ALOWED_TOPICS is not a setting: did you mean KAFKASSE_ALLOWED_TOPICS?"),
    ],
)  # fmt: skip
def test_a_variable_that_is_not_valid(variable, value, problem):
    done = check(**{"KAFKASSE_ALLOWED_TOPICS": "*", variable: value})

    assert 0 != done.returncode
    (line,) = done.stderr.splitlines()
    assert line.startswith(problem)


def test_preload_is_rejected():
    """Reloads and metrics need workers that load the app themselves."""
    done = check("--preload", KAFKASSE_ALLOWED_TOPICS="*", PORT="0")

    assert 1 == done.returncode
    assert done.stderr.splitlines()[-1].startswith("Remove gunicorn's option --preload.")


def test_a_valid_configuration():
    """The app loads with only the variables that a platform sets. The log level may be in capitals."""
    done = check(KAFKASSE_ALLOWED_TOPICS="*", PORT="8080", WEB_CONCURRENCY="2", KAFKASSE_LOG_LEVEL="INFO")

    assert (0, "") == (done.returncode, done.stderr)
