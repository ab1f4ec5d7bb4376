"""Run the soak test: `make soak MINUTES=15`. The exit code is 1 if the worker's resources grew or a client found an error.

--keep updates the generated section of bench/soak/README.md.
"""

from __future__ import annotations

from gevent import monkey

monkey.patch_all()

import argparse  # noqa: E402
import logging  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import Iterator, Mapping, Sequence  # noqa: E402
from contextlib import closing, contextmanager  # noqa: E402

import gevent  # noqa: E402
import yaml  # noqa: E402
from gevent.event import Event  # noqa: E402

from bench import machine  # noqa: E402
from bench.soak import growth, report  # noqa: E402
from bench.soak.clients import PARTITIONS, QUIET, STREAMS, TOPICS, VALUES_ROUTE, ClientPool  # noqa: E402
from bench.soak.growth import Sample  # noqa: E402
from bench.soak.sampler import Sampler  # noqa: E402
from bench.soak.writer import Writer  # noqa: E402
from kafkasse.tools.broker import EmbeddedBroker  # noqa: E402
from tests.support.kafka import Cluster  # noqa: E402
from tests.support.server import Server  # noqa: E402

RECORDS_PER_S = 200.0
PREFILL = 1_200  # records per partition that exist before the clients start
BEHAVIORS = {"idle": 40, "steady": 100, "cutting": 50, "slow": 10, "stalled": 8, "late": 8}
QUICK_BEHAVIORS = {"idle": 4, "steady": 10, "cutting": 10, "slow": 4, "stalled": 4, "late": 4}
SETTINGS = {
    "allowed_topics": ["*"],
    "heartbeat_s": 5,
    "max_ring_bytes": 1_048_576,  # instead of 4 MiB: full after a minute, so that late clients catch up from Kafka
    "routes": {"values": VALUES_ROUTE},
}
RETENTION = {"retention_ms": "600000", "segment_bytes": "4194304"}  # otherwise a long soak test fills the disk
LONG_MINUTES = 4
END_TIMEOUT_S = 60.0
CLOSE_TIMEOUT_S = 60.0
LINE_INTERVAL_S = 30.0
MAX_LOG_CHARS = 2_000


def main() -> int:
    """Run the soak test and print the report. Returns the exit code."""
    args = _arguments().parse_args()
    for each in (signal.SIGTERM, signal.SIGINT):  # raise it here, so that the with blocks stop all processes
        gevent.signal_handler(each, gevent.kill, gevent.getcurrent(), KeyboardInterrupt)
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # its warnings about deleted topics
    with EmbeddedBroker() as broker, closing(Cluster(broker.bootstrap_servers)) as cluster:
        began, commit = time.monotonic(), machine.commit()  # read at the start, because it may change during the run
        behaviors = QUICK_BEHAVIORS if args.quick else BEHAVIORS
        pool, samples, problems = _soak(
            args.minutes, behaviors, cluster, int(broker.bootstrap_servers.rpartition(":")[2])
        )
        took_s = time.monotonic() - began
    return _conclude(
        _summary(args.minutes, behaviors, commit, took_s, pool, samples), samples, pool.errors + problems, args.keep
    )


def _soak(
    minutes: float, behaviors: Mapping[str, int], cluster: Cluster, kafka_port: int
) -> tuple[ClientPool, list[Sample], list[str]]:
    """Run the load. Returns the clients, the samples, and the problems found at the end."""
    is_long = minutes >= LONG_MINUTES
    write_timeout_s = 30.0 if is_long else 6.0
    with _prepared(cluster, write_timeout_s) as (server, writer):
        pool, sampler = ClientPool(server.port, writer, cluster, write_timeout_s), Sampler(server, kafka_port)
        _run(minutes * 60, 5.0 if is_long else 0.5, pool, behaviors, sampler, writer)
        pool.end(END_TIMEOUT_S)
        return pool, sampler.samples, _problems(sampler, server)


