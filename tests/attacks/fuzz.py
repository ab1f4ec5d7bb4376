"""Coverage-guided fuzzing for any length of time: `python -m tests.attacks.fuzz SECONDS [TARGET ...]`.

Each target runs in its own process for an equal share of the time. An input that fails is kept, and its file is named.
"""

from __future__ import annotations

from gevent import monkey

monkey.patch_all()

import subprocess  # noqa: E402 - the Kafka client is imported after patching
import sys  # noqa: E402
import tempfile  # noqa: E402

import atheris  # noqa: E402

MAX_INPUT_BYTES = 4096
MAX_INPUT_S = 5  # per input; a longer run is a hang
MAX_MEMORY_MB = 1024
PACKAGES = ("position", "frame", "kafka", "sse", "config", "schemas")
INSTRUMENTED = ["yaml", "json", *(f"kafkasse.{package}" for package in PACKAGES)]


def run_all(seconds: int, names: list[str]) -> int:
    """Fuzz each target in its own process. Return the number of failed targets."""
    kept = tempfile.mkdtemp(prefix="kafkasse-fuzz-")
    limits = [f"-max_len={MAX_INPUT_BYTES}", f"-timeout={MAX_INPUT_S}", f"-rss_limit_mb={MAX_MEMORY_MB}"]
    options = [*limits, f"-artifact_prefix={kept}/", "-print_final_stats=1", f"-max_total_time={seconds // len(names)}"]
    failed = [name for name in names if subprocess.run([*THIS, f"--target={name}", *options], check=False).returncode]
    print(f"fuzzed {', '.join(names)}: {', '.join(failed) + f' FAILED, see {kept}' if failed else 'no failures'}")
    return len(failed)


def run_one(name: str, options: list[str]) -> None:
    """Fuzz one target. Exits the process."""
    with atheris.instrument_imports(include=INSTRUMENTED):
        from tests.attacks.targets import TARGETS
    atheris.Setup([sys.argv[0], *options], TARGETS[name])
    atheris.Fuzz()


THIS = [sys.executable, "-m", "tests.attacks.fuzz"]

if __name__ == "__main__":
    if sys.argv[1].startswith("--target="):
        run_one(sys.argv[1].removeprefix("--target="), sys.argv[2:])
    else:
        from tests.attacks.targets import TARGETS

        sys.exit(run_all(int(sys.argv[1]), sys.argv[2:] or list(TARGETS)))
