"""Third-party SSE clients read a stream while faults end its connections. The history checker judges what they print."""

from __future__ import annotations

import re

import pytest

from tests.clients.programs import PROGRAMS, Program, missing
from tests.clients.scenario import Result, unknown_defects
from tests.support.server import ROOT

OURS = "kafkasse.js in Node", "kafkasse.js in Chromium", "kafkasse.client on requests", "kafkasse.client on aiohttp"
STANDARD = "EventSource in Chromium", "EventSource in Firefox"


@pytest.mark.timeout(900)  # the first test builds all clients
@pytest.mark.parametrize(
    "program",
    [pytest.param(each, marks=() if each.name in (*OURS, *STANDARD) else pytest.mark.long) for each in PROGRAMS],
    ids=lambda program: program.name,
)
def test_a_client_receives_each_record_once(program: Program, results: dict[str, Result]) -> None:
    """When workers are killed or stopped and connections break within events, a client has only its known defects."""
    if reason := missing(program.toolchain):
        pytest.skip(reason)

    result = results[program.name]

    assert {} == unknown_defects(program.name, result), result.log
    assert bool(result.defects) == bool(result.violations), result.violations
    assert not program.has_token or "\n401 for" in result.log  # the token expired while the client read


def test_the_docs_list_every_client() -> None:
    """docs/clients.md has a row for each client, with the version that its toolchain installs."""
    text = (ROOT / "docs/clients.md").read_text()
    rows = [row.split(" | ")[0] for row in re.findall(r"^\| (.+) \|$", text.split("## Libraries")[1], re.MULTILINE)]
    names = [each.name for each in PROGRAMS if not each.name.endswith(", plain")]

    assert [] == [name for name in names if not any(name in row for row in rows)]
    for program in PROGRAMS:
        for version in re.findall(r"\d+\.\d+\.\d+", program.name):
            assert version in _manifests(program)


def _manifests(program: Program) -> str:
    """Return the files that pin the version of a library."""
    folder = ROOT / "tests/clients/programs" / program.toolchain.folder
    names = "package.json", "go.mod", "pom.xml", "Cargo.toml"
    python = [ROOT / "requirements.txt", ROOT / "requirements-dev.txt"]
    files = [file for name in names if (file := folder / name).exists()] or python
    return "".join(file.read_text() for file in files)
