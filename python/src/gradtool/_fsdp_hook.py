"""A hook for FSDP2 that averages replicas through gradtool's codecs: HSDP whose all-reduce between nodes is compressed."""

from __future__ import annotations

import functools
import math
import zlib
from typing import Any, Optional

import torch
from torch import distributed as dist
from torch import nn

from ._averaging import AveragingHook, Unit
from ._errors import DataError, UnavailableError, UsageError, list_names
from ._fsdp import (expect_method, expect_sharded_by_rows, fsdp_modules, part_shape, reduce_scatter_of, reduced_parameters,
                    replace_reduce_scatter, shard_ranks, way_out_of_unused)
from ._modules import inner_module, uncompiled
from ._ranks import agree


class _ShardedHook(AveragingHook):
    """A hook for FSDP2, which reduces one module at a time: a module is a bucket, and counts its own iterations."""

    _always_agrees = True

    def _learn_names(self, model: nn.Module) -> dict:
        parameters = [(name, p) for name, p in inner_module(model).named_parameters() if p.requires_grad]
        self._names, self._parameters = self._describe(dict(inner_module(model).named_modules()), parameters), dict(parameters)
        names = "\n".join(f"{name} {tuple(p.shape)}" for name, p in parameters)
        return {"the checksum of the parameters' names and shapes": zlib.crc32(names.encode())}

    def _make_unit(self, parameters: list) -> "_Part":
        raise NotImplementedError

    def _unit_of(self, number: int, module: nn.Module, elements: int) -> tuple["_Part", str]:
        """The bucket of a module, and what is wrong where these elements are not those of its parameters."""
        parameters = reduced_parameters(module)
        if any(id(parameter) not in self._names for parameter in parameters):
            return self._make_unit(parameters), ("parameters were unfrozen or replaced after the hook was registered; make the hook for a "
                                                 "model wrapped anew")
        unit = self._units.get(number)
        if unit is None or not unit.holds(parameters):
            unit = self._make_unit(parameters)
        if unit.elements == elements:
            self._units[number] = unit
            return unit, ""
        names = list_names([self._names[id(parameter)][0] for parameter in parameters])
        return unit, (f"a fully_shard module reduces {elements} values, and its parameters ({names}) have {unit.elements}: some were not used "
                      f"in this backward pass; {way_out_of_unused(module)}")

    def _reduce(self, number: int, module: nn.Module, values: torch.Tensor) -> None:
        unit, wrong = self._unit_of(number, module, values.numel())
        unit.payload_bytes = self._average(values, unit, number, unit.iterations, wrong)
        unit.iterations += 1
        self.iteration = max(self.iteration, unit.iterations)
        self.payload_bytes = sum(each.payload_bytes for each in self._units.values())

    def _save(self) -> dict:
        return {**super()._save(), "iterations": [unit.iterations for _, unit in sorted(self._units.items())]}

    def _checked_state(self, state: Any) -> dict:
        checked = super()._checked_state(state)
        iterations = state.get("iterations")
        if not isinstance(iterations, list) or len(iterations) != len(state["buckets"]):
            raise DataError("the state of the hook is damaged (iterations of its buckets are missing); valid is what hook.state_dict() returned")
        return checked

    def _restore(self, state: dict) -> dict:
        self._units = {}
        for bucket, iterations in zip(state["buckets"], state["iterations"]):
            unit = self._units[bucket["number"]] = self._make_unit([self._parameters[name] for name in bucket["parameters"]])
            unit.iterations = iterations
        return super()._restore(state)


