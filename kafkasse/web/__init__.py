"""HTTP: the only part that knows Flask."""

from kafkasse.web.streams import blueprint

__all__ = ["blueprint"]
