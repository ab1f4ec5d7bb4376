"""The leader epochs in which a partition was read."""

from __future__ import annotations

from kafkasse.log import UNKNOWN_EPOCH
from kafkasse.log.epoch_history import MAX_EPOCHS, EpochHistory

NONE = -5


def test_finds_where_a_newer_epoch_was_read():
    """The epoch of the record before the start counts. A truncation forgets the epochs after it."""
    history = EpochHistory(10, 3)
    history.add(20, 4)
    history.add(30, 7)

    assert [9, 20, 30, NONE] == [history.first_newer(epoch, NONE) for epoch in (2, 3, 5, 7)]
    history.truncate(30)
    assert NONE == history.first_newer(4, NONE)


def test_finds_the_epoch_before_an_offset():
    """The epoch is unknown before the first record that was read."""
    history = EpochHistory(10, 3)
    history.add(20, 4)

    assert [UNKNOWN_EPOCH, 3, 3, 4] == [history.before(offset) for offset in (9, 10, 20, 21)]


def test_a_history_is_bounded():
    """Only the newest epochs are remembered, so that the memory of a partition does not grow with each election."""
    history = EpochHistory()
    for epoch in range(3 * MAX_EPOCHS):
        history.add(epoch, epoch)

    assert 2 * MAX_EPOCHS == history.first_newer(-1, NONE)
