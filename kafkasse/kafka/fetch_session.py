"""The Fetch requests to one broker: which partitions each request contains, and the broker's fetch session. No I/O.

In a session, a request contains only the partitions that have changed since the last one, and the broker responds only with
those that have records or an error. Otherwise, requests and responses contain all partitions.
"""

from __future__ import annotations

from collections.abc import Iterator

from kafkasse.kafka.fetch_position import FetchPosition
from kafkasse.kafka.fetch_protocol import (
    BY_NAME,
    NEW_SESSION,
    NO_SESSION,
    Broker,
    FetchOptions,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

MAX_SESSION_EPOCH = 2**31 - 1


class FetchSession:
    """The partitions that a cursor reads from one broker. One request is in flight at a time.

    Args:
        use_session: keep a fetch session.

    Attributes:
        is_open: the cursor uses this session.
        is_fetching: a request is in flight, or waits for a connection.
        positions: the partitions that requests contain, as the keys of a dict.
        deferred: the partitions that a later request contains, as the keys of a dict, in the order of their turns.
    """

    def __init__(self, broker: Broker, use_session: bool) -> None:
        self.broker = broker
        self.is_open = True
        self.is_fetching = False
        # Requests without a session contain all partitions in this order. A partition that returns records moves to the end.
        self.positions: dict[FetchPosition, None] = {}
        self.deferred: dict[FetchPosition, None] = {}
        self._paused: dict[FetchPosition, None] = {}
        self._to_forget: list[FetchPosition] = []  # those that were paused after the last request
        # Not yet sent to the session, or sent with another offset or limit.
        self._changed: dict[FetchPosition, None] = {}
        # By the topic and partition that responses contain: the partition, and the offset that was requested last.
        self._requested: dict[tuple[bytes, int], tuple[FetchPosition, int]] = {}
        self._forgotten: list[tuple[bytes, int]] = []  # to remove from the session
        self._without_topic_id: set[FetchPosition] = set()  # their topics have no ID, so all requests contain names
        self._session = NEW_SESSION if use_session else NO_SESSION  # of the next request
        self._version = 0  # of the last request
        self._max_partition_bytes = 0  # of the last request

    @property
    def has_partitions(self) -> bool:
        """Whether the cursor reads partitions from this broker. Those that are paused or deferred count."""
        return bool(self.positions or self._paused or self.deferred)

    @property
    def reads_replica(self) -> bool:
        """Whether the cursor reads a partition from this broker although another one is its leader."""
        positions = *self.positions, *self._paused, *self.deferred
        return any(position.leader.broker != self.broker for position in positions)

    def add(self, position: FetchPosition) -> None:
        """Request a partition from now on."""
        self.positions[position] = self._changed[position] = None
        if not position.leader.topic_id:
            self._without_topic_id.add(position)

    def remove(self, position: FetchPosition) -> None:
        """Stop requesting a partition. The response in flight to a request for it is ignored."""
        self.positions.pop(position, None)
        self._paused.pop(position, None)
        self.deferred.pop(position, None)
        self._without_topic_id.discard(position)
        self._forget(position)

    def pause(self, position: FetchPosition) -> None:
        """Leave a partition out of requests until resume() or remove() is called."""
        del self.positions[position]
        self._paused[position] = None
        self._to_forget.append(position)  # later, because it may be resumed before the next request

    def defer(self, position: FetchPosition) -> None:
        """As pause(). It comes after all others that are deferred."""
        self.positions.pop(position, None)
        self._paused.pop(position, None)
        self.deferred[position] = None
        self._forget(position)

    def resume(self, position: FetchPosition) -> None:
        """Request a partition again, at its new offset, and after all others, so that each gets its share of a response."""
        self._paused.pop(position, None)
        self.deferred.pop(position, None)
        self.positions[position] = self._changed[position] = None

    def _forget(self, position: FetchPosition) -> None:
        self._changed.pop(position, None)
        entry = position.request(self._version)
        name = entry.topic, entry.partition
        if self._requested.pop(name, None) is not None:
            self._forgotten.append(name)

    def offset_changed(self, position: FetchPosition) -> None:
        """Request a partition at its new offset from now on."""
        self._changed[position] = None

    def request(self, newest_version: int, options: FetchOptions) -> FetchRequest:
        """Return the next request.

        Args:
            newest_version: the newest version that the broker supports.
            options: the fields that do not depend on the partitions.
        """
        for position in self._to_forget:
            if position in self._paused:
                self._forget(position)
        self._to_forget.clear()
        version = min(newest_version, BY_NAME) if self._without_topic_id else newest_version
        session_id, epoch = self._session
        if version != self._version and epoch > 0:
            # A session cannot contain both names and topic IDs. Epoch 0 with an ID replaces the session.
            epoch = 0
            self._session = session_id, epoch
        self._version = version
        if epoch <= 0:
            self._changed, self._forgotten, self._requested = self.positions, [], {}
        elif options.max_partition_bytes != self._max_partition_bytes:
            self._changed = self.positions  # the broker remembers the limit of each partition
        self._max_partition_bytes = options.max_partition_bytes
        partitions = []
        for position in self._changed:
            entry = position.request(version)
            self._requested[entry.topic, entry.partition] = position, entry.fetch_offset
            partitions.append(entry)
        # A partition that was removed and added again must not be in both lists: the protocol does not define the result.
        forgotten = [name for name in self._forgotten if name not in self._requested]
        self._changed, self._forgotten = {}, []
        return FetchRequest(version, options, self._session, partitions, forgotten)

    def receive(self, response: FetchResponse) -> Iterator[tuple[FetchPosition, PartitionData]]:
        """Take the response to the last request. Return its partitions; those that seek() has moved are requested again."""
        self.is_fetching = False
        if self._session != NO_SESSION and not response.error_code:
            epoch = self._session[1] % MAX_SESSION_EPOCH + 1
            self._session = (response.session_id, epoch) if response.session_id else NEW_SESSION
        return self._match(response)

    def _match(self, response: FetchResponse) -> Iterator[tuple[FetchPosition, PartitionData]]:
        for data in response.partitions:
            position, offset = self._requested.get((data.topic, data.partition), (None, 0))
            if position not in self.positions:
                continue
            if position.offset == offset:
                yield position, data
            else:
                self.offset_changed(position)

    def restart(self) -> bool:
        """Let the next request open a new session with all partitions. Return False if the last request did the same."""
        was_open = self._session[1] > 0
        if was_open:
            self._session = NEW_SESSION
        return was_open

    def clear(self) -> None:
        """End the session, and forget all partitions."""
        self.is_open = False
        self.positions, self._paused, self.deferred, self._changed, self._requested = {}, {}, {}, {}, {}
