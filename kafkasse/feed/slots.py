"""Fair shares of limited places, above all of the slots for catching up. Does not depend on Kafka.

The slots limit how many readers may have a cursor at the same time:

    request() ─▶ the queue of the client's address ─▶ slot ─▶ release()
                       ▲                               │ revoked, while others wait
                       └───────────────────────────────┘

The next slot goes to each client address in turn, so a client with a thousand streams delays another client by one reader.
While others wait, a reader keeps its slot only for a short time, however slowly its client reads.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

import gevent
from gevent.event import Event

from kafkasse.errors import ServerFull, TooManySelections

QUANTUM_S = 2.0  # how long a reader keeps its slot after its first records, while others wait
MAX_START_S = 10.0  # how long it may wait for its first records
CHECK_S = 0.1


def has_its_share(client: str, owners: Sequence[str], limit: int) -> bool:
    """Return whether a client occupies as many of `limit` places as are free. The free ones remain for other clients.

    A single client can occupy half of all places. The more places other clients occupy, the smaller is the share of each.

    Args:
        client: the address of the client.
        owners: for each occupied place, the address of its client.
        limit: the number of all places.

    Source: the dynamic thresholds of Choudhury and Hahne, with which switches share a buffer among their ports.
    """
    return owners.count(client) >= limit - len(owners)


def no_place(client: str, owners: Sequence[str], limit: int, places: str) -> ServerFull | TooManySelections:
    """Return the error of a client that has its share.

    The status is 429 if the client occupies half of the places, which is too much even if no other client occupies any.
    Such a rejection counts towards max_rejections_per_s. Otherwise, all clients together occupy too many, and the status
    is 503.

    Args:
        client: the address of the client.
        owners: for each occupied place, the address of its client.
        limit: the number of all places.
        places: what occupies a place.
    """
    if 2 * owners.count(client) >= limit:
        return TooManySelections(f"Your address uses half of the {limit} {places}. Close a stream, then retry.")
    return ServerFull(f"All clients together use too many of the {limit} {places}. Retry later.")


class QueuedSlot:
    """The slot of one reader, or its place in the queue.

    Args:
        slots: grants the slot.
        client: the address of the client.
        on_revoke: called in a new greenlet when the slot is revoked. It must make the reader call release() soon.

    Attributes:
        clients: the addresses of all clients of the reader, in whose queues it waits.
        granted: the reader has the slot.
        revoked: the reader must release the slot.
    """

    __slots__ = ("_changed", "_slots", "clients", "expires_at", "granted", "on_revoke", "revoked")

    def __init__(self, slots: CatchUpSlots, client: str, on_revoke: Callable[[], None]) -> None:
        self.clients = [client]
        self.granted = False
        self.revoked = False
        self.expires_at = 0.0
        self.on_revoke = on_revoke
        self._slots = slots
        self._changed = Event()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the slot is granted, or until wake() is called. Return whether it is granted."""
        if not self.granted:
            self._changed.wait(timeout_s)
        return self.granted

    def join(self, client: str) -> None:
        """Grant the slot when it is the turn of this client, too, because it shares the reader."""
        self._slots.join(self, client)

    def wake(self) -> None:
        """End wait()."""
        self._changed.set()

    def grant(self) -> None:
        """Give the slot to the reader. CatchUpSlots calls this."""
        self.granted = True
        self.expires_at = time.monotonic() + MAX_START_S
        self.wake()

    def started(self) -> None:
        """Start the time that the reader may keep the slot. The reader calls this when it has records."""
        self.expires_at = min(self.expires_at, time.monotonic() + self._slots.quantum_s)

    def release(self) -> None:
        """Give the slot to the next reader, or leave the queue. May be called twice."""
        self._slots.release(self)
        self.wake()


class Clients:
    """The addresses of the clients that share a reader."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = set(addresses)
        self._slot: QueuedSlot | None = None

    def add(self, address: str) -> None:
        """Add a client that has joined."""
        if address not in self.addresses:
            self.addresses.add(address)
            if self._slot is not None:
                self._slot.join(address)

    def request(self, slots: CatchUpSlots) -> QueuedSlot:
        """Return the slot of the reader. A revoked one is soon released."""
        first, *others = self.addresses
        self._slot = slots.request(first, lambda: None)
        for address in others:
            self._slot.join(address)
        return self._slot


class CatchUpSlots:
    """Grants slots.

    Args:
        count: the number of slots.
        quantum_s: how long a reader keeps its slot while others wait.
    """

    def __init__(self, count: int, quantum_s: float = QUANTUM_S) -> None:
        self.quantum_s = quantum_s
        self._count = count
        self._held: dict[QueuedSlot, None] = {}
        # By client; the first client is next.
        self._queues: OrderedDict[str, OrderedDict[QueuedSlot, None]] = OrderedDict()
        self._waiting = 0
        self._is_checking = False

    def request(self, client: str, on_revoke: Callable[[], None]) -> QueuedSlot:
        """Return a slot, which is granted now or later."""
        slot = QueuedSlot(self, client, on_revoke)
        self._queues.setdefault(client, OrderedDict())[slot] = None
        self._waiting += 1
        self._grant()
        if self._waiting and not self._is_checking:
            self._is_checking = True
            gevent.spawn(self._check)
        return slot

    def join(self, slot: QueuedSlot, client: str) -> None:
        """See QueuedSlot.join()."""
        if self._is_waiting(slot):
            slot.clients.append(client)
            self._queues.setdefault(client, OrderedDict())[slot] = None

    def release(self, slot: QueuedSlot) -> None:
        """See QueuedSlot.release()."""
        if slot in self._held:
            del self._held[slot]
            self._grant()
        elif self._is_waiting(slot):
            self._leave(slot)

    def _is_waiting(self, slot: QueuedSlot) -> bool:
        return slot in self._queues.get(slot.clients[0], ())

    def _leave(self, slot: QueuedSlot) -> None:
        self._waiting -= 1
        for client in slot.clients:
            del self._queues[client][slot]
            if not self._queues[client]:
                del self._queues[client]

    def _grant(self) -> None:
        while self._queues and len(self._held) < self._count:
            client, queue = next(iter(self._queues.items()))
            self._queues.move_to_end(client)  # the last client in the next round
            slot = next(iter(queue))
            self._leave(slot)
            self._held[slot] = None
            slot.grant()

    def _check(self) -> None:
        while self._waiting:
            self.revoke_expired()
            gevent.sleep(CHECK_S)
        self._is_checking = False

    def revoke_expired(self) -> None:
        """Revoke slots whose time is over, at most one for each reader that waits."""
        now = time.monotonic()
        needed = self._waiting - sum(slot.revoked for slot in self._held)
        expired = [slot for slot in self._held if slot.expires_at <= now and not slot.revoked]
        for slot in expired[: max(0, needed)]:
            slot.revoked = True
            gevent.spawn(slot.on_revoke)
