"""Upgrade servers and a pipeline from the last release to this checkout, and go back, while clients read.

`make upgrade` sets RELEASE to a checkout of the last release. Without it, a version is replaced by the same version.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import repeat
from pathlib import Path

import gevent
import pytest
from gevent.event import Event

from tests.history.scenario import TIMEOUT_S, Scenario, client_types
from tests.pipelines.chaos import Run
from tests.support.client import fetch, value
from tests.support.server import CURRENT, Checkout, Server
from tests.support.waiting import wait_until

FOLDER = os.environ.get("RELEASE")
RELEASE = Checkout(Path(FOLDER), f"{FOLDER}/.venv/bin/python") if FOLDER else CURRENT
SERVERS, BATCHES, SEED = 2, 5, 1

pytestmark = pytest.mark.processes


def test_clients_lose_nothing_during_an_upgrade_and_a_rollback(cluster, fresh_name, tmp_path):
    """Servers of both versions accept the event IDs of each other. Every type of client follows through all of them."""
    with closing(Scenario(cluster, fresh_name, tmp_path, SEED)) as scenario, ExitStack() as stack:
        scenario.fill_table(turns=2)
        servers = [stack.enter_context(scenario.server(checkout=RELEASE)) for _ in range(SERVERS)]
        types = client_types(scenario.topic, scenario.table)
        began = [Event() for _ in types]
        clients = [gevent.spawn(scenario.client, servers, *arguments) for arguments in zip(types, repeat(True), began)]
        assert len(types) == len(gevent.wait(began, timeout=TIMEOUT_S))
        replacements = [(CURRENT, at) for at in range(SERVERS)] + [(RELEASE, at) for at in range(SERVERS)]
        for turn, (checkout, at) in enumerate(replacements):
            old, servers[at] = servers[at], stack.enter_context(scenario.server(checkout=checkout))
            old.terminate()
            assert 0 == old.wait()
            scenario.write(BATCHES, first=turn * BATCHES)
        scenario.end()
        gevent.joinall(clients, raise_error=True)
        histories = [replace(client.get(), max_ended=len(replacements)) for client in clients]

        violations = scenario.check(histories, scenario.read())

    assert [] == violations
    assert all(len(history.connections) > 1 for history in histories)


def test_each_version_accepts_the_offsets_of_the_other(cluster, fresh_name):
    """A client of finite reads continues at the other version, and then at the first version again."""
    topic = cluster.create(fresh_name)
    offset, received = "-1", []
    for number, checkout in enumerate([RELEASE, CURRENT, RELEASE]):
        cluster.send(topic, value(number))
        with Server(checkout=checkout, KAFKASSE_BOOTSTRAP_SERVERS=cluster.bootstrap_servers) as server:
            chunk = fetch(server.port, f"/{topic}?offset={offset}")
        offset = chunk.headers["stream-next-offset"]
        received += [record["n"] for record in chunk.json]

    assert [0, 1, 2] == received


class Upgrade(Run):
    """A pipeline that the last release runs first, then this checkout, then the last release again."""

    def __init__(self, directory: Path) -> None:
        super().__init__(SEED, directory, None, [RELEASE, CURRENT, RELEASE])

    def inject(self, ends_s: float) -> None:
        for start in (2, 3):
            self.terminate()
            wait_until(lambda start=start: self.starts == start)
            self.wait_until_ready(start)


@pytest.mark.long
def test_a_pipeline_continues_after_an_upgrade_and_a_rollback(tmp_path):
    """Each version continues with the checkpoint of the one before. The results are right, and none goes back."""
    pipeline = Upgrade(tmp_path)

    pipeline.check(seconds=45)

    assert 3 == pipeline.starts
