"""The base of the hooks of DistributedDataParallel and FSDP2: buckets averaged through a codec, and what is kept between steps."""

from __future__ import annotations

import operator
import zlib
from typing import Any, Callable, Optional, Sequence

import torch
from torch import distributed as dist
from torch import nn

from . import _core
from ._codec import _kind_of, _whole
from ._errors import DataError, UnavailableError, UsageError
from ._modules import describe_tensor, is_dense
from ._ranks import agree


class AveragingHook:
    """A codec, the ranks that average through it, and what this rank keeps for each bucket."""

    #: The collective, as bench's --op.
    _op = "all-reduce"
    #: Whether a bucket may turn out not to be what all ranks expect, so that they agree about each of them.
    _always_agrees = False

    def __init__(self, spec: str, *, scheme: str = "auto", all_reduce: str = "auto", seed: int = 1, threads: Optional[int] = None,
                 group: Any = None, start_iteration: int = 0, scaler: Any = None, gate_bytes: int = 0) -> None:
        if not dist.is_initialized():
            raise UsageError("there is no process group; call torch.distributed.init_process_group first")
        self._ranks: dict = {}
        # A group of its own keeps the codec's messages apart from those of the training, which run at the same time.
        self._group, ranks = _own_group(group)
        self._rank, self._size = dist.get_rank(self._group), dist.get_world_size(self._group)
        self._peers = Peers(self._group, ranks)
        agree(self._group, lambda: self._take(spec, scheme, all_reduce, seed, threads, start_iteration, scaler, gate_bytes))
        # A reducer of a tensor that nobody has refuses what does not go together before a training begins.
        alone = _core.HostRanks(self._rank, self._size, 1, self._peers.exchange, self._peers.all_reduce, all_reduce)
        reducer_of(alone, torch.device("cpu"), self.spec, [("weight", [8 * self._size, 8], "linear", "OI", 0.0)], scheme, self._op)
        self._names: dict = {}  # by the parameter's id: its name, kind, layout and depth
        self._parameters: dict = {}  # by name
        self._units: dict = {}
        #: Training iterations that the hook has averaged.
        self.iteration = 0
        #: Bytes that this rank's encoders produced in the last iteration.
        self.payload_bytes = 0
        self._sent_before = 0

    def _take(self, spec: Any, scheme: Any, all_reduce: Any, seed: Any, threads: Any, start_iteration: Any, scaler: Any,
              gate_bytes: Any) -> dict:
        """Takes arguments that are valid; returns those that every rank needs alike."""
        self._codec = _checked_codec(spec)
        #: The codec with all of its parameters.
        self.spec = f"{self._codec['name']}:{self._codec['params']}" if self._codec["params"] else self._codec["name"]
        if not isinstance(scheme, str):
            raise UsageError(f"scheme is {scheme!r}; valid is auto, sum, gather, hop or alltoall")
        self._seed, self._start = _whole("seed", seed, 0, 2 ** 64), _whole("start_iteration", start_iteration)
        self._gate = max(_whole("gate_bytes", gate_bytes), self._codec["gate"])
        if self._gate > 0 and (self._codec["own_momentum"] or self._codec["target"]):
            raise UsageError(f"gate_bytes is {gate_bytes}, but {self._codec['name']} has a momentum or an update of its own, which smaller "
                             f"buckets would go without; valid is 0")
        self._threads = torch.get_num_threads() if threads is None else _whole("threads", threads, 1)
        if scaler is not None and not (hasattr(scaler, "get_scale") and hasattr(scaler, "is_enabled")):
            raise UsageError(f"scaler is of the type {type(scaler).__name__}; valid is the GradScaler of the training")
        if all_reduce not in ("auto", "ring", "doubling"):
            raise UsageError(f"all_reduce is {all_reduce!r}; valid is auto, ring or doubling")
        self._scheme, self._all_reduce, self._scaler = scheme, all_reduce, scaler
        return {"the codec": self.spec, "scheme": scheme, "all_reduce": all_reduce, "seed": self._seed, "start_iteration": self._start,
                "gate_bytes": self._gate, "scaler": "None" if scaler is None else "a GradScaler"}

    @property
    def note(self) -> str:
        """Returns a note that must be read with the codec's results so far; empty: there is none."""
        return next((unit.reducer.note for unit in self._units.values() if unit.reducer is not None and unit.reducer.note), "")

    @property
    def reached(self) -> bool:
        """Whether the method has been at work in any bucket: False while all went uncompressed, as in a warm-up."""
        return any(unit.reducer.reached for unit in self._units.values() if unit.reducer is not None)

    def close(self) -> None:
        """Ends the hook's process group. On every rank, after the last backward pass with the model."""
        dist.destroy_process_group(self._group)

    @property
    def messages_sent(self) -> int:
        """Messages that the codec made this rank send since the hook was made, each a latency of the network."""
        return sum(ranks.messages_sent for ranks in self._ranks.values())

    @property
    def bytes_sent(self) -> int:
        """Bytes that the codec made this rank send since the hook was made, counted as bench counts `wire_bytes`.

        Buckets that are averaged uncompressed and the agreement of the ranks about each bucket are not counted.
        """
        return self._sent_before + sum(ranks.bytes_sent for ranks in self._ranks.values())

    def _describe(self, modules: dict, parameters: list) -> dict:
        """Returns what codecs are told of each parameter, by its id; refuses those that no codec takes. `parameters`: by name."""
        names = {}
        elements, before = sum(p.numel() for _, p in parameters), 0
        for name, parameter in parameters:
            owner = modules[name.rpartition(".")[0]]
            if isinstance(owner, (nn.Embedding, nn.EmbeddingBag)) and owner.sparse:
                raise UsageError(f"the gradient of {name} is sparse, which no codec takes; make its "
                                 f"{type(owner).__name__} with sparse=False")
            if parameter.is_complex():
                raise UsageError(f"parameter {name} has the type {parameter.dtype}; valid are real numbers")
            self._expect_device(parameter.device)
            kind, layout = describe_tensor(owner, name, tuple(parameter.shape))
            names[id(parameter)] = (name, kind, layout, before / elements)
            before += parameter.numel()
        return names

    # ---- saving what is kept ----

    def state_dict(self) -> dict:
        """Returns the state that this rank keeps from iteration to iteration, for `torch.save`; every rank saves its own.

        Residuals, momenta and factors belong to a bucket, and are saved with the names of its parameters. Not for
        gradients on a GPU.
        """
        if not self._names:
            raise UsageError("the hook does not know the parameters' names; register it with hook.register(model)")
        return self._in_turn(self._save)

    def load_state_dict(self, state: dict) -> None:
        """Goes on where `state_dict` was called, with the same bits. Every rank calls it, with what it has saved itself."""
        if not self._names:
            raise UsageError("the hook does not know the parameters' names; register it with hook.register(model) first")
        agree(self._group, lambda: self._checked_state(state))
        agree(self._group, lambda: self._in_turn(self._restore, state))

    def _in_turn(self, function: Callable, *arguments: Any) -> Any:
        """Calls a function when no bucket is being averaged."""
        return function(*arguments)

    def _identity(self) -> tuple:
        """Returns what a saved state must agree with: names as users know them, and values."""
        return (("codec", self.spec), ("scheme", self._scheme), ("seed", self._seed), ("ranks", self._size), ("rank", self._rank))

    def _save(self) -> dict:
        buckets = []
        for number, unit in sorted(self._units.items()):
            kept = b"" if unit.reducer is None else unit.reducer.save()
            buckets.append({"number": number, "parameters": [self._names[id(p)][0] for p in unit.parameters],
                            "kept": torch.frombuffer(bytearray(kept), dtype=torch.uint8) if kept else None})
        return {"format": 1, **dict(self._identity()), "iteration": self.iteration, "bytes_sent": self.bytes_sent, "buckets": buckets}

    def _checked_state(self, state: Any) -> dict:
        if not isinstance(state, dict) or state.get("format") != 1:
            raise DataError("the state is not one of a hook; valid is what hook.state_dict() returned")
        for what, ours in self._identity():
            if state.get(what) != ours:
                raise UsageError(f"{what} is {state.get(what)} in the saved state and {ours} in this hook; valid is what this rank "
                                 f"saved, of a hook that was made with the same arguments")
        try:
            for what in ("iteration", "bytes_sent"):
                operator.index(state[what])
            names = [name for bucket in state["buckets"] for name in bucket["parameters"]]
            for bucket in state["buckets"]:
                if "number" not in bucket or not isinstance(bucket["kept"], (torch.Tensor, type(None))):
                    raise TypeError("a bucket lacks its number or what was kept")
        except (TypeError, KeyError) as error:
            raise DataError(f"the state of the hook is damaged ({error}); valid is what hook.state_dict() returned") from error
        foreign = next((name for name in names if name not in self._parameters), None)
        if foreign is not None:
            raise UsageError(f"the saved state is of a model with a parameter {foreign}, which this one has not; valid is the "
                             f"state of the same model")
        return {"the iteration of the saved state": state["iteration"],
                "the checksum of the saved parameters' names": zlib.crc32("\n".join(names).encode())}

    def _restore(self, state: dict) -> dict:
        """Takes a state that was checked; returns nothing that ranks need to agree about."""
        for bucket in state["buckets"]:
            if bucket["kept"] is not None:
                unit = self._units[bucket["number"]]
                self._prepare(unit)
                unit.reducer.restore(bucket["kept"].cpu().numpy().tobytes())
        self.iteration = state["iteration"]
        self._sent_before = state["bytes_sent"] - sum(ranks.bytes_sent for ranks in self._ranks.values())
        return {}

    def __getstate__(self) -> dict:
        raise UsageError("a hook belongs to the process group of its training and cannot be saved itself; save "
                         "hook.state_dict()")

    # ---- averaging a bucket ----

    def _average(self, buffer: torch.Tensor, unit: "Unit", number: int, iteration: int, wrong: str = "") -> int:
        """buffer := its mean over the ranks; returns the bytes of this rank's payload.

        `wrong` says why this rank cannot take part; all ranks then end together.
        """
        values = buffer.to(torch.float32)
        small = buffer.numel() * buffer.element_size() < self._gate
        plain = small or iteration < self._start
        if self._always_agrees or not plain:
            plain = not self._finite_everywhere(values, wrong) or plain
        if plain:
            # gloo does not add bfloat16 everywhere. Small buckets cost what they cost without a hook, in their own type.
            added = buffer.dtype == torch.float16 or dist.get_backend(self._group) == "nccl"
            values = buffer if buffer.dtype == torch.float64 or (small and added) else values
            dist.all_reduce(values.div_(self._size), group=self._group)
        else:
            self._compress(values, unit, number, iteration)
        if values is not buffer:
            buffer.copy_(values)
        return 0 if plain else unit.reducer.payload_bytes

    def _compress(self, values: torch.Tensor, unit: "Unit", number: int, iteration: int) -> None:
        if unit.reducer is None:
            self._prepare(unit)
        scale = float(self._scaler.get_scale()) if self._scaler is not None and self._scaler.is_enabled() else 1.0
        if scale != 1.0:
            values.div_(scale)
        if unit.weights is not None:
            unit.read_weights()
        unit.to_order_of_indices(values)
        unit.reducer.reduce(values, unit.weights, None, seed=self._seed, step=iteration, tensor=number, iteration=iteration,
                            learning_rate_ratio=1.0, stream=stream_of(values.device))
        unit.to_order_in_memory(values)
        if scale != 1.0:
            values.mul_(scale)

    def _finite_everywhere(self, values: torch.Tensor, wrong: str) -> bool:
        """Whether no rank has an infinite value or NaN in the bucket. One of them would stay in residuals for ever.

        It reads the bucket once and copies nothing: the smallest and the largest value are NaN where any value is.
        """
        state = torch.stack(torch.aminmax(values)).isfinite().logical_not().any().float().reshape(1)
        if wrong:
            state.fill_(2.0)
        dist.all_reduce(state, dist.ReduceOp.MAX, group=self._group)
        worst = state.item()
        if worst == 2.0:
            raise UsageError(wrong or "another rank has a gradient that does not fit this one's, and says which")
        return worst == 0.0

    def _expect_device(self, device: torch.device) -> None:
        if device.type not in ("cpu", "cuda"):
            raise UnavailableError(f"the gradients are on {device}; valid are cpu and cuda")
        if device.type == "cuda" and not _core.has_cuda:
            raise UnavailableError("this build of gradtool has no CUDA, and the gradients are on a GPU; build the "
                                   "package where nvcc is")

    def _ranks_on(self, device: torch.device) -> Any:
        """The peers as the compiled reducers see them."""
        self._expect_device(device)
        if device not in self._ranks:
            self._ranks[device] = (_core.CudaRanks if device.type == "cuda" else _core.HostRanks)(
                self._rank, self._size, self._threads, self._peers.exchange, self._peers.all_reduce, self._all_reduce)
        return self._ranks[device]

    def _prepare(self, unit: "Unit") -> None:
        tensors = []
        for position, (parameter, shape) in enumerate(zip(unit.parameters, unit.shapes)):
            name, kind, layout, depth = self._names.get(id(parameter), (f"tensor{position}", *_kind_of(shape), 0.0))
            tensors.append((name, list(shape), kind, layout, depth))
        device = unit.parameters[0].device
        unit.reducer = self._reducer(device, tensors)
        if self._codec["needs_weight"]:
            unit.weights = torch.zeros(unit.elements, device=device)

    def _reducer(self, device: torch.device, tensors: list) -> Any:
        return reducer_of(self._ranks_on(device), device, self.spec, tensors, self._scheme, self._op)


