"""What a number of clients needs: measured costs with 10,000 clients, a formula, and runs of other sizes that check it.

docs/capacity.md explains the formula. `make bench` writes its tables.
"""

from __future__ import annotations

import math
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Figures, Latencies, Row
from bench.servers import KAFKASSE
from bench.testbed import RECORD_BYTES, Testbed
from kafkasse.feed.tail import MAX_PUSH_REST_S, PUSH_REST_RATIO

Rows = Mapping[tuple[str, str], Row]
CLIENTS, RATE, RATE_TLS = 10_000, 8.0, 1.0  # about the planned load, or more; rarer writes cost more
BUSY_CLIENTS, BUSY_RATES = 1_000, (100.0, 500.0)  # few and many records share a write
TLS = "tls"
SECONDS = 8.0
CHECK_S = 11.0  # enough for the 99th percentile
OVERLOADED_S = 10.0  # the writes to all clients take longer than the records that share them arrive
USED_SHARE = 0.6  # of a core; the rest is a reserve for reconnects and garbage collection
MAX_STREAMS = 8_000  # per worker, in the default configuration
FRAME_BYTES = 330  # per record: event fields, ID for three partitions, _kafka, chunk and TCP headers
KAFKA_BYTES = 80  # per record: the overhead of Kafka's protocol with small batches
PLANNED = tuple((clients, rate) for clients in (10_000, 100_000, 1_000_000) for rate in (1.0, 10.0, 100.0))
ALLOWED_DEVIATION = 0.2
_OPENSSL = [
    "req",
    "-x509",
    "-newkey",
    "ec",
    "-pkeyopt",
    "ec_paramgen_curve:P-256",
    "-nodes",
    "-days",
    "30",
    "-subj",
    "/CN=localhost",
]


@dataclass(frozen=True, slots=True)
class Run:
    """A run that checks the formula, and the key of its rows."""

    key: str
    clients: int
    rate: float
    workers: int
    tls: bool = False

    def __str__(self) -> str:
        workers = f"{self.workers} worker{'s' * (self.workers > 1)}"
        return f"{self.clients:,} clients at {self.rate:.0f}/s, {workers}{', TLS' * self.tls}"


CHECKED = (
    Run("capacity.check.1", 5_000, 10, 1),
    Run("capacity.check.2", 4_000, 10, 2),
    Run("capacity.check.3", 8_000, 10, 1),
)
# Here, the worker is busier than planned, or a write costs less or more than computed. With many records, the clients are
# never idle, so a write wakes no process. Why TLS costs less in a worker with few clients is not known.
OTHERS = (
    Run("capacity.rare", 5_000, 2, 1),
    Run("live.1000x200", 1_000, 200, 1),
    Run("live.10000x20", 10_000, 20, 1),
    Run("capacity.tls", 3_000, 10, 2, tls=True),
)


@dataclass(frozen=True, slots=True)
class Costs:
    """The measured costs, with or without TLS in the worker, in CPU seconds and bytes.

    Attributes:
        write_s: a write of one record to one client.
        record_s: one more record in a write.
        fetch_s: fetch and encode the records of a write.
        open_s: open one stream.
        client_bytes: memory for an idle client.
    """

    write_s: float
    record_s: float
    fetch_s: float
    open_s: float
    client_bytes: float


@dataclass(frozen=True, slots=True)
class Use:
    """What a worker uses: the share of a core, and the median and the longest latency of a record."""

    cores: float
    median_s: float
    longest_s: float


def use(costs: Costs, clients: int, rate: float) -> Use:
    """Return what a worker with this many clients uses at this many records per second.

    The worker writes to all clients, then rests. Records that arrive meanwhile share the next write.
    """
    records = 1.0
    for _ in range(100):  # the more records share a write, the longer it takes, and the more records arrive
        push_s = costs.fetch_s + clients * (costs.write_s + (records - 1) * costs.record_s)
        turn_s = push_s + min(MAX_PUSH_REST_S, PUSH_REST_RATIO * push_s)
        records = max(1.0, rate * turn_s)
        if turn_s > OVERLOADED_S:
            return Use(1.0, math.inf, math.inf)
    wait_s = turn_s if records > 1 else 0.0
    return Use(rate / records * push_s, (wait_s + push_s) / 2, wait_s + push_s)