def _conclude(summary: str, samples: Sequence[Sample], problems: list[str], keep: bool) -> int:
    """Check for growth, print the report and write the page if requested. Returns the exit code."""
    checks = growth.check_growth(samples)
    grown = [f"{each.figure.what} grew from {each.second:,.0f} to {each.last:,.0f}" for each in checks if each.grew]
    print("\n".join(["", summary, "", *report.bars(samples), "", report.table(checks), "", *problems, *grown]))
    if grown:
        print("types with more objects:", ", ".join(growth.types_that_grew(samples[len(samples) // 4], samples[-1])))
    print(f"{len(problems) + len(grown)} errors")
    if keep:
        report.keep(checks, summary)
    return 1 if problems or grown else 0


@contextmanager
def _prepared(cluster: Cluster, write_timeout_s: float) -> Iterator[tuple[Server, Writer]]:
    """Create topics with records, a writer, and a server."""
    for topic in (*TOPICS, QUIET):
        cluster.create(topic, PARTITIONS, **RETENTION)
    partitions = [(topic, each) for topic in TOPICS for each in range(PARTITIONS)]
    kafka = {"bootstrap_servers": cluster.bootstrap_servers}
    settings = {"kafka": kafka, "allowed_topics": ["*"], "write_timeout_s": write_timeout_s, **SETTINGS}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(settings, file)
        file.flush()
        with closing(Writer(str(cluster.bootstrap_servers), partitions)) as writer:
            writer.fill(PREFILL)
            with Server("bench.soak.app:app", KAFKASSE_CONFIG=file.name) as server:
                yield server, writer


def _run(
    seconds: float,
    sample_every_s: float,
    pool: ClientPool,
    behaviors: Mapping[str, int],
    sampler: Sampler,
    writer: Writer,
) -> None:
    """Run the load for `seconds`. Afterwards the writer has stopped, and the clients are still connected."""
    over = Event()
    tasks = [
        gevent.spawn(writer.run, RECORDS_PER_S, over),
        gevent.spawn(sampler.run, sample_every_s, over),
        gevent.spawn(_print_lines, over, pool, sampler),
    ]
    pool.start(behaviors)
    gevent.joinall(tasks, seconds, raise_error=True)  # a task that ends earlier has failed
    over.set()
    gevent.joinall(tasks, raise_error=True)


def _print_lines(over: Event, pool: ClientPool, sampler: Sampler) -> None:
    while not over.wait(LINE_INTERVAL_S):
        print(report.line(sampler.samples[-1], pool.counts), flush=True)


def _problems(sampler: Sampler, server: Server) -> list[str]:
    """Return streams that stay open after all clients have left, and tracebacks in the log."""
    deadline = time.monotonic() + CLOSE_TIMEOUT_S
    while (streams := sampler.sample().streams) and time.monotonic() < deadline:
        gevent.sleep(0.1)
    open_streams = [f"{streams} streams are still open although all clients have disconnected"] if streams else []
    _, traceback, rest = server.log.partition("Traceback")
    return [*open_streams, *([f"the server's log has a traceback: {rest[:MAX_LOG_CHARS]}"] if traceback else [])]


def _summary(
    minutes: float,
    behaviors: Mapping[str, int],
    commit: str,
    took_s: float,
    pool: ClientPool,
    samples: Sequence[Sample],
) -> str:
    """Describe the run in one paragraph."""
    first, last = samples[0], samples[-1]
    cores = (last.cpu_s - first.cpu_s) / (last.at_s - first.at_s)
    clients = ", ".join(f"{number} {behavior}" for behavior, number in behaviors.items())
    counts = ", ".join(f"{number:,} {name}" for name, number in sorted(pool.counts.items()) if name != "errors")
    return (
        f"`make soak MINUTES={minutes:g}` at commit {commit}, {took_s / 60:.0f} minutes: "
        f"{sum(behaviors.values())} clients ({clients}) on {len(STREAMS) + 1} streams; "
        f"{RECORDS_PER_S:.0f} records/s of 1 KiB. "
        f"{counts}. The worker used {cores:.2f} of a core. Errors found by clients: {pool.counts['errors']}."
    )


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=15, help="duration of the load")
    parser.add_argument("--quick", action="store_true", help="use few clients, to test that the soak test works")
    parser.add_argument("--keep", action="store_true", help="update bench/soak/README.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())