class Unit:
    """A bucket, and what this rank keeps for it, from the first compressed iteration on."""

    def __init__(self, parameters: list, shapes: Optional[Sequence[tuple]] = None) -> None:
        self.parameters = parameters
        #: What the bucket has of each parameter: the whole of it, or a rank's part.
        self.shapes = [tuple(p.shape) or (1,) for p in parameters] if shapes is None else list(shapes)
        self.reducer: Any = None
        self.weights: Optional[torch.Tensor] = None
        # A bucket of DDP holds a dense tensor in the order in which it lies in memory. Where that is not the order of its
        # indices, as in channels_last, these are where it begins, its shape and its strides.
        self._strided = []
        self.elements = 0
        for parameter, shape in zip(parameters, self.shapes):
            if shapes is None and not parameter.is_contiguous() and is_dense(parameter):
                self._strided.append((self.elements, parameter.shape, parameter.stride()))
            self.elements += torch.Size(shape).numel()

    def holds(self, parameters: list) -> bool:
        return len(parameters) == len(self.parameters) and all(a is b for a, b in zip(parameters, self.parameters))

    def read_weights(self) -> None:
        """weights := the parameters as they are."""
        torch.cat([p.detach().reshape(-1).float() for p in self.parameters], out=self.weights)

    def to_order_of_indices(self, values: torch.Tensor) -> None:
        """Codecs see gradients as files and `bench` have them."""
        for begin, shape, stride in self._strided:
            piece = values[begin:begin + shape.numel()]
            piece.copy_(piece.as_strided(shape, stride).clone(memory_format=torch.contiguous_format).view(-1))

    def to_order_in_memory(self, values: torch.Tensor) -> None:
        for begin, shape, stride in self._strided:
            piece = values[begin:begin + shape.numel()]
            piece.as_strided(shape, stride).copy_(piece.clone().view(shape))


