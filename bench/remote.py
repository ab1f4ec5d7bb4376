"""An object that lives in a process of its own: what produces, reads or polls must not share a core's time with the rest.

Calls are asynchronous in two steps, start() and result(), so that several processes can be at work at once.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

RESULT_S_MAX = 180.0
STOP_S_MAX = 5.0


class Remote:
    """`make(*args)` in a process of its own. Use it in a `with` block, or close() it."""

    def __init__(self, make: Callable[..., object], *args: object) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, args), daemon=True)
        self._process.start()
        theirs.close()

    def start(self, method: str, *args: object) -> None:
        """Have a method run; result() waits for it."""
        self._pipe.send((method, args))

    def result(self) -> Any:
        """What the method that was started returned.

        Raises:
            RuntimeError: it raised, ended, or took longer than RESULT_S_MAX.
        """
        if not self._pipe.poll(RESULT_S_MAX):
            raise RuntimeError(f"{self._process.name} did not answer within {RESULT_S_MAX:.0f} s")
        fine, value = self._pipe.recv()
        if not fine:
            raise RuntimeError(value)
        return value

    def call(self, method: str, *args: object) -> Any:
        """start() and result()."""
        self.start(method, *args)
        return self.result()

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(STOP_S_MAX)
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
            answer = True, getattr(made, method)(*given)
        except Exception as error:  # noqa: BLE001 - it is raised again on the other side
            answer = False, f"{type(error).__name__}: {error}"
        pipe.send(answer)
