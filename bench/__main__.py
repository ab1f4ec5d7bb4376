"""Run the benchmarks: `make bench`, or `python -m bench [--quick] [--rounds N] [--only NAME ...]`.

Each measurement runs several times; its figures are the medians. The command writes them to bench/results.json, generates
bench/RESULTS.md and the charts from that file, and prints each figure that is worse than in the last commit by more than its
spread. --only repeats some measurements and keeps the figures of the others. --quick only tests that the benchmark
works: it writes no file, and its figures mean nothing.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench import (
    catch_up,
    cold_start,
    decoding,
    fan_out,
    filtering,
    idle,
    opening,
    personal,
    pipeline_executors,
    pipeline_state,
    report,
    returning,
    scaling,
    servers,
)
from bench.figures import Figures, merged
from bench.testbed import QUICK, Scale, Testbed


def _archive(testbed: Testbed) -> Figures:
    from bench import archive  # needs pyarrow

    return archive.measure(testbed)


MEASUREMENTS: dict[str, Callable[[Testbed], Figures]] = {
    "ceiling": fan_out.ceiling,
    "catch_up": catch_up.measure,
    "archive": _archive,
    "fan_out": fan_out.measure,
    "latency": fan_out.latency,
    "opening": opening.measure,
    "first_event": opening.first_event,
    "idle": idle.measure,
    "crowd": fan_out.crowd,
    "personal": personal.measure,
    "returning": returning.measure,
    "cold_start": cold_start.measure,
    "partitions": scaling.partitions,
    "topics": scaling.topics,
    "sizes": scaling.sizes,
    "workers": scaling.workers,
    "stalled": scaling.stalled,
    "filtering": filtering.measure,
    "decoding": decoding.measure,
    "pipeline_state": pipeline_state.measure,
    "pipeline_executors": pipeline_executors.measure,
}

ROUNDS = 5


def main() -> int:
    """Measure, print the tables and write the results. Returns the exit code."""
    args = _arguments().parse_args()
    if not args.quick:
        servers.require("confluent_kafka", "matplotlib")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the with block stops all processes
    kafka_sse = args.kafka_sse.absolute()
    if reason := servers.kafka_sse_missing(kafka_sse, install=not args.quick):
        print(f"KafkaSSE is not measured: {reason}", file=sys.stderr)
        kafka_sse = None
    before = report.committed()
    with Testbed(QUICK if args.quick else Scale(), kafka_sse) as testbed:
        for name in args.only or MEASUREMENTS:
            _measure(name, testbed, 1 if args.quick else args.rounds, keep=not args.quick)
    if not args.quick:
        report.write()
        worse = report.regressions(before)
        print("\n".join(["", "Worse than in the last commit by more than the spread:", *(worse or ["nothing"])]))
    return 0


def _measure(name: str, testbed: Testbed, rounds: int, keep: bool) -> None:
    load, began = report.load(), time.monotonic()
    runs = []
    for number in range(rounds):
        runs.append(MEASUREMENTS[name](testbed))
        print(f"{name}: round {number + 1} of {rounds}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    figures, took_s = merged(runs), time.monotonic() - began
    print(f"\n{name}, {took_s:.0f} s\n\n{report.table(figures.rows)}", flush=True)
    if keep:
        report.keep(name, figures, took_s, load)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="use very little load, and write no files")
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        choices=MEASUREMENTS,
        help="run only these measurements: " + ", ".join(MEASUREMENTS),
    )
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="how often each measurement runs (default: %(default)s)"
    )
    parser.add_argument(
        "--kafka-sse",
        metavar="DIR",
        type=Path,
        default=servers.KAFKA_SSE,
        help="where npm builds KafkaSSE, which takes minutes the first time (default: %(default)s)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
