"""Fixtures for the tests of the commands."""

from __future__ import annotations

from tests.client.script import serve
from tests.commands.run import run
from tests.pipelines.topics import topics

__all__ = ["run", "serve", "topics"]
