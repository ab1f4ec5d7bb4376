"""The fixtures of the tests with a broker."""

from __future__ import annotations

from tests.commands.run import run

__all__ = ["run"]
