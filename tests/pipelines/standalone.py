"""A Spark cluster of several processes on this machine: a master and workers, which start executors."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyspark

from kafkasse.pipelines.spark import jvm
from kafkasse.tools.java import runtime
from tests.support.waiting import wait_until

HOST = "127.0.0.1"
# Each of these processes runs for a minute, so its JVM must start quickly.
QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
EXECUTOR_OPTIONS = f"spark.executor.extraJavaOptions={QUICK}"


class Standalone:
    """A master, and workers with `cores` slots each, which share one core or two. The files are in `directory`."""

    def __init__(self, directory: Path, workers: int = 2, cores: int = 6) -> None:
        self._directory, self._count, self._cores = directory, workers, cores
        self._started: list[subprocess.Popen[bytes]] = []
        self.workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Standalone:
        try:
            _, log = self._start("master", "master.Master", "--host", HOST, "--port", "0", "--webui-port", "0")
            self.url = self._wait(log, r"Starting Spark master at (spark://\S+)")
            for _ in range(self._count):
                self.add_worker()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            for pid in children(process.pid):
                kill(pid)
            process.kill()
            process.wait()

    def add_worker(self) -> None:
        """Start a worker. Returns when the master knows it."""
        name = f"worker-{len(self.workers)}-{time.monotonic_ns()}"
        words = "--host", HOST, "--port", "0", "--webui-port", "0", "--cores", str(self._cores), "--memory", "1g"
        process, log = self._start(name, "worker.Worker", *words, "--work-dir", str(self._directory / name), self.url)
        self.workers.append(process)
        self._wait(log, r"Successfully registered with master (\S+)")

    def kill_worker(self) -> None:
        """Kill a worker, but not its executors, which notice it themselves."""
        process = self.workers.pop(0)
        process.kill()
        process.wait()

    def executors(self) -> list[int]:
        return [pid for worker in self.workers for pid in children(worker.pid)]

    def _start(self, name: str, main: str, *words: str) -> tuple[subprocess.Popen[bytes], Path]:
        log = self._directory / f"{name}.log"
        options = ["-Xmx256m", *QUICK.split(), *jvm.MODULE_OPTIONS]
        command = [
            str(runtime.java_executable()),
            *options,
            "-cp",
            jvm.spark_classpath(jvm.connector_jars()),
            f"org.apache.spark.deploy.{main}",
        ]
        environment = os.environ | {"SPARK_HOME": str(Path(pyspark.__file__).parent), "SPARK_LOCAL_IP": HOST}
        environment |= {"JAVA_HOME": str(runtime.java_home()), "SPARK_SCALA_VERSION": "2.13"}
        with log.open("wb") as output:
            self._started.append(subprocess.Popen([*command, *words], stdout=output, stderr=output, env=environment))
        return self._started[-1], log

    @staticmethod
    def _wait(log: Path, pattern: str) -> str:
        wait_until(lambda: re.search(pattern, log.read_text()))
        return re.findall(pattern, log.read_text())[0]


def children(pid: int) -> Iterator[int]:
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        yield from map(int, tasks.read_text().split())


def kill(pid: int) -> None:
    """Kill a process that may have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
