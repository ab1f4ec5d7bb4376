"""`make simulate SECONDS=…`: play random worlds, store each one that fails, and exit with 1 if there are any.

python -m tests.history.simulate --seconds 60
python -m tests.history.simulate --mutant gap_not_sent --kind retention
python -m tests.history.simulate --replay tests/history/failures/truncation-17.json
"""

from __future__ import annotations

from gevent import monkey

monkey.patch_all()

import argparse  # noqa: E402
import os  # noqa: E402
import secrets  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from collections import Counter  # noqa: E402
from collections.abc import Iterator, Sequence  # noqa: E402
from functools import cache  # noqa: E402
from pathlib import Path  # noqa: E402

from tests.history.worlds import CURSOR_KINDS, KINDS, StoredWorld, find  # noqa: E402

ROOT = Path(__file__).parents[2]
REPORT_EVERY_S = 5.0
MAX_SEED = 2**32
CURSORS = 10  # worlds of each kind of cursor for each world of a feed, because they are shorter
MAX_FAILURES = 10  # of one process; shortening takes hundreds of worlds


def run(seconds: float, seed: int, kinds: Sequence[str], mutant: str = "") -> Counter[str]:
    """Play worlds of the kinds in turn, with `seed` and the seeds after it. Return how many passed and failed.

    With a mutant, stop at the first world that fails.
    """
    began_at = reported_at = time.monotonic()
    outcomes: Counter[str] = Counter()
    most = 1 if mutant else MAX_FAILURES
    while time.monotonic() < began_at + seconds and outcomes["failed"] < most:
        for kind, world_seed in _worlds(kinds, seed):
            world = find(kind, world_seed, mutant, _commit())
            outcomes["failed" if world else "passed"] += 1
            if world:
                file = world.write()
                print("\n".join([*_events(world), f"{kind}, seed {world_seed}: {world.violation}"]))
                print(f"to repeat it: python -m tests.history.simulate --replay {file.relative_to(ROOT)}", flush=True)
                if mutant:
                    break
        seed = (seed + 1) % MAX_SEED
        if time.monotonic() >= reported_at + REPORT_EVERY_S:
            reported_at = time.monotonic()
            speed = outcomes.total() / (reported_at - began_at)
            left_s = max(0.0, began_at + seconds - reported_at)
            print(f"{left_s:5.0f} s left: {dict(outcomes)}, {speed:.1f} worlds/s", flush=True)
    return outcomes


def _worlds(kinds: Sequence[str], seed: int) -> Iterator[tuple[str, int]]:
    """Yield the kinds and the seeds of one turn."""
    for kind in kinds:
        if kind in CURSOR_KINDS:
            yield from ((kind, CURSORS * seed + number) for number in range(CURSORS))
        else:
            yield kind, seed


def _events(world: StoredWorld) -> list[str]:
    events: list[str] = []
    world.replay(events)
    return events


@cache
def _commit() -> str:
    words = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, help="the first seed; by default a random one")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--kind", choices=[*KINDS, *CURSOR_KINDS], help="only worlds of this kind")
    parser.add_argument("--mutant", default="", help="find a world that fails with this mutant")
    parser.add_argument("--replay", type=Path, help="play a stored world instead")
    args = parser.parse_args()
    if args.replay:
        world = StoredWorld.read(args.replay)
        violations = world.replay()
        print("\n".join([*_events(world), *violations]) if violations else "no violations")
        return bool(violations)
    first = secrets.randbelow(MAX_SEED) if args.seed is None else args.seed
    kinds = [args.kind] if args.kind else [*KINDS, *CURSOR_KINDS]
    if args.processes == 1 or args.mutant:
        return bool(run(args.seconds, first, kinds, args.mutant)["failed"])
    words = [sys.executable, "-m", "tests.history.simulate", "--processes", "1", "--seconds", str(args.seconds)]
    words += ["--kind", args.kind] if args.kind else []
    seeds = [(first + at * MAX_SEED // args.processes) % MAX_SEED for at in range(args.processes)]
    print(f"the first seeds are {seeds}; --seed repeats a run", flush=True)
    running = [subprocess.Popen([*words, "--seed", str(seed)], cwd=ROOT) for seed in seeds]
    return max(process.wait() for process in running)


if __name__ == "__main__":
    sys.exit(main())
