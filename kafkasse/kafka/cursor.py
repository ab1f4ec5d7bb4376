"""KafkaCursor reads partitions with its own Fetch requests, over one connection per broker.

It executes what its core decides (cursor_core.py): lookups, each in a greenlet, and Fetch requests (broker_node.py).

kafka-python's consumer does the same, but needs a millisecond of CPU per fetch. A cursor knows offsets and leaders. It does
not know about clients, event IDs or frames.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping

import gevent
from gevent import get_hub
from gevent.lock import BoundedSemaphore

from kafkasse.errors import KafkasseError
from kafkasse.kafka import errors
from kafkasse.kafka.batches import MAX_COST
from kafkasse.kafka.broker_node import BrokerNode
from kafkasse.kafka.connection_pool import ConnectionPool
from kafkasse.kafka.cursor_core import Cluster, CursorCore, CursorLookup, CursorOptions
from kafkasse.kafka.fetch_session import FetchSession
from kafkasse.log import Batch, Epochs, Offsets, Partition
from kafkasse.process.event_loop import WakeUp, take_turn

log = logging.getLogger(__name__)

MAX_POLL_COST = 2 * MAX_COST  # poll() returns at most about 2,000 records or 1 MiB
MAX_DECODE_S = 0.005  # after this time, poll() returns the records that it has decoded
MAX_THREADS = 2  # that decompress large blocks

_threads = BoundedSemaphore(MAX_THREADS)


class KafkaCursor:
    """Implements log.Cursor.

    Args:
        cluster: answers the lookups.
        pool: provides connections.
        outages: receives the failures of connections.
    """

    def __init__(self, cluster: Cluster, pool: ConnectionPool, options: CursorOptions, outages: errors.Outages) -> None:
        self._cluster = cluster
        self._pool = pool
        self._options = options
        self._outages = outages
        self._core = CursorCore(cluster, options, errors, log)
        self._nodes: dict[FetchSession, BrokerNode] = {}
        self._responses: deque[tuple[BrokerNode, memoryview]] = deque()
        self._wakeup = WakeUp()
        self._closed = False

    # log.Cursor

    def seek(self, offsets: Offsets, epochs: Epochs | None = None, topic_ids: Mapping[str, str] | None = None) -> None:
        self._core.seek(offsets, epochs or {}, topic_ids or {})
        self._wakeup.set()

    def remove(self, partitions: Iterable[Partition]) -> None:
        self._core.remove(partitions)

    def poll(self, timeout_s: float) -> list[Batch]:
        deadline_s = time.monotonic() + timeout_s
        if self._core.undecoded and (error := self._core.next_error(time.monotonic())) is not None:
            raise error  # in an overloaded tail, some records may always be undecoded
        if self._options.tail and self._core.undecoded:
            gevent.sleep(0)
            self._process_responses()
            self._act()  # fetch the other partitions between two pieces of a large response
        while True:
            if self._core.undecoded and (batches := self._decode()):
                if self._core.fetches_ahead:
                    self._act()
                return batches
            if self._closed:
                return []
            if (error := self._core.next_error(time.monotonic())) is not None:
                raise error
            self._wakeup.clear()
            self._act()
            if not self._responses and not self._wait(deadline_s):
                return []
            self._process_responses()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._core.close()
        # Break the reference cycles between cursor and nodes, so that records and buffers are freed at once.
        nodes, self._nodes = list(self._nodes.values()), {}
        self._responses.clear()
        for node in nodes:
            node.close()
        self._wakeup.set()

    def _wait(self, deadline_s: float) -> bool:
        """Wait until there is something to do. Return False after the deadline."""
        until_s = min(deadline_s, self._core.wake_at)
        return self._wakeup.wait(max(0.0, until_s - time.monotonic())) or time.monotonic() < deadline_s

    def _decode(self) -> list[Batch]:
        """Decode the next records that were fetched. All cursors of the process take turns."""
        core = self._core
        cost, until_s = 0, time.monotonic() + MAX_DECODE_S
        while core.undecoded and cost < MAX_POLL_COST and not (core.decoded and time.monotonic() > until_s):
            take_turn(urgent=self._options.tail)
            cost += core.decode_run()
            if (block := core.large_block) is not None:
                with _threads:
                    get_hub().threadpool.apply(block.decompress)
        return core.take_batches()

    def _process_responses(self) -> None:
        while self._responses:
            take_turn(urgent=self._options.tail)  # the responses to hundreds of cursors may arrive at once
            if not self._responses:  # closed meanwhile
                return
            node, data = self._responses.popleft()
            session = node.session
            if self._nodes.get(session) is not node or (response := node.parse(data)) is None:
                continue
            if not self._core.on_response(time.monotonic(), session, response) and session in self._nodes:
                self._nodes.pop(session).close()

    def _act(self) -> None:
        """Start the lookups and fetches that are due."""
        now = time.monotonic()
        if (lookup := self._core.next_lookup(now)) is not None:
            gevent.spawn(self._look_up, lookup)
        for session in self._core.fetches(now):
            if session not in self._nodes:
                node = BrokerNode(session, self._core, self._pool, self._options, self._on_response, self._on_error)
                self._nodes[session] = node
            self._nodes[session].fetch()

    def _look_up(self, lookup: CursorLookup | None) -> None:
        """Execute a lookup, and those that continue it."""
        while lookup is not None and not self._closed:
            try:
                answer = lookup.ask(self._cluster)
            except Exception as error:
                if not isinstance(error, KafkasseError):
                    log.exception("A lookup in Kafka failed unexpectedly.")
                self._core.lookup_failed(time.monotonic(), lookup, error)
            else:
                self._core.end_lookup(time.monotonic(), lookup, answer)
            self._wakeup.set()
            lookup = self._core.next_lookup(time.monotonic())

    # Callbacks of the nodes

    def _on_response(self, node: BrokerNode, data: memoryview) -> None:
        if not self._closed:
            self._responses.append((node, data))
            self._wakeup.set()

    def _on_error(self, session: FetchSession, error: Exception, retry_now: bool) -> None:
        if (node := self._nodes.pop(session, None)) is not None:
            node.close()
        if not retry_now:
            self._outages.connection_failed(session.broker.node_id, error)
        if isinstance(error, errors.PERMANENT_ERRORS):
            self._core.end(errors.report(error))
        self._core.connection_failed(time.monotonic(), session, retry_now)
        self._wakeup.set()
