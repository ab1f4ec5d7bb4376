"""Access: who may read a route. This package does not know feeds or Kafka."""

from kafkasse.access.visitor import ANONYMOUS, Visitor

__all__ = ["ANONYMOUS", "Visitor"]
