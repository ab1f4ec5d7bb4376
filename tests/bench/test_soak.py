"""The soak test detects lost and duplicate records, and a worker whose resources grow."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.soak import growth
from bench.soak.growth import FIGURES, WARM_UP_S, Sample
from bench.soak.records import first_shown, value
from bench.soak.report import PAGE
from bench.soak.stream_check import DeliveryError, StreamCheck

ROOT = Path(__file__).parents[2]
LONG_S = WARM_UP_S * 5
STEADY = Sample(0, 200, 300, 20, 200, 250, 60_000, 0)


@pytest.mark.long
@pytest.mark.processes
def test_a_short_soak_finds_no_errors():
    """A few clients of each behavior connect, stall and reconnect for some seconds. The page is not written."""
    before = PAGE.read_bytes()
    command = [sys.executable, "-m", "bench.soak", "--quick", "--minutes", "0.25"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "Errors found by clients: 0." in done.stdout
    assert "| streams |" in done.stdout
    assert before == PAGE.read_bytes()


def event(n: int, partition: int = 0, id: str = "x") -> bytes:
    return b"event: message\ndata: %b\nid: %b\n\n" % (value(("t", partition), n), id.encode())


def position(text: bytes) -> bytes:
    return b"event: position\ndata: {}\nid: %b\n\n" % text


@pytest.fixture
def check() -> StreamCheck:
    """A client whose stream starts at record 5 of one partition and record 0 of another."""
    check = StreamCheck()
    check.receive(position(b'[{"topic":"t","partition":0,"offset":5},{"topic":"t","partition":1,"offset":0}]'))
    return check


def test_accepts_each_record_once_and_in_order(check):
    """A connection that ends in the middle of an event is no error."""
    check.receive(event(5) + event(0, 1) + event(6)[:50])
    check.disconnect()
    check.receive(event(6, id="y"))

    assert ("y", 3) == (check.id, check.records)
    assert check.has_all({("t", 0): 7, ("t", 1): 1})
    assert not check.has_all({("t", 0): 8, ("t", 1): 1})


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (event(6), "lost: received record 6 of t/0, expected 5"),
        (event(5) + event(5), "duplicate: received record 5 of t/0, expected 6"),
        (event(5) + event(7), "lost"),
        (event(0, 2), "duplicate"),
        (b"event: gap\ndata: {}\n\n", "unexpected event 'gap'"),
    ],
)
def test_rejects_wrong_events(check, data, error):
    """A lost record, a duplicate, a record of another partition, and a gap event are errors."""
    with pytest.raises(DeliveryError, match=error):
        check.receive(data)


def test_expects_only_the_records_that_pass_the_filter():
    check = StreamCheck(first_shown)
    check.receive(position(b'[{"topic":"t","partition":0,"offset":4}]') + event(6) + event(9))
    with pytest.raises(DeliveryError, match="lost"):
        check.receive(event(15))


def run(seconds: float, **growing: float) -> list[Sample]:
    """A hundred samples of a worker whose named figures grow by the given amounts in total."""
    at = [share / 99 for share in range(100)]
    return [
        replace(
            STEADY,
            at_s=seconds * share,
            **{name: getattr(STEADY, name) + more * share for name, more in growing.items()},
        )
        for share in at
    ]


def test_a_steady_worker_passes():
    """Memory may grow during the warm-up."""
    warming = [replace(sample, memory_mib=sample.memory_mib / 2) for sample in run(LONG_S)[:25]] + run(LONG_S)[25:]

    assert [] == [result for result in growth.check_growth(run(LONG_S)) if result.grew]
    assert [] == [result for result in growth.check_growth(warming) if result.grew]


@pytest.mark.parametrize("name", [figure.name for figure in FIGURES])
def test_growth_by_a_third_is_detected(name):
    """Each figure is checked separately."""
    grown = run(LONG_S, **{name: getattr(STEADY, name) / 3 + 30})

    assert [name] == [result.figure.name for result in growth.check_growth(grown) if result.grew]


def test_memory_is_not_checked_in_a_short_run():
    """Rings take two minutes to fill. Streams and descriptors are checked in any run."""
    grown = run(30, memory_mib=300, descriptors=300)

    assert ["descriptors"] == [result.figure.name for result in growth.check_growth(grown) if result.grew]
