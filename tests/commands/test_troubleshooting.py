"""The commands of docs/troubleshooting.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from kafkasse.tools.broker import EmbeddedBroker
from tests.support.client import Client
from tests.support.kafka import Cluster
from tests.support.server import ROOT, Server
from tests.support.waiting import wait_until

PORT = "6917"  # the default
RECORD = '{"continent":"Europe"}'


@pytest.fixture
def environment(broker: EmbeddedBroker, tmp_path: Path) -> dict[str, str]:
    route = {"path": "/orders", "topics": ["orders"], "format": "value", "start": "snapshot"}
    settings = {"kafka": {"bootstrap_servers": broker.bootstrap_servers}, "routes": {"orders": route}, "public": True}
    (tmp_path / "kafkasse.yaml").write_text(yaml.safe_dump(settings))
    return {"KAFKASSE_CONFIG": str(tmp_path / "kafkasse.yaml"), "KAFKASSE_RUNTIME_DIR": str(tmp_path / "run")}


@pytest.fixture
def server(environment: dict[str, str], cluster: Cluster) -> Iterator[Server]:
    cluster.send(cluster.create("orders", cleanup_policy="compact"), RECORD.encode(), key=b"Europe")
    with Server(**environment) as server:
        yield server
    cluster.delete("orders")


def test_the_commands_show_the_topic_the_streams_and_the_records(server, environment):
    """Each command of the page prints what its comment says."""
    page = (ROOT / "docs/troubleshooting.md").read_text()
    commands = [line for block in re.findall(r"^```sh\n(.*?)^```", page, re.M | re.S) for line in block.splitlines()]
    check, streams, curl, check_topics = (line.replace(PORT, str(server.port)) for line in commands)

    def output(command: str) -> str:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        variables = os.environ | environment | {"PATH": path}
        folder = Path(environment["KAFKASSE_CONFIG"]).parent
        return subprocess.run(
            ["bash", "-c", command], cwd=folder, env=variables, capture_output=True, text=True, check=False
        ).stdout

    with Client(server.port, "/orders") as stream:
        stream.events(1)

        assert "/orders\n  orders  1 partition\n" in output(check)
        assert "/{topics}\n  orders  1 partition\n" in output(check_topics)
        wait_until(lambda: re.search(r"lag_records  state\n.* parked\n", output(streams)))
        assert f"data: {RECORD}\n" == output(f"({curl}\n) | grep --max-count 1 ^data")