class FsdpHook(_ShardedHook):
    """The hook that `fsdp_hook` returns: register it with `hook.register(model)`."""

    def __init__(self, spec: str, reduce_scatter: Optional[str] = None, **options: Any) -> None:
        super().__init__(spec, **options)
        self._shard = "0 of 1"
        self._inside, self._options = reduce_scatter, options
        #: The compressed reduce-scatter within a node, which counts its own bytes; None where there is none.
        self.reduce_scatter: Optional[ReduceScatterHook] = None

    def register(self, model: nn.Module) -> "FsdpHook":
        """Lets FSDP2 give the hook what its reduce-scatters leave on this rank. Every rank calls it, at the same point."""
        model = uncompiled(model)
        agree(self._group, lambda: self._learn(model))
        if self._inside is not None:
            mesh = next(p.device_mesh for p in self._parameters.values())
            options = {name: self._options[name] for name in ("seed", "threads", "start_iteration", "scaler") if name in self._options}
            self.reduce_scatter = ReduceScatterHook(self._inside, group=mesh.get_group(), **options)
            self.reduce_scatter.register(model)
        for number, module in enumerate(fsdp_modules(model)):
            module.set_all_reduce_hook(functools.partial(self._all_reduce_part, number, module))
        return self

    def close(self) -> None:
        super().close()
        if self.reduce_scatter is not None:
            self.reduce_scatter.close()

    def _learn(self, model: Any) -> dict:
        if not isinstance(model, nn.Module) or not fsdp_modules(model):
            what = f"the class {model.__name__}" if isinstance(model, type) else f"of the type {type(model).__name__}"
            raise UsageError(f"the model is {what}; valid is one that fully_shard was called with")
        if self._names:
            raise UsageError("the hook is registered with a model already; make another one for this model")
        expect_method(model, "set_all_reduce_hook", "replace the all-reduce between replicas of FSDP2")
        found = [parameter for module in expect_sharded_by_rows(model) for parameter in reduced_parameters(module)]
        if any(placement.is_replicate() for parameter in found for placement in parameter.placements):
            raise UnavailableError("the model is sharded on a mesh with replicas, which FSDP2 averages itself before it calls a hook; "
                                   "shard it with mesh['shard'] alone, and give fsdp_hook group=mesh['replicate'], whatever the mesh's "
                                   "dimensions are called")
        shard = [int(rank) for rank in found[0].device_mesh.mesh.flatten()]
        both = [rank for rank in self._peers.ranks if rank in shard]
        if both != [dist.get_rank()]:
            raise UsageError(f"the model is sharded over the ranks {shard} and the hook averages over {self._peers.ranks}, which must have "
                             f"this rank alone in common; give fsdp_hook the group of this rank's replicas as group=")
        self._shard = f"{shard.index(dist.get_rank())} of {len(shard)}"
        return {"the place of its shard": self._shard, **self._learn_names(model)}

    def _identity(self) -> tuple:
        return (*super()._identity(), ("shard", self._shard), ("reduce_scatter", self._inside))

    def _save(self) -> dict:
        inside = None if self.reduce_scatter is None else self.reduce_scatter.state_dict()
        return {**super()._save(), "inside": inside}

    def _restore(self, state: dict) -> dict:
        if self.reduce_scatter is not None:
            self.reduce_scatter.load_state_dict(state.get("inside"))
        return super()._restore(state)

    def _make_unit(self, parameters: list) -> "_Part":
        return _Part(parameters, [part_shape(parameter, shard_ranks(parameter)) for parameter in parameters])

    def _all_reduce_part(self, number: int, module: nn.Module, part: torch.Tensor) -> None:
        """Averages what one module's reduce-scatter left on this rank over the replicas, in place and before it returns.

        FSDP2 calls it in the stream in which the result is needed, and what it enqueues there comes before that.
        """
        self._reduce(number, module, part)


