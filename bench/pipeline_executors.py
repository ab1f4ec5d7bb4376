"""The throughput of a pipeline on a standalone cluster with one and with two executors.

    python -m bench.pipeline_executors [--rounds 3] [--keys 20000]

Each round starts a cluster of local processes with one executor, then a cluster with two, and sends BURST corrections of
random keys to each. Each executor may use only one core, so the second executor doubles the cores that the query may use.
Both clusters have the same number of slots and of state partitions. The broker, the driver and the producer share the cores
with the executors, so on two cores the ratio stays below two, however well the query scales.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from statistics import median

from bench.machine import commit, machine
from bench.pipeline_state import KEYS_PER_GROUP, Running, Topics, broker_with_topics
from tests.pipelines.standalone import Standalone

SLOTS = 8  # 3 source partitions and 2 stages with 2 state partitions need 7
WARM_UP_BURSTS = 2


def throughput(executors: int, keys: int) -> float:
    """Return how many corrections per second the pipeline processes with a state of this many keys."""
    cores = sorted(os.sched_getaffinity(0))
    with (
        broker_with_topics() as servers,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        Standalone(Path(directory), workers=executors, cores=SLOTS // executors) as cluster,
    ):
        for number, worker in enumerate(cluster.workers, 1):
            for thread in Path(f"/proc/{worker.pid}/task").iterdir():  # its executor inherits the cores
                os.sched_setaffinity(int(thread.name), {cores[-number % len(cores)]})
        topics = Topics(servers, max(1, keys // KEYS_PER_GROUP))
        more = "--master", cluster.url, "--conf", f"spark.cores.max={SLOTS}"
        running = Running(servers, str(Path(directory, "checkpoint")), *more)
        try:
            topics.load(keys)
            for _ in range(WARM_UP_BURSTS):
                topics.burst(keys)
            return topics.burst(keys)
        finally:
            running.stop()


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keys", type=int, default=20_000)
    args = parser.parse_args()
    load = os.getloadavg()[0]
    rounds = [[throughput(executors, args.keys) for executors in (1, 2)] for _ in range(args.rounds)]
    print(f"{machine()}; commit {commit()}; load average {load:.1f} before, {os.getloadavg()[0]:.1f} after")
    print("| 1 executor [records/s] | 2 executors [records/s] | ratio |\n| ---: | ---: | ---: |")
    for one, two in rounds:
        print(f"| {one:,.0f} | {two:,.0f} | {two / one:.2f} |")
    print(f"median ratio: {median(two / one for one, two in rounds):.2f}")


if __name__ == "__main__":
    main()
