"""The list of the records that a pipeline skips."""

from __future__ import annotations

from kafkasse.pipelines.skipped import Skipped

SKIPPED = Skipped(frozenset({("orders", 0, 17), ("orders", 0, 3), ("orders", 10, 5), ("refunds", 0, 1)}))


def test_the_file_contains_all_records() -> None:
    """A missing file is an empty list."""
    assert '{"orders": {"0": [3, 17], "10": [5]}, "refunds": {"0": [1]}}' == SKIPPED.text()
    assert SKIPPED == Skipped.parse(SKIPPED.text())
    assert Skipped() == Skipped.parse(None) == Skipped.parse(Skipped().text())


def test_the_offsets_of_a_topic() -> None:
    """The query does not read the records at these offsets."""
    assert {0: [3, 17], 10: [5]} == SKIPPED.offsets("orders")
    assert {} == SKIPPED.offsets("nix")


def test_a_record_that_is_added_twice_is_one_record() -> None:
    """A known record changes nothing, and a new record is added."""
    assert SKIPPED == SKIPPED.plus([("orders", 0, 17)])
    assert {0: [3, 17], 10: [5, 6]} == SKIPPED.plus([("orders", 10, 6)]).offsets("orders")


def test_a_commit_removes_the_records_before_it() -> None:
    """The query reads the record at the offset of the commit next. Records of partitions without a commit are kept."""
    after = SKIPPED.after({"orders": {"0": 17}, "refunds": {"0": 2}})

    assert {("orders", 0, 17), ("orders", 10, 5)} == after.records
    assert SKIPPED == SKIPPED.after({})
