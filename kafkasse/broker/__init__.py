"""The embedded Kafka broker."""

from kafkasse.broker.embedded import EmbeddedBroker

__all__ = ["EmbeddedBroker"]
