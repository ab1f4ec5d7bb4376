"""The results of all clients after one run in which every fault occurs."""

from __future__ import annotations

import pytest

from kafkasse.broker import EmbeddedBroker
from tests.clients.programs import IN_GATE, PROGRAMS, missing
from tests.clients.scenario import Result, Scenario
from tests.support.examples import selected

QUIET_S = 12.0  # longer than the read timeouts of several clients of other projects


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Result]:
    """The result of each client that is tested, if its toolchain is installed."""
    programs = [each for each in selected(request, "program", PROGRAMS) if not missing(each.toolchain)]
    directory = tmp_path_factory.mktemp("clients")
    with Scenario(broker.bootstrap_servers, "t-clients", programs, directory) as scenario:
        return scenario.run(0 if all(each.name in IN_GATE for each in programs) else QUIET_S)
