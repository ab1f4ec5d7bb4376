"""An object in its own process, so that producers and clients run in parallel with the measuring process.

A call has two steps, start() and result(), so that several processes can work at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

RESULT_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 5.0


class Remote:
    """The object `make(*args)` in a new process. Use it in a `with` block, or call close()."""

    def __init__(self, make: Callable[..., object], *args: object) -> None:
        context = get_context("spawn")
        self._pipe, child_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(child_end, make, args), daemon=True)
        self._process.start()
        child_end.close()

    def start(self, method: str, *args: object) -> None:
        """Start a method call; result() waits for it."""
        self._pipe.send((method, args))

    def result(self) -> Any:
        """Return the result of the started call.

        Raises:
            RuntimeError: the call raised an error, or took longer than RESULT_TIMEOUT_S.
        """
        if not self._pipe.poll(RESULT_TIMEOUT_S):
            raise RuntimeError(f"{self._process.name} returned no result within {RESULT_TIMEOUT_S:.0f} s")
        succeeded, value = self._pipe.recv()
        if not succeeded:
            raise RuntimeError(value)
        return value

    def call(self, method: str, *args: object) -> Any:
        """start() and result()."""
        self.start(method, *args)
        return self.result()

    def close(self) -> None:
        """Stop the process."""
        self._pipe.close()
        self._process.join(STOP_TIMEOUT_S)
        self._process.kill()

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _serve(pipe: Connection, make: Callable[..., object], args: tuple[object, ...]) -> None:
    made = make(*args)
    while True:
        try:
            method, given = pipe.recv()
        except (EOFError, ConnectionError, KeyboardInterrupt):
            return
        try:
            result = True, getattr(made, method)(*given)
        except Exception as error:  # noqa: BLE001 - result() raises it in the calling process
            result = False, f"{type(error).__name__}: {error}"
        pipe.send(result)
