"""Feeds read records from a log, starting at a position, and return frames. This package uses neither HTTP nor Kafka.

core decides which bytes a client receives. It does no I/O and has no clock. After the colon: the smaller modules that it
uses.

    feed        the ring, the position and the parked clients of a feed: ring, subscribers, epochs, stats
    reader      the position of a client, and what it reads from the ring: reader_states
    start       where a stream starts, and what must be looked up to decide that: topics
    catch_up    what a client receives from a cursor of its own: topics
    snapshot    the newest record of each key: versions
    chunk       what a finite read returns: chunk_start, truncation_marks
    tail        which feeds receive a record, and which partitions they contain

The other modules run the core: they read the log, keep time, wait and send.

    feeds       finds or creates the feed of a stream, and opens its reader: start, epochs, lookup
    tail        reads the new records for all feeds: topic_watch, backlog
    shared_feed encodes records for a feed, and sends them: versions
    reader      waits for the ring, for the snapshot and for a slot: snapshot, slots, catch_up
    chunks      reads a chunk once for all clients at a position: continuations, shared_chunks
"""
