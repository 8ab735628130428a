"""Seeing the gradients of FSDP2 before its reduce-scatter."""

from __future__ import annotations

import math
import time
import weakref
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

from ._errors import UnavailableError, UsageError
from ._modules import list_names


def is_fsdp2(model: nn.Module) -> bool:
    return any(hasattr(module, "set_requires_gradient_sync") and hasattr(module, "reshard") for module in model.modules())


#: The capture to which a model was shown last. A model has one reduce-scatter, which shows its gradients to one capture.
_CAPTURES: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def watch_reduce_scatter(model: nn.Module, capture: Any) -> None:
    """Gives every FSDP module of the model a reduce-scatter that shows `capture` what it is given, then reduces it.

    Needs a version of PyTorch with FSDPModule.set_custom_reduce_scatter (2.8 or later).
    """
    earlier = _CAPTURES.get(model)
    if earlier is not None and not earlier.closed:
        raise UsageError(f"the model is being captured already, to {earlier.path}; close that capture first")
    try:
        from torch.distributed.fsdp import FSDPModule
        from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter
        settable = hasattr(FSDPModule, "set_custom_reduce_scatter")
    except ImportError:
        settable = False
    if not settable:
        raise UnavailableError(f"torch {torch.__version__} cannot show the gradients of FSDP2 before they are reduced; "
                               f"torch 2.8 and later can")

    class WatchedReduceScatter(DefaultReduceScatter):
        def __init__(self, parameters: list) -> None:
            super().__init__()
            self.parameters = parameters

        def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False) -> Any:
            if capture.watching:
                _show(capture, self.parameters, input_tensor, group)
            return super().__call__(output_tensor, input_tensor, group, op, async_op)

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_reduce_scatter(WatchedReduceScatter(_managed(module, FSDPModule)))
    _CAPTURES[model] = capture


def _managed(module: nn.Module, wrapper: type) -> list:
    """The parameters that this module's own group reduces: all below it but those of FSDP modules below it."""
    found, seen = [], set()

    def visit(part: nn.Module) -> None:
        if part is not module and isinstance(part, wrapper):
            return
        for name, parameter in part.named_parameters(recurse=False):
            if id(parameter) not in seen and parameter.requires_grad:
                seen.add(id(parameter))
                _expect_rows(name, parameter)
                found.append(parameter)
        for child in part.children():
            visit(child)

    visit(module)
    return found


def _expect_rows(name: str, parameter: Any) -> None:
    """Each rank's part of the parameter must be rows of it. HSDP's replicas have equal parts, which is as well."""
    sharded = [placement for placement in getattr(parameter, "placements", ()) if not placement.is_replicate()]
    if len(sharded) > 1:
        raise UnavailableError(f"parameter {name} is sharded over {len(sharded)} dimensions of its device mesh, as by tensor parallelism "
                               f"beside FSDP2; gradients can be captured where FSDP2 alone shards it (FSDP2 and HSDP without TP)")
    if sharded and sharded[0].dim != 0:
        raise UnavailableError(f"parameter {name} is sharded along dimension {sharded[0].dim}; gradients can be captured where FSDP2 "
                               f"shards along dimension 0, which is its default")


def expect_all_reduced(model: nn.Module, iteration: int) -> None:
    """Raises UsageError where a backward pass without synchronisation came after the one that was seen: its gradients wait.

    Where FSDP2 keeps them is no part of its documented interface; a version that keeps them elsewhere passes.
    """
    for module in model.modules():
        state = module._get_fsdp_state() if hasattr(module, "_get_fsdp_state") else None  # pylint: disable=protected-access
        groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
        for waiting in (parameter for group in groups for parameter in getattr(group, "fsdp_params", ())):
            if getattr(waiting, "unsharded_accumulated_grad", None) is not None or \
                    getattr(getattr(waiting, "_unsharded_param", None), "grad", None) is not None:
                raise UsageError(f"iteration {iteration}: a backward pass under set_requires_gradient_sync(False) came after the one that "
                                 f"synchronises, and its gradients were not reduced; let the last backward pass before step() "
                                 f"synchronise, and only that")


def _show(capture: Any, parameters: list, flat: torch.Tensor, group: Any) -> None:
    """Takes the input of a reduce-scatter apart.

    It is a matrix of one row for each rank. Of each parameter, rows of its first dimension are dealt to the ranks in
    equal parts, the last ones padded; a rank's parts of all parameters lie one behind the other.
    """
    begin = time.perf_counter()
    ranks = dist.get_world_size(group)
    matrix = flat.view(ranks, -1)
    widths = [math.ceil(parameter.shape[0] / ranks) * math.prod(parameter.shape[1:]) for parameter in parameters]
    if sum(widths) != matrix.shape[1]:
        names = list_names([capture.name_of(parameter) for parameter in parameters])
        raise UsageError(f"iteration {capture.iteration}: a fully_shard module reduces {matrix.shape[1] * ranks} values, and its parameters "
                         f"({names}) have {sum(widths) * ranks}: some were not used in this backward pass on this rank, or frozen or unfrozen "
                         f"since the capture was made, and FSDP2 does not say which; capture steps in which all of them are used")
    capture.note_reduced_in(flat.dtype)
    # The CPU's clock does not know when gradients are ready of parameters that are kept on the CPU and computed with on a GPU.
    ready = capture.bucket_ready(parameters if flat.device.type == parameters[0].device.type else ())
    mesh = getattr(parameters[0], "device_mesh", None)
    factor = _predivided(flat.dtype, ranks if mesh is None else mesh.size())  # HSDP divides by its replicas as well
    at = 0
    for parameter, width in zip(parameters, widths):
        whole = matrix[:, at:at + width].reshape(-1)[:parameter.numel()]
        capture.take(parameter, whole * factor if factor != 1 else whole)
        at += width
    capture.leave_out(time.perf_counter() - begin, ready)
    capture.backward_ended()


def _predivided(dtype: torch.dtype, ranks: int) -> int:
    """By what FSDP2 has divided already: about the root of the ranks where float16 might overflow, else nothing."""
    factor = 1
    if dtype == torch.float16:
        while ranks % factor == 0 and ranks / factor > factor:
            factor *= 2
    return factor
