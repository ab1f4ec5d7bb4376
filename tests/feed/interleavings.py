"""Steps of a world with one feed, which hypothesis combines in any order."""

from __future__ import annotations

from hypothesis import strategies as st

from kafkasse.position import PartitionStart, parse

MAX_PARTITIONS = 6
ENCODERS = 2


def starts(position_id: str) -> dict[int, PartitionStart]:
    return {partition.partition: start for partition, start in parse(position_id).starts.items()}


def step(name: str, largest: int = 0) -> st.SearchStrategy[tuple[str, int]]:
    return st.tuples(st.just(name), st.integers(0, largest))


STEP = st.one_of(
    step("append", MAX_PARTITIONS - 1),
    step("append_marker", MAX_PARTITIONS - 1),
    step("turn"),
    step("heartbeat"),
    step("connect", ENCODERS - 1),
    step("grow"),
    step("drop", 9),
    step("read", 9),
    step("read", 9),
    step("cut", 9),
    step("cut_while_sending", 99),
    step("send_moved_id", 9),
    step("park", 9),
    step("park", 9),
    step("limit_socket", 9),
    step("wake", 9),
    step("resume", 9),
    step("end", 9),
    step("revoke", 9),
)
SWITCHES = st.lists(STEP, max_size=10)
RING = st.integers(1, 12)
