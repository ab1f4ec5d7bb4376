"""Long computations share the event loop."""

from __future__ import annotations

import gevent
import pytest
from gevent import get_hub

from kafkasse.process.event_loop import WakeUp, take_turn
from tests.support.turns import TurnClock


@pytest.fixture
def pieces(monkeypatch):
    """Return a function that computes pieces. `done` has the turn and the greenlet of each piece.

    A piece takes longer than MAX_TURN_S, and nothing else takes any time.
    """
    clock = TurnClock(monkeypatch)
    done: list[tuple[int, str]] = []

    def compute(name: str, count: int, urgent: bool = False, turns: float = 2.0) -> None:
        for _ in range(count):
            take_turn(urgent)
            done.append((gevent.get_hub().loop.iteration, name))
            clock.compute(turns)

    compute.done = done  # type: ignore[attr-defined]
    return compute


def test_a_turn_of_the_event_loop_has_one_long_piece_however_many_greenlets_compute(pieces):
    gevent.joinall([gevent.spawn(pieces, str(index), 3) for index in range(8)])

    turns = [turn for turn, _ in pieces.done]
    assert 24 == len(turns) == len(set(turns))


def test_greenlets_take_turns_in_order(pieces):
    waiting = [gevent.spawn(pieces, name, 3) for name in "abc"]
    pieces("x", 1)  # this turn has no time for the others

    gevent.joinall(waiting)

    assert "xabcabcabc" == "".join(name for _, name in pieces.done)


def test_an_urgent_greenlet_is_next(pieces):
    gevent.joinall([gevent.spawn(pieces, name, 2) for name in "abc"] + [gevent.spawn(pieces, "U", 2, urgent=True)])

    order = "".join(name for _, name in pieces.done)
    assert order.index("UU") <= 1


def test_urgent_greenlets_take_turns_in_order(pieces):
    """Also while others arrive: each of hundreds of tails gets a turn before another one gets its second."""
    waiting = [gevent.spawn(pieces, name, 1) for name in "xy"]
    waiting += [gevent.spawn(pieces, name, 3, urgent=True) for name in "abc"]
    pieces("x", 1)  # this turn has no time for the others

    gevent.joinall(waiting)

    assert "xabcabcabcxy" == "".join(name for _, name in pieces.done)


def test_short_pieces_share_a_turn(pieces):
    pieces("a", 10, turns=0.2)

    turns = [turn for turn, _ in pieces.done]
    assert [5, 5] == [turns.count(turn) for turn in sorted({*turns})]


def test_timers_and_sockets_are_served_between_two_pieces(pieces):
    woken = []
    timer = gevent.spawn_later(0, lambda: woken.append(len(pieces.done)))

    gevent.spawn(pieces, "a", 20).join()

    timer.join()
    assert woken[0] < 5


def test_a_greenlet_that_is_killed_while_it_waits_does_not_block_the_others(pieces):
    greenlets = [gevent.spawn(pieces, name, 3) for name in "abc"]
    gevent.sleep(0)
    greenlets[1].kill()
    gevent.joinall(greenlets)

    assert ["a", "c"] == sorted({name for _, name in pieces.done})


@pytest.mark.parametrize(
    "later",
    [lambda act: get_hub().loop.run_callback(act), gevent.spawn],
    ids=["a callback of the event loop", "a greenlet"],
)
def test_a_greenlet_waits_until_it_is_woken(later):
    """After clear(), it waits again, until the timeout. A call of set() before wait() is not lost."""
    wake_up = WakeUp()
    later(wake_up.set)

    assert wake_up.wait(60)
    assert wake_up.wait(60)
    wake_up.clear()
    assert not wake_up.wait(0.001)
    wake_up.set()
    assert wake_up.wait(60)
