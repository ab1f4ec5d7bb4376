"""The benchmark, which anyone can run: `make bench`, or `python -m bench [--quick] [--only NAME ...]`.

A full run writes what it found to bench/results.json, and RESULTS.md and the pictures from that; with --only just those
measurements are made again. --quick finds out in seconds whether it works; it writes nothing, and its figures mean nothing.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench import catch_up, cold, fan_out, growth, idle, opening, report, servers
from bench.figures import Figures
from bench.setting import QUICK, Scale, Setting

MEASUREMENTS: dict[str, Callable[[Setting], Figures]] = {
    "ceiling": fan_out.ceiling,
    "catch_up": catch_up.measure,
    "fan_out": fan_out.measure,
    "latency": fan_out.latency,
    "opening": opening.measure,
    "first_event": opening.first_event,
    "idle": idle.measure,
    "cold_start": cold.measure,
    "partitions": growth.partitions,
    "topics": growth.topics,
    "sizes": growth.sizes,
    "workers": growth.workers,
    "stalled": growth.stalled,
}


def main() -> int:
    """Measure, print, write. Returns the exit code."""
    args = _arguments().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whatever was started is to be ended, too
    kafka_sse = args.kafka_sse.absolute() if args.kafka_sse else None
    if kafka_sse and (why_not := servers.install_kafka_sse(kafka_sse)):
        print(f"KafkaSSE is left out: {why_not}", file=sys.stderr)
        kafka_sse = None
    with Setting(QUICK if args.quick else Scale(), kafka_sse) as setting:
        for name in args.only or MEASUREMENTS:
            _measure(name, setting, keep=not args.quick)
    if not args.quick:
        report.write()
    return 0


def _measure(name: str, setting: Setting, keep: bool) -> None:
    load, began = report.load(), time.monotonic()
    figures = MEASUREMENTS[name](setting)
    took_s = time.monotonic() - began
    print(f"\n{name}, {took_s:.0f} s\n\n{report.table(figures.rows)}", flush=True)
    if keep:
        report.keep(name, figures, took_s, load)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="very little of everything, and nothing is written")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=MEASUREMENTS, help=", ".join(MEASUREMENTS))
    parser.add_argument(
        "--kafka-sse", metavar="DIR", type=Path, help="measure KafkaSSE too; npm builds it in DIR, once, for minutes"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
