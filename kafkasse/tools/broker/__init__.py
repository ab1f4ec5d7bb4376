"""The embedded Kafka broker."""

from kafkasse.tools.broker.embedded import EmbeddedBroker

__all__ = ["EmbeddedBroker"]
