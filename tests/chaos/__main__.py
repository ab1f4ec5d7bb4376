"""`make chaos`: random faults for minutes, with many clients. The exit code is 1 if a guarantee was violated."""

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
from tests.chaos.random_faults import RandomFaults  # noqa: E402
from tests.chaos.scene import Scene  # noqa: E402

SEEDS = 1_000_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=180, help="how long to inject faults")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(SEEDS), help="the seed of the order of faults")
    parser.add_argument("--clients", type=int, default=30, help="the number of clients at the start")
    args = parser.parse_args()
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # producers log every fault that we cause
    directory = Path(tempfile.mkdtemp(prefix="kafkasse-chaos-"))
    report(f"seed {args.seed}: {args.clients} clients, faults for {args.seconds:.0f} s; logs in {directory}")
    with (directory / "servers.log").open("w") as log, redirect_stdout(log):
        violations = run(args.seed, args.seconds, args.clients, directory)
    for violation in violations:
        report(violation)
    report(f"{len(violations)} violations; to repeat this run: make chaos SECONDS={args.seconds:.0f} SEED={args.seed}")
    return 1 if violations else 0


def run(seed: int, seconds: float, clients: int, directory: Path) -> list[str]:
    with (
        EmbeddedCluster() as cluster,
        Scene(cluster, directory, seed, servers=2, **RandomFaults.settings("chaos")) as scene,
    ):
        faults = RandomFaults(scene, seed, report)
        faults.prepare("chaos", clients)
        faults.run(seconds)
        report("all faults are healed; clients read to the end, then the checker runs")
        violations = faults.violations()
        events = sum(client.body.count(b"event: message") for client in scene.clients)
        connections = sum(client.connections for client in scene.clients)
        report(f"{len(scene.clients)} clients received {events} events over {connections} connections")
        return violations


def report(what: str) -> None:
    """Print to stderr, because stdout is redirected to the log of the servers."""
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
