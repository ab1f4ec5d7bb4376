"""The results of all clients after one run in which every fault occurs."""

from __future__ import annotations

import secrets

import pytest

from kafkasse.broker import EmbeddedBroker
from tests.clients.programs import PROGRAMS, missing
from tests.clients.scenario import FAULTS, Result, Scenario


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Result]:
    """The result of each client that is tested, if its toolchain is installed."""
    items = (item for item in request.session.items if isinstance(item, pytest.Function) and hasattr(item, "callspec"))
    tested = [item.callspec.params.get("program") for item in items]
    programs = [each for each in PROGRAMS if each in tested and not missing(each.toolchain)]
    directory = tmp_path_factory.mktemp("clients")
    with Scenario(broker.bootstrap_servers, f"t-{secrets.token_hex(6)}", programs, directory) as scenario:
        return scenario.run(FAULTS)
