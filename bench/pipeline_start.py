"""The time until `kafkasse pipeline run` is ready, with and without an archive of Spark's classes.

    python -m bench.pipeline_start [--runs N] [--source DIR]

Runs the Top 3 pipeline against an embedded broker, in turns without and with the archive. Elapsed time is from exec to
"kafkasse pipeline: ready". CPU time is that of Python and the JVM until then; other load on the machine affects it less.
--source measures an older version, whose folder it names, instead of the start without the archive.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import median

from bench.cold_start import cpu_s
from bench.machine import ROOT, commit, machine
from kafkasse.pipelines import jvm
from kafkasse.tools.broker import EmbeddedBroker
from kafkasse.tools.java import jars
from tests.support.kafka import Cluster

ARCHIVE_TIMEOUT_S = 600.0


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--source", type=Path)
    args = parser.parse_args()
    with EmbeddedBroker() as broker, tempfile.TemporaryDirectory() as empty:
        with closing(Cluster(broker.bootstrap_servers)) as cluster:
            cluster.create("countries")
            cluster.create("topn")
        for jar in jars.fetch("spark-kafka"):
            Path(empty, jar.name).symlink_to(jar)
        if not jvm.archive().path.exists():
            start(broker, ROOT, {}, until_archived=True)
        without: list[tuple[float, float]] = []
        with_archive: list[tuple[float, float]] = []
        for _ in range(args.runs):
            without.append(start(broker, args.source or ROOT, {} if args.source else {"KAFKASSE_CACHE_DIR": empty}))
            with_archive.append(start(broker, ROOT, {}))
    print(f"{machine()}; commit {commit()}; {args.runs} runs; load {os.getloadavg()[1]:.1f}\n")
    print("| start | elapsed, median | elapsed, worst | CPU time, median |\n| --- | ---: | ---: | ---: |")
    for name, runs in ((str(args.source or "without the archive"), without), ("with the archive", with_archive)):
        elapsed, cpu = zip(*runs, strict=True)
        print(f"| {name} | {median(elapsed):.1f} s | {max(elapsed):.1f} s | {median(cpu):.1f} s |")


def start(
    broker: EmbeddedBroker, source: Path, environment: dict[str, str], until_archived: bool = False
) -> tuple[float, float]:
    """Start the pipeline once. Returns the elapsed time and the CPU time until it is ready, in seconds."""
    began_s = time.monotonic()
    command = [sys.executable, "-m", "kafkasse", "pipeline", "run", "topn"]
    with subprocess.Popen(
        [*command, "--bootstrap-servers", broker.bootstrap_servers],
        cwd=source,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout
        assert "ready" in process.stdout.readline()
        elapsed_s, cpu = time.monotonic() - began_s, cpu_s(process.pid)
        deadline_s = time.monotonic() + ARCHIVE_TIMEOUT_S
        while until_archived and not jvm.archive().path.exists() and time.monotonic() < deadline_s:
            time.sleep(1)
        process.terminate()
    return elapsed_s, cpu


if __name__ == "__main__":
    main()
