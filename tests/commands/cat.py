"""Run `kafkasse cat` against a server that follows a script."""

from __future__ import annotations

import contextlib
import time
from typing import Any
from unittest import mock

import gevent
import pytest

from tests.commands.run import Done, Run

ID = '[{"topic":"t","partition":0,"offset":%d}]'


@pytest.fixture
def cat(run: Run) -> Run:
    """Runs `kafkasse cat` in this process. It retries at once."""

    def cat(*words: str, **variables: str) -> Done:
        with sleeping(lambda _: gevent.sleep(0)):
            return run("cat", *words, **variables)

    return cat


def sleeping(effect: Any) -> contextlib.AbstractContextManager[object]:
    """Replace the waits of the client, and not those of other greenlets of the tests."""
    return mock.patch("kafkasse.event_source.time", mock.Mock(wraps=time, sleep=mock.Mock(side_effect=effect)))


def event(number: int) -> bytes:
    return f"event: message\ndata: {number}\nid: {ID % (number + 1)}\n\n".encode()
