"""Third-party SSE clients read a stream while faults end its connections. The history checker judges what they print."""

from __future__ import annotations

import re

import pytest

from tests.clients.programs import FIREFOX, IN_GATE, PROGRAMS, Program, missing
from tests.clients.scenario import Result, Scenario
from tests.support.examples import selected
from tests.support.server import ROOT

QUIET_S = 12.0  # longer than the read timeouts of several clients of other projects


@pytest.fixture(scope="module")
def results(request, broker, tmp_path_factory) -> dict[str, Result]:
    """The result of each client that is tested, if its toolchain is installed."""
    programs = [program for program in selected(request, "program", PROGRAMS) if not missing(program.toolchain)]
    directory = tmp_path_factory.mktemp("clients")
    with Scenario(broker.bootstrap_servers, "t-clients", programs, directory) as scenario:
        return scenario.run(0 if all(program.name in IN_GATE for program in programs) else QUIET_S)


@pytest.mark.timeout(900)  # the first test builds all clients
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, id=program.name, marks=() if program.name in IN_GATE else pytest.mark.long)
        for program in PROGRAMS
    ],
)
def test_a_client_receives_each_record_once(program, results):
    """Workers are killed or stopped, and connections break within events."""
    if reason := missing(program.toolchain):
        pytest.skip(reason)

    result = results[program.name]

    assert ([], 0) == (result.violations, result.disconnects), result.log
    assert not program.has_token or "\n401 for" in result.log  # the token expired while the client read


OURS = [program for program in PROGRAMS if program.name.startswith("kafkasse") and program.toolchain is not FIREFOX]
BUFFERED_IN_GATE = {"kafkasse.js in Node", "kafkasse-client on requests"}


@pytest.fixture(scope="module")
def buffered_results(request, broker, tmp_path_factory) -> dict[str, Result]:
    programs = [program for program in selected(request, "program", OURS) if not missing(program.toolchain)]
    directory = tmp_path_factory.mktemp("buffered")
    with Scenario(broker.bootstrap_servers, "t-buffered", programs, directory, is_buffered=True) as scenario:
        return scenario.run(0)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, id=program.name, marks=() if program.name in BUFFERED_IN_GATE else pytest.mark.long)
        for program in OURS
    ],
)
def test_our_clients_receive_each_record_once_behind_a_proxy_that_buffers(program, buffered_results):
    """The faults are the same. The proxy passes on a response when it is complete, which a stream never is."""
    if reason := missing(program.toolchain):
        pytest.skip(reason)

    result = buffered_results[program.name]

    assert [] == result.violations, result.log
    assert "live=events" in result.log
    assert not program.has_token or "\n401 for" in result.log


def test_the_docs_list_every_client():
    """docs/clients.md has a row for each client, with the version that its toolchain installs."""
    text = (ROOT / "docs/clients.md").read_text()
    rows = [row.split(" | ")[0] for row in re.findall(r"^\| (.+) \|$", text.split("## Libraries")[1], re.MULTILINE)]

    assert [] == [each.name for each in PROGRAMS if not any(each.name in row for row in rows)]
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