class ReduceScatterHook(_ShardedHook):
    """FSDP2's reduce-scatter through a codec: each rank gets its part of the mean."""

    _op = "reduce-scatter"

    def register(self, model: nn.Module) -> None:
        expect_method(model, "set_custom_reduce_scatter", "replace the reduce-scatter of FSDP2")
        agree(self._group, lambda: self._learn_names(model))
        for number, module in enumerate(fsdp_modules(model)):
            replace_reduce_scatter(module, _Compressed(self, number, module))

    def _make_unit(self, parameters: list) -> "_Part":
        # Shards of a flat vector: nothing is known of the tensors in it.
        values = self._size * sum(math.prod(part_shape(parameter, self._size)) for parameter in parameters)
        return _Part(parameters, [(values,), *[(0,)] * (len(parameters) - 1)])

    def _prepare(self, unit: Unit) -> None:
        device = unit.parameters[0].device
        unit.reducer = self._reducer(device, [("values", [unit.elements], "other", "", 0.0)])

    def scatter(self, number: int, module: nn.Module, flat: torch.Tensor) -> torch.Tensor:
        """This rank's part of the mean of `flat`, which is overwritten."""
        self._reduce(number, module, flat)
        return flat.view(self._size, -1)[self._rank]


class _Compressed:
    """The reduce-scatter that a module of FSDP2 calls."""

    def __init__(self, hook: ReduceScatterHook, number: int, module: nn.Module) -> None:
        self._hook, self._number, self._module = hook, number, module
        self.allocate = reduce_scatter_of(module).allocate

    def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False) -> None:
        part = self._hook.scatter(self._number, self._module, input_tensor)
        if op == dist.ReduceOp.SUM:
            part = part * dist.get_world_size(group)
        elif op != dist.ReduceOp.AVG:
            raise UnavailableError("fsdp_hook(reduce_scatter=...) takes means and sums, and set_gradient_divide_factor makes FSDP2 ask for "
                                   "something else; scale the loss instead")
        output_tensor.copy_(part)


class _Part(Unit):
    """The gradients that FSDP2 reduces of one module: of each parameter the rows of one rank, or of all."""

    def __init__(self, parameters: list, shapes: list) -> None:
        super().__init__(parameters, shapes)
        self.iterations = 0
        self.payload_bytes = 0

    def read_weights(self) -> None:
        begin = 0
        for parameter, shape in zip(self.parameters, self.shapes):
            own = parameter.detach().to_local().reshape(-1)
            self.weights[begin:begin + own.numel()] = own  # what pads it stays zero
            begin += math.prod(shape)


def fsdp_hook(spec: str, *, group: Any = None, reduce_scatter: Optional[str] = None, **options: Any) -> FsdpHook:
    """Compresses the all-reduce between the replicas of a model that FSDP2 shards: HSDP, as gradients go from node to node.

        mesh = init_device_mesh("cuda", (nodes, gpus), mesh_dim_names=("replicate", "shard"))
        fully_shard(model, mesh=mesh["shard"])
        hook = gradtool.fsdp_hook("powersgd:rank=4", group=mesh["replicate"]).register(model)

    The model is sharded within a node alone, and the hook does what HSDP does between nodes: on a mesh with replicas FSDP2
    averages them itself, uncompressed, before it calls a hook. Weights must be equal on all replicas in the beginning, as HSDP
    wants them too. What a reduce-scatter leaves on a rank, a part of each parameter of one module, is a bucket.

    Parameters
    ----------
    spec, scheme, all_reduce, seed, threads, start_iteration, scaler, gate_bytes:
        As for `ddp_hook`.
    group:
        The replicas of this rank: a process group, or a DeviceMesh of one dimension.
    reduce_scatter:
        A codec for FSDP2's reduce-scatter, too, which goes on within a node; uncompressed when left out. A codec that needs
        tensors' shapes, or that is a way of its own to all-reduce, cannot.

    Every rank makes its hook and registers it at the same points of the program, each with its own replicas. `state_dict`
    and `load_state_dict` are as those of `ddp_hook`; the state is of a rank and its shard.
    Modules whose parameters are not all used in a backward pass need model.set_reduce_scatter_unused_params(True).
    """
    return FsdpHook(spec, reduce_scatter, group=group, **options)
