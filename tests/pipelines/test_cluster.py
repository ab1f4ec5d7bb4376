"""Pipelines on a cluster of several processes, and while processes are killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

import kafkasse
from kafkasse.pipelines.spark import jvm
from kafkasse.tools.java import runtime
from tests.pipelines import chaos
from tests.pipelines.standalone import EXECUTOR_OPTIONS, Standalone, kill
from tests.pipelines.topics import Topics, country, top

pytestmark = [pytest.mark.processes, pytest.mark.long, pytest.mark.timeout(600)]

STOP_TIMEOUT_S = 120


@pytest.fixture(scope="module")
def cluster(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A master and two workers. Topn needs 5 slots, so it needs both workers."""
    with Standalone(tmp_path_factory.mktemp("cluster"), cores=4) as cluster:
        yield cluster


@contextmanager
def running(log: Path, *command: str, **environment: str) -> Iterator[None]:
    """Run a pipeline until the block ends. Then send SIGTERM to the Python process, which spark-submit starts."""
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | environment)
        try:
            while "kafkasse pipeline: ready" not in log.read_text():
                assert process.poll() is None, log.read_text()
                time.sleep(0.1)
            yield
            [pid, *_] = re.findall(r"\[(\d+)\] \[INFO\] kafkasse.pipeline", log.read_text())
            os.kill(int(pid), signal.SIGTERM)
            process.wait(STOP_TIMEOUT_S)
        finally:
            process.kill()
            process.wait()


def words(topics: Topics, checkpoint: Path) -> list[str]:
    servers = topics.kafka["bootstrap.servers"]
    names = ["--source", topics.source, "--sink", topics.sink]
    return ["pipeline", "run", "topn", "--bootstrap-servers", servers, "--checkpoint", str(checkpoint), *names]


def states(log: Path) -> list[str]:
    lines = (line.split() for line in log.read_text().splitlines() if "pipeline name=" in line)
    return [word.removeprefix("state=") for line in lines for word in line if word.startswith("state=")]


def wait_for(state: str, log: Path) -> None:
    """Wait until this is the last state that the pipeline has logged."""
    while states(log)[-1] != state:
        time.sleep(0.1)


def test_resumes_after_the_loss_of_an_executor_and_of_a_worker(topics, cluster, tmp_path):
    """The pipeline waits for slots, and resumes with its state. After SIGTERM, it commits and exits."""
    log = tmp_path / "log"
    options = ["--master", cluster.url, "--conf", EXECUTOR_OPTIONS]
    command = [sys.executable, "-m", "kafkasse", *words(topics, tmp_path / "checkpoint"), *options]
    topics.send(country("FR", 5))

    with running(log, *command):
        topics.read(lambda latest: top(latest["Europe"]) == ["FR"])
        kill(cluster.executors()[0])
        topics.send(country("IT", 3))
        topics.read(lambda latest: top(latest["Europe"]) == ["FR", "IT"])
        cluster.kill_worker()
        wait_for("waiting", log)
        cluster.add_worker()
        topics.send(country("DE", 4))
        topics.read(lambda latest: top(latest["Europe"]) == ["FR", "DE", "IT"])
        wait_for("running", log)  # a query that is still starting ends without a commit

    assert ["running", "draining", "stopped"] == states(log)[-3:]


def test_runs_with_spark_submit(topics, cluster, tmp_path):
    """spark-submit sends the jars to the executors, and its settings override those of kafkasse."""
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    jars = ",".join(map(str, jvm.connector_jars()))
    options = ["--master", cluster.url, "--total-executor-cores", "8", "--jars", jars, "--conf", EXECUTOR_OPTIONS]
    main = str(Path(kafkasse.__file__).with_name("__main__.py"))
    environment = {"JAVA_HOME": str(runtime.java_home()), "PYSPARK_PYTHON": sys.executable}
    topics.send(country("FR", 5))

    with running(tmp_path / "log", submit, *options, main, *words(topics, tmp_path / "checkpoint"), **environment):
        topics.read(lambda latest: top(latest["Europe"]) == ["FR"])

    assert ["starting", "running", "draining", "stopped"] == states(tmp_path / "log")


def test_results_are_right_after_a_kill(monkeypatch, tmp_path):
    """A short run of `make pipeline-chaos`. A pipeline that is killed while countries are edited gives the right results."""
    monkeypatch.setattr(chaos, "PAUSE_S", (1.0, 1.0))

    chaos.run(seed=2, seconds=3, on_cluster=False, path=str(tmp_path))
