"""Finds out which parameters FSDP2 (`fully_shard`) reduces, and in which order, and sees their gradients before its reduce-scatter."""

from __future__ import annotations

import math
import time
import weakref
from typing import Any, Optional

import torch
from torch import distributed as dist
from torch import nn

from ._errors import UnavailableError, UsageError, list_names


def is_fsdp2(model: nn.Module) -> bool:
    return any(_is_sharded(module) for module in model.modules())


def fsdp_modules(model: nn.Module) -> list:
    """The modules that fully_shard was called with, each of which reduces its own parameters."""
    return [module for module in model.modules() if _is_sharded(module)]


def _is_sharded(module: nn.Module) -> bool:
    return hasattr(module, "set_requires_gradient_sync") and hasattr(module, "reshard")


def expect_method(model: nn.Module, method: str, purpose: str) -> None:
    """Raises UnavailableError where the modules of FSDP2 lack a method that later versions of PyTorch have."""
    if not all(hasattr(module, method) for module in fsdp_modules(model)):
        raise UnavailableError(f"torch {torch.__version__} cannot {purpose}: its FSDPModule has no {method}; take a later version")


def _groups(module: nn.Module) -> list:
    """Returns what a module reduces at once. Where FSDP2 keeps it is no part of its documented interface; versions have one or several."""
    state = module._get_fsdp_state() if hasattr(module, "_get_fsdp_state") else None  # pylint: disable=protected-access
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [getattr(state, "_fsdp_param_group", None)]
    return [group for group in groups if group is not None]


def reduced_parameters(module: nn.Module) -> list:
    """The parameters whose gradients a module reduces together, in the order in which they lie in its reduce-scatter.

    The order is known from the first forward pass on.
    """
    groups = _groups(module)
    if len(groups) > 1:
        raise UnavailableError("a module has parameters on several device meshes (fully_shard with a shard_placement_fn that returns "
                               "meshes), which FSDP2 reduces apart without saying which; wrap the modules of each mesh by themselves")
    if not groups:
        return []
    waiting = groups[0].fsdp_params
    order = getattr(groups[0], "_reduce_scatter_param_indices", None) or range(len(waiting))
    return [waiting[i].sharded_param for i in order if waiting[i].sharded_param.requires_grad]


def expect_rows(name: str, parameter: Any) -> None:
    """Each rank's part of the parameter must be rows of it. HSDP's replicas have equal parts, which is as well."""
    sharded = [placement for placement in getattr(parameter, "placements", ()) if not placement.is_replicate()]
    if len(sharded) > 1:
        raise UnavailableError(f"parameter {name} is sharded over {len(sharded)} dimensions of its device mesh, as by tensor parallelism "
                               f"beside FSDP2; gradtool takes models that FSDP2 alone shards (FSDP2 and HSDP without TP)")
    if sharded and sharded[0].dim != 0:
        raise UnavailableError(f"parameter {name} is sharded along dimension {sharded[0].dim}; gradtool takes what FSDP2 shards along "
                               f"dimension 0, which is its default")


def expect_sharded_by_rows(model: nn.Module) -> list:
    """Returns the modules that reduce; raises UnavailableError where one has parameters that are not sharded by rows alone."""
    modules = fsdp_modules(model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = [parameter for module in modules for parameter in reduced_parameters(module)]
    for parameter in found:
        expect_rows(names.get(id(parameter), str(tuple(parameter.shape))), parameter)
    if not found:
        raise UnavailableError(f"FSDP2 of torch {torch.__version__} does not show which parameters it reduces, or reduces none")
    return modules


def shard_ranks(parameter: Any) -> int:
    """Over how many ranks the rows of a parameter are dealt."""
    mesh = getattr(parameter, "device_mesh", None)
    placements = enumerate(getattr(parameter, "placements", ()))
    return math.prod(mesh.size(dim) for dim, placement in placements if not placement.is_replicate()) if mesh is not None else 1


def part_shape(parameter: Any, ranks: int) -> tuple:
    """The shape of a rank's part: rows of the first dimension are dealt in equal parts, the last ones padded with zeros."""
    return (math.ceil(parameter.shape[0] / ranks), *parameter.shape[1:])


#: The capture to which a model was shown last. A model has one reduce-scatter, which shows its gradients to one capture.
_CAPTURES: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def watch_reduce_scatter(model: nn.Module, capture: Any) -> bool:
    """Lets the reduce-scatter of every FSDP module show `capture` what it is given.

    Returns False where nothing is scattered, because there is one rank: then a gradient is where it always is. Needs a version of
    PyTorch with FSDPModule.set_custom_reduce_scatter (2.9 or later).
    """
    earlier = _CAPTURES.get(model)
    if earlier is not None and not earlier.closed:
        raise UsageError(f"the model is being captured already, to {earlier.path}; close that capture first")
    expect_method(model, "set_custom_reduce_scatter", "show the gradients of FSDP2 before they are reduced")
    modules = expect_sharded_by_rows(model)
    meshes = [p.device_mesh for module in modules for p in reduced_parameters(module) if shard_ranks(p) == 1 and hasattr(p, "device_mesh")]
    if any(mesh.size() > 1 for mesh in meshes):
        raise UnavailableError("the model is sharded over one rank and replicated over others, where FSDP2 shows no gradients before it "
                               "averages them; use DistributedDataParallel, or a mesh that shards over several ranks")
    if meshes:
        return False
    for module in modules:
        module.set_custom_reduce_scatter(_Watched(capture, module))
    _CAPTURES[model] = capture
    return True


def reduce_scatter_of(module: nn.Module) -> Any:
    """The reduce-scatter that a module has now: PyTorch's, or one that the user has chosen."""
    for group in _groups(module):
        if getattr(group, "_reduce_scatter_comm", None) is not None:
            return group._reduce_scatter_comm  # pylint: disable=protected-access
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter
    return DefaultReduceScatter()


def replace_reduce_scatter(module: nn.Module, made: Any) -> None:
    """Lets a module reduce with `made`; a capture goes on seeing what it is given."""
    found = reduce_scatter_of(module)
    if isinstance(found, _Watched):
        found.reduces_with(made)
    else:
        module.set_custom_reduce_scatter(made)


class _Watched:
    """A reduce-scatter that shows its input before the one that was there reduces it."""

    def __init__(self, capture: Any, module: nn.Module) -> None:
        inner = reduce_scatter_of(module)
        self._inner = inner._inner if isinstance(inner, _Watched) else inner  # that of an earlier capture shows nothing any more
        self._capture, self._module = capture, module
        self._mark: Any = None

    def reduces_with(self, inner: Any) -> None:
        self._inner = inner

    def allocate(self, *size: Any, **options: Any) -> Any:
        """FSDP2 asks for the memory of the input first, in the stream of the backward pass, and waits for nothing there."""
        if self._mark is None and not self._capture.closed:
            self._mark = self._capture.mark()
        return self._inner.allocate(*size, **options)

    def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False) -> Any:
        mark, self._mark = self._mark, None
        if self._capture.watching:
            _show(self._capture, self._module, input_tensor, group, mark)
        else:
            self._capture.gradients_complete(mark)
        return self._inner(output_tensor, input_tensor, group, op, async_op)


