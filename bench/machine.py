"""The machine and the commit that a measurement ran on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
MEASURED_FILES = ("kafkasse", "schemas", "wsgi.py", "gunicorn.conf.py", "bench", ":!bench/results.json", ":!bench/*.md")


def machine() -> str:
    """Return the processor and the Python version."""
    model = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    return f"{os.cpu_count()} cores ({model[1] if model else platform.machine()}), Python {platform.python_version()}"


def commit() -> str:
    """Return the short hash of the current commit, with a `+` if the measured code or the benchmark has changed since."""
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    changed = subprocess.run(
        ["git", "diff", "--quiet", "HEAD", "--", *MEASURED_FILES], cwd=ROOT, check=False
    ).returncode
    return head.stdout.strip() + "+" * changed
