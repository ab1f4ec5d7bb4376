"""`kafkasse pipeline` runs a pipeline until it is stopped, and reports each failure in one sentence."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.commands.run import EXIT_TIMEOUT_S, pipeline, run_words
from tests.pipelines.standalone import children
from tests.pipelines.topics import country, top
from tests.support.registry import Registry
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes

LARGE_ORDERS = """
from kafkasse.pipelines import Pipeline

LARGE = "try_cast(get_json_object(value, '$.amount') AS DOUBLE) > 100"

def large(orders):  # rows of Spark's Kafka source -> rows of key and value
    return orders.selectExpr("key", "CAST(value AS STRING) AS value").where(LARGE)

large_orders = Pipeline("large-orders", source="orders", query=large, sink="large-orders")
"""
ENDLESS = """
import time
from pathlib import Path
from kafkasse.pipelines import Pipeline

def query(rows):
    Path("called").touch()
    time.sleep(600)

endless = Pipeline("endless", source="a", query=query, sink="b")
"""

FAKE_JAVA = """#!/bin/sh
grep SigIgn /proc/$$/status > {home}/ignored
{start}
"""


def fake_java(home: Path, start: str) -> str:
    """A Java home whose `java` runs a shell command instead of a JVM."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    (home / "release").write_text('JAVA_VERSION="17"')
    java.write_text(FAKE_JAVA.format(home=home, start=start))
    java.chmod(0o700)
    return str(home)


def failure(*words: str, **environment: str) -> str:
    """Run `kafkasse pipeline …`, which must fail without a retry and without output. Returns its log."""
    with pipeline(*words, **environment) as process:
        out, err = process.communicate(timeout=EXIT_TIMEOUT_S)
    assert (1, "", False) == (process.returncode, out, "restarting" in err)
    return err


def wait_for(process: subprocess.Popen[str], condition: Callable[[], object]) -> None:
    """Wait until a condition is true while the process runs."""

    def is_met() -> object:
        assert process.poll() is None, process.stderr.read()
        return condition()

    wait_until(is_met)


def stop(process: subprocess.Popen[str], number: int) -> tuple[int, str, str]:
    """Interrupt the process and its JVM as a terminal does, or only the process. Returns its exit code and output."""
    os.killpg(process.pid, number) if number == signal.SIGINT else process.terminate()
    out, err = process.communicate(timeout=EXIT_TIMEOUT_S)  # returns when the JVM, which inherited the pipes, has ended
    return process.returncode, out, err


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    (tmp_path / "temporary").mkdir()
    return tmp_path / "temporary"


@pytest.mark.parametrize(
    ("words", "number", "code"),
    [
        (None, signal.SIGINT, 130),
        (None, signal.SIGTERM, 0),
        (("check", "topn"), signal.SIGTERM, 130),
    ],
    ids=["run, Ctrl-C", "run, SIGTERM", "check"],
)
def test_a_signal_does_not_wait_for_spark(topics, tmp_path, temporary, words, number, code):
    """The signal ends a JVM that never connects. No process and no file is left, and the log contains no error.

    The JVM itself ignores the signals: a terminal sends Ctrl-C to it too, and it must not exit before its query has ended.
    The exit code of `check` is that of Ctrl-C, because it has no result.
    """
    java = fake_java(tmp_path / "java", "exec cat")
    with pipeline(*(words or run_words(topics)), TMPDIR=str(temporary), JAVA_HOME=java) as process:
        wait_for(process, lambda: (tmp_path / "java/ignored").exists() and (tmp_path / "java/ignored").read_text())
        *ended, err = stop(process, number)

    ignored = int((tmp_path / "java/ignored").read_text().split()[1], 16)
    assert all(ignored >> signal_number - 1 & 1 for signal_number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM))
    assert [code, "", []] == [*ended, list(temporary.iterdir())]
    assert ([] if words else ["starting", "stopped"]) == re.findall(r"state=(\w+)", err)
    assert "\n" == err if words else 2 == len(err.splitlines())


@pytest.mark.parametrize(
    ("words", "number", "code"),
    [(None, signal.SIGTERM, 0), pytest.param(("check", "topn"), signal.SIGINT, 130, marks=pytest.mark.long)],
)
def test_a_signal_ends_a_real_jvm_that_starts(topics, tmp_path, words, number, code):
    """A JVM that has not connected to PySpark yet is not left behind."""
    with pipeline(*(words or run_words(topics)), TMPDIR=str(tmp_path)) as process:
        wait_for(process, lambda: list(tmp_path.glob("*/options")))
        *ended, _ = stop(process, number)

    assert [code, "", []] == [*ended, list(tmp_path.iterdir())]


