"""Tests that take minutes. `make pipelines` runs them, and `make test` runs the others of the same modules."""

from __future__ import annotations

import os

import pytest

takes_minutes = pytest.mark.skipif(os.environ.get("PIPELINES") != "full", reason="takes minutes: make pipelines")
