"""Fixtures for the tests of the commands."""

from __future__ import annotations

from tests.pipelines.conftest import topics

__all__ = ["topics"]
