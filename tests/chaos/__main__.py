"""`make chaos`: a storm for minutes, with many clients; exit code 1 where one of them had anything to complain of."""

from __future__ import annotations

from gevent import monkey

monkey.patch_all()

import argparse  # noqa: E402
import logging  # noqa: E402
import secrets  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from contextlib import redirect_stdout  # noqa: E402
from pathlib import Path  # noqa: E402

from tests.chaos.cluster import EmbeddedCluster  # noqa: E402
from tests.chaos.scene import Scene  # noqa: E402
from tests.chaos.storm import Storm  # noqa: E402

SEEDS = 1_000_000


def main() -> int:
    """Run a storm, and say what came of it."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=180, help="how long there are faults")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(SEEDS), help="of the order of faults")
    parser.add_argument("--readers", type=int, default=30, help="clients at the beginning")
    args = parser.parse_args()
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # the authors' own, of what we do on purpose
    directory = Path(tempfile.mkdtemp(prefix="kafkasse-chaos-"))
    say(f"seed {args.seed}: {args.readers} clients, faults for {args.seconds:.0f} s; logs in {directory}")
    with (directory / "servers.log").open("w") as log, redirect_stdout(log):
        found = run(args.seed, args.seconds, args.readers, directory)
    for each in found:
        say(each)
    say(f"{len(found)} violations; again with: make chaos SECONDS={args.seconds:.0f} SEED={args.seed}")
    return 1 if found else 0


def run(seed: int, seconds: float, readers: int, directory: Path) -> list[str]:
    """The violations of a storm."""
    with EmbeddedCluster() as cluster, Scene(cluster, directory, seed, servers=2) as scene:
        storm = Storm(scene, seed, say)
        storm.prepare("chaos", readers)
        storm.rage(seconds)
        say("all is healed; the clients come to the end, and what they had is checked")
        found = storm.violations()
        events = sum(each.body.count(b"event: ") for each in scene.readers)
        connections = sum(each.connections for each in scene.readers)
        say(f"{len(scene.readers)} clients had {events} events over {connections} connections")
        return found


def say(what: str) -> None:
    """To whoever waits for it, while stdout is the servers' log."""
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
