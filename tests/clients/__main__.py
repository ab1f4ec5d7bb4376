"""`make clients`: test all clients, several times. The exit code is 1 if a client has a defect that is not in DEFECTS."""

from __future__ import annotations

from gevent import monkey

monkey.patch_all()

import argparse  # noqa: E402
import logging  # noqa: E402
import secrets  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from contextlib import redirect_stdout  # noqa: E402
from pathlib import Path  # noqa: E402

from kafkasse.broker import EmbeddedBroker  # noqa: E402
from tests.clients.programs import PROGRAMS, Program, build, missing  # noqa: E402
from tests.clients.scenario import FAULTS, Outcome, Result, Scenario, unknown_defects  # noqa: E402

QUIET_S = 12.0  # longer than the read timeouts of several clients


def main() -> int:
    """Run the clients and print the result."""
    parser = argparse.ArgumentParser(prog="make clients", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how many times to inject each fault")
    parser.add_argument(
        "--only", nargs="*", default=[], help="test only clients whose names contain one of these texts"
    )
    args = parser.parse_args()
    programs = [each for each in PROGRAMS if not args.only or any(part in each.name for part in args.only)]
    if absent := {reason for each in programs if (reason := missing(each.toolchain))}:
        report(f"skipped: {'; '.join(sorted(absent))}")
        programs = [each for each in programs if not missing(each.toolchain)]
    for toolchain in {each.toolchain for each in programs}:
        build(toolchain)
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    directory = Path(tempfile.mkdtemp(prefix="kafkasse-clients-"))
    report(f"{len(programs)} clients, {args.rounds} rounds; logs in {directory}")
    with (directory / "servers.log").open("w") as log, redirect_stdout(log):
        rounds = run(programs, args.rounds, directory)
    wrong = [line for number, results in enumerate(rounds) for line in problems(number, results)]
    report("\n".join([*table(rounds), *wrong]))
    return 1 if wrong else 0


def run(programs: Sequence[Program], count: int, directory: Path) -> list[dict[str, Result]]:
    """Return the results of each round. Every round has a new topic and new clients."""
    rounds = []
    with EmbeddedBroker() as broker:
        for number in range(count):
            own = directory / f"round-{number}"
            own.mkdir()
            with Scenario(broker.bootstrap_servers, f"clients-{secrets.token_hex(6)}", programs, own) as scenario:
                rounds.append(scenario.run(FAULTS, QUIET_S))
            report(f"round {number + 1} of {count} is done")
    return rounds


def table(rounds: Sequence[dict[str, Result]]) -> list[str]:
    """Return a line for each client, with a cell for each fault."""
    lines = [" | ".join(["client".ljust(40), *(fault.rjust(12) for fault in FAULTS)])]
    for name in rounds[0]:
        cells = [cell([each[name].outcomes[fault] for each in rounds]).rjust(12) for fault in FAULTS]
        lines.append(" | ".join([name.ljust(40), *cells]))
    return lines


def cell(outcomes: Sequence[Outcome]) -> str:
    """Return what a client did wrong after a fault, or the longest time until it received the next record."""
    counts = {name: sum(getattr(each, name) for each in outcomes) for name in ("lost", "repeated", "altered")}
    wrong = [f"{count} {name}" for name, count in counts.items() if count]
    times = [each.recovery_s for each in outcomes if each.recovery_s is not None]
    if len(times) < len(outcomes):
        wrong.append("stopped")
    return ", ".join(wrong) or f"{max(times):.1f} s"


def problems(number: int, results: dict[str, Result]) -> list[str]:
    """Return the violations and the log of each client whose result was not expected."""
    lines = []
    for name, result in results.items():
        if unknown_defects(name, result) or bool(result.defects) != bool(result.violations):
            lines += [f"round {number + 1}, {name}:", *result.violations, result.log]
        if result.disconnects:
            lines.append(f"round {number + 1}, {name}: {result.disconnects} disconnects while the stream was quiet")
    return lines


def report(text: str) -> None:
    """Print to stderr, because stdout is redirected to the log of the servers."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
