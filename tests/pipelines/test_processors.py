"""The Python processors of the operators, with a state in memory instead of Spark."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester

from kafkasse.pipelines.operators.order_key import order_key, stored_bytes
from kafkasse.pipelines.operators.python_processors import LatestPerKey, Ranked, first_members, rank_order
from tests.pipelines.edits import KEYS, Edit, histories, latest_by_order, ranked_members, top

CHANCES = st.integers(0, 2**32).map(Random)
RANKS = st.integers(-(2**63), 2**63 - 1)


class Stages:
    """Both stages of `ranked`."""

    def __init__(self, n: int, ordered: bool = False) -> None:
        self.by_key, self.by_group = TwsTester(LatestPerKey()), TwsTester(Ranked(n))
        self.members = self.by_group.handle.map_states["members"]
        self._iterator, self.members.iterator = self.members.iterator, self._in_stored_order
        self.entries_read = 0
        self.ordered = ordered
        self.results: list[Row] = []

    def _in_stored_order(self) -> Iterator[tuple[Any, Any]]:
        """The entries of the map in the order of their stored bytes, as RocksDB returns them."""
        for key, member in sorted(self._iterator(), key=lambda entry: stored_bytes(entry[0])):
            self.entries_read += 1
            yield key, member

    def batch(self, edits: list[Edit], chance: Random) -> None:
        """Process a micro-batch. Rows reach each stage in a random order."""
        moves = [move for key in _shuffled({edit.key for edit in edits}, chance) for move in self.changes(edits, key)]
        for group in _shuffled({move.group for move in moves}, chance):
            of_group = [move for move in moves if move.group == group]
            self.results += self.by_group.test(group, _shuffled(of_group, chance))

    def changes(self, edits: list[Edit], key: str) -> list[Row]:
        rows = [
            Row(
                order=edit.order if self.ordered else None,
                version=None,
                position=[(edit.partition, edit.offset)],
                row=(edit.group, edit.rank) if edit.group else None,
            )
            for edit in edits
            if edit.key == key
        ]
        return [move for change in self.by_key.test(key, rows) for move in moves(change)]

    def tops(self) -> dict[str, list[str]]:
        """The last result of each group, without empty ones."""
        return {group: items for group, items in self.last().items() if items}

    def last(self) -> dict[str, list[str]]:
        return {row.group: row["items"] for row in self.results}


def moves(change: Row) -> list[Row]:
    """What the query between the stages computes: a removal from a group, an addition, or both."""
    before, after = change.before, change.after
    common = {"key": change.key, "sequence": change.version, "step": change.step, "position": change.position}
    result = []
    if before and (not after or before[0] != after[0]):
        result.append(Row(**common, group=before[0], old_rank=before[1], rank=None, item=None))
    if after:
        old_rank = before[1] if before and before[0] == after[0] else None
        result.append(Row(**common, group=after[0], old_rank=old_rank, rank=after[1], item=change.key))
    return result


def _shuffled(values: Any, chance: Random) -> list[Any]:
    shuffled = sorted(values) if isinstance(values, set) else list(values)
    chance.shuffle(shuffled)
    return shuffled


def batches(edits: list[Edit], chance: Random) -> list[list[Edit]]:
    """Split the edits into micro-batches that read each partition in order, but the partitions in any order.

    Some edits occur twice in a batch. A source never returns a committed record again.
    """
    rest = {partition: [edit for edit in edits if edit.partition == partition] for partition in range(3)}
    result = []
    while any(rest.values()):
        batch = []
        for partition, waiting in rest.items():
            count = chance.randint(0, 8)
            batch += waiting[:count]
            rest[partition] = waiting[count:]
        result.append(_shuffled([*batch, *chance.sample(batch, min(len(batch), 3))], chance))
    return result


@given(histories(), st.integers(1, 4), CHANCES)
def test_the_top_n_equal_those_of_plain_python(edits, n, chance):
    """The result does not depend on how the edits are split into micro-batches, or repeated and reordered within them.

    Equal input gives equal versions and positions. Each result of a group has a higher version than the one before, also
    after the group became empty.
    """
    both = [Stages(n), Stages(n)]

    for stages in both:
        for batch in batches(edits, chance):
            stages.batch(batch, chance)

    one, other = ({group: state[1:3] for group, state in states(stages).items()} for stages in both)
    assert top(edits, n) == both[0].tops()
    assert one == other
    for group in both[0].last():
        versions = [row.version for row in both[0].results if row.group == group]
        assert sorted(set(versions)) == versions


@given(histories(), st.integers(1, 4), CHANCES)
def test_late_edits_are_ignored(edits, n, chance):
    """With an order, an edit that arrives after one with a higher order changes nothing, even if that one was a removal."""
    stages = Stages(n, ordered=True)

    for batch in batches(edits, chance) + batches(edits, chance):
        stages.batch(batch, chance)

    expected = {group: keys[:n] for group, keys in ranked_members(latest_by_order(edits).values()).items()}
    assert expected == stages.tops()


@given(histories(), st.integers(1, 4), CHANCES)
def test_a_replay_never_gives_a_newer_result_a_lower_version(edits, n, chance):
    """The version for all edits is the highest, in whichever order the results of some of them were computed."""
    before, after = Stages(n), Stages(n)
    for batch in batches(edits, chance)[: chance.randint(0, 10)]:
        before.batch(batch, chance)

    for batch in batches(edits, chance):
        after.batch(batch, chance)

    final = {group: state[1] for group, state in states(after).items()}
    assert all(row.version <= final[row.group] for row in before.results + after.results)


def test_after_a_replay_in_another_order_the_last_result_can_be_outdated():
    """This is why Ranked.java repeats results in real-time mode after a restart.

    Before the restart, only partition 0 was read. After it, the result of all edits has a lower version.
    """
    chance = Random(1)  # noqa: S311 - not used for cryptography
    edits = [Edit("x", "north", 5), *(Edit(f"small {i}", "north", 0, offset=i) for i in range(1, 10))]
    larger = Edit("y", "north", 9, partition=1)
    before, after = Stages(1), Stages(1)
    before.batch(edits, chance)

    for batch in ([larger], edits):
        after.batch(batch, chance)

    assert [(["x"], 55)] == [(row["items"], row.version) for row in before.results]
    assert [(["y"], 1)] == [(row["items"], row.version) for row in after.results]
    assert 56 == states(after)["north"][1]


def states(stages: Stages) -> dict[str, Any]:
    """The state of each group: size, version, position, candidates."""
    return stages.by_group.handle.value_states["group"].state


def test_a_removed_key_leaves_no_state():
    """So the state does not grow with keys that no longer exist."""
    operator = TwsTester(LatestPerKey())
    add = Row(order=None, version=None, position=[(0, 1)], row="a")
    remove = Row(order=None, version=None, position=[(0, 2)], row=None)

    operator.test("k", [add, remove])

    assert {} == operator.handle.value_states["latest"].state


def test_a_large_group_is_read_only_as_far_as_needed():
    """Removing the largest members of a group of 1,000 reads a few entries of the state, and not all."""
    stages, chance = Stages(3), Random(1)  # noqa: S311 - not used for cryptography
    edits = [Edit(f"k{i:04}", "north", i, offset=i) for i in range(1000)]
    stages.batch(edits, chance)
    removals = [Edit(f"k{i:04}", None, 0, offset=2000 - i) for i in range(999, 899, -1)]

    for edit in removals:
        stages.batch([edit], chance)

    assert {"north": ["k0899", "k0898", "k0897"]} == stages.tops()
    assert stages.entries_read < 200


@given(st.lists(st.tuples(RANKS, st.one_of(st.sampled_from(KEYS), st.text())), unique=True))
def test_stored_bytes_sort_by_rank_and_key(members):
    """The first members in the stored order, sorted, are the first members of the group."""
    entries = sorted((stored_bytes(order_key(rank, key)), (key, rank, "")) for rank, key in members)
    unpacked = [(order_key(member[1], member[0]), member) for _, member in entries]

    for wanted in (1, 3):
        found = sorted(first_members(unpacked, wanted), key=rank_order)[:wanted]

        assert sorted(((key, rank, "") for rank, key in members), key=rank_order)[:wanted] == found


def test_all_members_are_read_if_the_state_is_not_sorted():
    """A state store with another layout makes the operator slower, and not wrong."""
    members = [(f"k{i}", i, "") for i in (0, 9, 3, 7)]

    found = list(first_members([(order_key(member[1], member[0]), member) for member in members], 2))

    assert members == found
