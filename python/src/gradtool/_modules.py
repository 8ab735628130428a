"""Reads from a model its parameters: whose they are, what they are for, and which wrappers the model wears."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, Callable, Iterator, Optional

import torch
from torch import nn

from ._errors import UnavailableError, UsageError, list_names
from ._writer import TensorSpec, part_of_mixture

_DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float64: "float32"}


def describe_parameters(model: nn.Module, *, scaled: bool, second_moment: bool, weight: bool) -> tuple[list, list, list]:
    """The parameters whose gradients are captured, their tensors in the file, and a sentence for each kind that is left out."""
    parameters, specs, empty, ignored = [], [], [], []
    modules = dict(inner_module(model).named_modules())
    not_reduced = _ignored_by_ddp(model)
    for name, parameter in _trained_parameters(inner_module(model)):
        if nn.parameter.is_lazy(parameter):
            raise UsageError(f"parameter {name} has no shape before the first forward pass; make the Capture after one")
        if parameter.numel() == 0 and hasattr(parameter, "ds_id"):
            raise UnavailableError(f"parameter {name} is partitioned by DeepSpeed's ZeRO stage 3, which shows no rank a whole gradient; "
                                   f"{_ZERO_WAY_OUT}")
        if parameter.numel() == 0:
            empty.append(name)
            continue
        if id(parameter) in not_reduced:
            ignored.append(name)
            continue
        stored = getattr(parameter, "main_grad", None)
        stored = stored.dtype if isinstance(stored, torch.Tensor) else parameter.dtype
        if stored not in _DTYPES:
            raise UsageError(f"parameter {name} has the type {stored}; valid are float32, float16, bfloat16, float64")
        shape = tuple(parameter.shape)
        if len(shape) > 32:
            raise UsageError(f"parameter {name} has {len(shape)} dimensions; a gradient file holds tensors of at most 32")
        kind, layout = describe_tensor(modules[name.rpartition(".")[0]], name, shape)
        # A gradient scaled in 16 bits is stored unscaled in 32, where it does not underflow.
        dtype = "float32" if scaled else _DTYPES[stored]
        parameters.append(parameter)
        specs.append(TensorSpec(name, shape, kind, layout, dtype, second_moment, weight))
    left_out = [f"not captured, because they have no elements: {list_names(empty)}"] if empty else []
    left_out += [f"not captured, because DistributedDataParallel was told to ignore them: {list_names(ignored)}"] if ignored else []
    return parameters, specs, left_out


class TrainedParameters:
    """Compares the parameters that are trained with those that the file has tensors for.

    A parameter is the object that it was; by_name=True is for FSDP2, which puts others in its place for forward and backward.
    """

    def __init__(self, model: nn.Module, parameters: list, specs: list, *, by_name: bool) -> None:
        self._model, self._by_name = model, by_name
        self._described = [(spec.name, parameter) for spec, parameter in zip(specs, parameters)]
        self._said: set = set()  # names of those that are not trained any more

    def expect_unchanged(self, iteration: int) -> None:
        """Raises UsageError where something is trained that the file would lack; warns of what is not trained any more."""
        ignored = _ignored_by_ddp(self._model)
        trained = [(name, parameter) for name, parameter in _trained_parameters(inner_module(self._model))
                   if parameter.numel() > 0 and id(parameter) not in ignored]
        if new := self._missing(trained, self._described):
            raise UsageError(f"iteration {iteration}: the file would lack {list_names(new)}, unfrozen, replaced or added after the capture "
                             f"was made; make the Capture afterwards, or close it and make another one with another path")
        if gone := [name for name in self._missing(self._described, trained) if name not in self._said]:
            self._said.update(gone)
            warnings.warn(f"iteration {iteration}: the file has zeros where there is no gradient for {list_names(gone)}, frozen, replaced or "
                          f"removed after the capture was made")

    def _missing(self, some: list, others: list) -> list:
        """Names of those of `some` that are not among `others`."""
        there = {name if self._by_name else id(parameter) for name, parameter in others}
        return [name for name, parameter in some if (name if self._by_name else id(parameter)) not in there]


def _trained_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad)


def _ignored_by_ddp(model: nn.Module) -> set:
    """Returns the objects that DDP was told not to reduce (_ddp_params_and_buffers_to_ignore)."""
    model = uncompiled(model)
    if not isinstance(model, nn.parallel.DistributedDataParallel):
        return set()
    return {id(parameter) for name, parameter in model.module.named_parameters() if name in model.parameters_to_ignore}


_ZERO_WAY_OUT = ("train with stage 0, where engine.enable_backward_allreduce = False lets step() come before engine.allreduce_gradients(); or "
                 "with stage 1 or 2, where deepspeed.utils.safe_get_full_grad(p) after backward() gives every p.grad, averaged (averaged=True)")


def gradient_of(parameter: torch.Tensor) -> Optional[torch.Tensor]:
    """The gradient, which Megatron and TransformerEngine add to `main_grad` and not to `grad`."""
    if parameter.grad is not None:
        return parameter.grad
    gradient = getattr(parameter, "main_grad", None)
    return gradient if isinstance(gradient, torch.Tensor) else None


def expect_no_zero(parameters: list) -> None:
    """To be called where no parameter has a gradient: raises UnavailableError if that is because DeepSpeed's ZeRO keeps them."""
    # These are the marks of stage 3 and of stages 1 and 2.
    if any(hasattr(parameter, mark) for parameter in parameters for mark in ("ds_id", "_hp_mapping")):
        raise UnavailableError(f"DeepSpeed's ZeRO keeps the gradients of this model to itself; {_ZERO_WAY_OUT}")


