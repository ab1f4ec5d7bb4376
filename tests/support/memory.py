"""Measures the memory that a call keeps."""

from __future__ import annotations

import gc
import math
import tracemalloc
from collections.abc import Callable
from unittest import mock

from tests.support.server import ROOT

OURS = [tracemalloc.Filter(True, f"{ROOT / folder}/*") for folder in ("kafkasse", "tests")]


def kept_bytes(call: Callable[[], object]) -> int:
    """Return how many bytes code of kafkasse and of the tests allocates during a call and has not freed at its end.

    Greenlets that earlier tests have left do not run meanwhile, unless the call waits for something.
    """
    gc.collect()
    tracemalloc.start()
    try:
        with mock.patch("kafkasse.event_loop.MAX_TURN_S", math.inf):
            call()
        return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces(OURS).traces)
    finally:
        tracemalloc.stop()
