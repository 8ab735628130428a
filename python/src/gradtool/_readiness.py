"""When gradients are ready within an iteration, for the group /readiness of a gradient file (docs/gradient-file.md)."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Optional

import numpy as np
import torch

from ._modules import accumulators

#: The iterations that count, the last ones: memory does not grow with the training.
ITERATIONS = 101


class CpuClock:
    """Marks are seconds."""

    mark = staticmethod(time.perf_counter)

    @staticmethod
    def seconds(begin: Any, end: Any) -> float:
        return end - begin


class CudaClock:
    """Marks are events on the GPU's current stream, which are asked only once an iteration's gradients are on the CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    @staticmethod
    def seconds(begin: Any, end: Any) -> float:
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3

    @staticmethod
    def is_over(mark: Any) -> bool:
        """Whether the GPU has come to the mark; it is not waited for."""
        return bool(mark.query())


def clock_of(parameters: list) -> Any:
    """The clock of the device on which the gradients are made; none for a device whose work the host gives without a moment to ask for."""
    device = parameters[0].device
    return CudaClock(device) if device.type == "cuda" else CpuClock() if device.type == "cpu" else None


class IterationTimer:
    """How long a GPU computes in an iteration, from its first forward pass to its last gradient, on iterations that nothing holds up.

    Two events an iteration are put into the GPU's stream, and asked for their times only once the GPU has passed them.
    """

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self._begin: Any = None
        self._end: Any = None
        self._ended: deque = deque(maxlen=ITERATIONS)
        self._seconds: Optional[float] = None

    def begin(self) -> None:
        """The forward pass begins; of several in an iteration the first one counts."""
        if self._begin is None:
            self._begin = self._clock.mark()

    def end(self, mark: Any = None) -> None:
        """Gradients are complete, at `mark` or now; of several times in an iteration the last one counts."""
        if self._begin is not None:
            self._end = self._clock.mark() if mark is None else mark

    def next(self, counts: bool) -> None:
        """The iteration is over."""
        if counts and self._end is not None:
            self._ended.append((self._begin, self._end))
        self._begin = self._end = None

    def median(self) -> Optional[float]:
        """Seconds of an iteration, the median of those since it was last asked; that of before where there are none, and nothing at first."""
        over = [marks for marks in self._ended if self._clock.is_over(marks[1])]
        for _ in over:  # the GPU comes to the events in order
            self._ended.popleft()
        if over:
            self._seconds = float(np.median([self._clock.seconds(*marks) for marks in over]))
        return self._seconds


class Readiness:
    """Notes the moments of one iteration after the other, without waiting for a GPU, and says what is usual.

    An iteration goes from the first forward pass to the last gradient. Its backward pass begins where the last forward pass before
    it ended, so the loss belongs to it. What the capture itself does meanwhile is taken out.
    """

    def __init__(self, parameters: list, clock: Any = None) -> None:
        self._parameters = parameters
        self._clock = clock_of(parameters) if clock is None else clock
        self._hooks: list = []
        self._begin: Any = None
        self._moments: list = []  # (which, mark): a tensor's position, or "turned"; ("pause", mark, mark)
        #: Of each worker the iterations: the shares of all tensors, and the share of the backward pass.
        self._passes: dict = {}

    @property
    def running(self) -> bool:
        """Whether an iteration is being timed."""
        return self._begin is not None

    def mark(self) -> Any:
        return None if self._clock is None else self._clock.mark()

    def forward_begins(self, watch: bool) -> None:
        """Begins an iteration, unless one runs. With `watch` each parameter is watched; else `note` says what is ready."""
        if self._begin is None and self._clock is not None:
            if watch:
                self._watch()
            self._begin = self.mark()

    def forward_ended(self) -> None:
        if self._begin is not None and not any(isinstance(moment[0], int) for moment in self._moments):
            self._moments.append(("turned", self.mark()))

    def note(self, tensor: int, mark: Any = None) -> None:
        """The gradient of the tensor is complete, for now: of several times the last one counts."""
        if self._begin is not None:
            self._moments.append((tensor, self.mark() if mark is None else mark))

    def pause(self, begin: Any) -> None:
        """From `begin` until now the capture itself was at work."""
        if self._begin is not None:
            self._moments.append(("pause", begin, self.mark()))

    def next_micro_batch(self) -> None:
        """Gradients that are complete now will be added to."""
        self._moments = [moment for moment in self._moments if moment[0] == "pause"]

    def end(self, worker: int) -> None:
        """Ends the iteration, as one of `worker`."""
        begin, moments = self._begin, self._moments
        self.drop()
        if begin is None:
            return
        paused, turned, ready = 0.0, None, {}
        for which, mark, *until in moments:
            if which == "pause":
                paused += self._clock.seconds(mark, until[0])
                continue
            at = self._clock.seconds(begin, mark) - paused
            if which == "turned":
                turned = at
            else:
                ready[which] = at
        last = max(ready.values(), default=0.0)
        if turned is None or not 0.0 <= turned < last:
            return
        shares = np.full(len(self._parameters), np.nan, "f4")
        for tensor, at in ready.items():
            shares[tensor] = min(max((at - turned) / (last - turned), 0.0), 1.0)
        self._passes.setdefault(worker, deque(maxlen=ITERATIONS)).append((shares, (last - turned) / last))

    def drop(self) -> None:
        """Forgets the iteration that runs."""
        for _, hook in self._hooks:
            hook.remove()
        self._hooks, self._begin, self._moments = [], None, []

    def medians(self, workers: int) -> Optional[tuple[np.ndarray, np.ndarray]]:
        """The medians [W, T] and [W], of what is known; nothing where no iteration was timed."""
        if not self._passes:
            return None
        ready, share = np.full((workers, len(self._parameters)), np.nan), np.full(workers, np.nan)
        for worker, passes in self._passes.items():
            rows = np.stack([shares for shares, _ in passes])
            seen = ~np.isnan(rows).all(axis=0)
            ready[worker, seen] = np.nanmedian(rows[:, seen], axis=0)
            share[worker] = np.median([part for _, part in passes])
        return ready, share

    def _watch(self) -> None:
        # One that was frozen since the capture was made has no gradient, which `step` will say.
        trained = [tensor for tensor, parameter in enumerate(self._parameters) if parameter.requires_grad]
        for tensor, accumulator in zip(trained, accumulators([self._parameters[tensor] for tensor in trained])):
            self._hooks.append((accumulator, accumulator.register_hook(lambda *_, tensor=tensor: self.note(tensor))))
