"""The soak works, and finds what it is for: a client that was wronged, and a worker that grows."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.soak import verdict
from bench.soak.progress import Progress, Wrong
from bench.soak.records import first_shown, value
from bench.soak.report import PAGE
from bench.soak.verdict import FIGURES, WARM_S, Sample

ROOT = Path(__file__).parents[2]
LONG_S = WARM_S * 5
STEADY = Sample(0, 200, 300, 20, 200, 250, 60_000, 0)


@pytest.mark.processes
def test_soaks_for_a_moment():
    """Clients of all manners come, stall, go and come back for some seconds, nobody is wronged, no page is written."""
    before = PAGE.read_bytes()
    command = [sys.executable, "-m", "bench.soak", "--minutes", "0.25"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "Complaints of clients: 0." in done.stdout
    assert "| streams |" in done.stdout
    assert before == PAGE.read_bytes()


def event(n: int, partition: int = 0, id: str = "x") -> bytes:
    return b"event: message\nid: %b\ndata: %b\n\n" % (id.encode(), value(("t", partition), n))


@pytest.fixture
def progress() -> Progress:
    """A client that was told that it begins at record 5 of one partition and 0 of another."""
    progress = Progress()
    progress.take(b':ok\n\nid: [{"topic":"t","partition":0,"offset":5},{"topic":"t","partition":1,"offset":0}]\n\n')
    return progress


def test_is_content_with_what_is_right(progress: Progress) -> None:
    """Each record once, in order in its partition, over a cut in the middle of an event."""
    progress.take(event(5) + event(0, 1) + event(6)[:50])
    progress.cut()
    progress.take(event(6, id="y"))

    assert ("y", 3, True, False) == (
        progress.id,
        progress.records,
        progress.has_all({("t", 0): 7, ("t", 1): 1}),
        progress.has_all({("t", 0): 8, ("t", 1): 1}),
    )


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (event(6), "lost: record 6 of t/0 came where 5 was next"),
        (event(5) + event(5), "twice: record 5 of t/0 came where 6 was next"),
        (event(5) + event(7), "lost"),
        (event(0, 2), "twice"),
        (b"event: gap\ndata: {}\n\n", "an event 'gap'"),
    ],
)
def test_complains_of_what_is_wrong(progress: Progress, data: bytes, said: str) -> None:
    """A record that is lost, one that comes twice or from elsewhere, and a hole that nothing has made."""
    with pytest.raises(Wrong, match=said):
        progress.take(data)


def test_knows_the_filter() -> None:
    """Behind a filter the next record that it shows must come, and no other."""
    progress = Progress(first_shown)
    progress.take(b'id: [{"topic":"t","partition":0,"offset":4}]\n\n' + event(6) + event(9))
    with pytest.raises(Wrong, match="lost"):
        progress.take(event(15))


def run(seconds: float, **growing: float) -> list[Sample]:
    """A hundred samples of a worker, of which the named figures grow so much in all."""
    at = [share / 99 for share in range(100)]
    return [
        replace(
            STEADY,
            at_s=seconds * share,
            **{name: getattr(STEADY, name) + more * share for name, more in growing.items()},
        )
        for share in at
    ]


def test_a_steady_worker_has_not_grown() -> None:
    """Nor has one that holds more only while it warms up."""
    warming = [replace(each, memory_mib=each.memory_mib / 2) for each in run(LONG_S)[:25]] + run(LONG_S)[25:]

    assert [] == [each for each in verdict.judge(run(LONG_S)) if each.grew]
    assert [] == [each for each in verdict.judge(warming) if each.grew]


@pytest.mark.parametrize("name", [each.name for each in FIGURES])
def test_a_worker_that_grows_by_a_third_is_found(name: str) -> None:
    """Each figure by itself."""
    grown = run(LONG_S, **{name: getattr(STEADY, name) / 3 + 30})

    assert [name] == [each.figure.name for each in verdict.judge(grown) if each.grew]


def test_a_short_run_says_nothing_of_memory() -> None:
    """Rings fill for two minutes; but streams and descriptors are judged at once."""
    grown = run(30, memory_mib=300, descriptors=300)

    assert ["descriptors"] == [each.figure.name for each in verdict.judge(grown) if each.grew]
