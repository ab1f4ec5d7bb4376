"""The caller gets the result or the error of a call in a thread."""

from __future__ import annotations

import os
from contextlib import ExitStack
from threading import get_ident

import pytest

from kafkasse.process.threads import Threads


def test_a_call_in_a_thread_returns_and_raises_as_if_it_ran_here(capfd):
    """gevent would print the traceback of an error that the caller handles."""
    with ExitStack() as exits:
        threads = Threads(1)
        exits.callback(threads.end)

        assert get_ident() != threads.run(get_ident)
        assert "3" == threads.run(str, 3)
        with pytest.raises(FileNotFoundError):
            threads.run(os.stat, "/nope")

    assert ("", "") == capfd.readouterr()
