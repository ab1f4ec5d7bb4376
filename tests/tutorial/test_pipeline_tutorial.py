"""docs/pipeline-tutorial.md: a reader who follows it literally, with a real Kafka broker, Spark and the server."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.secured_broker import free_ports
from tests.tutorial.walk import Walk


@pytest.mark.long
@pytest.mark.parametrize("is_full", [False, True])
def test_a_reader_who_follows_the_tutorial_gets_the_pipeline(processes: None, tmp_path: Path, is_full: bool) -> None:
    ports = free_ports(["app", "kafka"])
    home = tmp_path / "home"
    home.mkdir()
    with TemporaryDirectory() as runtime:  # the path of a Unix socket must be short
        walk = Walk(home, runtime, ports["app"], ports["kafka"], is_full, "docs/pipeline-tutorial.md")
        try:
            walk.to_the_end()
        finally:
            walk.stop()
