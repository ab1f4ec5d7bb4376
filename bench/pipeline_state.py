"""The latency of a Top 3 with a large state, and how long the pipeline takes to resume.

    python -m bench.pipeline_state [--keys 10000 1000000] [--updates 2000] [--state-partitions 2]
        [--commit-interval 10] [--one-group]

Runs an embedded broker and `kafkasse pipeline run`, and writes KEYS records with 1,000 keys for each group, or with a single
group. Then it sends updates at a steady rate. Each makes a random key the largest of its group. The latency of an update is
the time from when it was due until the sink contains the result.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.figures import Latencies, Row
from bench.machine import commit, machine
from kafkasse.pipelines import Pipeline

if TYPE_CHECKING:
    from bench.testbed import Testbed  # Spark's process imports this module, but needs no client of the benchmark

SOURCE, SINK, PARTITIONS = "members", "tops", 3
KEYS_PER_GROUP = 1000
KEYS = 1_000_000
UPDATES_PER_S = 1000.0
UPDATES = 110_000  # enough for the 99th percentile
WARM_UP_S = 30  # the first commits are slow, whatever the size of the state
RESULT_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 120.0  # a pipeline ends after its next commit
BURST = 20_000
MAX_LOG_BYTES = 1_000_000
GOALS = {50: 50.0, 99: 150.0}  # milliseconds
LIMIT = "a commit, during which Spark processes no record; on a slow machine, updates queue up for longer"
UNITS_AND_GOALS = {
    "load": ("records/s", math.nan),
    "burst": ("records/s", math.nan),
    "cores used in the burst": ("cores", math.nan),
    "memory": ("MiB", math.nan),
    "restart until ready": ("s", math.nan),
    "restart until the first result": ("s", 15.0),
}
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def top_3(records: Any) -> Any:
    """The three largest members of each group."""
    from pyspark.sql import functions as F

    from kafkasse.pipelines.operators import ranked

    member = F.from_json(F.col("value").cast("string"), "group string, rank bigint, name string").alias("item")
    rows = records.select(F.col("key").cast("string").alias("key"), member, "partition", "offset")
    top = ranked(rows.select("*", "item.group", "item.rank"), 3)
    return top.select(F.col("group").alias("key"), F.to_json("items").alias("value"), "version", "position")


pipeline = Pipeline(
    "state",
    SOURCE,
    top_3,
    SINK,
    state_partitions=int(os.environ.get("STATE_PARTITIONS", "2")),
    commit_interval_s=int(os.environ.get("COMMIT_INTERVAL_S", "10")),
    spark={"spark.driver.memory": os.environ.get("HEAP", "1g")},
)


class Topics:
    """Writes members and reads their groups' Top 3."""

    def __init__(self, servers: str, groups: int) -> None:
        from confluent_kafka import Consumer, Producer, TopicPartition

        self._producer = Producer(
            {"bootstrap.servers": servers, "linger.ms": 0, "queue.buffering.max.messages": 500_000}
        )
        self._consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "fetch.wait.max.ms": 10})
        self._consumer.assign([TopicPartition(SINK, 0, 0)])
        self._groups = groups
        self._rank = 10_000_000

    def load(self, keys: int) -> None:
        """Write all keys, and wait until the pipeline has processed them."""
        self._wait(*self.write(keys))

    def write(self, keys: int) -> list[bytes]:
        """Write all keys. Returns marks, which the Top 3 contain once the pipeline has processed all keys."""
        for key in range(keys):
            self._send(key, key, key % PARTITIONS)
            if key % 10_000 == 0:
                self._producer.flush()
        return [self._send(keys + partition, self._next_rank(), partition) for partition in range(PARTITIONS)]

    def promote(self, key: int) -> None:
        """Make a key the largest of its group."""
        self._send(key, self._next_rank(), key % PARTITIONS)

    def read(self, timeout_s: float = 0.1) -> bytes:
        """Return the value of the next result, or b"" if there is none yet."""
        record = self._consumer.poll(timeout_s)
        return (record and record.value()) or b""

    def _next_rank(self) -> int:
        self._rank += 1
        return self._rank

    def _send(self, key: int, rank: int | None, partition: int) -> bytes:
        """Send a member. Returns bytes that only a Top 3 with this member contains."""
        member = {"group": self._group(key), "rank": rank, "name": f"the name of member {key}"}
        value = None if rank is None else json.dumps(member).encode()
        self._producer.produce(SOURCE, value, f"k{key}".encode(), partition)
        self._producer.poll(0)
        return f'"rank":{rank},'.encode()

    def _group(self, key: int) -> str:
        return f"g{key % self._groups}"

    def _wait(self, *marks: bytes) -> None:
        missing, deadline_s = set(marks), time.monotonic() + RESULT_TIMEOUT_S
        while missing:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"no Top 3 contains {missing}")
            value = self.read()
            missing = {mark for mark in missing if mark not in value}

    def promotions(self, keys: int, count: int) -> list[float]:
        """Make random keys the largest of their groups, UPDATES_PER_S times per second. Returns the latencies in ms."""
        chance = random.Random(1)
        began_s = time.perf_counter()
        due_s = [began_s + number / UPDATES_PER_S for number in range(count)]
        waiting: defaultdict[str, dict[int, float]] = defaultdict(dict)
        latencies_ms: list[float] = []
        for number in range(count):
            while (left_s := due_s[number] - time.perf_counter()) > 0:
                latencies_ms += self._shown(waiting, left_s)
            key = chance.randrange(keys)
            rank = self._next_rank()
            self._send(key, rank, key % PARTITIONS)
            waiting[self._group(key)][rank] = due_s[number]
        while len(latencies_ms) < count:
            if time.perf_counter() - due_s[-1] > RESULT_TIMEOUT_S:
                raise TimeoutError(f"no Top 3 contains {waiting}")
            latencies_ms += self._shown(waiting, 0.1)
        return latencies_ms

    def _shown(self, waiting: Mapping[str, dict[int, float]], timeout_s: float) -> list[float]:
        """Read a Top 3, and remove its updates from `waiting`, and those that are too small for it.

        Partitions are read in any order, so three later updates of the group may overtake an update.

        Args:
            waiting: for each group and rank, when the update was due.

        Returns:
            The latencies of the removed updates in milliseconds.
        """
        members = json.loads(self.read(timeout_s) or b"[]")
        now_s, shown_s = time.perf_counter(), []
        for group in {member["group"] for member in members}:
            ranks, of_group = {member["rank"] for member in members}, waiting[group]
            shown_s += [of_group.pop(rank) for rank in list(of_group) if rank in ranks or rank < min(ranks)]
        return [(now_s - due_s) * 1000 for due_s in shown_s]

    def burst(self, keys: int) -> float:
        """Send BURST corrections of random keys. Returns how many the pipeline processes per second."""
        chance = random.Random(2)
        began_s = time.perf_counter()
        for _ in range(BURST):
            key = chance.randrange(keys)
            self._send(key, chance.randrange(keys), key % PARTITIONS)
        for partition in range(PARTITIONS):
            self._wait(self._send(keys + partition, self._next_rank(), partition))
        return BURST / (time.perf_counter() - began_s)