def test_a_jvm_that_is_killed_while_it_starts_is_started_again(topics, tmp_path):
    """The system may kill it, for example because there is too little memory. The pipeline backs off, and tries again."""
    with pipeline(*run_words(topics), JAVA_HOME=fake_java(tmp_path, "kill -9 $$")) as process:
        warnings = (line for line in iter(process.stderr.readline, "") if "WARNING" in line)
        restarts = [next(warnings), next(warnings)]
        code, *_ = stop(process, signal.SIGTERM)

    assert "Spark's JVM was killed by signal 9; restarting in 1 s" in restarts[0]
    assert "Spark's JVM was killed by signal 9; restarting in 2 s" in restarts[1]
    assert 0 == code


def test_a_jvm_that_ends_before_pyspark_has_connected_is_an_error(topics, tmp_path):
    """Its exit code is 0. For example, the user has set spark.driver.extraJavaOptions to -version."""
    err = failure(*run_words(topics), JAVA_HOME=fake_java(tmp_path, "exit 0"))

    assert f"Spark's JVM ({tmp_path}/bin/java) did not start: it exited with code 0" in err


def jvm_of(pid: int) -> int:
    """Return the process ID of Spark's JVM."""
    (jvm,) = (child for child in children(pid) if "SparkSubmit" in Path(f"/proc/{child}/cmdline").read_text())
    return jvm


@pytest.mark.long
def test_spark_ends_while_its_context_starts(topics, tmp_path):
    """PySpark has connected to the JVM. A killed JVM is started again, and SIGTERM ends the pipeline without an error."""
    with pipeline(*run_words(topics), TMPDIR=str(tmp_path)) as process:
        wait_for(process, lambda: list(tmp_path.glob("*/blockmgr-*")))
        jvm = jvm_of(process.pid)
        os.kill(jvm, signal.SIGKILL)
        log = [next(line for line in iter(process.stderr.readline, "") if "WARNING" in line)]
        wait_for(process, lambda: list(tmp_path.glob("*/blockmgr-*")))
        *ended, err = stop(process, signal.SIGTERM)

    assert "Spark's JVM was killed by signal 9; restarting in 1 s" in log[0]
    assert ["starting", "stopped"] == re.findall(r"state=(\w+)", err)
    assert 2 == len(err.splitlines())
    assert [0, "", []] == [*ended, list(tmp_path.iterdir())]


@pytest.mark.long
def test_sigterm_ends_a_check_after_spark_has_started(tmp_path, temporary, monkeypatch):
    """Here, Spark waits for the query of the user. No process and no file is left."""
    (tmp_path / "endless.py").write_text(ENDLESS)
    monkeypatch.chdir(tmp_path)
    with pipeline("check", "endless:endless", TMPDIR=str(temporary)) as process:
        wait_for(process, (tmp_path / "called").exists)
        ended = stop(process, signal.SIGTERM)

    assert (130, "", "\n", []) == (*ended, list(temporary.iterdir()))


@pytest.mark.long
def test_spark_uses_the_directory_that_the_user_has_set_for_its_files(topics, tmp_path, temporary):
    """After Ctrl-C, no file is left in the directory."""
    local = tmp_path / "local"
    words = run_words(topics, "--conf", f"spark.local.dir={local}")
    with pipeline(*words, TMPDIR=str(temporary)) as process:
        assert "ready" in process.stdout.readline()
        files = list(local.iterdir())
        code, *_ = stop(process, signal.SIGINT)

    assert 130 == code
    assert files
    assert [] == [*local.iterdir(), *temporary.iterdir()]


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--conf", f"spark.local.dir={__file__}"), "Spark cannot create a directory in spark.local.dir"),
        (("--memory", "256m"), "the heap is too small for Spark; use --memory 512m or more"),
    ],
)
def test_an_option_that_cannot_work_is_an_error(topics, options, reason):
    """The error names the setting. It is permanent, so the pipeline exits without a retry."""
    assert f"kafkasse pipeline: {reason}" in failure(*run_words(topics, *options))


