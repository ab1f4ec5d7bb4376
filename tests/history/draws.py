"""The choices of a simulated world: drawn at random and recorded, or repeated from a record.

A record is a list of steps: the name of a move, and the numbers that the move drew. It does not depend on a seed, so it
keeps its meaning when the code that draws changes, and steps can be removed from it. This module knows nothing about
kafkasse.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Step = list[str | int]  # the name of a move, then the numbers that it drew
SETUP, SETTLE = "setup", "settle"  # the first and the last step of each world; all other steps are moves
CHANCES = 10


class Draws:
    """Draws numbers, and records them by step."""

    def __init__(self) -> None:
        self.steps: list[Step] = [[SETUP]]

    def moves(self, count: int, names: Sequence[str]) -> Iterator[str]:
        """Yield the names of the moves to make: by default, `count` random ones."""
        raise NotImplementedError

    def settle(self) -> None:
        """Begin the last step."""
        self.steps.append([SETTLE])

    def below(self, end: int) -> int:
        """Return a number in `[0, end)`."""
        number = self._next(end)
        self.steps[-1].append(number)
        return number

    def between(self, start: int, end: int) -> int:
        """Return a number in `[start, end)`."""
        return start + self.below(end - start)

    def choice(self, items: Sequence[Item]) -> Item:
        return items[self.below(len(items))]

    def chance(self, of_ten: int) -> bool:
        """Return True in `of_ten` of ten cases."""
        return self.below(CHANCES) < of_ten

    def _next(self, end: int) -> int:
        raise NotImplementedError


class RandomDraws(Draws):
    """Draws at random."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)  # noqa: S311 - reproducible, not secret

    def moves(self, count: int, names: Sequence[str]) -> Iterator[str]:
        for _ in range(count):
            name = self._random.choice(names)
            self.steps.append([name])
            yield name

    def _next(self, end: int) -> int:
        return self._random.randrange(end)


class RecordedDraws(Draws):
    """Repeats recorded steps. A number that is missing is 0, and one that is too large is reduced to the range."""

    def __init__(self, steps: Sequence[Step]) -> None:
        super().__init__()
        self._recorded = steps
        self._numbers = self._numbers_of(SETUP)

    def moves(self, count: int, names: Sequence[str]) -> Iterator[str]:
        for name, *numbers in self._recorded:
            if name in names:  # a move that no longer exists is left out
                self._numbers = map(int, numbers)
                self.steps.append([name])
                yield str(name)

    def settle(self) -> None:
        super().settle()
        self._numbers = self._numbers_of(SETTLE)

    def _numbers_of(self, name: str) -> Iterator[int]:
        return iter([int(number) for step in self._recorded if step[0] == name for number in step[1:]])

    def _next(self, end: int) -> int:
        return next(self._numbers, 0) % end


def shortened(steps: Sequence[Step], fails: Callable[[list[Step]], bool]) -> list[Step]:
    """Return a part of the steps with which a world still fails: no single step, and no step's numbers, can be left out."""
    steps = list(steps)
    size = len(steps) // 2
    while size:
        before = len(steps)
        at = 0
        while at < len(steps):
            rest = steps[:at] + steps[at + size :]
            if fails(rest):
                steps = rest
            else:
                at += size
        if size > 1 or len(steps) == before:
            size //= 2
    for at, step in enumerate(steps):
        rest = [*steps[:at], step[:1], *steps[at + 1 :]]
        if step[1:] and fails(rest):
            steps = rest
    return steps
