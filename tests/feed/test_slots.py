"""The slots for catching up: which reader is next, and when a reader loses its slot."""

from __future__ import annotations

from collections.abc import Iterator

import gevent
import pytest

from kafkasse.feed.slots import CatchUpSlots, Clients, QueuedSlot
from tests.support.waiting import TIMEOUT_S, wait_until


@pytest.fixture
def slots() -> Iterator[CatchUpSlots]:
    slots = CatchUpSlots(1, quantum_s=TIMEOUT_S * 2)
    yield slots
    slots._queues.clear()
    slots._waiting = 0


def request(slots: CatchUpSlots, client: str = "a", revoked: list[str] | None = None) -> QueuedSlot:
    return slots.request(client, lambda: None if revoked is None else revoked.append(client))


def test_clients_take_turns(slots):
    """A client with many readers delays a reader of another client by one turn."""
    holder = request(slots, "a")
    waiting = [request(slots, client) for client in "aaaabbc"]
    order = []
    while holder:
        holder.release()
        holder = next((slot for slot in waiting if slot.granted and slot not in order), None)
        order += [holder] if holder else []

    assert "abcabaa" == "".join(client for slot in order for client in slot.clients)


def test_a_reader_of_several_clients_is_granted_a_slot_at_the_first_turn_of_any(slots):
    holder = request(slots, "a")
    waiting = [request(slots, "a") for _ in range(9)]
    clients = Clients("a")
    shared = clients.request(slots)
    clients.add("b")
    clients.add("c")
    waiting += [request(slots, "c"), request(slots, "b")]

    holder.release()
    waiting[0].release()
    assert shared.granted
    clients.add("d")
    assert {"a", "b", "c"} == slots._queues.keys()

    shared.release()
    for slot in waiting:
        slot.release()
    assert (0, {}) == (slots._waiting, slots._queues)


def test_a_reader_that_leaves_the_queue_is_not_granted_a_slot(slots):
    holder, leaving, staying = request(slots), request(slots), request(slots)
    leaving.release()

    holder.release()

    assert (False, True) == (leaving.granted, staying.granted)
    assert 0 == slots._waiting


def test_a_slot_is_not_revoked_while_no_reader_waits():
    """A reader may catch up for as long as it takes."""
    slots = CatchUpSlots(2, quantum_s=0.0)
    held = [request(slots), request(slots)]
    for slot in held:
        slot.started()
    slots.revoke_expired()

    assert [False, False] == [slot.revoked for slot in held]


def test_as_many_slots_are_revoked_as_readers_wait_for():
    """One reader waits, so one slot is revoked: the one that was granted first."""
    slots, revoked = CatchUpSlots(2, quantum_s=0.0), []
    held = [request(slots, client, revoked) for client in "ab"]
    for slot in held:
        slot.started()
    waiting = request(slots, "c")

    wait_until(lambda: revoked)
    slots.revoke_expired()
    gevent.sleep(0)  # a slot is revoked in a greenlet of its own
    assert ["a"] == revoked
    held[0].release()

    assert waiting.granted


def test_a_reader_that_does_not_release_its_revoked_slot_delays_only_one_other_reader():
    """For example, Kafka does not answer while the reader closes its cursor.

    The next slot is revoked for the next reader.
    """
    slots = CatchUpSlots(2, quantum_s=0.0)
    stuck, other = request(slots), request(slots)
    for slot in (stuck, other):
        slot.started()
    waiting = [request(slots, "b")]
    wait_until(lambda: stuck.revoked)

    waiting.append(request(slots, "b"))

    wait_until(lambda: other.revoked)
    other.release()
    assert [True, False] == [slot.granted for slot in waiting]
    for slot in waiting:
        slot.release()
