"""Run the benchmarks: `make bench`, or `python -m bench [--quick] [--rounds N] [--only NAME ...]`.

A full run measures everything on one commit. It writes bench/results.json and the figures in README.md, docs/ and
bench/README.md, and prints each figure that is worse than in the last commit by more than its spread. --only prints the
figures of some measurements and writes nothing. --quick only tests that the benchmark works: it writes nothing, and its
figures mean nothing.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

from bench import capacity, catch_up, cdn, cold_start, encoding, live, load_generator, opening, quoted, results, servers
from bench.figures import Figures, Row, merged
from bench.testbed import Scale, Testbed


def _archive(testbed: Testbed) -> Figures:
    from bench import archive  # needs pyarrow

    return archive.measure(testbed)


def _pipeline(testbed: Testbed) -> Figures:
    from bench import pipeline_state  # needs Spark

    return pipeline_state.measure(testbed)


MEASUREMENTS: dict[str, Callable[[Testbed], Figures]] = {
    "limit": load_generator.measure,
    **dict(catch_up.measurements()),
    **dict(opening.measurements()),
    **dict(live.measurements()),
    **dict(cdn.measurements()),
    "capacity.costs": capacity.measure_costs,
    "capacity.runs": capacity.measure_runs,
    "encoding": encoding.measure,
    "cold_start": cold_start.measure,
    "archive": _archive,
    "pipeline": _pipeline,
}
ROUNDS = 3
# They take long, or nobody compares them.
ONCE = (
    "catch_up.500.event",
    "catch_up.500.run",
    "idle.50",
    "live.large",
    "cdn.chunks",
    "cdn.start",
    "cdn.return",
    "cdn.live",
    "capacity.runs",
    "encoding",
    "archive",
    "pipeline",
)


def main() -> int:
    """Measure, print the tables and write the results. Returns the exit code."""
    args = _arguments().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the with block stops all processes
    missing = servers.missing(build=not args.quick)
    for name, reason in missing.items():
        print(f"{name} is not measured: {reason}", file=sys.stderr)
    origin, began = results.origin(), time.monotonic()
    rows: list[Row] = []
    failures: list[str] = []
    with ExitStack() as stack:
        testbed = stack.enter_context(Testbed(Scale(args.quick), missing))
        for name in args.only or MEASUREMENTS:
            started, runs = time.monotonic(), []
            for _ in range(1 if args.quick or name in ONCE else args.rounds):
                try:
                    runs.append(MEASUREMENTS[name](testbed))
                except Exception as error:  # noqa: BLE001 - reported at the end; the other measurements go on
                    failures.append(f"{name} failed: {type(error).__name__}: {error}")
                    stack.close()
                    testbed = stack.enter_context(Testbed(Scale(args.quick), missing))
            measured = merged(runs)
            print(f"\n{name}, {time.monotonic() - started:.0f} s\n\n{results.table(measured)}", flush=True)
            rows += measured
    print(f"\nAll measurements took {(time.monotonic() - began) / 60:.0f} minutes.")
    if not (args.quick or args.only):
        results.write(origin, rows, results.committed())
        quoted.write()
    print("\n".join(failures), file=sys.stderr)
    return 1 if failures else 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="use very little load, and write nothing")
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        choices=MEASUREMENTS,
        help="run only these measurements, and write nothing: " + ", ".join(MEASUREMENTS),
    )
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="how often most measurements run (default: %(default)s)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
