"""Feeds: from a position to frames. This package uses logs, records and frames; it knows neither HTTP nor a Kafka client."""

from kafkasse.feed.feeds import Feeds
from kafkasse.feed.reader import Reader, StopReason
from kafkasse.feed.shared_feed import ParkedClient

__all__ = ["Feeds", "ParkedClient", "Reader", "StopReason"]
