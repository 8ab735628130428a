"""Facts that a capture notes beside gradients, as a training gives them. Needs torch and numpy, nothing else."""

from __future__ import annotations

import warnings
from typing import Any, Optional

import numpy as np
import torch

from ._errors import UsageError


def number_of(iteration: int, what: str, value: Any) -> float:
    """The value as a number; NaN for None. Raises UsageError for what is none."""
    try:
        return float("nan") if value is None else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise UsageError(f"iteration {iteration}: {what} is {value!r:.80}; valid is a number") from error


class BatchWeights:
    """The weights of the workers' batches, which all captured steps have, or none."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._weighted: Optional[bool] = None  # whether steps have weights, once that is known

    def checked(self, iteration: int, weight: Any) -> Optional[np.ndarray]:
        """[W] numbers; nothing where all ranks count alike. Raises UsageError for what is not valid."""
        if self._weighted is not None and self._weighted != (weight is not None):
            raise UsageError(f"iteration {iteration}: step() has {'no weight' if weight is None else 'a weight'}, unlike before; all "
                             f"captured steps have one, or none")
        self._weighted = weight is not None
        if weight is None:
            return None
        try:
            values = np.array(weight.tolist() if isinstance(weight, torch.Tensor) else weight, "f8").reshape(-1)
        except (TypeError, ValueError, OverflowError) as error:
            raise UsageError(f"iteration {iteration}: weight is {weight!r:.80}; valid is a number") from error
        if len(values) != self._workers or not np.isfinite(values).all() or (values < 0).any():
            valid = "a finite number of at least 0" if self._workers == 1 else f"{self._workers} finite numbers of at least 0"
            raise UsageError(f"iteration {iteration}: weight is {weight!r}; valid is {valid}")
        return values


class ReduceDtype:
    """The type in which a job reduces gradients: as the user says, or as hooks see it. The file has it where it differs from that of all
    tensors."""

    def __init__(self, said: Optional[torch.dtype], specs: list) -> None:
        self._said = said
        self._stored = {spec.dtype for spec in specs}
        self._seen: set = set()

    @property
    def given(self) -> Optional[str]:
        """The attribute of a new file."""
        return None if self._said is None or self._stored == {_name(self._said)} else _name(self._said)

    def note(self, dtype: torch.dtype) -> None:
        """Gradients are reduced in this type. What the user said goes first."""
        if self._said is None:
            self._seen.add(torch.float32 if dtype == torch.float64 else dtype)  # stored so, as float64 parameters are

    def put(self, file: Any, path: str, speaks: bool) -> None:
        """Notes in the file what was seen; warns of several types, if this rank speaks for all."""
        names = sorted(_name(dtype) for dtype in self._seen)
        if len(names) == 1 and self._said is None and self._stored != set(names):
            file.put_reduce_dtype(*names)
        elif len(names) > 1 and speaks:
            warnings.warn(f"{path}: the job reduces gradients in several types ({', '.join(names)}), which the file cannot say; "
                          f"bench takes the types of the file, unless --baseline-dtype says otherwise")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
