"""What becomes of topics, and what positions in them: clients get all of it, or are told what they cannot have."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.chaos.scene import Author, Scene, TransactionAuthor, eventually, go_on, moves, unbroken, watch

Stage = Callable[..., Scene]


def test_a_topic_is_deleted_and_made_again(stage: Stage, fresh_name: str) -> None:
    """Streams end with a 410, who comes back is answered 404. Made again, it is read from its first record, after a gap."""
    scene = stage()
    topic = scene.topic(fresh_name)
    readers = watch(scene, topic)[:2]  # the third reads partition 0 alone; so nobody tells it of the other one
    del scene.readers[2]

    scene.delete(topic)
    eventually(lambda: all(404 in each.statuses for each in readers))
    scene.make_again(topic)
    go_on(readers)

    assert all(b'"status":410' in each.body for each in readers)
    assert all(b"the topic was deleted and recreated" in each.body for each in readers)
    assert [] == scene.violations(statuses={404, 410})


def test_a_topic_is_made_again_at_once(stage: Stage, fresh_name: str) -> None:
    """Nobody notices that it was away: the streams end politely, and go on after a gap."""
    scene = stage()
    topic = scene.topic(fresh_name)
    readers = watch(scene, topic)

    for _ in range(3):
        scene.delete(topic)
        scene.make_again(topic)
        go_on(readers)

    assert all(b"the topic was deleted and recreated" in each.body for each in readers)
    assert [] == scene.violations(statuses={404, 410, 503})  # where a look fell just between


def test_partitions_are_added(stage: Stage, fresh_name: str) -> None:
    """They are read from their first record by all who read the whole topic."""
    scene = stage()
    topic = scene.topic(fresh_name)
    readers = watch(scene, topic)

    for partitions in (3, 5):
        scene.grow(topic, partitions)
        go_on(readers)

    assert unbroken(readers)
    assert [] == scene.violations()


def test_retention_passes_who_is_away(stage: Stage, fresh_name: str) -> None:
    """What was removed meanwhile is declared by a gap, and no more than that."""
    scene = stage()
    topic = scene.topic(fresh_name)
    readers = watch(scene, topic)

    for _ in range(3):
        scene.ways[0].refuse()
        ends = scene.witness(topic)
        eventually(lambda ends=ends: scene.witness(topic)[topic, 0] > ends[topic, 0] + 20)
        scene.kafka.drop_before(topic, ends[topic, 0] + 10)
        scene.ways[0].heal()
        go_on(readers)

    assert all(b"removed by retention" in each.body for each in readers)
    assert [] == scene.violations()


COMPACTION = {
    "cleanup_policy": "compact",
    "segment_ms": "500",
    "min_cleanable_dirty_ratio": "0.01",
    "min_compaction_lag_ms": "2000",  # so the witness has time to read what goes
}


def test_compaction_is_under_way(stage: Stage, fresh_name: str) -> None:
    """Records that newer ones of their key have replaced may come or not; the newest come, in order, and once."""
    scene = stage()
    topic = scene.topic(fresh_name, per_s=200, **COMPACTION)
    readers = watch(scene, topic)

    def compacted() -> bool:
        ends = scene.witness(topic)
        late = scene.read(topic, query="?timestamp=0", start=0)
        eventually(lambda: moves(late))
        return scene.holds(topic) < sum(ends.values()) / 2

    eventually(compacted)
    go_on(readers)

    assert unbroken(readers)
    assert [] == scene.violations(excused=[topic], compacted=[topic])


def test_transactions(stage: Stage, fresh_name: str) -> None:
    """What is committed comes once it is; what is aborted never does, and ids go past it."""
    scene = stage()
    topic = scene.topic(fresh_name, author=TransactionAuthor)
    readers = watch(scene, topic)

    for _ in range(5):
        scene.ways[0].cut()
        go_on(readers)

    assert [] == scene.violations()


def test_every_codec(stage: Stage, fresh_name: str) -> None:
    """Compressed by gzip, snappy, lz4 or zstd: all the same."""
    scene = stage()
    topics = [scene.topic(f"{fresh_name}-{each}", compression_type=each) for each in ("gzip", "snappy", "lz4", "zstd")]
    readers = [scene.read(*topics, query="?timestamp=0", start=0), *(scene.read(topic) for topic in topics)]

    for _ in range(3):
        scene.ways[0].cut()
        go_on(readers)

    assert [] == scene.violations()


class LargeAuthor(Author):
    """Writes records of up to 900 kB."""

    def _send(self, turn: int) -> None:
        size = random.Random(turn).choice([10, 100_000, 900_000])  # noqa: S311
        self._writer.send(self.topic, turn % self.partitions, b'{"n":%d,"x":"%b"}' % (turn, b"x" * size))


def test_records_larger_than_a_fetch(stage: Stage, fresh_name: str) -> None:
    """A fetch brings 64 KiB, a record may have fourteen times as much."""
    scene = stage()
    readers = watch(scene, scene.topic(fresh_name, author=LargeAuthor, per_s=20))

    for _ in range(3):
        scene.ways[0].cut()
        go_on(readers)

    assert [] == scene.violations()


class SkewedAuthor(Author):
    """Writes with a clock that jumps by up to twenty minutes."""

    def _send(self, turn: int) -> None:
        for n in range(4 * turn, 4 * turn + 4):
            jump_ms = random.Random(n).randrange(-1_200_000, 1_200_000)  # noqa: S311
            value = b'{"n":%d}' % n
            self._writer.send(self.topic, n % self.partitions, value, timestamp_ms=self.began_ms + jump_ms)


def test_clocks_that_jump(stage: Stage, fresh_name: str) -> None:
    """Times out of order: who begins at a time begins at the first record that has it, and goes on by offsets."""
    scene = stage()
    topic = scene.topic(fresh_name, author=SkewedAuthor)
    scene.read(topic)
    eventually(lambda: scene.witness(topic) and scene.written)
    for _ in range(5):
        ends = scene.witness(topic)
        when = scene.lots.choice(list(scene.written.values())).timestamp
        bounds = {partition: (end, 2**63) for partition, end in ends.items()}
        scene.read(topic, query=f"?timestamp={when}", start=when, ends=bounds)
        scene.ways[0].cut()
        go_on(scene.readers)

    assert [] == scene.violations()
