"""The official programs for Node, which npm installs."""

from __future__ import annotations

import fcntl
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
    BUILD.mkdir(parents=True, exist_ok=True)
    packages, installed = (SUITE / "package-lock.json").read_text(), BUILD / "node_modules" / "installed"
    with (BUILD / "lock").open("w") as lock:
        # `npm ci` deletes the packages before it installs them, but the tests of another worker may use them.
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.copytree(SUITE, BUILD, dirs_exist_ok=True)
        if not installed.exists() or installed.read_text() != packages:
            subprocess.run(
                ["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"], cwd=BUILD, check=True, timeout=120
            )
            installed.write_text(packages)
    return BUILD
