"""`make setup` and `make demo`: create the virtual environment, and install packages with one line of progress.

    python tests/project/install.py .venv -r requirements-dev.txt

The words after the virtual environment are those of `pip install`. This script runs before anything is installed, so it
imports only the standard library. If pip fails, it shows the end of pip's output.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "kafkasse/tools"))

from progress import Progress

POLL_INTERVAL_S = 0.2
SHOWN_LINES = 20
STEP = re.compile(
    r"^ *((?:Downloading|Building wheel for|Installing collected packages)\b.*?)(?: \(pyproject.toml\))?(?::|$)", re.M
)
INTERRUPTED = 130


def install(venv: str, *words: str) -> int:
    """Return the exit code of pip."""
    if subprocess.run([sys.executable, "-m", "venv", venv]).returncode:
        return 1
    pip = [f"{venv}/bin/python", "-m", "pip", "install", "--disable-pip-version-check", *words]
    with tempfile.NamedTemporaryFile("w+") as log, subprocess.Popen(pip, stdout=log, stderr=log) as process:
        try:
            _show(process, Path(log.name))
        except KeyboardInterrupt:
            process.terminate()
            sys.stderr.write("\nThe installation is not complete. Run make again to continue.\n")
            return INTERRUPTED
        log.seek(0)
        if process.returncode:
            sys.stderr.writelines(log.readlines()[-SHOWN_LINES:])
            sys.stderr.write("pip could not install all packages; the reason is above. Fix it and run make again.\n")
    return process.returncode


def _show(process: subprocess.Popen[bytes], log: Path) -> None:
    started_s = time.monotonic()
    with Progress("installing", 0) as progress:
        while process.poll() is None:
            steps = STEP.findall(log.read_text(errors="replace"))
            step = steps[-1][0].lower() + steps[-1][1:] if steps else "looking up packages"
            progress.show(0, f"{time.monotonic() - started_s:.0f} s, {step}")
            time.sleep(POLL_INTERVAL_S)


if __name__ == "__main__":
    sys.exit(install(*sys.argv[1:]))
