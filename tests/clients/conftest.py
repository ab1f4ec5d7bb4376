"""The results of all clients after one run in which every fault occurs."""

from __future__ import annotations

import secrets

import pytest

from kafkasse.broker import EmbeddedBroker
from tests.clients.programs import PROGRAMS, missing
from tests.clients.scenario import FAULTS, Result, Scenario


@pytest.fixture(scope="module")
def results(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """The result of each client whose toolchain is installed."""
    programs = [each for each in PROGRAMS if not missing(each.toolchain)]
    directory = tmp_path_factory.mktemp("clients")
    with Scenario(broker.bootstrap_servers, f"t-{secrets.token_hex(6)}", programs, directory) as scenario:
        return scenario.run(FAULTS)
