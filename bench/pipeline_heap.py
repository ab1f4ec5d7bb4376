"""Whether a heap is large enough for a pipeline, and how much memory the pipeline uses, with states of different sizes.

    python -m bench.pipeline_heap [--keys 10000 100000] [--heaps 480 512]
    python -m bench.pipeline_heap --minutes 60

For each number of keys and each heap, an embedded broker contains all keys, with 1,000 keys for each group. A heap is large
enough if one JVM reads the keys and runs for COMMIT_S, and a second JVM then resumes from the checkpoint.

With --minutes, one pipeline receives UPDATES_PER_S for this many minutes. Each minute, the command prints the pipeline's
memory and the number of files in its checkpoint.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from pathlib import Path

from bench.machine import commit, machine
from bench.pipeline_state import KEYS_PER_GROUP, PipelineFailedError, Running, Topics, broker_with_topics

COMMIT_S = 25.0  # the time of two commits in real-time mode
TIMEOUT_S = 100.0
UPDATES_PER_S = 100


def memory_mb(keys: int, heap_mb: int) -> float | None:
    """Return the memory of the pipeline's processes, or None if the heap is too small."""
    with broker_with_topics() as servers, tempfile.TemporaryDirectory() as checkpoint:
        topics = Topics(servers, max(1, keys // KEYS_PER_GROUP))
        found = 0.0
        for count in (keys, 0):
            marks = topics.write(count)
            try:
                running = Running(servers, checkpoint, "--memory", f"{heap_mb}m")
            except PipelineFailedError:
                return None
            try:
                if not _processes(topics, marks, running):
                    return None
                found = max(found, running.memory_mb())
            finally:
                running.stop()
    return found


def _processes(topics: Topics, marks: list[bytes], running: Running) -> bool:
    """Whether the pipeline processes all records, and then runs for COMMIT_S."""
    missing, deadline_s = set(marks), time.monotonic() + TIMEOUT_S
    while missing:
        if running.has_failed() or time.monotonic() > deadline_s:
            return False
        value = topics.read()
        missing = {mark for mark in missing if mark not in value}
    time.sleep(COMMIT_S)
    return not running.has_failed()


def over_time(keys: int, minutes: int) -> None:
    """Print the memory of a pipeline that receives UPDATES_PER_S, and the number of files in its checkpoint."""
    chance = random.Random(1)
    with broker_with_topics() as servers, tempfile.TemporaryDirectory() as checkpoint:
        topics = Topics(servers, max(1, keys // KEYS_PER_GROUP))
        running = Running(servers, checkpoint, "--memory", "512m")
        try:
            topics.load(keys)
            print("| minute | memory of the pipeline [MiB] | files |\n| ---: | ---: | ---: |")
            began_s = time.monotonic()
            for minute in range(1, minutes + 1):
                while (late_s := time.monotonic() - began_s) < 60 * minute:
                    topics.promote(chance.randrange(keys))
                    time.sleep(1 / UPDATES_PER_S)
                files = sum(each.is_file() for each in Path(checkpoint).rglob("*"))
                print(f"| {late_s / 60:.0f} | {running.memory_mb():,.0f} | {files:,} |", flush=True)
                if running.has_failed():
                    raise PipelineFailedError("the pipeline has restarted or ended")
        finally:
            running.stop()


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--heaps", type=int, nargs="+", default=[480, 512], help="in MiB")
    parser.add_argument("--minutes", type=int, help="run one pipeline for this many minutes")
    args = parser.parse_args()
    print(f"{machine()}; commit {commit()}; load average {os.getloadavg()[0]:.1f}")
    if args.minutes:
        over_time(args.keys[0], args.minutes)
        return
    print("| keys | heap [MiB] | memory of the pipeline [MiB] |\n| ---: | ---: | ---: |")
    for keys in args.keys:
        for heap_mb in args.heaps:
            found = memory_mb(keys, heap_mb)
            print(f"| {keys:,} | {heap_mb} | {'too small' if found is None else f'{found:,.0f}'} |", flush=True)


if __name__ == "__main__":
    main()
