"""Run the benchmarks: `make bench`, or `python -m bench [--quick] [--only NAME ...]`.

A full run writes its figures to bench/results.json, and generates bench/RESULTS.md and the charts from that file. --only
repeats some measurements and keeps the figures of the others. --quick tests in seconds that the benchmark works: it writes
no file, and its figures mean nothing.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench import catch_up, cold_start, fan_out, idle, opening, report, scaling, servers
from bench.figures import Figures
from bench.testbed import QUICK, Scale, Testbed

MEASUREMENTS: dict[str, Callable[[Testbed], Figures]] = {
    "ceiling": fan_out.ceiling,
    "catch_up": catch_up.measure,
    "fan_out": fan_out.measure,
    "latency": fan_out.latency,
    "opening": opening.measure,
    "first_event": opening.first_event,
    "idle": idle.measure,
    "cold_start": cold_start.measure,
    "partitions": scaling.partitions,
    "topics": scaling.topics,
    "sizes": scaling.sizes,
    "workers": scaling.workers,
    "stalled": scaling.stalled,
}


def main() -> int:
    """Measure, print the tables and write the results. Returns the exit code."""
    args = _arguments().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the with block stops all processes
    kafka_sse = args.kafka_sse.absolute() if args.kafka_sse else None
    if kafka_sse and (why_not := servers.install_kafka_sse(kafka_sse)):
        print(f"KafkaSSE is not measured: {why_not}", file=sys.stderr)
        kafka_sse = None
    with Testbed(QUICK if args.quick else Scale(), kafka_sse) as testbed:
        for name in args.only or MEASUREMENTS:
            _measure(name, testbed, keep=not args.quick)
    if not args.quick:
        report.write()
    return 0


def _measure(name: str, testbed: Testbed, keep: bool) -> None:
    load, began = report.load(), time.monotonic()
    figures = MEASUREMENTS[name](testbed)
    took_s = time.monotonic() - began
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
        "--kafka-sse",
        metavar="DIR",
        type=Path,
        help="also measure KafkaSSE; npm builds it in DIR once, which takes minutes",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
