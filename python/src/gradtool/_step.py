"""The gradients of one step of a rank, copied to the CPU, and what a gradient file stores of them. Needs torch."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import torch

from ._errors import UsageError
from ._modules import full_tensor


class StepGradients:
    """The gradients of a step, by the tensor's position in the file.

    `micro_batches` backward passes add to the gradients of a step; with `as_workers` each is a worker of its own, and with `squared`
    the squares of what they add are summed up.
    """

    def __init__(self, parameters: list, specs: list, micro_batches: int, as_workers: bool, squared: bool) -> None:
        self._parameters, self._specs = parameters, specs
        self._micro_batches, self._as_workers, self._squared = micro_batches, as_workers, squared
        self.clear()

    def clear(self) -> None:
        """Forgets the step."""
        #: The gradients of the step, each in one dimension and of the type that the file stores.
        self.seen: dict = {}
        self._before: dict = {}   # what had accumulated after the last micro-batch
        self._squares: dict = {}  # sums of squared micro-batch gradients
        self._micro: list = []    # of each micro-batch, its gradients, where they are workers

    def keep(self, index: int, gradient: torch.Tensor, scale: float) -> None:
        """Takes a copy of a gradient that is multiplied by `scale`."""
        self.seen[index] = self._on_cpu(gradient, index, scale)

    def _on_cpu(self, gradient: torch.Tensor, index: int, scale: float = 1.0) -> torch.Tensor:
        gradient = gradient.detach()
        if scale != 1.0:
            gradient = gradient.to(torch.float32) / scale
        copy = gradient.to(device="cpu", dtype=getattr(torch, self._specs[index].dtype), copy=True)
        return copy.contiguous().view(-1)

    def add_micro_batch(self, accumulated: dict, scale: float) -> None:
        """Takes what one micro-batch added: the gradients accumulated so far less those before it."""
        parts = {}
        for index, gradient in accumulated.items():
            now = gradient if gradient.device.type == "cpu" and gradient.dtype == torch.float32 and scale == 1.0 else None
            now = (gradient.detach().to("cpu", torch.float32) / scale if now is None else gradient.detach()).reshape(-1)
            before = self._before.get(index)
            part = now.clone() if before is None else now - before
            self._before[index] = now.clone()
            parts[index] = part
            if self._squared:
                self._add_square(index, part)
        if self._as_workers:
            self._micro.append({index: part * self._micro_batches for index, part in parts.items()})

    def accumulated(self) -> list:
        """The parameters whose gradients were not zero after the last micro-batch that was taken."""
        return [index for index, before in self._before.items() if before.any()]

    def add_last_micro_batch(self) -> None:
        """Takes what the last micro-batch added to those before it, where `seen` has all of them."""
        for index, whole in self.seen.items():
            part = whole.to(torch.float32)
            self._add_square(index, part - self._before[index] if index in self._before else part)

    def _add_square(self, index: int, part: torch.Tensor) -> None:
        self._squares.setdefault(index, torch.zeros_like(part)).addcmul_(part, part)

    # ---- for each tensor its values [W, n], as NumPy stores them; zeros where a worker had no gradient ----

    def gradients(self) -> list:
        return self._rows(self._micro if self._as_workers else [self.seen])

    def pseudo_gradients(self, start: list) -> list:
        """The way of the weights over a round, as DiLoCo's outer optimizer takes it: weights at its start less now."""
        return self._rows([{i: self._on_cpu(before - full_tensor(p).detach(), i)
                            for i, (before, p) in enumerate(zip(start, self._parameters))}])

    def squares(self) -> list:
        return self._rows([self._squares], torch.float32)

    def adam_moments(self, optimizer: Any) -> list:
        """Adam's exp_avg_sq without its bias, or zeros before its first step."""
        indices = {id(parameter): index for index, parameter in enumerate(self._parameters)}
        moments = {}
        for group in optimizer.param_groups:
            beta = group.get("betas", (0.0, 0.999))[1]
            for parameter in group["params"]:
                state = optimizer.state.get(parameter, {})
                if state and "exp_avg_sq" not in state:
                    raise UsageError(f"second_moment='adam' needs an optimizer that keeps exp_avg_sq, as Adam and AdamW do; "
                                     f"{type(optimizer).__name__} keeps {', '.join(map(str, state))}")
                if id(parameter) in indices and "exp_avg_sq" in state:
                    correction = 1.0 - beta ** float(state["step"])
                    value = full_tensor(state["exp_avg_sq"]).detach().to("cpu", torch.float32) / correction
                    moments[indices[id(parameter)]] = value.reshape(-1)
        return self._rows([moments], torch.float32)

    def weights(self) -> list:
        """The parameters as they are now, [n] each."""
        return [_numpy(full_tensor(p).detach().to("cpu", torch.float32, copy=True).reshape(-1)) for p in self._parameters]

    def _rows(self, workers: list, dtype: Optional[torch.dtype] = None) -> list:
        rows = []
        for index, spec in enumerate(self._specs):
            kind = dtype or getattr(torch, spec.dtype)
            parts = [worker[index].to(kind) if index in worker else torch.zeros(spec.elements, dtype=kind)
                     for worker in workers]
            if other := next((len(part) for part in parts if len(part) != spec.elements), None):
                raise UsageError(f"{spec.name} has {other} values, and had {spec.elements} when the capture was made; parameters keep their "
                                 f"shapes while they are captured")
            rows.append(np.stack([_numpy(part) for part in parts]) if len(parts) > 1 else _numpy(parts[0])[None])
        return rows


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    """The bits of a tensor as NumPy has them, without a copy; bfloat16 as uint16."""
    return tensor.view(torch.int16).numpy().view(np.uint16) if tensor.dtype == torch.bfloat16 else tensor.numpy()


def optimizer_text(optimizer: Any) -> str:
    """The optimizer as `gradtool capture` writes its own: sgd:learning_rate=0.1,momentum=0.9,weight_decay=0. Parameters are those of the first
    group; of another optimizer than SGD, Adam and AdamW the text is its class alone."""
    name, group = type(optimizer).__name__, optimizer.param_groups[0]
    if name not in ("SGD", "Adam", "AdamW"):
        return name
    own = {"momentum": group["momentum"], **({"nesterov": 1} if group["nesterov"] else {})} if name == "SGD" else \
        {"beta1": group["betas"][0], "beta2": group["betas"][1], "epsilon": group["eps"]}
    values = {"learning_rate": group["lr"], **own, "weight_decay": group["weight_decay"]}
    return f"{name.lower()}:" + ",".join(f"{key}={float(value):g}" for key, value in values.items())
