"""The directory with the metrics of all workers, which prometheus_client calls its multiprocess mode.

Each worker writes its own files. When a worker has died, the master removes its gauges and adds its counters to a file for
all dead workers. Otherwise, the number of files would grow with each restart of a worker. A lock keeps a worker from reading
the files meanwhile. A worker waits for it only for a short time, because the master may have been stopped.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
LOCK = "lock"
LOCK_TIMEOUT_S = 1.0
LOCK_INTERVAL_S = 0.01
DEAD = "dead"  # in place of the process ID
MASTER_GAUGES = "gauge_livemax_master.db"
FILE_BYTES = 65_536  # of a new file
SUMMED = ("counter", "histogram", "summary")  # types of metrics whose values outlive their worker


def render() -> bytes:
    """Return the metrics of all workers in Prometheus's text format."""
    from prometheus_client import CollectorRegistry, generate_latest

    folder = Path(os.environ[VARIABLE])
    registry = CollectorRegistry()
    registry.register(_Collector(folder))
    with _locked(folder, fcntl.LOCK_SH):
        return generate_latest(registry)


class _Collector:
    """Reads the files of all workers. prometheus_client's own collector raises an exception if a file is empty."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterable[Any]:
        from prometheus_client.multiprocess import MultiProcessCollector

        files = [str(file) for file in self._folder.glob("*.db") if _has_values(file)]
        return MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call,no-any-return]


def _has_values(file: Path) -> bool:
    """Whether a file exists and is not empty. prometheus_client creates a file, and then enlarges it."""
    return file.exists() and file.stat().st_size > 0


def reserve(kinds: Iterable[str]) -> None:
    """Create the files of this process. If the disk is full, writing to a file without space would end the process.

    Raises:
        OSError: the disk is full.
    """
    for kind in kinds:
        _reserve(Path(os.environ[VARIABLE]) / f"{kind}_{os.getpid()}.db", FILE_BYTES)


def _reserve(file: Path, size: int) -> None:
    with file.open("ab") as opened:
        opened.write(bytes(max(0, size - opened.tell())))


def mark_dead(pid: int, counter: str = "") -> None:
    """Remove the gauges of a worker that has died, and add its counters to those of the other dead workers.

    Args:
        counter: the key of a counter to increase; "" for none.
    """
    from prometheus_client.mmap_dict import MmapedDict
    from prometheus_client.multiprocess import mark_process_dead

    folder = Path(os.environ[VARIABLE])
    with _locked(folder, fcntl.LOCK_EX):
        mark_process_dead(pid, str(folder))  # type: ignore[no-untyped-call]
        for kind in SUMMED:
            file = folder / f"{kind}_{pid}.db"
            if _has_values(file):
                values = MmapedDict.read_all_values_from_file(str(file))  # type: ignore[no-untyped-call]
                _add({key: value for key, value, _, _ in values}, folder / f"{kind}_{DEAD}.db", file.stat().st_size)
            file.unlink(missing_ok=True)
        if counter:
            _add({counter: 1}, folder / f"counter_{DEAD}.db", FILE_BYTES)


def set_master_gauge(key: str, value: float) -> None:
    """Set a gauge of the master. The gauge's mode must be livemax."""
    from prometheus_client.mmap_dict import MmapedDict

    file = Path(os.environ[VARIABLE]) / MASTER_GAUGES
    _reserve(file, FILE_BYTES)
    values = MmapedDict(str(file))  # type: ignore[no-untyped-call]
    values.write_value(key, value, 0.0)  # type: ignore[no-untyped-call]
    values.close()  # type: ignore[no-untyped-call]


def _add(values: Mapping[str, float], target: Path, size: int) -> None:
    from prometheus_client.mmap_dict import MmapedDict

    _reserve(target, size)
    total = MmapedDict(str(target))  # type: ignore[no-untyped-call]
    try:
        for key, value in values.items():
            total.write_value(key, total.read_value(key)[0] + value, 0.0)  # type: ignore[no-untyped-call]
    finally:
        total.close()  # type: ignore[no-untyped-call]


@contextmanager
def _locked(folder: Path, mode: int) -> Iterator[None]:
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    with (folder / LOCK).open("a") as lock:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(lock, mode | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(LOCK_INTERVAL_S)  # lets other greenlets run
        yield
