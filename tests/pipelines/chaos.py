"""Kill the driver, Spark's JVM, executors, workers and the broker at random while countries are edited.

    make pipeline-chaos [RUNS=10] [SECONDS=60] [CLUSTER=1] [SEED=1]

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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from kafkasse.broker import EmbeddedBroker
from tests.pipelines.countries import country, tombstone, top
from tests.pipelines.standalone import Standalone, children, kill
from tests.support.kafka import Cluster

EDITS_PER_S = 200
SOURCE_PARTITIONS = 3
KEYS = 300
CONTINENTS = ("Africa", "Asia", "Europe", "Oceania")
PAUSE_S = (3.0, 8.0)  # between two faults
ANSWER_TIMEOUT_S = 240.0
VERSION = "kafkasse-version"


class Run:
    """One run: a broker, topics, a pipeline that is started again after it was killed, and a writer of edits."""

    def __init__(self, seed: int, directory: Path, cluster: Standalone | None) -> None:
        self.random = random.Random(seed)  # noqa: S311
        self._directory, self._cluster = directory, cluster
        self.broker = EmbeddedBroker(directory=directory / "kafka")
        self.countries: dict[str, tuple[str, int]] = {}
        self.edits = self.faults = self.starts = 0
        self._ended = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the broker, the pipeline and the writer until the block ends."""
        with self.broker:
            topics = Cluster(self.broker.bootstrap_servers)
            topics.create("countries", SOURCE_PARTITIONS)
            topics.create("topn", cleanup_policy="compact")
            topics.close()
            self.producer = KafkaProducer(
                bootstrap_servers=self.broker.bootstrap_servers, acks="all", delivery_timeout_ms=300_000
            )
            keeper = threading.Thread(target=self._keep_running)
            keeper.start()
            try:
                yield
            finally:
                self._ended.set()
                self._pipeline.terminate()
                keeper.join()
                self.producer.close()

    def _keep_running(self) -> None:
        """Start the pipeline again whenever it ends, as systemd or Kubernetes do."""
        words = ["pipeline", "run", "topn", "--bootstrap-servers", self.broker.bootstrap_servers]
        words += ["--checkpoint", str(self._directory / "checkpoint")]
        words += ["--master", self._cluster.url] if self._cluster else []
        while not self._ended.is_set():
            self.starts += 1
            with (self._directory / f"pipeline-{self.starts}.log").open("wb") as log:
                self._pipeline = subprocess.Popen([sys.executable, "-m", "kafkasse", *words], stdout=log, stderr=log)
                self._pipeline.wait()

    def wait_until_ready(self) -> None:
        """Wait until the first process has reported that it is ready."""
        log = self._directory / "pipeline-1.log"
        while not log.exists() or b"ready" not in log.read_bytes():
            assert self.starts <= 1, f"the pipeline ended:\n{log.read_text()}"
            time.sleep(0.1)

    def edit(self, seconds: float) -> None:
        """Edit countries, and inject faults in another thread."""
        faults = threading.Thread(target=self._inject, args=(seconds,))
        faults.start()
        ends_s = time.monotonic() + seconds
        while time.monotonic() < ends_s:
            began_s = time.monotonic()
            for _ in range(EDITS_PER_S // 10):
                self._edit_one()
            time.sleep(max(0.0, 0.1 - (time.monotonic() - began_s)))
        faults.join()
        self.producer.flush()

    def _edit_one(self) -> None:
        code = f"C{self.random.randrange(KEYS)}"
        if self.random.random() < 0.1:
            key, value = tombstone(code)
            self.countries.pop(code, None)
        else:
            continent, size = self.random.choice(CONTINENTS), self.random.randrange(1_000_000)
            key, value = country(code, size, continent)
            self.countries[code] = continent, size
        assert key
        self.producer.send("countries", key=key, value=value, partition=sum(key) % SOURCE_PARTITIONS)
        self.edits += 1

    def _inject(self, seconds: float) -> None:
        ends_s = time.monotonic() + seconds
        faults = [self._kill_driver, self._kill_jvm, self._kill_broker]
        if self._cluster:
            faults += [self._kill_executor, self._kill_worker]
        while time.monotonic() < ends_s:
            time.sleep(self.random.uniform(*PAUSE_S))
            self.random.choice(faults)()
            self.faults += 1

    def _kill_driver(self) -> None:
        kill(self._pipeline.pid)

    def _kill_jvm(self) -> None:
        for pid in children(self._pipeline.pid):
            kill(pid)

    def _kill_broker(self) -> None:
        self.broker.kill()
        self.broker.start()

    def _kill_executor(self) -> None:
        assert self._cluster
        for pid in self._cluster.executors()[:1]:
            kill(pid)

    def _kill_worker(self) -> None:
        assert self._cluster
        self._cluster.kill_worker()
        self._cluster.add_worker()

    def answer(self) -> dict[str, list[str]]:
        """The three largest countries of each continent, computed in plain Python."""
        ranked: dict[str, list[str]] = {}
        for code, (continent, _) in sorted(self.countries.items(), key=lambda each: (-each[1][1], each[0])):
            ranked.setdefault(continent, []).append(code)
        return {continent: codes[:3] for continent, codes in ranked.items()}

    def check(self) -> tuple[int, int]:
        """Read the sink until it equals the answer. Returns the number of records and of versions that went back."""
        expected = self.answer()
        view: dict[str, list[str]] = {}
        versions: dict[bytes, int] = {}
        records = back = 0
        consumer = KafkaConsumer(bootstrap_servers=self.broker.bootstrap_servers, consumer_timeout_ms=1000)
        consumer.assign([TopicPartition("topn", 0)])
        consumer.seek_to_beginning()
        deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
        while time.monotonic() < deadline_s and view != expected:
            for record in consumer:
                version = int(dict(record.headers)[VERSION])
                back += version < versions.get(record.key, 0)
                versions[record.key] = version
                records += 1
                if found := top(record.value):
                    view[record.key.decode()] = found
                else:
                    view.pop(record.key.decode(), None)
        consumer.close()
        assert expected == view, f"after {self.edits} edits: {json.dumps(expected)} != {json.dumps(view)}"
        return records, back


def run(seed: int, seconds: float, on_cluster: bool) -> None:
    """Run once. Raises AssertionError if the sink is wrong."""
    with (
        tempfile.TemporaryDirectory(prefix="kafkasse-chaos-", ignore_cleanup_errors=True) as name,
        ExitStack() as stack,
    ):
        directory = Path(name)
        cluster = stack.enter_context(Standalone(directory)) if on_cluster else None
        one = Run(seed, directory, cluster)
        with one.running():
            one.wait_until_ready()
            one.edit(seconds)
            records, back = one.check()
        print(
            f"seed {seed}: {one.edits} edits, {one.faults} faults, {one.starts} starts, {records} results, {back} went back",
            flush=True,
        )
        assert 0 == back


def main() -> None:
    """Run several times with different seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--cluster", action="store_true", help="run on a standalone cluster, and kill its processes too"
    )
    args = parser.parse_args()
    for seed in range(args.seed, args.seed + args.runs):
        run(seed, args.seconds, args.cluster)


if __name__ == "__main__":
    main()
