"""Skipped records are counted one by one, and logged once per interval and topic."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import pytest

from kafkasse.process.limited_log import INTERVAL_S
from kafkasse.web import observer
from kafkasse.web.observer import Observer
from tests.support.metric_values import value_of


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """The ends of the intervals that have started. A test calls them."""
    ends: list[Callable[[], None]] = []

    def spawn_later(delay_s: float, end: Callable[..., None], *arguments: str) -> None:
        assert delay_s == INTERVAL_S
        ends.append(partial(end, *arguments))

    monkeypatch.setattr(observer, "spawn_later", spawn_later)
    return ends


def test_logs_one_record_of_a_topic_and_the_number_of_the_others(ends, caplog):
    """The next interval starts at the next record that is skipped."""
    records = Observer([], logging.getLogger("skipped"))
    for offset in range(1000):
        records.skipped("t", 0, offset, "bad\nJSON", "not_json")
    records.skipped("other", 0, 7, "bad", "not_json")
    for end in ends:
        end()
    records.skipped("other", 0, 8, "worse", "not_json")

    assert [
        "Skipped t/0 offset 0: bad\\nJSON",
        "Skipped other/0 offset 7: bad",
        "Skipped 999 more records of t within 10 s.",
        "Skipped other/0 offset 8: worse",
    ] == caplog.messages
    assert 3 == len(ends)
    assert 1000 == value_of(records.metrics, "records_skipped", topic="t", reason="not_json")