class Peers:
    """Operations between ranks from which reducers build their collectives. The arrays lent to them are valid for the call alone."""

    def __init__(self, group: Any, ranks: list) -> None:
        self._group, self.ranks = group, ranks

    def exchange(self, to: int, out: Any, from_: int, into: Any) -> None:
        """Sends `out` to rank `to` while receiving into `into` from rank `from_`; None is nothing."""
        operations = []
        if out is not None:
            operations.append(dist.P2POp(dist.isend, torch.as_tensor(out), self.ranks[to], self._group))
        if into is not None:
            operations.append(dist.P2POp(dist.irecv, torch.as_tensor(into), self.ranks[from_], self._group))
        for request in dist.batch_isend_irecv(operations) if operations else []:
            request.wait()

    def all_reduce(self, values: Any) -> None:
        """values := their sum over ranks, by the library's own all-reduce; float32, lent as bytes."""
        dist.all_reduce(torch.as_tensor(values).view(torch.float32), group=self._group)


def reducer_of(ranks: Any, device: torch.device, spec: str, tensors: list, scheme: str, op: str) -> Any:
    return (_core.CudaReducer if device.type == "cuda" else _core.HostReducer)(ranks, spec, tensors, scheme, stream_of(device), op)


def ranks_of(group: Any) -> list:
    """The ranks of a process group, as those of the whole job count them."""
    if group is None:
        return list(range(dist.get_world_size()))
    if not isinstance(group, dist.ProcessGroup):
        raise UsageError(f"group is {group!r}; valid is a process group of which this rank is a member")
    return dist.get_process_group_ranks(group)


