"""Warnings about gradients that are rarely what a training computes; each is said once."""

from __future__ import annotations

import warnings
import zlib
from typing import Any

from ._ranks import gather


class Doubts:
    """`capture` has the iteration, the path, and the rank among `ranks` of `group`."""

    def __init__(self, capture: Any, may_be_averaged: bool) -> None:
        self._capture = capture
        self._may_be_averaged = may_be_averaged
        self._may_be_zero = self._may_be_cleared = True

    def _warn(self, sentence: str) -> None:
        warnings.warn(f"iteration {self._capture.iteration}: {sentence}")

    def warn_of_zeros(self, gradients: list, workers: int, as_micro_batches: bool, cause: str) -> None:
        """Gradients of a worker that are zero everywhere."""
        zero = [worker for worker in range(workers) if not any(values[worker].any() for values in gradients)]
        if not zero or not self._may_be_zero:
            return
        self._may_be_zero = False
        whose = f" of micro-batch {zero[0]}" if as_micro_batches else f" of rank {self._capture.rank}" if self._capture.ranks > 1 else ""
        self._warn(f"all gradients{whose} are zero; {cause}")

    def warn_of_cleared(self) -> None:
        """Gradients that were reduced and then cleared: right for a discriminator, but a training that calls step() too rarely looks the
        same."""
        if self._may_be_cleared and self._capture.rank == 0:
            self._warn("gradients that were reduced and cleared by zero_grad() since the last step() are not captured, only those of the "
                       "last backward pass are; that is right where the loss of another model has reached this one, as in a GAN, and else "
                       "step() is missing behind a backward pass")
        self._may_be_cleared = False

    def warn_of_averages(self, gradients: list) -> None:
        """At the first captured step, on every rank: gradients that are the same on all were averaged before anybody saw them."""
        if not self._may_be_averaged:
            return
        self._may_be_averaged = False
        checksum = 0
        for values in gradients:
            checksum = zlib.crc32(values, checksum)
        capture = self._capture
        checksums = gather(capture.group, checksum, f"called step() in iteration {capture.iteration} of the capture to {capture.path}")
        if len(set(checksums)) == 1 and any(values.any() for values in gradients):
            self._warn("the gradients of all ranks are equal, so they were averaged before step() saw them; give Capture the model that "
                       "DistributedDataParallel or fully_shard returned, call step() before you average, or say averaged=True")
