"""Kill the driver, Spark's JVM, executors, workers and the broker at random while countries are edited.

    make pipeline-chaos [RUNS=10] [CLUSTER=1] [SEED=1]

Each run edits countries 200 times per second. At the end, the compacted sink must equal the answer that plain Python code
computes from all edits, and the versions of a key must never decrease in the sink.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext, suppress
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import gevent
from kafka import KafkaProducer

from kafkasse.tools.broker import EmbeddedBroker
from kafkasse.tools.supervised_process import SupervisedProcess
from tests.pipelines.standalone import EXECUTOR_OPTIONS, Standalone, children, kill
from tests.pipelines.topics import country, tombstone, top
from tests.support.kafka import Cluster
from tests.support.server import CURRENT, Checkout
from tests.support.waiting import wait_until

EDITS_PER_S = 200
SOURCE_PARTITIONS = 3
KEYS = 300
CONTINENTS = ("Africa", "Asia", "Europe", "Oceania")
# Between two faults. A pipeline needs 8 s to start, and commits every 10 s, so faults occur in every phase.
PAUSE_S = (2.0, 15.0)
STOP_TIMEOUT_S = 60.0
VERSION = "kafkasse-version"


class View(NamedTuple):
    """The latest Top 3 of each continent, the number of records, and of those with a lower version than the one before."""

    top: dict[str, list[str]]
    records: int
    back: int


class Run:
    """One run: a broker, topics, a pipeline that is started again after it was killed, and a writer of edits.

    Args:
        cluster: where the pipeline runs; None for a local Spark.
        checkouts: the versions of kafkasse that run the pipeline, one after the other, and again from the first one.
    """

    def __init__(
        self, seed: int, directory: Path, cluster: Standalone | None, checkouts: Sequence[Checkout] = (CURRENT,)
    ) -> None:
        self._seed = seed
        self._edits, self._faults = random.Random(seed), random.Random(seed)  # noqa: S311
        self._directory, self._cluster, self._checkouts = directory, cluster, cycle(checkouts)
        self._broker = EmbeddedBroker(directory=directory / "kafka")
        self._countries: dict[str, tuple[str, int]] = {}
        self._lost: list[Exception] = []
        self._ended = threading.Event()
        self._started = threading.Event()
        self.edits = self.faults = self.starts = 0

    @contextmanager
    def kafka(self) -> Iterator[None]:
        with self._broker, closing(Cluster(self._broker.bootstrap_servers)) as topics:
            topics.create("countries", SOURCE_PARTITIONS)
            topics.create("topn", cleanup_policy="compact")
            yield

    @contextmanager
    def pipeline(self) -> Iterator[None]:
        """Run the pipeline until the block ends. Start it again whenever it ends, as systemd or Kubernetes do."""
        keeper = threading.Thread(target=self._keep_running)
        keeper.start()
        try:
            yield
        finally:
            self._ended.set()
            self._started.wait()
            self.terminate()
            keeper.join()

    def terminate(self) -> None:
        """Send SIGTERM to the pipeline."""
        self._pipeline.terminate()

    def _keep_running(self) -> None:
        words = ["pipeline", "run", "topn", "--bootstrap-servers", self._broker.bootstrap_servers]
        words += ["--checkpoint", str(self._directory / "checkpoint"), "--log-level", "ERROR"]
        words += ["--master", self._cluster.url, "--conf", EXECUTOR_OPTIONS] if self._cluster else []
        while not self._ended.is_set():
            self.starts += 1
            checkout = next(self._checkouts)
            command = [checkout.python, "-m", "kafkasse", *words]
            with self._log(self.starts).open("wb") as log:
                self._pipeline = subprocess.Popen(command, cwd=checkout.root, stdout=log, stderr=log)
                self._started.set()
                if self._ended.is_set():
                    self._pipeline.terminate()
                self._pipeline.wait()

    def _log(self, start: int) -> Path:
        return self._directory / f"pipeline-{start}.log"

    def wait_until_ready(self, start: int = 1) -> None:
        """Wait until a process has reported that it is ready. `start` is its number, from 1 on."""
        self._started.wait()
        wait_until(lambda: self.starts > start or (self.starts == start and b"ready" in self._log(start).read_bytes()))
        assert start == self.starts, f"the pipeline ended:\n{self._log(start).read_text()}"

    def edit(self, seconds: float) -> None:
        ends_s = time.monotonic() + seconds
        # The default backoff of up to 30 s is longer than the pause between two faults, so few edits would reach the topic.
        producer = KafkaProducer(
            bootstrap_servers=self._broker.bootstrap_servers,
            acks="all",
            delivery_timeout_ms=300_000,
            reconnect_backoff_max_ms=500,
        )
        with closing(producer), ThreadPoolExecutor(1) as pool:
            faults = pool.submit(self.inject, ends_s)
            while time.monotonic() < ends_s:
                began_s = time.monotonic()
                for _ in range(EDITS_PER_S // 10):
                    self._edit_one(producer)
                time.sleep(max(0.0, 0.1 - (time.monotonic() - began_s)))
            faults.result()
            producer.flush()
        assert not self._lost, f"{len(self._lost)} edits were not written: {self._lost[0]!r}"

    def _edit_one(self, producer: KafkaProducer) -> None:
        code = f"C{self._edits.randrange(KEYS)}"
        if self._edits.random() < 0.1:
            key, value = tombstone(code)
            self._countries.pop(code, None)
        else:
            continent, size = self._edits.choice(CONTINENTS), self._edits.randrange(1_000_000)
            key, value = country(code, size, continent)
            self._countries[code] = continent, size
        assert key
        sent = producer.send("countries", key=key, value=value, partition=sum(key) % SOURCE_PARTITIONS)
        sent.add_errback(self._lost.append)
        self.edits += 1

    def inject(self, ends_s: float) -> None:
        """Inject random faults until `ends_s`."""
        faults: list[Callable[[], object]] = [lambda: kill(self._pipeline.pid)]
        faults += [lambda: [kill(jvm) for jvm in children(self._pipeline.pid)], self._kill_broker]
        if cluster := self._cluster:
            faults += [lambda: [kill(executor) for executor in cluster.executors()[:1]]]
            faults += [lambda: (cluster.kill_worker(), cluster.add_worker())]
        while time.monotonic() < ends_s:
            time.sleep(self._faults.uniform(*PAUSE_S))
            self._faults.choice(faults)()
            self.faults += 1

    def _kill_broker(self) -> None:
        self._broker.kill()
        self._broker.start()

    def answer(self) -> dict[str, list[str]]:
        """The three largest countries of each continent, computed in plain Python."""
        ranked: dict[str, list[str]] = {}
        for code, (continent, _) in sorted(self._countries.items(), key=lambda item: (-item[1][1], item[0])):
            ranked.setdefault(continent, []).append(code)
        return {continent: codes[:3] for continent, codes in ranked.items()}

    def view(self) -> View:
        with closing(Cluster(self._broker.bootstrap_servers)) as topics:
            records = topics.records("topn")
        latest: dict[str, list[str]] = {}
        versions: dict[bytes, int] = {}
        back = 0
        for record in records:
            version = int(dict(record.headers)[VERSION])
            back += version < versions.get(record.key, 0)
            versions[record.key] = version
            latest[record.key.decode()] = top(record.value)
        return View({continent: codes for continent, codes in latest.items() if codes}, len(records), back)

    def check(self, seconds: float) -> None:
        """Edit for so long, and compare the sink with the answer.

        Raises:
            AssertionError: the sink is wrong.
        """
        with self.kafka():
            with self.pipeline():
                self.wait_until_ready()
                self.edit(seconds)
                edited_s, expected = time.monotonic(), self.answer()
                with suppress(gevent.Timeout):
                    wait_until(lambda: self.view().top == expected)
                answered_s = time.monotonic() - edited_s
            view = self.view()  # read again, because a late result could replace the right one
        print(
            f"seed {self._seed}: {self.edits} edits, {self.faults} faults, {self.starts} starts; "
            f"{answered_s:.0f} s after the last edit, {view.records} results, {view.back} went back",
            flush=True,
        )
        assert expected == view.top, f"{json.dumps(expected)} != {json.dumps(view.top)}\n{self.logs()}"
        assert 0 == view.back

    def logs(self) -> str:
        return "\n".join(self._log(start).read_text() for start in range(1, self.starts + 1))


def run(seed: int, seconds: float, on_cluster: bool, path: str) -> None:
    """Run once. Raises AssertionError if the sink is wrong."""
    directory = Path(path)
    with Standalone(directory) if on_cluster else nullcontext() as cluster:
        Run(seed, directory, cluster).check(seconds)


def supervise(seed: int, seconds: float, on_cluster: bool) -> None:
    """Run once in a process of its own. If this process is interrupted or killed, all processes of the run end."""
    with tempfile.TemporaryDirectory(prefix="kafkasse-chaos-", ignore_cleanup_errors=True) as name:
        code = f"from tests.pipelines import chaos; chaos.run({seed}, {seconds}, {on_cluster}, {name!r})"
        process = SupervisedProcess([sys.executable, "-c", code], scratch=name)
        try:
            if process.wait():
                sys.exit(f"seed {seed} failed")
        finally:
            process.stop(STOP_TIMEOUT_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--cluster", action="store_true", help="run on a standalone cluster, and kill its processes too"
    )
    args = parser.parse_args()
    for seed in range(args.seed, args.seed + args.runs):
        supervise(seed, args.seconds, args.cluster)


if __name__ == "__main__":
    main()