def _own_group(group: Any) -> tuple[Any, list]:
    """A new process group of the same ranks, and these. Every rank of the job calls it, each with a group that it is in.

    All ranks make all the groups that any rank asks for, in one order, since groups that are made at once share their names.
    """
    mine: list = []
    refused = None
    try:
        mine = ranks_of(group.get_group() if hasattr(group, "get_group") else group)  # of a DeviceMesh of one dimension
    except UsageError as error:
        refused = error
    asked: list = [None] * dist.get_world_size()
    dist.all_gather_object(asked, (None if refused is None else str(refused), mine))
    if refused is not None:
        raise refused
    for rank, (sentence, _) in enumerate(asked):
        if sentence is not None:
            raise UsageError(f"rank {rank} refuses: {sentence}")
    made = {ranks: dist.new_group(list(ranks)) for ranks in sorted({tuple(ranks) for _, ranks in asked})}
    return made[tuple(mine)], mine


def _checked_codec(spec: Any) -> dict:
    if not isinstance(spec, str):
        raise UsageError(f"the codec is {spec!r}; valid is a text such as 'topk:ratio=0.01'")
    parsed = _core.parse_codec(spec)
    if parsed["needs_second_moment"]:
        raise UnavailableError(f"codec {parsed['name']} needs the second moments of micro-batches, which a "
                               f"communication hook does not have; replay it with gradtool.bench")
    return parsed


def stream_of(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
