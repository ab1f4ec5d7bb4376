"""Feeds read records from a log, starting at a position, and return frames. This package uses neither HTTP nor Kafka."""

from kafkasse.feed.feeds import Feeds
from kafkasse.feed.reader import Reader, StopReason
from kafkasse.feed.subscribers import ParkedClient

__all__ = ["Feeds", "ParkedClient", "Reader", "StopReason"]
