"""A communication hook for DistributedDataParallel that averages gradients through gradtool's codecs."""

import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Optional

import torch
from torch import distributed as dist
from torch import nn

from . import _core
from ._codec import _kind_of, _whole
from ._ddp import take_over
from ._modules import describe_tensor, inner_module, is_dense, uncompiled
from ._errors import DataError, UnavailableError, UsageError


class DdpHook:
    """The hook that `ddp_hook` returns: register it with `hook.register(model)`, or `model.register_comm_hook(None, hook)`."""

    def __init__(self, spec: str, *, scheme: str = "auto", all_reduce: str = "auto", seed: int = 1, threads: Optional[int] = None,
                 group: Any = None, start_iteration: int = 0, scaler: Any = None, gate_bytes: int = 0) -> None:
        if not dist.is_initialized():
            raise UsageError("there is no process group; call torch.distributed.init_process_group first")
        # A group of its own keeps the codec's messages apart from those of the training, which run at the same time.
        ranks = _ranks_of(group)
        self._group = dist.new_group(ranks)
        self._rank, self._size = dist.get_rank(self._group), dist.get_world_size(self._group)
        self._peers = _Peers(self._group, ranks if ranks is not None else list(range(self._size)))
        _agree(self._group, lambda: self._take(spec, scheme, all_reduce, seed, threads, start_iteration, scaler, gate_bytes))
        # A reducer of a tensor that nobody has refuses what does not go together before a training begins.
        _core.HostReducer(_core.HostRanks(self._rank, self._size, 1, self._peers.exchange, self._peers.all_reduce, all_reduce),
                          self.spec, [("weight", [8, 8], "linear", "OI", 0.0)], scheme)
        self.__qualname__ = self.__name__ = "gradtool_" + self._codec["name"]  # DDP notes the name of its hook
        self._names: dict = {}
        self._parameters: dict = {}
        self._units: dict = {}
        self._loaded = False  # whether what is kept was
        self._regrouping = False  # until the first iteration after load_state_dict has ended
        self._waiting: list = []  # (future, buffer, parameters) of buckets whose averages are not there yet
        self._ranks: dict = {}
        self._executor = ThreadPoolExecutor(1, "gradtool hook")
        #: Training iterations that the hook has averaged.
        self.iteration = 0
        #: Bytes that this rank's encoders produced in the last iteration.
        self.payload_bytes = 0
        self._payload_so_far = 0
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
        self._gate = _whole("gate_bytes", gate_bytes)
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
        """Ends the hook's thread and its process group. On every rank, after the last backward pass with the model."""
        self._executor.shutdown()
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

    def register(self, model: nn.parallel.DistributedDataParallel) -> "DdpHook":
        """Registers the hook, and learns the tensors' kinds and names from the model, which a few codecs look at."""
        ddp = uncompiled(model)
        if not isinstance(ddp, nn.parallel.DistributedDataParallel):
            what = f"the class {model.__name__}" if isinstance(model, type) else f"of the type {type(model).__name__}"
            raise UsageError(f"the model is {what}; valid is what DistributedDataParallel returned")
        if self._names:
            raise UsageError("the hook is registered with a model already; make another one for this model")
        if _ranks_of(ddp.process_group) != self._peers.ranks:
            raise UsageError(f"the model averages over the ranks {_ranks_of(ddp.process_group)} and the hook over "
                             f"{self._peers.ranks}; give ddp_hook the model's process group as group=")
        modules = dict(inner_module(ddp).named_modules())
        parameters = [(name, p) for name, p in inner_module(ddp).named_parameters() if p.requires_grad]
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
        try:
            if not take_over(ddp, None, self):
                ddp.register_comm_hook(None, self)
        except RuntimeError as error:
            raise UsageError("the model has a communication hook already, and DistributedDataParallel takes one for ever; "
                             "wrap the module anew") from error
        self._names, self._parameters = names, dict(parameters)
        return self

    def state_dict(self) -> dict:
        """Returns the state that this rank keeps from iteration to iteration, for `torch.save`; every rank saves its own.

        Residuals, momenta and factors belong to a bucket, and are saved with the names of its parameters. Not for
        gradients on a GPU.
        """
        if not self._names:
            raise UsageError("the hook does not know the parameters' names; register it with hook.register(model)")
        return self._executor.submit(self._save).result()

    def _save(self) -> dict:
        buckets = []
        for number, unit in sorted(self._units.items()):
            kept = b"" if unit.reducer is None else unit.reducer.save()
            buckets.append({"number": number, "parameters": [self._names[id(p)][0] for p in unit.parameters],
                            "kept": torch.frombuffer(bytearray(kept), dtype=torch.uint8) if kept else None})
        return {"format": 1, "codec": self.spec, "scheme": self._scheme, "seed": self._seed, "ranks": self._size,
                "rank": self._rank, "iteration": self.iteration, "bytes_sent": self.bytes_sent, "buckets": buckets}

    def load_state_dict(self, state: dict) -> None:
        """Goes on where `state_dict` was called, with the same bits. Every rank calls it, with what it has saved itself.

        DDP begins with other buckets than those that it had when the state was saved: the first iteration afterwards
        waits for all of them and averages the saved ones instead.
        """
        if not self._names:
            raise UsageError("the hook does not know the parameters' names; register it with hook.register(model) first")
        _agree(self._group, lambda: self._checked_state(state))
        _agree(self._group, lambda: self._executor.submit(self._restore, state).result())

    def _checked_state(self, state: Any) -> dict:
        if not isinstance(state, dict) or state.get("format") != 1:
            raise DataError("the state is not one of a hook; valid is what hook.state_dict() returned")
        for what, ours in (("codec", self.spec), ("scheme", self._scheme), ("seed", self._seed), ("ranks", self._size),
                           ("rank", self._rank)):
            if state.get(what) != ours:
                raise UsageError(f"{what} is {state.get(what)} in the saved state and {ours} in this hook; valid is what this rank "
                                 f"saved, of a hook that was made with the same arguments")
        names = [name for bucket in state["buckets"] for name in bucket["parameters"]]
        foreign = next((name for name in names if name not in self._parameters), None)
        if foreign is not None:
            raise UsageError(f"the saved state is of a model with a parameter {foreign}, which this one has not; valid is the "
                             f"state of the same model")
        return {"the iteration of the saved state": state["iteration"],
                "the checksum of the saved parameters' names": zlib.crc32("\n".join(names).encode())}

    def _restore(self, state: dict) -> dict:
        units = {}
        for bucket in state["buckets"]:
            unit = units[bucket["number"]] = _Unit([self._parameters[name] for name in bucket["parameters"]])
            if bucket["kept"] is not None:
                self._prepare(unit)
                unit.reducer.restore(bucket["kept"].cpu().numpy().tobytes())
        self._units, self._loaded, self._regrouping, self.iteration = units, True, bool(units), state["iteration"]
        self._sent_before = state["bytes_sent"] - sum(ranks.bytes_sent for ranks in self._ranks.values())
        return {}

    def __getstate__(self) -> dict:
        raise UsageError("a hook belongs to the process group of its training and cannot be saved itself; save "
                         "hook.state_dict()")

    def __call__(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Averages a bucket on a thread of the hook's own, bucket after bucket, while the backward pass goes on."""
        future: torch.futures.Future = torch.futures.Future(
            devices=[bucket.buffer().device] if bucket.buffer().is_cuda else None)
        buffer, parameters = bucket.buffer(), bucket.parameters()
        number, last = bucket.index(), bucket.is_last()
        ready = torch.cuda.current_stream(buffer.device).record_event() if buffer.is_cuda else None
        self._executor.submit(self._work, future, buffer, parameters, number, last, ready)
        return future

    def _work(self, future: Any, buffer: torch.Tensor, parameters: list, number: int, last: bool, ready: Any) -> None:
        self._waiting.append((future, buffer, parameters))
        try:
            if ready is not None:
                torch.cuda.current_stream(buffer.device).wait_event(ready)
            if not self._regrouping:
                self._reduce(buffer, parameters, number)
            elif last:
                self._reduce_as_saved()
            if last:
                # Buckets of an earlier cut that had more of them.
                for stale in [] if self._regrouping else [n for n in self._units if n > number]:
                    del self._units[stale]
                self._regrouping = False
                self.iteration += 1
                self.payload_bytes, self._payload_so_far = self._payload_so_far, 0
            if not self._regrouping:
                for done, averaged, _ in self._waiting:
                    done.set_result(averaged)
                self._waiting.clear()
        except BaseException as error:  # pylint: disable=broad-except
            for failed, _, _ in self._waiting:
                failed.set_exception(error)
            self._waiting.clear()

    def _reduce_as_saved(self) -> None:
        """Averages all gradients of an iteration in the buckets that were loaded instead of those that DDP has cut."""
        pieces: dict = {}
        for _, buffer, parameters in self._waiting:
            pieces.update(zip(map(id, parameters), buffer.split([p.numel() for p in parameters])))
        if set(pieces) != {id(p) for unit in self._units.values() for p in unit.parameters}:
            raise UsageError("the state that was loaded is not of the parameters that the model trains; valid is the state "
                             "of the same model")
        for number, unit in sorted(self._units.items()):
            own = [pieces[id(p)] for p in unit.parameters]
            values = torch.cat(own)
            self._reduce(values, unit.parameters, number)
            for piece, averaged in zip(own, values.split([p.numel() for p in unit.parameters])):
                piece.copy_(averaged)

    def _reduce(self, buffer: torch.Tensor, parameters: list, number: int) -> None:
        if buffer.layout != torch.strided or buffer.is_complex():
            names = ", ".join(self._names[id(p)][0] if id(p) in self._names else str(tuple(p.shape)) for p in parameters)
            raise UsageError(f"the gradient of {names} is " + (
                f"of the type {buffer.dtype}; valid are real numbers" if buffer.layout == torch.strided else
                "sparse, which no codec takes; make its nn.Embedding with sparse=False"))
        # DDP cuts its buckets anew after the first iteration: what was kept for the old ones is dropped with them.
        unit = self._units.get(number)
        if unit is None or not unit.holds(parameters):
            if unit is not None and self._loaded:
                warnings.warn(f"DistributedDataParallel cuts bucket {number} otherwise than when the state was saved, and what was "
                              f"kept for it is dropped; give it the same bucket_cap_mb, and save after two iterations or more")
            unit = self._units[number] = _Unit(parameters)
        values = buffer.to(torch.float32)
        small = buffer.numel() * buffer.element_size() < self._gate
        if small or self.iteration < self._start or not self._finite_everywhere(values):
            # gloo does not add bfloat16 everywhere. Small buckets cost what they cost without a hook, in their own type.
            added = buffer.dtype == torch.float16 or dist.get_backend(self._group) == "nccl"
            values = buffer if buffer.dtype == torch.float64 or (small and added) else values
            dist.all_reduce(values.div_(self._size), group=self._group)
        else:
            self._compress(values, unit, number)
        if values is not buffer:
            buffer.copy_(values)

    def _compress(self, values: torch.Tensor, unit: "_Unit", number: int) -> None:
        if unit.reducer is None:
            self._prepare(unit)
        scale = float(self._scaler.get_scale()) if self._scaler is not None and self._scaler.is_enabled() else 1.0
        if scale != 1.0:
            values.div_(scale)
        if unit.weights is not None:
            torch.cat([p.detach().reshape(-1).float() for p in unit.parameters], out=unit.weights)
        unit.to_order_of_indices(values)
        unit.reducer.reduce(values, unit.weights, None, seed=self._seed, step=self.iteration, tensor=number,
                            iteration=self.iteration, learning_rate_ratio=1.0, stream=_stream(values.device))
        unit.to_order_in_memory(values)
        self._payload_so_far += unit.reducer.payload_bytes
        if scale != 1.0:
            values.mul_(scale)

    def _finite_everywhere(self, values: torch.Tensor) -> bool:
        """Whether no rank has an infinite value or NaN in the bucket. One of them would stay in residuals for ever.

        It reads the bucket once and copies nothing: the smallest and the largest value are NaN where any value is.
        """
        overflow = torch.stack(torch.aminmax(values)).isfinite().logical_not().any().float().reshape(1)
        dist.all_reduce(overflow, dist.ReduceOp.MAX, group=self._group)
        return not overflow.item()

    def _expect_device(self, device: torch.device) -> None:
        if device.type not in ("cpu", "cuda"):
            raise UnavailableError(f"the gradients are on {device}; valid are cpu and cuda")
        if device.type == "cuda" and not _core.has_cuda:
            raise UnavailableError("this build of gradtool has no CUDA, and the gradients are on a GPU; build the "
                                   "package where nvcc is")

    def _prepare(self, unit: "_Unit") -> None:
        tensors = []
        for position, parameter in enumerate(unit.parameters):
            shape = tuple(parameter.shape) or (1,)
            name, kind, layout, depth = self._names.get(id(parameter), (f"tensor{position}", *_kind_of(shape), 0.0))
            tensors.append((name, list(shape), kind, layout, depth))
        device = unit.parameters[0].device
        self._expect_device(device)
        on_gpu = device.type == "cuda"
        if device not in self._ranks:
            self._ranks[device] = (_core.CudaRanks if on_gpu else _core.HostRanks)(
                self._rank, self._size, self._threads, self._peers.exchange, self._peers.all_reduce, self._all_reduce)
        unit.reducer = (_core.CudaReducer if on_gpu else _core.HostReducer)(
            self._ranks[device], self.spec, tensors, self._scheme, _stream(device))
        if self._codec["needs_weight"]:
            unit.weights = torch.empty(sum(p.numel() for p in unit.parameters), device=device)


class _Unit:
    """A bucket of DDP, and what this rank keeps for it, from the first compressed iteration on."""

    def __init__(self, parameters: list) -> None:
        self.parameters = parameters
        self.reducer: Any = None
        self.weights: Optional[torch.Tensor] = None
        # A bucket holds a dense tensor in the order in which it lies in memory. Where that is not the order of its
        # indices, as in channels_last, these are where it begins, its shape and its strides.
        self._strided = []
        begin = 0
        for p in parameters:
            if not p.is_contiguous() and is_dense(p):
                self._strided.append((begin, p.shape, p.stride()))
            begin += p.numel()

    def holds(self, parameters: list) -> bool:
        return len(parameters) == len(self.parameters) and all(a is b for a, b in zip(parameters, self.parameters))

    def to_order_of_indices(self, values: torch.Tensor) -> None:
        """Codecs see gradients as files and `bench` have them."""
        for begin, shape, stride in self._strided:
            piece = values[begin:begin + shape.numel()]
            piece.copy_(piece.as_strided(shape, stride).clone(memory_format=torch.contiguous_format).view(-1))

    def to_order_in_memory(self, values: torch.Tensor) -> None:
        for begin, shape, stride in self._strided:
            piece = values[begin:begin + shape.numel()]
            piece.as_strided(shape, stride).copy_(piece.clone().view(shape))


class _Peers:
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


def ddp_hook(spec: str, **options: Any) -> DdpHook:
    """A communication hook that averages DDP's buckets through a codec: what `gradtool bench` replays, in a training.

        model = DistributedDataParallel(model)
        hook = gradtool.ddp_hook("powersgd:rank=4").register(model)

    Parameters
    ----------
    spec:
        A codec as on the command line. Every codec works but those that need second moments.
    scheme:
        "auto", "sum", "gather", "hop" or "alltoall": as bench's --reduce.
    all_reduce:
        How payloads that add are added: "ring"; "doubling", ceil(log2 p) messages of p ranks instead of 2(p-1); or "auto",
        doubling up to 64 KiB and the ring above, as bench's --all-reduce.
    seed:
        Of all random draws.
    threads:
        Threads of this rank's encoding and decoding; torch's number when left out.
    start_iteration:
        Iterations before this one are averaged uncompressed.
    group:
        The process group of DDP, if it is not the default one.
    scaler:
        The GradScaler of mixed precision, without which gradients and so residuals are in scaled units: after the scale
        has changed, old residuals would count too much or too little by that factor until they have been sent.
    gate_bytes:
        Buckets of fewer bytes are averaged uncompressed: bench's `gate_bytes`, below which compressing them takes longer.

    It works with gloo and with NCCL. Averages are float32; a bucket of another type is converted there and back. Sparse
    and complex gradients are refused.
    Residuals and factors belong to a bucket, and begin anew when DDP cuts its buckets anew after the first iteration.
    A hook does not see the learning rate: to codecs with schedules it looks constant. `hook.state_dict()` saves what is kept.

    A bucket in which any rank has an infinite value or NaN, as a GradScaler provokes them, is averaged uncompressed by
    all ranks and leaves residuals and factors as they are; the scaler then skips the step. The ranks agree on this by an
    all-reduce of one float for each bucket.

    Every rank makes its hook at the same point of the program and with the same arguments, because that makes a process
    group; with `group`, so do the ranks that are not in it, with a group of theirs.
    """
    return DdpHook(spec, **options)


def _ranks_of(group: Any) -> Optional[list]:
    """The ranks of a process group, as those of the whole job count them; None where it is the whole job's."""
    if group is None:
        return None
    if not isinstance(group, dist.ProcessGroup):
        raise UsageError(f"group is {group!r}; valid is a process group of which this rank is a member")
    return dist.get_process_group_ranks(group)


def _checked_codec(spec: Any) -> dict:
    if not isinstance(spec, str):
        raise UsageError(f"the codec is {spec!r}; valid is a text such as 'topk:ratio=0.01'")
    parsed = _core.parse_codec(spec)
    if parsed["needs_second_moment"]:
        raise UnavailableError(f"codec {parsed['name']} needs the second moments of micro-batches, which a "
                               f"communication hook does not have; replay it with gradtool.bench")
    return parsed


def _agree(group: Any, act: Callable[[], dict]) -> None:
    """Calls `act` on every rank; ends with the same sentence on all where one fails, or where what they return differs.

    A rank that failed alone would leave the others waiting for its messages, and those of two codecs do not fit together.
    """
    failed, returned = None, {}
    try:
        returned = act()
    except Exception as error:  # pylint: disable=broad-except
        failed = error
    answers: list = [None] * dist.get_world_size(group)
    dist.all_gather_object(answers, (None if failed is None else str(failed), returned), group=group)
    if failed is not None:
        raise failed
    for rank, (sentence, _) in enumerate(answers):
        if sentence is not None:
            raise UsageError(f"rank {rank} refuses: {sentence}")
    for rank, (_, theirs) in enumerate(answers):
        for what, first in answers[0][1].items():
            if theirs[what] != first:
                raise UsageError(f"{what} is {first} on rank 0 and {theirs[what]} on rank {rank}; every rank needs the same")


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
