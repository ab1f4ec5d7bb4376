"""SIGHUP: a changed file is applied without losing a record, and an invalid file leaves everything as it is."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import gevent
import pytest
import yaml
from gevent.event import Event

from kafkasse import __version__
from kafkasse.tools.broker import EmbeddedBroker
from tests.server.conftest import metric
from tests.support.client import Client, fetch, numbers
from tests.support.kafka import Cluster
from tests.support.server import KILLED, Server
from tests.support.waiting import wait_until

WRITE_INTERVAL_S = 0.02


class Reloadable:
    """A server with a configuration file that a test can change."""

    def __init__(self, file: Path, servers: str, **routes: Any) -> None:
        self.file = file
        self._servers = servers
        self.configure(**routes)
        self.server = Server(KAFKASSE_CONFIG=str(file))

    def configure(self, **routes: Any) -> None:
        self.file.write_text(yaml.safe_dump({"kafka": {"bootstrap_servers": self._servers}, "routes": routes}))

    def reload(self) -> None:
        """Send SIGHUP, and wait until all workers are new."""
        before = set(self.server.workers())
        self.server.reload()
        wait_until(lambda: len(self.server.workers()) == 1 and not before & set(self.server.workers()))

    def reject(self) -> str:
        """Send SIGHUP, wait for the log line that says why the file was rejected, and return it."""
        count = self.server.log.count("not reloaded")
        self.server.expect("The configuration was not reloaded")
        self.server.reload()
        wait_until(lambda: self.server.log.count("not reloaded") > count)
        return next(line for line in reversed(self.server.log.splitlines()) if "not reloaded" in line)


@pytest.fixture
def topic(cluster: Cluster, fresh_name: str) -> str:
    return cluster.create(fresh_name)


@pytest.fixture
def world(broker: EmbeddedBroker, tmp_path: Path, topic: str) -> Iterator[Reloadable]:
    world = Reloadable(
        tmp_path / "kafkasse.yaml",
        broker.bootstrap_servers,
        old={"path": "/old", "topics": [topic], "start": "earliest"},
    )
    with world.server:
        yield world


def test_no_record_is_lost_or_repeated_by_a_reload(world, cluster, topic):
    """A client that reads during a reload resumes with its event ID, and then receives the format of the new file."""

    closed = Event()

    def write() -> int:
        """Write until the first client is closed, and one more record. Return the number of records."""
        for n in count():
            last = closed.is_set()
            cluster.send(topic, b'{"n":%d,"secret":1}' % n)
            if last:
                return n + 1
            gevent.sleep(WRITE_INTERVAL_S)

    writer = gevent.spawn(write)
    with Client(world.server.port, "/old") as client:
        events = client.events(5)
        world.configure(
            old={"path": "/old", "topics": [topic], "start": "earliest", "redact": ["secret"]},
            new={"path": "/new", "topics": [topic]},
        )
        world.reload()
        events += client.rest()
        last_id = client.last_id
    closed.set()
    records = writer.get()

    with Client(world.server.port, "/old", Last_Event_ID=last_id) as client:
        resumed = client.events(records - len(events))

    assert list(range(records)) == numbers(events + resumed)
    assert {True} == {"secret" in event.data for event in events}
    assert {False} == {"secret" in event.data for event in resumed}
    assert 200 == fetch(world.server.port, "/new", "HEAD").status
    assert 2 == world.server.log.count(f"kafkasse {__version__}\n")  # of each worker


INVALID = {
    "routes:\n  old: {path: /old, topcis: [t]}\n": "line 2: routes.old.topcis is not a setting of a route: did you",
    "routes: [\n": "line 2: this is not valid YAML",
    "heartbeat_s: 4\n": "There is nothing to serve",
    None: "The configuration file",  # is missing
}


def test_an_invalid_file_changes_nothing(world, cluster, topic):
    """Streams stay open, and a new worker serves with the old file. One log line gives the reason."""
    server, port = world.server, world.server.port
    worker = server.workers()
    assert 0 == metric(server, "outdated_configuration")
    with Client(port, "/old").ready() as client:
        for n, (text, reason) in enumerate(INVALID.items()):
            world.file.unlink()
            if text is not None:
                world.file.write_text(text)

            line = world.reject()

            assert reason in line
            assert str(world.file) in line or "nothing to serve" in line
            assert worker == server.workers()
            wait_until(lambda: 1 == metric(server, "outdated_configuration"))
            cluster.send(topic, b'{"n":%d}' % n)
            assert [n] == numbers(client.events(1))

    server.expect(KILLED)
    os.kill(worker[0], signal.SIGKILL)
    wait_until(lambda: server.workers() not in ([], worker))
    assert [0] == numbers(Client(port, "/old").events(1))
    assert 1 == metric(server, "outdated_configuration")

    world.configure(new={"path": "/new", "topics": [topic], "start": "earliest"})
    world.reload()
    assert [0] == numbers(Client(port, "/new").events(1))
    assert 404 == fetch(port, "/old").status
    wait_until(lambda: 0 == metric(server, "outdated_configuration"))


def test_a_topic_that_does_not_exist_is_a_warning(world, broker, topic):
    """Each missing topic of a route or a group is one warning. A pattern is none, because it needs no topic yet."""
    missing, in_group = topic[:-1], topic[:-2]
    world.configure(old={"path": "/old", "topics": [topic]}, new={"path": "/new", "topics": [missing, f"{topic}.*"]})
    with world.file.open("a") as file:
        file.write(f"topic_groups: {{both: [{topic}, {in_group}]}}\nallowed_topics: ['{topic[:2]}*']\n")

    world.reload()

    wait_until(lambda: 2 == world.server.log.count("names the topic"))
    for where, name in (("The route new", missing), ("allowed_topics or topic_groups", in_group)):
        missing_at = f"which does not exist in Kafka at {broker.bootstrap_servers}"
        assert f"{where} names the topic {name}, {missing_at}" in world.server.log
