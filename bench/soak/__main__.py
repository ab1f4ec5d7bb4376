"""`make soak MINUTES=15`: clients of all manners on one worker. Exit code 1 where it has grown, or a client was wronged.

--keep draws bench/images/soak.png and writes the section of docs/endurance.md.
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
from collections.abc import Iterator, Sequence  # noqa: E402
from contextlib import closing, contextmanager  # noqa: E402

import gevent  # noqa: E402
import yaml  # noqa: E402
from gevent.event import Event  # noqa: E402

from bench import machine  # noqa: E402
from bench.soak import report, verdict  # noqa: E402
from bench.soak.clients import KINDS, PARTITIONS, QUIET, TOPICS, VALUES_ROUTE, Crowd  # noqa: E402
from bench.soak.verdict import Sample  # noqa: E402
from bench.soak.watch import Watch  # noqa: E402
from bench.soak.writer import Writer  # noqa: E402
from kafkasse.broker import EmbeddedBroker  # noqa: E402
from tests.support.kafka import Cluster  # noqa: E402
from tests.support.server import Server  # noqa: E402

RECORDS_PER_S = 200.0
PREFILL = 1_200  # records of each partition, so that there is a past from the start
MANNERS = {"idle": 40, "steady": 100, "cutting": 50, "slow": 10, "stalled": 8, "late": 8}
SETTINGS = {
    "allowed_topics": ["*"],
    "heartbeat_s": 5,
    "max_ring_bytes": 1_048_576,  # of 4 MiB: full after a minute, and clients that were away catch up from Kafka
    "routes": {"values": VALUES_ROUTE},
}
RETENTION = {"retention_ms": "600000", "segment_bytes": "4194304"}  # or a long soak fills the disk
LONG_MINUTES = 4
END_S_MAX = 60.0
GONE_S_MAX = 60.0
LINE_EVERY_S = 30.0
LOG_CHARS_MAX = 2_000


def main() -> int:
    """Soak, print, judge. Returns the exit code."""
    args = _arguments().parse_args()
    for each in (signal.SIGTERM, signal.SIGINT):  # whatever was started is to be ended, too: so it is raised here
        gevent.signal_handler(each, gevent.kill, gevent.getcurrent(), KeyboardInterrupt)
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # of topics that we delete
    with EmbeddedBroker() as broker, closing(Cluster(broker.bootstrap_servers)) as cluster:
        began, commit = time.monotonic(), machine.commit()  # of now: by the end there may be another
        crowd, samples, found = _soak(args.minutes, cluster, int(broker.bootstrap_servers.rpartition(":")[2]))
        took_s = time.monotonic() - began
    return _conclude(_told(args.minutes, commit, took_s, crowd, samples), samples, crowd.complaints + found, args.keep)


def _soak(minutes: float, cluster: Cluster, kafka_port: int) -> tuple[Crowd, list[Sample], list[str]]:
    """Who was there, what the worker held meanwhile, and what was left in the end that should not be."""
    is_long = minutes >= LONG_MINUTES
    write_timeout_s = 30.0 if is_long else 6.0
    with _prepared(cluster, write_timeout_s) as (server, writer):
        crowd, watch = Crowd(server.port, writer, cluster, write_timeout_s), Watch(server, kafka_port)
        _run(minutes * 60, 5.0 if is_long else 1.0, crowd, watch, writer)
        crowd.end(END_S_MAX)
        return crowd, watch.samples, _left(watch, server)


def _conclude(told: str, samples: Sequence[Sample], found: list[str], keep: bool) -> int:
    """Judge, print, and write where asked to. Returns the exit code."""
    judged = verdict.judge(samples)
    grown = [f"{each.figure.what}: {each.last:,.0f}, from {each.second:,.0f}" for each in judged if each.grew]
    print("\n".join(["", told, "", *report.bars(samples), "", report.table(judged), "", *found, *grown]))
    if grown:
        print("more:", ", ".join(verdict.types_that_grew(samples[len(samples) // 4], samples[-1])))
    print(f"{len(found) + len(grown)} complaints")
    if keep:
        report.keep(samples, judged, told)
    return 1 if found or grown else 0


@contextmanager
def _prepared(cluster: Cluster, write_timeout_s: float) -> Iterator[tuple[Server, Writer]]:
    """Topics with a past, somebody who goes on writing, and a server."""
    for topic in (*TOPICS, QUIET):
        cluster.create(topic, PARTITIONS, **RETENTION)
    places = [(topic, each) for topic in TOPICS for each in range(PARTITIONS)]
    kafka = {"bootstrap_servers": cluster.bootstrap_servers}
    settings = {"kafka": kafka, "allowed_topics": ["*"], "write_timeout_s": write_timeout_s, **SETTINGS}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(settings, file)
        file.flush()
        with closing(Writer(str(cluster.bootstrap_servers), places)) as writer:
            writer.fill(PREFILL)
            with Server("bench.soak.app:app", KAFKASSE_CONFIG=file.name) as server:
                yield server, writer


def _run(seconds: float, sample_every_s: float, crowd: Crowd, watch: Watch, writer: Writer) -> None:
    """The load, for so long; the writer has stopped when this returns, and nobody has left."""
    over = Event()
    at_work = [
        gevent.spawn(writer.run, RECORDS_PER_S, over),
        gevent.spawn(watch.run, sample_every_s, over),
        gevent.spawn(_tell, over, crowd, watch),
    ]
    crowd.come(MANNERS)
    gevent.joinall(at_work, seconds, raise_error=True)  # they end before only by failing
    over.set()
    gevent.joinall(at_work, raise_error=True)


def _tell(over: Event, crowd: Crowd, watch: Watch) -> None:
    while not over.wait(LINE_EVERY_S):
        print(report.line(watch.samples[-1], crowd.counts), flush=True)


def _left(watch: Watch, server: Server) -> list[str]:
    """What is left of clients when all have gone, and surprises in the log."""
    deadline = time.monotonic() + GONE_S_MAX
    while (streams := watch.look().streams) and time.monotonic() < deadline:
        gevent.sleep(0.1)
    left = [f"{streams} streams are left of clients that have gone"] if streams else []
    _, surprise, rest = server.log.partition("Traceback")
    return [*left, *([f"the server's log: {rest[:LOG_CHARS_MAX]}"] if surprise else [])]


def _told(minutes: float, commit: str, took_s: float, crowd: Crowd, samples: Sequence[Sample]) -> str:
    """The run in a paragraph."""
    first, last = samples[0], samples[-1]
    cores = (last.cpu_s - first.cpu_s) / (last.at_s - first.at_s)
    clients = ", ".join(f"{many} {manner}" for manner, many in MANNERS.items())
    counts = ", ".join(f"{many:,} {name}" for name, many in sorted(crowd.counts.items()) if name != "complaints")
    return (
        f"`make soak MINUTES={minutes:g}` at commit {commit}, {took_s / 60:.0f} minutes: "
        f"{sum(MANNERS.values())} clients ({clients}) of {len(KINDS) + 1} streams, {RECORDS_PER_S:.0f} records of 1 KiB a "
        f"second. {counts}; the worker used {cores:.2f} of a core. Complaints of clients: {crowd.counts['complaints']}."
    )


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=15, help="how long there is load")
    parser.add_argument("--keep", action="store_true", help="draw the picture, and write the page")
    return parser


if __name__ == "__main__":
    sys.exit(main())
