"""Feeds read records from a log, starting at a position, and return frames. This package uses neither HTTP nor Kafka.

The core does no I/O, has no clock and never lets other greenlets run. `make lint` checks its direct imports.

    feed_core      the ring, the position and the parked clients of a feed: ring, subscribers, feed_epochs, stats
    reader_core    the state and the position of a reader, and what it reads from the ring: reader_states

These modules run the core with greenlets:

    feeds          finds or creates the feed of a stream, and opens its reader: start, epochs, lookup
    tail           reads the new records for all feeds: topic_watch, backlog
    shared_feed    encodes records for a feed, and sends them: versions
    reader         reads from the snapshot, the reader's own cursor and the ring: snapshot, slots, catch_up
"""

from kafkasse.feed.core.reader import StopReason
from kafkasse.feed.core.subscribers import ParkedClient
from kafkasse.feed.feeds import Feeds
from kafkasse.feed.reader import Reader

__all__ = ["Feeds", "ParkedClient", "Reader", "StopReason"]