def costs_of(rows: Rows, tls: bool = False) -> Costs:
    """Return the costs from the results.

    Raises:
        KeyError: the results lack a figure.
    """
    prefix = "capacity.costs" + f".{TLS}" * tls
    keys = (f"{prefix}.write", "capacity.costs.record", "live.1x200.cpu", f"{prefix}.open", f"{prefix}.memory")
    write_us, record_us, fetch_us, open_ms, memory_kib = (rows[key, KAFKASSE].value for key in keys)
    return Costs(write_us / 1e6, record_us / 1e6, fetch_us / 1e6, open_ms / 1e3, memory_kib * 1024)


def checks(rows: Rows) -> Iterator[tuple[Run, float, float, Use]]:
    """Yield each run with the computed and the measured share of a core of all its workers, and the use of a worker."""
    for run in (*CHECKED, *OTHERS):
        worker = use(costs_of(rows, run.tls), run.clients // run.workers, run.rate)
        yield run, worker.cores * run.workers, rows[f"{run.key}.cores", KAFKASSE].value / 100, worker


def tables(rows: Rows) -> str:
    """Return the generated tables of docs/capacity.md and bench/README.md."""
    try:
        costs, checked = {tls: costs_of(rows, tls) for tls in (False, True)}, list(checks(rows))
    except KeyError:
        return "Not measured yet. Run `make bench`."
    lines = ["| cost | symbol | HTTP | TLS in the worker |", "| --- | --- | ---: | ---: |"]
    for what, symbol, figure in (
        ("a write of one record to one client", "d", lambda costs: f"{costs.write_s * 1e6:.1f} µs"),
        ("one more record in a write", "e", lambda costs: f"{costs.record_s * 1e6:.2f} µs"),
        ("fetch and encode", "f", lambda costs: f"{costs.fetch_s * 1e6:.0f} µs"),
        ("open a stream", "o", lambda costs: f"{costs.open_s * 1e3:.2f} ms"),
        ("idle client", "m", lambda costs: f"{costs.client_bytes / 1024:.1f} KiB"),
    ):
        lines.append(f"| {what} | {symbol} | {figure(costs[False])} | {figure(costs[True])} |")
    lines += ["", "| run | CPU, computed | measured | deviation | p99, computed | measured |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: |")
    for run, computed, measured, worker in checked:
        p99 = rows.get((f"{run.key}.p99", KAFKASSE))
        cells = [
            f"{computed:.2f} cores", f"{measured:.2f}", f"{computed / measured - 1:+.0%}",
            f"{worker.longest_s * 1e3:.0f} ms", f"{p99.value:.0f} ms" if p99 else "too few samples",
        ]  # fmt: skip
        lines.append(f"| {run} | {' | '.join(cells)} |")
    lines += ["", "| clients | records/s | workers | clients per worker | p99 | memory | from Kafka | to clients |"]
    lines.append("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    slower = max((_slower(rows, run, worker) for run, _, _, worker in checked if run in CHECKED), default=1.0)
    lines += [_plan(costs[False], rows, clients, rate, slower) for clients, rate in PLANNED]
    return "\n".join(lines)


def _slower(rows: Rows, run: Run, worker: Use) -> float:
    """Return how many times as long as computed the measured p99 of a run is; at least 1."""
    p99 = rows.get((f"{run.key}.p99", KAFKASSE))
    return max(1.0, p99.value / 1e3 / worker.longest_s) if p99 else 1.0


def _plan(costs: Costs, rows: Rows, clients: int, rate: float, slower: float) -> str:
    """Return a row of the table of fleets. Its p99 is that of the formula times `slower`."""
    worker_bytes = rows["idle.10000.base", KAFKASSE].value * 2**20
    share = next(number for number in range(MAX_STREAMS, 0, -10) if use(costs, number, rate).cores <= USED_SHARE)
    workers, p99_s = math.ceil(clients / share), use(costs, share, rate).longest_s * slower
    cells = [
        f"{clients:,}", f"{rate:g}", f"{workers:,}", f"{share:,}", f"{p99_s * 1e3:.0f} ms",
        f"{(workers * worker_bytes + clients * costs.client_bytes) / 1e9:,.1f} GB",
        f"{workers * rate * (RECORD_BYTES + KAFKA_BYTES) / 1e6:,.1f} MB/s",
        f"{clients * rate * (RECORD_BYTES + FRAME_BYTES) * 8 / 1e9:,.2f} Gbit/s",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def measure_costs(testbed: Testbed) -> Figures:
    """Measure the costs, with and without TLS."""
    with _tls() as options:
        return [
            *_costs(testbed, "capacity.costs", ""),
            _record_row(testbed),
            *_costs(testbed, f"capacity.costs.{TLS}", options),
        ]


def measure_runs(testbed: Testbed) -> Figures:
    """Measure the runs that check the formula."""
    with _tls() as options:
        runs = [run for run in (*CHECKED, *OTHERS) if run.key.startswith("capacity")]
        return [row for run in runs for row in _check(testbed, run, options if run.tls else "")]


@contextmanager
def _tls() -> Iterator[str]:
    """Yield the options that make gunicorn serve TLS."""
    with tempfile.TemporaryDirectory() as folder:
        yield _certificate(Path(folder))


def _certificate(folder: Path) -> str:
    """Create a certificate. Returns the options that make gunicorn serve TLS."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(["openssl", *_OPENSSL, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return f"--keyfile {key} --certfile {certificate}"


def _costs(testbed: Testbed, key: str, options: str) -> Figures:
    """Return rows of the costs with 10,000 clients."""
    clients, rate = testbed.scale.clients(CLIENTS), RATE_TLS if options else RATE
    what = f"{CLIENTS:,} clients{', TLS' * bool(options)}"
    settings = {"max_streams": str(clients + 1), "gunicorn_options": options}
    with testbed.topics(1) as topics, testbed.server(KAFKASSE, topics, **settings) as server:
        testbed.open(server, topics, 1)
        before, before_s = server.memory_bytes(), server.cpu_s()
        opened = len(testbed.clients.open([server.request(f"/{topics[0]}")] * (clients - 1)))
        open_ms, memory = (server.cpu_s() - before_s) / opened * 1e3, (server.memory_bytes() - before) / opened
        run = testbed.paced(server, topics, clients, rate, testbed.scale.seconds(SECONDS))
        write_us = run.cpu_s / run.delivered.reads * 1e6  # on a slow machine, some records share a write
        testbed.clients.close_all()
    return [
        Row(f"{key}.open", KAFKASSE, f"{what}: CPU to open one stream", open_ms, "ms"),
        Row(f"{key}.memory", KAFKASSE, f"{what}: memory per client", memory / 1024, "KiB"),
        Row(f"{key}.write", KAFKASSE, f"{what} at {rate:.0f}/s: CPU per write", write_us, "µs"),
    ]


def _record_row(testbed: Testbed) -> Row:
    """Return the cost of one more record in a write: the difference of two rates, with few and with many records."""
    clients, writes = testbed.scale.clients(BUSY_CLIENTS), []
    with testbed.topics(1) as topics, testbed.server(KAFKASSE, topics) as server:
        testbed.open(server, topics, clients)
        for rate in BUSY_RATES:
            testbed.paced(server, topics, clients, rate, testbed.scale.seconds(2.0))
            run = testbed.paced(server, topics, clients, rate, testbed.scale.seconds(SECONDS))
            writes.append((run.delivered.records / run.delivered.reads, run.cpu_s / run.delivered.reads * 1e6))
        testbed.clients.close_all()
    (few, less_us), (many, more_us) = writes
    record_us = max(0.0, (more_us - less_us) / (many - few)) if many > few else math.nan
    what = (
        f"{BUSY_CLIENTS:,} clients at {BUSY_RATES[0]:.0f} and {BUSY_RATES[1]:.0f}/s: CPU of one more record in a write"
    )
    return Row("capacity.costs.record", KAFKASSE, what, record_us, "µs")


def _check(testbed: Testbed, run: Run, options: str) -> Figures:
    clients = testbed.scale.clients(run.clients)
    settings = {"max_streams": str(clients + 1), "gunicorn_options": options, "workers": run.workers}
    with testbed.topics(1) as topics, testbed.server(KAFKASSE, topics, **settings) as server:
        testbed.open(server, topics, clients)
        testbed.paced(server, topics, clients, run.rate, testbed.scale.seconds(2.0))
        measured = testbed.paced(server, topics, clients, run.rate, testbed.scale.seconds(CHECK_S))
        testbed.clients.close_all()
    cores = measured.cpu_s / measured.seconds * 100
    return [
        Row(f"{run.key}.cores", KAFKASSE, f"{run}: CPU of all workers", cores, "% of a core"),
        Latencies(run.key, KAFKASSE, str(run), measured.latencies_ms, {}),
    ]
