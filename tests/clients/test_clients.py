"""Other people's SSE clients read a stream while its connections end. What they print is judged by the history checker."""

from __future__ import annotations

import os

import pytest

from tests.clients.programs import CHROMIUM, PROGRAMS, PYTHON, Program, missing
from tests.clients.scenario import DEFECTS, Result

REQUIRED = PYTHON, CHROMIUM  # in CI; the other toolchains are optional everywhere


@pytest.mark.timeout(900)  # the first test builds all clients
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_client_receives_each_record_once(program: Program, results: dict[str, Result]) -> None:
    """The worker is killed, restarted and stopped, connections break within events, and the client misses no record."""
    if reason := missing(program.toolchain):
        if os.environ.get("CI") == "true" and program.toolchain in REQUIRED:
            pytest.fail(reason)
        pytest.skip(reason)

    result = results[program.name]

    assert DEFECTS.get(program.name, {}) == result.defects, result.log
    assert bool(result.defects) == bool(result.violations), result.violations
