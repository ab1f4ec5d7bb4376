"""Advancing a tail whose greenlet does not run."""

from __future__ import annotations

from kafkasse.feed.tail import Tail


def turn(tail: Tail) -> float:
    """Run one turn, and wait until the feeds with hooks have appended the records. Return the result of Tail.turn()."""
    rest_s = tail.turn(0)
    for backlog in list(tail.backlogs.values()):
        backlog.join()
    return rest_s
