"""No record is lost or repeated: clients of every type on real servers and a real Kafka, judged by the checker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import gevent
import pytest

from kafkasse.config import Config
from kafkasse.feed.core.reader_states import ReaderState
from kafkasse.feed.feeds import Feeds, OpenRequest
from kafkasse.feed.tail import Tail
from kafkasse.log.memory import MemoryLog
from kafkasse.records.encoder import Encoder
from kafkasse.records.position import IdType, of_topics
from kafkasse.route import Route, StartAt
from tests.history import simulation
from tests.history.checker import Connection, History, StoredRecord, last_id, violations
from tests.history.draws import RandomDraws
from tests.history.scenario import ClientType, Scenario, client_types
from tests.history.wire import blocks
from tests.support.examples import first_of
from tests.support.kafka import Cluster
from tests.support.server import Server

SEED = 1
WITH_EVERY_CUT = ("from the start", "timestamps", "an ID per run", "table"), ("filtered", "both", "compact", "personal")


@pytest.fixture
def scenario(cluster: Cluster, fresh_name: str, tmp_path: Path) -> Iterator[Scenario]:
    with closing(Scenario(cluster, fresh_name, tmp_path, SEED)) as scenario:
        yield scenario


def test_every_type_of_client_receives_exactly_its_records(scenario):
    """All formats, ID types, starts and wire formats; random cuts; reconnects to either worker; transactions."""
    scenario.fill_table()
    scenario.write(10, pause_s=0)

    outcome = scenario.play([""], batches=20, workers=2)[""]

    assert [] == outcome.violations


@pytest.mark.parametrize("types", first_of(*WITH_EVERY_CUT), ids=["unfiltered", "others"])
def test_resumes_after_a_cut_at_any_byte(scenario, types):
    """A stream cut at every byte. Another server sends the rest for each event ID in it."""
    scenario.fill_table(turns=2)
    scenario.write(1, pause_s=0)
    scenario.end()
    with scenario.servers(["", ""]) as (first, second):
        every = client_types(scenario.topic, scenario.table)
        streams = [replace(client_type, is_cut=False) for client_type in every if client_type.name in types]
        played = gevent.joinall(
            [gevent.spawn(every_cut, scenario, client_type, first, second) for client_type in streams]
        )
        histories = [history for greenlet in played for history in greenlet.get()]

    assert [] == scenario.check(histories, scenario.read())


def every_cut(scenario: Scenario, client_type: ClientType, first: Server, second: Server) -> list[History]:
    """Return one history for each byte at which a stream of `first` may be cut; `second` resumes from each event ID."""
    whole = scenario.client([first], client_type)
    connection = whole.connections[-1]
    body = connection.body
    received = {None: 0, **{block.id: block.end for block in blocks(body) if block.id}}
    resumed = {
        event_id: gevent.spawn(scenario.client, [second], client_type, known_id=event_id, received=body[:end])
        for event_id, end in received.items()
    }
    rests = {event_id: history.get().connections for event_id, history in resumed.items()}
    cuts = range(len(body) + 1)
    cut = {at: [connection._replace(body=body[:at]), *rests[last_id(body[:at])]] for at in cuts}
    return [replace(whole, client=f"{client_type.name}, cut at {at}", connections=cut[at]) for at in cuts]


def test_a_gap_starts_after_the_records_received():
    """A joining reader that received some of the removed records gets a gap that covers only the others."""
    scenario = simulation.Simulation(RandomDraws(SEED))
    scenario.log.while_closing = lambda: None
    scenario.open()
    (client,), partition = scenario.clients, (simulation.TOPIC, 0)
    for _ in range(20):  # more than the ring holds
        scenario.append(partition)
        scenario.turn()
    for _ in range(5):
        scenario.append(partition)  # the client receives these records before the tail does
    while client.reader.state is not ReaderState.JOINING:
        client.read()
    scenario.append(partition)
    scenario.tick()
    scenario.drop_before(partition, scenario.ends[partition])

    findings = scenario.violations()

    assert [] == findings
    assert 1 == scenario.gaps


def test_a_client_that_has_read_the_truncated_log_receives_no_gap():
    """It does not join a feed that is at the same offsets, but has not noticed the truncation."""
    scenario = simulation.Simulation(RandomDraws(SEED))
    scenario.log.while_closing = lambda: None
    scenario.open()
    scenario.open()
    partition = simulation.TOPIC, 0
    for _ in range(20):  # more than the ring holds
        scenario.append(partition)
        scenario.turn()
        for reader in scenario.clients:
            reader.read()
    client, _ = scenario.clients
    client.disconnect(blocks(client.body)[5].end)
    scenario.truncate_at(partition, 10)
    for _ in range(10):
        scenario.append(partition)
    scenario.connect(client)
    for _ in range(10):
        client.read()

    assert [] == scenario.violations()
    assert [0, 1] == [reader.connections[-1].body.count(b"event: gap\n") for reader in scenario.clients]


def test_timestamp_ids_do_not_skip_late_records():
    """A client that resumes by timestamp receives a record that arrives late, with a later timestamp than the last one."""
    log = MemoryLog()
    log.create(simulation.TOPIC, 2)
    stored = [
        StoredRecord(simulation.TOPIC, *fields, None, b'{"n":1}')
        for fields in ((0, 0, 1000), (1, 0, 1001), (0, 1, 1500))
    ]
    tails: list[Tail] = []
    feeds = Feeds(log, Config(metadata_refresh_s=300).feed, tails.append)
    route = Route("times", "/times", None, start=StartAt.EARLIEST, id_type=IdType.TIMESTAMP)
    log.append(simulation.TOPIC, b'{"n":1}', 0, timestamp=1000)
    reader = feeds.open(OpenRequest(route, of_topics([simulation.TOPIC]), log.describe([simulation.TOPIC]), Encoder()))
    body = reader.begin() + b"".join(reader.read(0) for _ in range(3))
    log.append(simulation.TOPIC, b'{"n":1}', 1, timestamp=1001)
    tails[0].turn(0)
    body += b"".join(reader.read(0) for _ in range(3))
    history = History("c", [simulation.TOPIC], [Connection(None, 200, body)], id_type="timestamp", start="earliest")

    assert [] == violations([history], stored)
