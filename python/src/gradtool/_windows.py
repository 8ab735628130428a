"""Which iterations of a training to capture, so that its phases are in the file."""

from __future__ import annotations

import operator
from typing import Optional

from ._errors import UsageError


def windows(total_steps: int, *, steps: int = 8, count: int = 3, first: Optional[int] = None) -> list[int]:
    """The iterations of `count` windows of a training of `total_steps` iterations, for `Capture(iterations=...)`.

    Each window is `steps` iterations that follow each other, as codecs with a memory need. The first one begins at `first`,
    by default a twentieth of the training; the last one ends with the training, and the others lie evenly between them. They
    are those of `gradtool capture --windows`.

    >>> windows(100, steps=3)
    [5, 6, 7, 51, 52, 53, 97, 98, 99]
    """
    numbers = {"total_steps": total_steps, "steps": steps, "count": count, "first": 0 if first is None else first}
    for name, value in numbers.items():
        try:
            numbers[name] = operator.index(value)
        except TypeError:
            raise UsageError(f"{name} is {value!r}; valid is a whole number") from None
    total_steps, steps, count = numbers["total_steps"], numbers["steps"], numbers["count"]
    begin = total_steps // 20 if first is None else numbers["first"]
    if steps < 2 or count < 2 or begin < 0:
        raise UsageError(f"steps is {steps}, count is {count} and first is {begin}; valid is steps >= 2, count >= 2 and first >= 0")
    needed = count * (steps + 1) - 1  # with an iteration in each gap, by which windows are told apart
    if total_steps - begin < needed:
        raise UsageError(f"{count} windows of {steps} iterations need {needed} with the gaps between them, and from iteration {begin} "
                         f"to the end at {total_steps} there are {max(0, total_steps - begin)}; take fewer or shorter windows")
    begins = [begin + window * (total_steps - begin - steps) // (count - 1) for window in range(count)]
    return [start + step for start in begins for step in range(steps)]
