"""Random edits of members of groups, and what `ranked` and `latest_per_key` must return for them, in plain Python.

This module does not import Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import NamedTuple

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from tests.support.examples import is_long

PARTITIONS = 3
# Each example is a query with many histories. `make test` tries one: the simplest one, which has Random(0).
CHANCES = st.integers(0, 2**32).map(Random)
with_many_histories = settings(
    max_examples=20 if is_long() else 1,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # another number is no simpler example
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
# Long keys have an equal prefix. The last two sort differently as UTF-8 and as UTF-16.
KEYS = [f"k{i}" for i in range(30)] + [f"a common prefix of 24 by {i}" for i in range(8)] + ["\uffff", "\U0001f600"]
GROUPS = ("north", "south")


class Edit(NamedTuple):
    """A record: a key has a group and a rank, or is removed if its group is None."""

    key: str
    group: str | None
    rank: int
    partition: int = 0
    offset: int = 0
    order: int = 0

    @property
    def row(self) -> tuple[object, ...]:
        item = {"key": self.key, "rank": self.rank, "tags": [self.rank / 2], "counts": {"a": self.rank}}
        return (self.key, self.group, self.rank, item, self.partition, self.offset, self.order)


SCHEMA = (
    "key string, group string, rank bigint, item struct<key: string, rank: bigint, tags: array<double>, counts: "
    "map<string, bigint>>, partition int, offset bigint, order bigint"
)


def numbered(edits: Iterable[Edit]) -> list[Edit]:
    """Give each edit the next offset of its key's partition."""
    offsets = [0] * PARTITIONS
    result = []
    for edit in edits:
        partition = sum(edit.key.encode()) % PARTITIONS
        result.append(edit._replace(partition=partition, offset=offsets[partition]))
        offsets[partition] += 1
    return result


def history(chance: Random) -> list[Edit]:
    """Inserts, corrections, moves and removals. Some make a group large and then remove some of its largest members.

    With these numbers, a wrong candidate in the state of a group gives a wrong result in 5 % of the histories.
    """
    edits: list[Edit] = []
    for kind in chance.choices(["edits", "fill", "drain"], k=chance.randint(0, 12)):
        if kind == "edits":
            groups = [*GROUPS, GROUPS[0], None]
            edits += [
                Edit(chance.choice(KEYS), chance.choice(groups), chance.randint(-3, 3), order=chance.randint(0, 5))
                for _ in range(chance.randint(0, 25))
            ]
        elif kind == "fill":
            count = chance.randint(1, 40)
            edits += [Edit(key, GROUPS[0], number % 20) for number, key in enumerate(KEYS[:count])]
        else:
            largest = members(edits).get(GROUPS[0], [])[: chance.randint(1, 16)]
            edits += [Edit(key, None, 0, order=9) for key in largest]
    return numbered(edits)


def latest(edits: Iterable[Edit]) -> dict[str, Edit]:
    newest = {edit.key: edit for edit in edits}
    return {key: edit for key, edit in newest.items() if edit.group is not None}


def changes(edits: Iterable[Edit]) -> dict[str, list[tuple[str | None, int | None]]]:
    """The group and the rank of each key each time that they change, and two nulls for a removal."""
    rows: dict[str, list[tuple[str | None, int | None]]] = {}
    for edit in edits:
        row = (edit.group, edit.rank) if edit.group is not None else (None, None)
        of_key = rows.setdefault(edit.key, [])
        if row != (of_key[-1] if of_key else (None, None)):
            of_key.append(row)
    return rows


def latest_by_order(edits: Iterable[Edit]) -> dict[str, Edit]:
    """The edit with the highest order of each key, and for equal orders the last one. Removed keys are left out."""
    return latest(sorted(edits, key=lambda edit: (edit.order, edit.partition, edit.offset)))


def members(edits: Iterable[Edit]) -> dict[str, list[str]]:
    """All keys of each group that has a member, in rank order."""
    return ranked_members(latest(edits).values())


def ranked_members(edits: Iterable[Edit]) -> dict[str, list[str]]:
    """Sort these edits of different keys within their groups."""
    ordered = sorted(edits, key=lambda edit: (-edit.rank, edit.key.encode()))
    groups = {edit.group for edit in ordered if edit.group is not None}
    return {group: [edit.key for edit in ordered if edit.group == group] for group in groups}


def top(edits: Iterable[Edit], n: int) -> dict[str, list[str]]:
    return {group: keys[:n] for group, keys in members(edits).items()}


def with_prefix(edit: Edit, prefix: str) -> Edit:
    """The edit of a key and a group that belong to one of several independent histories."""
    return edit._replace(key=f"{prefix}{edit.key}", group=edit.group and f"{prefix}{edit.group}")
