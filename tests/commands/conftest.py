"""Fixtures for the tests of the commands."""

from __future__ import annotations

from tests.commands.cat import serve
from tests.pipelines.topics import topics

__all__ = ["serve", "topics"]
