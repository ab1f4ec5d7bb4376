"""`kafkasse pipeline`, as a person runs it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.pipelines.conftest import Topics
from tests.pipelines.kit import country, top

PATIENCE_S = 120


@contextmanager
def pipeline(*words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """`kafkasse pipeline …`, in a group of processes of its own, as a shell starts it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kafkasse", "pipeline", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        process_group=0,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def children(process: subprocess.Popen[str]) -> list[int]:
    """The processes that it has started: its JVM, once there is one."""
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def output(*words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one that ends by itself."""
    with pipeline(*words) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
        return process.returncode, out, err


def run_words(topics: Topics, *more: str) -> list[str]:
    """Of the Top 3 between these topics."""
    servers = topics.kafka["bootstrap.servers"]
    return ["run", "topn", "--bootstrap-servers", servers, "--source", topics.source, "--sink", topics.sink, *more]


def test_runs_until_it_is_told_to_end(topics: Topics, tmp_path: Path) -> None:
    """It says when it is ready, tells what it sets aside, and leaves nothing behind: no process, no file, no trace."""
    topics.send(country("FR", 5), (b"DE", b"Germany"), country("IT", 3))

    with pipeline(*run_words(topics), TMPDIR=str(tmp_path)) as process:
        ready = process.stdout.readline()
        topics.read(lambda newest: top(newest["Europe"]) == ["FR", "IT"])
        told = process.stderr.readline()
        process.terminate()
        rest = process.communicate(timeout=PATIENCE_S)  # ends when the JVM, which shares these pipes, has ended too

    assert "kafkasse pipeline: ready\n" == ready
    assert "set aside 1 of 3 records" in told
    assert "its value is not JSON" in told
    assert (0, ("", ""), []) == (process.returncode, rest, list(tmp_path.iterdir()))


def test_ctrl_c_ends_it_in_peace(topics: Topics) -> None:
    """A terminal sends it to the JVM as well, which would go before its query has ended."""
    with pipeline(*run_words(topics)) as process:
        process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)
        rest = process.communicate(timeout=PATIENCE_S)

    assert (0, ("", "")) == (process.returncode, rest)


def test_can_be_ended_while_it_starts(topics: Topics, tmp_path: Path) -> None:
    """A JVM that is just being started, and knows nobody yet, does not stay behind."""
    with pipeline(*run_words(topics), TMPDIR=str(tmp_path)) as process:
        while not list(tmp_path.glob("*/bin/java")):
            pass
        process.terminate()
        rest = process.communicate(timeout=PATIENCE_S)

    assert (0, ("", ""), []) == (process.returncode, rest, list(tmp_path.iterdir()))


def test_says_that_spark_has_died(topics: Topics) -> None:
    """In one sentence, whatever killed it."""
    with pipeline(*run_words(topics)) as process:
        process.stdout.readline()
        (jvm,) = children(process)
        os.kill(jvm, signal.SIGKILL)
        _, err = process.communicate(timeout=PATIENCE_S)

    assert (1, "kafkasse pipeline: Spark's Java has ended by itself (exit code -9)\n") == (process.returncode, err)


def test_says_how_many_slots_it_needs(topics: Topics) -> None:
    """One that Spark cannot run does not wait in silence."""
    code, _, err = output(*run_words(topics, "--master", "local[2]"))

    assert (1, 1) == (code, len(err.splitlines()))
    assert "Spark has too few slots" in err


def test_says_that_there_is_no_kafka() -> None:
    """At once, before Spark starts."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        servers = f"127.0.0.1:{unused.getsockname()[1]}"

        code, _, err = output("run", "topn", "--bootstrap-servers", servers)

    assert code == 1
    assert err.startswith(f"kafkasse pipeline: no Kafka answers at {servers}")


def test_says_which_pipelines_there_are() -> None:
    """To those who ask, and to those who ask for another."""
    assert "topn: countries -> topn" in output("list")[1]
    assert (1, "", "kafkasse pipeline: there is no pipeline nix; choose one of: topn\n") == output("run", "nix")
