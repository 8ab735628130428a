"""What a model says of its parameters: whose they are, what they are for, and which wrappers it wears."""

from __future__ import annotations

import torch
from torch import nn

from ._writer import part_of_mixture


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
