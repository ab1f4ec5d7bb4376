"""`kafkasse pipeline replay-dead-letters` writes each dead letter to its source topic exactly once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError

from kafkasse.pipelines.contract import DEAD_LETTER_HEADERS
from tests.commands.run import Done, Run
from tests.support.kafka import Cluster


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
        words = words or ("--bootstrap-servers", str(self.cluster.bootstrap_servers))
        return self._run("pipeline", "replay-dead-letters", self.letters, *words)

    def records(self) -> list[Any]:
        return self.cluster.records(self.source, 2)


@pytest.fixture
def world(cluster: Cluster, fresh_name: str, run: Run) -> World:
    return World(cluster, fresh_name, run)


def test_replays_the_original_bytes_into_the_original_partition(world: World) -> None:
    """Key, value and headers are those of the record, without the headers of the dead letter."""
    world.letter(7)

    result = world.replay()

    assert (0, f"1 records written to {world.source}\n") == (result.code, result.out)
    assert [(1, b"k", b"\xff7", [("trace", b"\x00")])] == [
        (record.partition, record.key, record.value, list(record.headers)) for record in world.records()
    ]


def test_replays_each_dead_letter_once(world: World) -> None:
    """A second call continues where the first one has ended."""
    world.letter(1)
    world.replay()
    world.letter(2)

    results = [world.replay().out for _ in range(2)]

    assert [f"1 records written to {world.source}\n", "no dead letters to replay\n"] == results
    assert [b"\xff1", b"\xff2"] == [record.value for record in world.records()]


def test_an_interrupted_batch_is_replayed_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the command ends before the transaction does, readers of committed records see nothing of it."""
    world.letter(1)
    with monkeypatch.context() as patched:
        error = KafkaTimeoutError("no answer")
        patched.setattr(KafkaProducer, "send_offsets_to_transaction", lambda *_: (_ for _ in ()).throw(error))
        failed = world.replay()

    world.replay()

    assert "Call the command again" in failed.err
    assert [b"\xff1"] == [record.value for record in world.records()]


def test_says_which_dead_letters_cannot_be_replayed(world: World) -> None:
    """Those without their complete record, results, duplicates, and other records."""
    world.letter(1, omitted=b"value")
    world.letter(2, partition=b"")
    world.letter(3)
    world.letter(3)
    world.cluster.send(world.letters, b"x")

    result = world.replay()

    assert f"1 records written to {world.source}\n" in result.out
    for reason in ("incomplete", "results", "duplicates", "no dead letters"):
        assert f"1 not replayed: they are {reason}" in result.out


def test_a_dry_run_writes_nothing(world: World, tmp_path: Path) -> None:
    """The command lists the records that it would replay, with the reasons why they are dead letters.

    It accepts the properties file that `kafkasse pipeline run --kafka-config` reads.
    """
    world.letter(7)
    file = tmp_path / "client.properties"
    file.write_text(f"bootstrap.servers={world.cluster.bootstrap_servers}\nsecurity.protocol=PLAINTEXT\n")

    result = world.replay("--kafka-config", str(file), "--dry-run")

    assert f"{world.source} partition 1 offset 7 key k: bad\n" == result.out
    assert [] == world.records()


def test_a_missing_topic_is_reported(world: World) -> None:
    """The topic is not created."""
    world.letters = "no-such-topic"

    assert "the topic no-such-topic does not exist" in world.replay().err
