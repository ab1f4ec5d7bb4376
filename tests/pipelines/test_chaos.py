"""A short run of `make pipeline-chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipelines import chaos

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]


@pytest.mark.long
def test_results_are_right_after_a_kill(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A pipeline that is killed while countries are edited computes what plain Python code computes."""
    monkeypatch.setattr(chaos, "PAUSE_S", (1.0, 1.0))

    chaos.run(seed=2, seconds=3, on_cluster=False, path=str(tmp_path))
