"""The Python operators run on a Spark Connect server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 540


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.timeout(600)
def test_the_operators_run_on_spark_connect() -> None:
    """Batches and streams give the results of plain Python, and a stream resumes from its checkpoint."""
    pytest.importorskip("grpc_status", reason="needs grpcio-status: make tools")
    command = [sys.executable, "-m", "tests.pipelines.connect"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)

    assert 0 == done.returncode, done.stderr
    assert done.stdout.endswith("the operators work on Spark Connect\n")
