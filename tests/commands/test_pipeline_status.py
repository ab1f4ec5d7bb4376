"""`kafkasse pipeline status` and `replay-dead-letters`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.errors import KafkaTimeoutError

from kafkasse.commands import dead_letters
from kafkasse.pipelines.kafka.contract import DEAD_LETTER_HEADERS
from kafkasse.pipelines.observe.status import Status
from kafkasse.pipelines.supervisor import PipelineState
from tests.commands.run import Done, Run
from tests.support.kafka import Cluster

Show = Callable[..., Done]


@pytest.fixture
def show(run: Run, cluster: Cluster, fresh_name: str) -> Show:
    cluster.create(fresh_name)
    words = ["--bootstrap-servers", cluster.bootstrap_servers, "--topic", fresh_name]
    return lambda *more, **variables: run("pipeline", "status", *words, *more, **variables)


def status(name: str, state: PipelineState, age: timedelta = timedelta(0), **more: Any) -> bytes:
    of = Status(name, 1, "realtime", ["countries"], ["topn"])
    of.enter(state, "")
    updated = {"updated": (datetime.now(UTC) - age).isoformat()}
    return json.dumps(of.record() | updated | more).encode()


def test_prints_the_latest_status_of_each_pipeline(cluster, show, fresh_name):
    """A pipeline that no longer writes its status is silent, unless it has ended. A tombstone removes a pipeline."""
    letters = cluster.create(f"{fresh_name}.dead-letters")
    cluster.send(letters, b"{", b"}")
    now = timedelta(hours=-1)  # in the future, so that the speed of the machine does not matter
    for name, value in (
        ("a", status("a", PipelineState.STARTING, now)),
        (
            "a",
            status("a", PipelineState.RUNNING, now, lag_records=12, lag_s=3.4, restarts=1, late_rows=5, dead_letters=7),
        ),
        ("b", status("b", PipelineState.RUNNING, timedelta(seconds=31))),
        ("c", status("c", PipelineState.FAILED, timedelta(minutes=2), reason="no such topic")),
        ("d", status("d", PipelineState.RUNNING)),
        ("d", None),
        ("e", status("e", PipelineState.STARTING, timedelta(minutes=2))),
        ("f", status("f", PipelineState.RUNNING, now, dead_letters=1, dead_letter_topic=letters)),
    ):
        cluster.send(fresh_name, value, key=name.encode())

    table, lines = show(), show("--json").out.splitlines()

    rows = [re.split(r"\s{2,}", line) for line in table.out.splitlines()]
    assert ["PIPELINE", "STATE", "UPDATED", "LAG", "RESTARTS", "LATE ROWS", "DEAD LETTERS", "REASON"] == rows[0]
    states = {"a": "running", "b": "silent (was running)", "c": "failed", "e": "silent (was starting)", "f": "running"}
    assert states == {row[0]: row[1] for row in rows[1:]}
    assert ["12 records, 3 s", "1", "5", "7"] == rows[1][3:]
    assert "-" == rows[4][3], "a pipeline that starts has not measured its lag"
    assert "no such topic" == rows[3][-1]
    assert "2" == rows[5][6], "the dead letters of all runs"
    assert [("a", 12, None), ("b", 0, None), ("c", 0, None), ("e", 0, None), ("f", 0, 2)] == [
        (entry["pipeline"], entry["lag_records"], entry["dead_letters_in_topic"]) for entry in map(json.loads, lines)
    ]


@pytest.mark.parametrize("value", [b'{"id": 5}', b"[]", b"5", b"\xff"])
def test_a_topic_with_other_records_is_an_error(cluster, show, fresh_name, value):
    cluster.send(fresh_name, value, key=b"k")

    err = show().err

    reason = f"a record in the topic {fresh_name} is not the status of a pipeline; choose the status topic with --topic"
    assert reason in err


def test_the_prefix_of_the_servers_topics_does_not_apply(cluster, show, fresh_name):
    cluster.send(fresh_name, status("a", PipelineState.RUNNING), key=b"a")

    assert "running" in show(KAFKASSE_TOPIC_PREFIX=fresh_name[:2]).out


def test_a_status_does_not_control_the_terminal(cluster, show, fresh_name):
    """The reason of a failure may contain data."""
    cluster.send(fresh_name, status("a", PipelineState.FAILED, reason="the value '\x1b]0;x\x07'"), key=b"a")

    assert r"the value '\x1b]0;x\x07'" in show().out


def test_a_missing_topic_is_an_error(show):
    """The message names the option that writes the topic."""
    reason = "the topic nix does not exist; a pipeline with --status-topic nix creates it"
    assert reason in show("--topic", "nix").err


class World:
    def __init__(self, cluster: Cluster, name: str, run: Run) -> None:
        self.cluster, self._run = cluster, run
        self.source = self.cluster.create(f"{name}-source", 2)
        self.letters = self.cluster.create(f"{name}-letters")

    def letter(self, offset: int, omitted: bytes = b"", partition: bytes = b"1") -> None:
        values = [b"bad", self.source.encode(), partition, b"%d" % offset, b"0", omitted]
        headers = [("trace", b"\x00"), *zip(DEAD_LETTER_HEADERS, values, strict=True)]
        self.cluster.send(self.letters, b"\xff%d" % offset, key=b"k", headers=headers)

    def replay(self, *words: str) -> Done:
        servers = "--bootstrap-servers", str(self.cluster.bootstrap_servers)
        return self._run("pipeline", "replay-dead-letters", self.letters, *servers, *words)

    def records(self) -> list[Any]:
        return self.cluster.records(self.source, 2)


@pytest.fixture
def world(cluster: Cluster, fresh_name: str, run: Run) -> World:
    return World(cluster, fresh_name, run)


def test_replays_the_original_bytes_into_the_original_partition(world):
    """Key, value and headers are those of the record, without the headers of the dead letter."""
    world.letter(7)

    result = world.replay()

    assert (0, f"1 records written to {world.source}\n") == (result.code, result.out)
    assert [(1, b"k", b"\xff7", [("trace", b"\x00")])] == [
        (record.partition, record.key, record.value, list(record.headers)) for record in world.records()
    ]


def test_replays_each_dead_letter_once(world):
    """A second call continues where the first one has ended."""
    world.letter(1)
    world.replay()
    world.letter(2)

    results = [world.replay().out for _ in range(2)]

    assert [f"1 records written to {world.source}\n", "no dead letters to replay\n"] == results
    assert [b"\xff1", b"\xff2"] == [record.value for record in world.records()]


def test_an_interrupted_batch_is_replayed_once(world, monkeypatch):
    """If the command ends before the transaction does, readers of committed records see nothing of it."""
    world.letter(1)
    with monkeypatch.context() as patched:
        error = KafkaTimeoutError("no answer")
        patched.setattr(KafkaProducer, "send_offsets_to_transaction", lambda *_: (_ for _ in ()).throw(error))
        failed = world.replay()

    world.replay()

    assert "Call the command again" in failed.err
    assert [b"\xff1"] == [record.value for record in world.records()]


def test_two_calls_at_the_same_time_replay_each_dead_letter_once(world, monkeypatch):
    """One call ends while the other one connects to Kafka."""
    world.letter(1)
    initialize = KafkaProducer.init_transactions

    def initialize_after_another_call(producer: KafkaProducer) -> None:
        monkeypatch.undo()
        world.replay()
        initialize(producer)

    monkeypatch.setattr(KafkaProducer, "init_transactions", initialize_after_another_call)

    assert "no dead letters to replay\n" == world.replay().out
    assert [b"\xff1"] == [record.value for record in world.records()]


@pytest.mark.parametrize(("partition", "deleted"), [(b"1", True), (b"7", False)])
def test_a_source_that_no_longer_exists_is_an_error(world, partition, deleted):
    """The dead letters wait until the topic exists again."""
    world.letter(1, partition=partition)
    if deleted:
        world.cluster.delete(world.source)

    assert f"{world.source} partition {partition.decode()}, which does not exist; create it" in world.replay().err


def test_says_which_dead_letters_cannot_be_replayed(world):
    """Those without their complete record, results, duplicates, and other records."""
    world.letter(1, omitted=b"value")
    world.letter(2, partition=b"")
    world.letter(3)
    world.letter(3)
    world.cluster.send(world.letters, b"x", headers=[("id", b"\xff")])

    result = world.replay()

    assert f"1 records written to {world.source}\n" in result.out
    for reason in ("incomplete", "results", "duplicates", "no dead letters"):
        assert f"1 not replayed: they are {reason}" in result.out


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"value": None}, "they have neither a key nor a value"),
        ({"value": b"x", "headers": [("trace", None)]}, "they have a header without a value"),
    ],
)
def test_a_record_that_the_producer_rejects_does_not_stop_the_others(record, reason):
    """Other clients write records that kafka-python cannot write."""
    partition = TopicPartition("letters", 0)
    last = [*zip(DEAD_LETTER_HEADERS, [b"bad", b"orders", b"0", b"1", b"2", None], strict=True)]
    headers = [*record.get("headers", ()), *last]
    consumer = Mock(
        **{
            "partitions_for_topic.return_value": {0},
            "beginning_offsets.return_value": {partition: 0},
            "end_offsets.return_value": {partition: 1},
            "committed.return_value": None,
            "poll.return_value": {partition: [SimpleNamespace(key=None, value=record["value"], headers=headers)]},
            "position.return_value": 1,
        }
    )
    letters = dead_letters._Letters(consumer, "letters")

    assert [[]] == [*letters.batches()]
    assert {reason: 1} == letters.skipped


def test_a_dry_run_writes_nothing(world):
    """The command lists the records that it would replay, with the reasons why they are dead letters."""
    world.letter(7)

    result = world.replay("--dry-run")

    assert f"{world.source} partition 1 offset 7 key k: bad\n" == result.out
    assert [] == world.records()


def test_a_missing_topic_is_reported(world):
    """The topic is not created."""
    world.letters = "no-such-topic"

    assert "the topic no-such-topic does not exist" in world.replay().err