class PipelineFailedError(Exception):
    """The pipeline ended, or started again after a failure, before it was ready. The message is its log."""


class Running:
    """A running pipeline.

    Raises:
        PipelineFailedError: the pipeline failed before it was ready.
    """

    def __init__(self, servers: str, checkpoint: str, *more: str) -> None:
        self._began_s = time.perf_counter()
        words = ["pipeline", "run", "bench.pipeline_state:pipeline", "--bootstrap-servers", servers]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - deleted together with this object
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kafkasse", *words, "--checkpoint", checkpoint, *more],
            stdout=self._log,
            stderr=self._log,
        )
        try:
            while b"kafkasse pipeline: ready" not in self._output():
                if self.has_failed():
                    raise PipelineFailedError(self._output().decode())
                time.sleep(0.02)
        except BaseException:
            self.stop()
            raise
        self.ready_s = time.perf_counter() - self._began_s

    def _output(self) -> bytes:
        return os.pread(self._log.fileno(), MAX_LOG_BYTES, 0)

    def has_failed(self) -> bool:
        """Whether the pipeline has ended, or started again after a failure."""
        return self._process.poll() is not None or b"state=restarting" in self._output()

    def since_start_s(self) -> float:
        return time.perf_counter() - self._began_s

    def memory_mb(self) -> float:
        """The resident memory of Spark's JVM and of the Python process."""
        return sum(_status_kb(process, "VmRSS") for process in self._processes()) / 1024

    def cpu_s(self) -> float:
        """The CPU time of both processes."""
        return sum(
            sum(map(int, Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[11:13])) / TICKS_PER_S
            for each in self._processes()
        )

    def _processes(self) -> list[int]:
        parent = self._process.pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        return [parent, *map(int, children)]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(STOP_TIMEOUT_S)


