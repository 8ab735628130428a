"""Checks the options of a capture."""

from __future__ import annotations

import operator
from typing import Any, Optional

import torch
from torch import nn

from ._errors import UsageError
from ._writer import QUANTITIES


_INT64 = 2**63  # what a file can hold lies below


def _whole(value: Any) -> Optional[int]:
    """A whole number that a file can hold; None for anything else."""
    try:
        given = int(value) if hasattr(value, "is_integer") and value.is_integer() else operator.index(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return given if -_INT64 <= given < _INT64 else None


def checked_iterations(iterations: Any) -> Optional[frozenset]:
    """The iterations as a set; None stays None. Raises UsageError for what is no list of iterations."""
    if iterations is None:
        return None
    given = [_whole(iteration) for iteration in iterations] if hasattr(iterations, "__iter__") else [None]
    if any(iteration is None or iteration < 0 for iteration in given):
        raise UsageError(f"iterations is {iterations!r:.80}; valid are whole numbers of 0 or more")
    return frozenset(given)


def check_options(*, model: Any, every: Any, first: Any, last: Any, iterations: Any, optimizer: Any, scaler: Any, micro_batches: Any,
                  micro_batches_as_workers: bool, second_moment: Any, quantity: Any, inner_steps: Any, reduce_dtype: Any, merge: Any,
                  seed: Any, batch_size: Any, name: Any, dataset: Any, **_: Any) -> None:
    """Raises UsageError for what is not valid, or not valid together, among the arguments of `Capture`."""
    def valid(condition: bool, sentence: str) -> None:
        if not condition:
            raise UsageError(sentence)

    valid(isinstance(model, nn.Module), f"model is of the type {type(model).__name__}; valid is a torch.nn.Module")
    for what, value, optional in (("every", every, False), ("first", first, False), ("last", last, True), ("micro_batches", micro_batches, False),
                                  ("inner_steps", inner_steps, True), ("seed", seed, True), ("batch_size", batch_size, True)):
        valid(optional and value is None or not isinstance(value, float) and _whole(value) is not None,
              f"{what} is {value!r:.80}; valid is a whole number of at most 2^63 - 1")
    for what, value in (("name", name), ("dataset", dataset)):
        valid(value is None or isinstance(value, str) and "\0" not in value, f"{what} is {value!r}; valid is a text")
    valid(optimizer is None or hasattr(optimizer, "param_groups") and hasattr(optimizer, "state"),
          f"optimizer is of the type {type(optimizer).__name__}; valid is a torch.optim.Optimizer")
    valid(every >= 1 and first >= 0, f"every is {every} and first is {first}; valid is every >= 1 and first >= 0")
    valid(iterations is None or (every, first, last) == (1, 0, None),
          "iterations goes without every, first and last")
    valid(iterations is None or len(iterations) > 0, "iterations is empty; valid is at least one")
    valid(micro_batches >= 1, f"micro_batches is {micro_batches}; valid is 1 or more")
    valid(merge in ("copy", "link", "no"), f"merge is '{merge}'; valid is copy, link or no")
    valid(reduce_dtype in (None, torch.float32, torch.float16, torch.bfloat16),
          f"reduce_dtype is {reduce_dtype}; valid is torch.float32, torch.float16 or torch.bfloat16")
    valid(quantity in QUANTITIES, f"quantity is '{quantity}'; valid is {', '.join(QUANTITIES)}")
    valid(second_moment in (None, "micro_batches", "adam"),
          f"second_moment is '{second_moment}'; valid is micro_batches or adam")
    valid(second_moment != "micro_batches" or micro_batches > 1,
          "second_moment='micro_batches' needs micro_batches of 2 or more")
    valid(second_moment != "micro_batches" or not micro_batches_as_workers,
          "second_moment='micro_batches' goes without micro_batches_as_workers, where each worker has one micro-batch")
    valid(second_moment != "adam" or optimizer is not None, "second_moment='adam' needs optimizer=")
    valid(second_moment != "adam" or all("betas" in group for group in optimizer.param_groups),
          f"second_moment='adam' needs an optimizer that keeps exp_avg_sq, as Adam and AdamW do; {type(optimizer).__name__} does not")
    valid(inner_steps is None or quantity == "pseudo_gradient",
          "inner_steps goes with quantity='pseudo_gradient'")
    valid(inner_steps is None or inner_steps >= 1, f"inner_steps is {inner_steps}; valid is 1 or more")
    valid(scaler is None or optimizer is not None, "scaler= needs optimizer=, to know whether it was unscaled already")