def expect_all_reduced(model: nn.Module, iteration: int) -> None:
    """Raises UsageError where a backward pass without synchronisation came after the one that was seen: its gradients wait."""
    for waiting in (parameter for module in model.modules() for group in _groups(module) for parameter in group.fsdp_params):
        if getattr(waiting, "unsharded_accumulated_grad", None) is not None or \
                getattr(getattr(waiting, "_unsharded_param", None), "grad", None) is not None:
            raise UsageError(f"iteration {iteration}: a backward pass under set_requires_gradient_sync(False) came after the one that "
                             f"synchronises, and its gradients were not reduced; let the last backward pass before step() "
                             f"synchronise, and only that")


def way_out_of_unused(module: nn.Module) -> str:
    """Says what to do where a backward pass has not used all parameters of a module."""
    if hasattr(module, "set_reduce_scatter_unused_params"):
        return "call model.set_reduce_scatter_unused_params(True), which reduces zeros for those that are not used"
    return "FSDP2 does not say which, so use all of them in each step"


def _show(capture: Any, module: nn.Module, flat: torch.Tensor, group: Any, mark: Any = None) -> None:
    """Takes the input of a reduce-scatter apart: a row for each rank, in which its parts of all parameters lie one behind the other."""
    begin = time.perf_counter()
    parameters = reduced_parameters(module)
    ranks = dist.get_world_size(group)
    matrix = flat.view(ranks, -1)
    widths = [math.prod(part_shape(parameter, ranks)) for parameter in parameters]
    unknown = [parameter for parameter in parameters if not capture.knows(parameter)]
    if unknown:
        shapes = list_names([str(tuple(parameter.shape)) for parameter in unknown])
        raise UsageError(f"iteration {capture.iteration}: the file would lack the gradients of parameters of the shapes {shapes}, unfrozen, replaced "
                         f"or loaded (assign=True) after the capture was made; make the Capture afterwards")
    if sum(widths) != matrix.shape[1]:
        names = list_names([capture.name_of(parameter) for parameter in parameters])
        raise UsageError(f"iteration {capture.iteration}: a fully_shard module reduces {matrix.shape[1] * ranks} values, and its parameters "
                         f"({names}) have {sum(widths) * ranks}: some were not used in this backward pass; {way_out_of_unused(module)}")
    capture.note_reduced_in(flat.dtype)
    # The CPU's clock does not know when gradients are ready of parameters that are kept on the CPU and computed with on a GPU.
    timed = flat.device.type == parameters[0].device.type
    ready = capture.bucket_ready(parameters if timed else (), mark)
    factor = _predivided(module, flat.dtype, ranks)
    at = 0
    for parameter, width in zip(parameters, widths):
        whole = matrix[:, at:at + width].reshape(-1)[:parameter.numel()]
        capture.take(parameter, whole * factor if factor != 1 else whole)
        at += width
    capture.leave_out(time.perf_counter() - begin, ready)
    if timed:
        capture.backward_ended()


def _predivided(module: nn.Module, dtype: torch.dtype, ranks: int) -> float:
    """By what FSDP2 has divided already: about the root of the ranks in types other than float32 and bfloat16, else nothing."""
    if dtype in (torch.float32, torch.bfloat16):
        return 1
    whole: Optional[float] = next((getattr(group, "gradient_divide_factor", None) for group in _groups(module)), None)
    if whole is None:
        mesh = next((getattr(parameter, "device_mesh", None) for parameter in reduced_parameters(module)), None)
        whole = ranks if mesh is None else mesh.size()  # HSDP divides by its replicas as well
    factor = 1
    while whole % factor == 0 and whole / factor > factor:
        factor *= 2
    return factor