class ForwardHook:
    """A hook before the forward pass of a module, which does not go along when the module is copied or pickled."""

    def __init__(self, function: Callable) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> None:
        self._function(*arguments)

    def __reduce__(self) -> tuple:
        # A pickled model has to load where there is no gradtool. `{}.get`, called with a module and its inputs, returns the inputs:
        # they are left as they are.
        return getattr, ({}, "get")


class ForwardEndHook(ForwardHook):
    """A hook after a forward pass that leaves no trace in copies of the module."""

    def __reduce__(self) -> tuple:
        # Takes any arguments and returns None, so that outputs are left as they are.
        return getattr, (contextlib.nullcontext(), "__exit__")


def describe_tensor(module: nn.Module, name: str, shape: tuple) -> tuple[str, str]:
    """Kind and layout of a parameter, by the module that owns it and its name: ('conv', 'OIHW') for nn.Conv2d's weight."""
    kind, layout = _by_owner(module, name.rpartition(".")[2], shape)
    return part_of_mixture(name, shape) or kind, layout


def _by_owner(module: nn.Module, parameter: str, shape: tuple) -> tuple[str, str]:
    owner = type(module).__name__
    if "bias" in parameter:
        return "bias", ""
    if "Norm" in owner:
        return "norm", ""
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return "embedding", "VD"
    if isinstance(module, nn.RNNBase) or isinstance(module, nn.RNNCellBase):
        return "recurrent", "OI"
    if isinstance(module, nn.modules.conv._ConvNd):  # pylint: disable=protected-access
        spatial = "DHW"[3 - (len(shape) - 2):] if len(shape) > 2 else ""
        return "conv", ("IO" if module.transposed else "OI") + spatial
    if len(shape) == 2:
        # The Conv1D of Hugging Face's GPT-2 is a linear layer whose weight is stored input first.
        return "linear", "IO" if owner == "Conv1D" else "OI"
    return ("bias", "") if len(shape) == 1 and parameter.endswith("_b") else ("other", "")


def inner_module(model: nn.Module) -> nn.Module:
    """The user's own model, without the wrappers that change the names of its parameters."""
    model = uncompiled(model)
    while isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        model = uncompiled(model.module)
    return model


def uncompiled(model: nn.Module) -> nn.Module:
    """The module that was given to torch.compile."""
    while hasattr(model, "_orig_mod"):
        model = model._orig_mod  # pylint: disable=protected-access
    return model


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of a tensor of which FSDP2 keeps a shard; a collective there."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def accumulators(parameters: list) -> list:
    """The nodes of autograd that add to each parameter's `grad`, behind which it is complete; they live as long as somebody holds them."""
    with torch.enable_grad():
        return [parameter.expand_as(parameter).grad_fn.next_functions[0][0] for parameter in parameters]


def is_a_training_pass() -> bool:
    """Whether a forward pass that begins now is of a training: no validation, and not one that traces, exports or transforms the model.

    The latter are of torch.jit.trace (which TensorBoard's add_graph calls), torch.export and torch.func.
    """
    compiler, functorch = getattr(torch, "compiler", None), getattr(torch._C, "_functorch", None)  # pylint: disable=protected-access
    # To torch.compile, which leaves what follows in a hook to Python, the others are true as well.
    if hasattr(compiler, "is_dynamo_compiling") and compiler.is_dynamo_compiling():
        return torch.is_grad_enabled()
    if not torch.is_grad_enabled() or torch.jit.is_tracing() or (hasattr(compiler, "is_exporting") and compiler.is_exporting()):
        return False
    return not hasattr(functorch, "peek_interpreter_stack") or functorch.peek_interpreter_stack() is None


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements lie side by side in memory, in whatever order of the axes."""
    expected = 1
    for stride, extent in sorted((s, e) for s, e in zip(tensor.stride(), tensor.shape) if e > 1):
        if stride != expected:
            return False
        expected *= extent
    return True
