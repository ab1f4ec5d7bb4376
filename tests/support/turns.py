"""For tests of feeds: advance a tail whose greenlet does not run, and read what a reader returns."""

from __future__ import annotations

from kafkasse.feed import Reader
from kafkasse.feed.tail import Tail
from tests.support.sse import numbers_in


def turn(tail: Tail) -> float:
    """Run one turn, and wait until the feeds with hooks have appended the records. Return the result of Tail.turn()."""
    rest_s = tail.turn(0)
    for backlog in list(tail.backlogs.values()):
        backlog.join()
    return rest_s


def numbers(reader: Reader) -> list[int]:
    """Return the member `n` of each record that the reader returns now."""
    return numbers_in(b"".join(iter(lambda: reader.read(0), b"")))