@pytest.mark.long
@pytest.mark.timeout(400)  # it starts Spark twice, which takes a minute each on a busy machine
def test_a_killed_jvm_is_replaced(topics, fresh_name, tmp_path, run):
    """The pipeline resumes from its checkpoint in a new JVM. Its log, metrics and status show the restart."""
    topics.send(country("FR", 5))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    words = "--checkpoint", str(tmp_path), "--metrics-bind", address, "--status-topic", fresh_name
    with pipeline(*run_words(topics), *words) as process:
        process.stdout.readline()
        topics.read(lambda latest: top(latest["Europe"]) == ["FR"])
        jvm = jvm_of(process.pid)
        os.kill(jvm, signal.SIGKILL)
        topics.send(country("IT", 3))
        topics.read(lambda latest: top(latest["Europe"]) == ["FR", "IT"])
        process.stdout.readline()  # ready again
        ready, metrics = (urlopen(f"http://{address}/-/{path}").read().decode() for path in ("ready", "metrics"))
        servers = topics.kafka["bootstrap.servers"]
        status = json.loads(
            run("pipeline", "status", "--json", "--topic", fresh_name, "--bootstrap-servers", servers).out
        )
        process.kill()
        err = process.stderr.read()

    assert "Spark's JVM was killed by signal 9; restarting in 1 s" in err
    assert "Traceback" not in err
    assert "running\n" == ready
    assert 'kafkasse_pipeline_restarts_total{pipeline="topn"} 1.0' in metrics
    assert 'kafkasse_pipeline_state{pipeline="topn",state="running"} 1.0' in metrics
    assert ("topn", "running", 1) == (status["pipeline"], status["state"], status["restarts"])


def test_waits_for_kafka():
    """Without a broker, the pipeline waits instead of failing, and SIGTERM ends the wait. Here, the log is JSON."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        servers = f"127.0.0.1:{unused.getsockname()[1]}"

        words = "run", "topn", "--bootstrap-servers", servers
        with pipeline(*words, KAFKASSE_LOG_FORMAT="json") as process:
            lines = map(json.loads, iter(process.stderr.readline, ""))
            warning = next(line for line in lines if line["level"] == "warning")
            code, *_ = stop(process, signal.SIGTERM)

    assert f"no Kafka broker accepts connections at {servers}" in warning["message"]
    assert 0 == code


def test_waits_for_the_schema_registry(tmp_path):
    """The pipeline starts as soon as the registry responds, and SIGTERM ends the wait."""
    registry = Registry()
    registry.failure = lambda: (503, {})
    schema = {"registry": registry.url, "subject": "orders-value"}
    definition = {"source": {"topic": "orders", "schema": schema}, "sink": "result"}
    file = tmp_path / "pipelines.yaml"
    file.write_text(json.dumps({"pipelines": {"x": definition}}))

    with closing(registry), pipeline("run", str(file), "--bootstrap-servers", "127.0.0.1:1") as process:
        lines = iter(process.stderr.readline, "")
        warning = next(line for line in lines if "state=waiting" in line)
        registry.register("orders-value", {"properties": {"id": {"type": "string"}}}, "JSON")
        registry.failure = lambda: None
        next_warning = next(line for line in lines if "no Kafka broker" in line)
        code, *_ = stop(process, signal.SIGTERM)

    assert "the registry is not available: it responded with status 503" in warning
    assert "state=waiting" in next_warning
    assert 0 == code


def test_lists_the_pipelines(run):
    """`list` prints all pipelines, and so does the error for an unknown name."""
    assert "topn: countries -> topn" in run("pipeline", "list").out
    assert "kafkasse pipeline: there is no pipeline nix; choose one of: topn\n" == failure("run", "nix")


@pytest.mark.long
def test_runs_the_pipeline_in_the_docs(topics, tmp_path, monkeypatch):
    """A module in a package of the current directory defines the pipeline."""
    package = tmp_path / "shop"
    package.mkdir()
    (package / "pipelines.py").write_text(LARGE_ORDERS)
    monkeypatch.chdir(tmp_path)

    with pipeline(*run_words(topics, name="shop.pipelines:large_orders")) as process:
        ready = process.stdout.readline()
        topics.send((b"1", b'{"amount": 100}'), (b"3", b'{"amount": "lots"}'), (b"2", b'{"amount": 101}'))
        orders = topics.read(bool)

    assert ("kafkasse pipeline: ready\n", [("2", b'{"amount": 101}')]) == (ready, orders)
