"""The official programs for Node, which npm installs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.server import ROOT

SUITE = Path(__file__).parent / "suite"
BUILD = ROOT / "build" / "durable_streams"


@pytest.fixture(scope="session")
def suite(processes: None) -> Path:
    """A folder in which the conformance suite and the client are installed."""
    shutil.copytree(SUITE, BUILD, dirs_exist_ok=True)
    subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"], cwd=BUILD, check=True, timeout=120)
    return BUILD