def _status_kb(process: int, name: str) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(name)), 0)  # 0: the process has ended


@contextmanager
def broker_with_topics() -> Iterator[str]:
    """An embedded broker with an empty source and an empty sink."""
    from kafka import KafkaAdminClient

    from kafkasse.tools.broker import EmbeddedBroker

    with EmbeddedBroker() as broker:
        admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        admin.create_topics(
            {
                SOURCE: {"num_partitions": PARTITIONS, "replication_factor": 1},
                SINK: {"num_partitions": 1, "replication_factor": 1},
            },
            wait_for_metadata=True,
        )
        admin.close()
        yield broker.bootstrap_servers


def measure(testbed: Testbed) -> list[Row | Latencies]:
    """Return the latency, the throughput, the memory and the restart with a large state."""
    keys, updates = (1_000, 100) if testbed.scale.quick else (KEYS, UPDATES)
    latencies, figures = state(keys, updates, one_group=False)
    what = f"a pipeline with {keys:,} keys"
    rows = [
        Row(f"pipeline.{name.replace(' ', '_')}", "kafkasse", f"{what}: {name}", value, *UNITS_AND_GOALS[name])
        for name, value in figures.items()
    ]
    return [*rows, Latencies("pipeline", "kafkasse", f"{what}, {UPDATES_PER_S:.0f} updates/s", latencies, GOALS, LIMIT)]


def state(keys: int, updates: int, one_group: bool) -> tuple[list[float], dict[str, float]]:
    """Return the latencies of updates in milliseconds, and the other figures, with a state of this many keys."""
    groups = 1 if one_group else max(1, keys // KEYS_PER_GROUP)
    with broker_with_topics() as servers, tempfile.TemporaryDirectory() as checkpoint:
        topics = Topics(servers, groups)
        running = Running(servers, checkpoint)
        try:
            began_s = time.perf_counter()
            topics.load(keys)
            figures = {"load": keys / (time.perf_counter() - began_s)}
            warm_up = min(updates, int(WARM_UP_S * UPDATES_PER_S))
            latencies_ms = topics.promotions(keys, warm_up + updates)[-updates:]
            cpu_s, at_s = running.cpu_s(), time.perf_counter()
            figures["burst"] = topics.burst(keys)
            figures["cores used in the burst"] = (running.cpu_s() - cpu_s) / (time.perf_counter() - at_s)
            figures["memory"] = running.memory_mb()
        finally:
            running.stop()
        running = Running(servers, checkpoint)
        try:
            figures["restart until ready"] = running.ready_s
            topics.promotions(keys, 1)
            figures["restart until the first result"] = running.since_start_s()
        finally:
            running.stop()
    return latencies_ms, figures


def main() -> None:
    """Print the figures of each state."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="+", default=[10_000, KEYS])
    parser.add_argument("--updates", type=int, default=2_000)
    parser.add_argument("--state-partitions", type=int, default=2)
    parser.add_argument("--commit-interval", type=int, default=10)
    parser.add_argument("--heap", default="1g")
    parser.add_argument("--one-group", action="store_true", help="put all keys into a single group")
    args = parser.parse_args()
    os.environ |= {
        "STATE_PARTITIONS": str(args.state_partitions),
        "HEAP": args.heap,
        "COMMIT_INTERVAL_S": str(args.commit_interval),
    }
    print(f"{machine()}; commit {commit()}; load average {os.getloadavg()[0]:.1f}")
    for keys in args.keys:
        latencies_ms, figures = state(keys, args.updates, args.one_group)
        print(f"{keys:,} keys: median of the latency {median(latencies_ms):.0f} ms")
        print("".join(f"    {name}: {value:,.1f} {UNITS_AND_GOALS[name][0]}\n" for name, value in figures.items()))


if __name__ == "__main__":
    main()
