"""Measures the memory that a call keeps."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

from tests.support.server import ROOT
from tests.support.turns import uninterrupted

OURS = [tracemalloc.Filter(True, f"{ROOT / folder}/*") for folder in ("kafkasse", "tests")]


def kept_bytes(call: Callable[[], object]) -> int:
    """Return how many bytes code of kafkasse and of the tests allocates during a call and has not freed at its end.

    Greenlets that earlier tests have left do not run meanwhile, unless the call waits for something.
    """
    gc.collect()
    tracemalloc.start()
    try:
        with uninterrupted():
            call()
        return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces(OURS).traces)
    finally:
        tracemalloc.stop()
